// Light or dark, before anything is drawn: as chosen here, or as the system has it.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const chosen = localStorage.getItem("ff.theme");
    const dark = chosen ? chosen === "dark" : system.matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    dispatchEvent(new Event("ff-theme"));
  };
  system.addEventListener("change", apply);
  addEventListener("storage", apply);
  globalThis.ffTheme = (theme) => {
    localStorage.setItem("ff.theme", theme);
    apply();
  };
  apply();
})();
