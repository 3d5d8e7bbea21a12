// What can be done with one execution, each with its consequence before it is done.
import { html } from "../dom.js";
import { at, post, put } from "../api.js";
import { may } from "../session.js";
import { plural } from "../format.js";
import { confirm } from "../dialogs.js";
import { ended, Menu } from "../parts.js";
import { toast } from "../toasts.js";
import { Icon } from "../icons.js";

export function Actions({ id, info, history, steps, refresh }) {
  if (!may("operator")) return null;
  const over = ended(info.public_state);
  const done = (text) => {
    toast(text);
    refresh();
  };
  const cancel = () =>
    confirm({
      title: "Cancel this execution?",
      danger: true,
      label: "Cancel it",
      consequence:
        info.public_state === "active"
          ? "Its worker is told and loses the lease at once; what it does afterwards does not count."
          : "It ends where it is. What waits for it is skipped or goes on, as its edges say.",
      fields: [{ name: "reason", label: "Reason", placeholder: "for the record" }],
      act: async ({ reason }) => {
        await post(at(id, "cancel"), { reason });
        done("Cancelled.");
      },
    });
  const replay = () =>
    confirm({
      title: "Replay this execution?",
      label: "Replay it",
      consequence:
        "It runs again from its beginning, under the same id and with the same input. What it gave before is forgotten.",
      act: async () => {
        await post(at(id, "replay"));
        done("It runs again.");
      },
    });
  const fork = () =>
    confirm({
      title: "Fork this execution?",
      label: "Fork it",
      consequence:
        "A new execution begins with what this one remembers from before the step, and goes on from there. This one stays as it is.",
      fields: [
        {
          name: "step",
          label: "From step",
          value: steps[0]?.name ?? "",
          options: [...steps.map((step) => [step.name, `${step.sequence}. ${step.name}`]), ["", "Behind the last one"]],
        },
      ],
      act: async ({ step }) => {
        const made = await post(at(id, "fork"), step ? { at: step } : {});
        toast(`Forked with ${plural(made.steps, "step")} remembered.`);
        location.hash = `#/executions/${encodeURIComponent(made.execution_id)}`;
      },
    });
  const priority = () =>
    confirm({
      title: "Change its priority?",
      label: "Change it",
      consequence: "Higher goes first among those that wait in its lane. It does not stop anything that runs.",
      fields: [{ name: "priority", label: "Priority", type: "number", required: true, value: String(info.priority) }],
      act: async ({ priority: value }) => {
        await put(at(id, "priority"), { new_priority: Number(value) });
        done("The priority is changed.");
      },
    });
  const revoke = () =>
    confirm({
      title: "Revoke its lease?",
      danger: true,
      label: "Revoke it",
      consequence:
        "Its worker may write nothing more for it, and another worker takes it over. Use this when a worker hangs.",
      act: async () => {
        await post(at(id, "revoke-lease"));
        done("The lease is revoked.");
      },
    });
  const holds = history.attempts.some((attempt) => attempt.lease_expires_at);
  return html`
    ${
      !over &&
      html`
        <button type="button" class="button danger" onClick=${cancel}>
          <${Icon} name="stop" />
          Cancel…
        </button>
      `
    }
    ${
      over &&
      html`
        <button
          type="button"
          class="button"
          onClick=${replay}
          disabled=${info.public_state === "cancelled"}
          title=${info.public_state === "cancelled" ? "What was cancelled stays so; start it anew, or fork it from a step." : ""}
        >
          <${Icon} name="replay" />
          Replay…
        </button>
      `
    }
    <${Menu}
      label="More"
      items=${[
        { label: "Fork from a step…", icon: "fork", act: fork, disabled: steps.length ? "" : "It remembers no steps." },
        {
          label: "Change priority…",
          icon: "priority",
          act: priority,
          disabled: ["waiting", "delayed", "rate_limited"].includes(info.public_state)
            ? ""
            : "Only what waits has a place in its lane.",
        },
        {
          label: "Revoke lease…",
          icon: "revoke",
          danger: true,
          act: revoke,
          disabled: holds ? "" : "Nobody holds it.",
        },
      ]}
    />
  `;
}
