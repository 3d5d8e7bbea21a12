// Who is signed in, and what they may do. The token lives in this tab only, and leaves it only in a header.
import { signal } from "./dom.js";

const KEY = "ff.token";
/** What /v1/me said; null until it was asked. */
export const me = signal(null);
/** The namespace everything is narrowed to; "" means all that can be seen. */
export const namespace = signal(sessionStorage.getItem("ff.namespace") || "");
/** How far the server's clock is ahead of this one. */
let skew = 0;

export const token = () => sessionStorage.getItem(KEY);
export const keepToken = (text) => sessionStorage.setItem(KEY, text);
export function signOut() {
  sessionStorage.removeItem(KEY);
  me.value = { signed_in: false };
}
export function choose(name) {
  sessionStorage.setItem("ff.namespace", name);
  namespace.value = name;
}
/** Whether the server lets this credential call an operation. */
export const may = (operation) => Boolean(me.peek()?.operations?.includes(operation));
/** Whether the credential is for all namespaces. */
export const everywhere = () => me.peek()?.namespaces === null;
export const setNow = (now) => {
  skew = now - Date.now();
};
export const now = () => Date.now() + skew;
