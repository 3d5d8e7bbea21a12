// What narrows a page stands in its address, and nowhere else: back, forward and links find it there.

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
