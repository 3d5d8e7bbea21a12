// Starting something new: an execution, one like another with an edited input, and signals to one that waits.
import { at, get } from "../api.js";
import { me, may } from "../session.js";
import { decoded, fromBase64, shortId, toBase64 } from "../format.js";
import { confirm, whileHere } from "../dialogs.js";
import { executionHref } from "../parts.js";
import { toast } from "../toasts.js";

/** What was typed as JSON, byte by byte as it was typed: numbers keep all their digits. Nothing for an empty text. */
export function bytesOf(text, called) {
  if (!text.trim()) return null;
  try {
    JSON.parse(text);
  } catch {
    throw new Error(`${called} is not JSON. Strings need quotes: "like this".`);
  }
  return toBase64(new TextEncoder().encode(text));
}

/** JSON in lines, unless that would change what it says. */
function readable(text) {
  const value = JSON.parse(text);
  return JSON.stringify(value) === text ? JSON.stringify(value, null, 2) : text;
}

/** The dialogs that start executions, read when they are first needed. */
const dialogs = () => import("./startdialog.js");

/** Start an execution: of any kind, or of the one that is given. */
export function startNew(given) {
  const here = whileHere();
  return dialogs().then(
    (found) => here() && found.openStart(given),
    () => toast("The form could not be loaded. Try again.", "bad"),
  );
}

/** What workers have announced of an execution's kind; null if nothing can be told. */
async function definitionOf(info) {
  if (!may("list_kind_definitions") || !may("read_kind_definition")) return null;
  try {
    return await (await dialogs()).announced(info.execution_kind, info.namespace);
  } catch {
    return null;
  }
}

/** Start again what an execution was started for, with an input that can be edited. */
export async function startAgain({ id, info, steps }) {
  const here = whileHere();
  let given;
  let raw;
  try {
    const bytes = fromBase64((await get(at(id, "input"))).payload);
    given = decoded(bytes);
    raw = new TextDecoder().decode(bytes);
  } catch (problem) {
    toast(problem.message, "bad");
    return;
  }
  if (given.kind === "binary" || given.kind === "text") {
    toast("The input is not JSON, so it cannot be edited here.", "warn");
    return;
  }
  const known = given.kind === "json" ? await definitionOf(info) : null;
  const again = known && (await dialogs()).openAgain;
  if (!here()) return;
  if (again) {
    again({ id, kind: info.execution_kind, steps, text: readable(raw), definition: known });
    return;
  }
  confirm({
    title: "Start again with this input?",
    label: "Start",
    consequence: `A new execution of ${info.execution_kind} starts from the beginning, with the same lane, policy and tags. This execution does not change.`,
    fields: [{ name: "input", label: "Input", long: true, value: raw && readable(raw) }],
    act: async ({ input }, own) => {
      // Before the first step there is nothing to keep.
      const made = await own.post(at(id, "fork"), {
        ...(steps.length ? { at: steps[0].name } : {}),
        input_payload: bytesOf(input, "The input") ?? "",
      });
      toast("Started.");
      own.go(executionHref(made.execution_id));
    },
  });
}

/** Whether signals can be sent from here: the token of a waitpoint is read first. */
export const maySignal = () => may("deliver_signal") && may("read_waitpoint_token");

/** Send a signal to one of the waitpoints that an execution waits at. */
export async function sendSignal({ id, refresh }) {
  const here = whileHere();
  let waiting;
  try {
    waiting = await get(at(id, "pending-waitpoints"));
  } catch (problem) {
    toast(problem.message, "bad");
    return;
  }
  if (!waiting.length) {
    toast("It is not waiting for a signal.", "warn");
    return;
  }
  if (!here()) return;
  const names = [...new Set(waiting.flatMap((each) => each.required_signal_names))];
  confirm({
    title: "Send a signal?",
    label: "Send",
    consequence: names.length
      ? `Waiting for ${names.length === 1 ? "signal" : "signals"} ${names.map((name) => `'${name}'`).join(", ")}. The signal is recorded under your name.`
      : "Any signal is accepted. The signal is recorded under your name.",
    fields: [
      {
        name: "waitpoint",
        label: "Waitpoint",
        value: waiting[0].waitpoint_id,
        options: waiting.map((each) => [each.waitpoint_id, each.waitpoint_key || shortId(each.waitpoint_id)]),
      },
      { name: "signal", label: "Signal", required: true, value: names[0] ?? "" },
      { name: "payload", label: "Payload", long: true, hint: "JSON; leave it empty for none" },
    ],
    act: async ({ waitpoint, signal, payload }, own) => {
      const data = bytesOf(payload, "The payload");
      const { token } = await get(at(id, "waitpoints", encodeURIComponent(waitpoint), "token"));
      await own.post(at(id, "signal"), {
        waitpoint_id: waitpoint,
        waitpoint_token: token,
        signal_name: signal,
        signal_category: "console",
        source_type: "operator",
        source_identity: me.peek()?.name || "console",
        target_scope: "waitpoint",
        ...(data === null ? {} : { payload: data, payload_encoding: "json" }),
      });
      toast(`Signal '${signal}' sent.`);
      refresh();
    },
  });
}
