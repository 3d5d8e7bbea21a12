// What can be done with one execution, each with its consequence before it is done.
import { html } from "../dom.js";
import { at, get } from "../api.js";
import { may } from "../session.js";
import { plural } from "../format.js";
import { confirm as ask, whileHere } from "../dialogs.js";
import { ended, Menu } from "../parts.js";
import { toast } from "../toasts.js";
import { Icon } from "../icons.js";
import { kindName, stepName } from "./names.js";
import { maySignal, sendSignal, startAgain } from "./starting.js";

const REASON = { name: "reason", label: "Reason", placeholder: "stored with the change" };

const stepLabel = (step) => `${stepName(step.name)}${step.outcome === "ok" ? "" : " (failed)"}`;

/** What can be done with one execution; every dialog says what the engine says would happen to it. */
export function actionsOf({ id, info, steps, refresh }) {
  const done = (text) => {
    toast(text);
    refresh();
  };
  const confirm = (given) => ask({ about: `${kindName(info.execution_kind)} ${id}`, ...given });
  const foresee = (act) => async () => (await get(at(id, "preview")))[act];
  const forkAt = (wanted) => {
    const options = steps.filter((step) => !step.name.startsWith("!"));
    confirm({
      title: "Fork this execution?",
      label: "Fork",
      foresee: foresee("fork"),
      consequence: ({ step }) => {
        const before = step ? options.findIndex((each) => each.name === step) : options.length;
        return `It keeps ${plural(before, "step")}.`;
      },
      fields: [
        {
          name: "step",
          label: "From step",
          value: wanted ?? "",
          options: [
            ...options.map((step) => [step.name, `${step.place}. ${stepLabel(step)}`]),
            ["", "After the last step"],
          ],
        },
      ],
      act: async ({ step }, own) => {
        const made = await own.post(at(id, "fork"), step ? { at: step } : {});
        toast(`Forked with ${plural(made.steps, "recorded step")}.`);
        own.go(`#/executions/${encodeURIComponent(made.execution_id)}`);
      },
    });
  };
  return {
    cancel: () =>
      confirm({
        title: "Cancel this execution?",
        danger: true,
        label: "Cancel",
        foresee: foresee("cancel"),
        fields: [REASON],
        act: async ({ reason }, own) => {
          const answer = await own.post(at(id, "request-cancel"), { reason });
          done(answer.Cancelling ? "Cancelling: it cleans up first." : "Cancelled.");
        },
      }),
    terminate: () =>
      confirm({
        title: "Terminate this execution?",
        danger: true,
        label: "Terminate",
        foresee: foresee("terminate"),
        fields: [REASON],
        act: async ({ reason }, own) => {
          await own.post(at(id, "cancel"), { reason });
          done("Terminated.");
        },
      }),
    replay: () =>
      confirm({
        title: "Replay this execution?",
        label: "Replay",
        foresee: foresee("replay"),
        act: async (_, own) => {
          await own.post(at(id, "replay"));
          done("Replayed.");
        },
      }),
    /** From the step that failed, or from the first. */
    fork: async () => {
      const here = whileHere();
      let failed = null;
      try {
        failed = (await get(at(id, "preview"))).fork_at;
      } catch {
        /* the dialog asks again, and says what is wrong */
      }
      if (here()) forkAt(failed ?? steps[0]?.name);
    },
    forkFrom: (step) => forkAt(step),
    priority: () =>
      confirm({
        title: "Change the priority?",
        label: "Change",
        foresee: foresee("change_priority"),
        fields: [
          { name: "priority", label: "Priority", type: "number", required: true, value: String(info.priority) },
        ],
        act: async ({ priority: value }, own) => {
          await own.put(at(id, "priority"), { new_priority: Number(value) });
          done("Priority changed.");
        },
      }),
    revoke: () =>
      confirm({
        title: "Revoke the lease?",
        danger: true,
        label: "Revoke",
        foresee: foresee("revoke_lease"),
        consequence: "Use this when a worker hangs.",
        act: async (_, own) => {
          await own.post(at(id, "revoke-lease"));
          done("Lease revoked.");
        },
      }),
  };
}

export function Actions({ id, info, history, steps, refresh }) {
  const over = ended(info.public_state);
  const { cancel, terminate, replay, fork, priority, revoke } = actionsOf({ id, info, steps, refresh });
  const holds = history.attempts.some((attempt) => attempt.lease_expires_at);
  return html`
    ${
      !over &&
      may("request_cancel") &&
      html`
        <button type="button" class="button danger" onClick=${cancel}>
          <${Icon} name="stop" />
          Cancel…
        </button>
      `
    }
    ${
      over &&
      may("replay_execution") &&
      html`
        <button
          type="button"
          class="button"
          onClick=${replay}
          disabled=${info.public_state === "cancelled"}
          title=${info.public_state === "cancelled" ? "A cancelled execution cannot be replayed; start a new one, or fork it from a step." : ""}
        >
          <${Icon} name="replay" />
          Replay…
        </button>
      `
    }
    <${Menu}
      label="More"
      items=${[
        may("fork_execution") && {
          label: "Fork from a step…",
          icon: "fork",
          act: fork,
          disabled: steps.length ? "" : "No recorded steps.",
        },
        may("fork_execution") &&
          !info.execution_kind.startsWith("$") && {
            label: "Start again with edited input…",
            icon: "play",
            act: () => startAgain({ id, info, steps }),
          },
        !over &&
          maySignal() && {
            label: "Send a signal…",
            icon: "link",
            act: () => sendSignal({ id, refresh }),
            disabled: info.public_state === "suspended" ? "" : "It is not waiting for a signal.",
          },
        may("change_priority") && {
          label: "Change priority…",
          icon: "priority",
          act: priority,
          disabled: ["waiting", "delayed", "rate_limited"].includes(info.public_state)
            ? ""
            : "Only a waiting execution can change its priority.",
        },
        !over &&
          may("cancel_execution") && {
            label: "Terminate…",
            icon: "stop",
            danger: true,
            act: terminate,
          },
        may("revoke_lease") && {
          label: "Revoke lease…",
          icon: "revoke",
          danger: true,
          act: revoke,
          disabled: holds ? "" : "No worker holds a lease.",
        },
      ]}
    />
  `;
}
