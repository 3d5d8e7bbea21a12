// What narrows a page stands in its address, and nowhere else: back, forward and links find it there.
import { useEffect, useValue } from "./dom.js";
import { choose, namespace } from "./session.js";

/** The address of a page with what narrows it; what is empty is left out. */
export function narrowed(page, query) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) found.set(name, value);
  return `#/${page}${found.size ? `?${found}` : ""}`;
}

/** The address becomes this one, without an entry in the history for every letter that is typed. */
export function rewrite(hash) {
  history.replaceState(null, "", hash);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** An address, or the one of now, with other words in its query: what is empty is left out, what is not named stays. */
export function changed(words, [path, text] = (location.hash || "#/overview").split("?")) {
  const query = new URLSearchParams(text);
  for (const [name, value] of Object.entries(words)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  return `${path}${query.size ? `?${query}` : ""}`;
}

/** The namespace that a page is narrowed to. That of the side bar and of the address are the same: whichever changed last. */
export function useNamespace(page, query) {
  const own = useValue(namespace);
  const given = query.get("ns");
  useEffect(() => {
    if (given !== null && given !== namespace.peek()) choose(given);
  }, [given]);
  useEffect(() => {
    // The page may have been left by now.
    const isHere = (location.hash.split("?")[0].slice(2) || "overview") === page;
    if (isHere && (given || "") !== namespace.peek()) rewrite(changed({ ns: namespace.peek() }));
  }, [own, given]);
  return own;
}
