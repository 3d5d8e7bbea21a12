// Line icons, drawn here so that nothing is fetched.
import { html } from "./dom.js";

const PATHS = {
  overview: "M3 13h4l3 6 4-14 3 8h4",
  executions: "M4 6h16M4 12h16M4 18h10",
  flows: "M6 4v6m0 0a3 3 0 1 0 0 6 3 3 0 0 0 0-6Zm12-6a3 3 0 1 0 0 6 3 3 0 0 0 0-6Zm0 6c0 5-4 5-9 6",
  approvals: "M4 5h16v11H9l-5 4V5Zm4.5 5.5 2.2 2.2 4.8-4.6",
  budgets:
    "M12 3v18M16.5 7.5C15.5 6 14 5.5 12 5.5c-2.5 0-4.2 1.2-4.2 3.2 0 4.6 8.8 2.2 8.8 6.8 0 2-1.9 3.2-4.6 3.2-2.2 0-3.9-.7-4.8-2.4",
  schedules: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18Zm0-14v5l3.5 2",
  workers: "M5 5h14v6H5V5Zm0 8h14v6H5v-6Zm3-5h.01M8 16h.01",
  kinds: "M5 20V10m5 10V4m5 16v-8m5 8V7",
  audit: "M6 3h9l4 4v14H6V3Zm8 0v5h5M9 13h6M9 17h6",
  settings:
    "M12 15.2a3.2 3.2 0 1 0 0-6.4 3.2 3.2 0 0 0 0 6.4Zm7.5-3.2 2-1.4-2-3.4-2.3.8a7 7 0 0 0-1.8-1L15 4.5h-4l-.5 2.5a7 7 0 0 0-1.8 1l-2.3-.8-2 3.4 2 1.4a7 7 0 0 0 0 2l-2 1.4 2 3.4 2.3-.8a7 7 0 0 0 1.8 1l.5 2.5h4l.5-2.5a7 7 0 0 0 1.8-1l2.3.8 2-3.4-2-1.4a7 7 0 0 0 0-2Z",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14Zm5-2 4.5 4.5",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8Zm0-13v2m0 14v2M3 12h2m14 0h2M5.6 5.6 7 7m10 10 1.4 1.4M5.6 18.4 7 17M17 7l1.4-1.4",
  moon: "M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5Z",
  help: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18Zm-2.5-11.5A2.5 2.5 0 1 1 12 12v1.5m0 3h.01",
  out: "M14 4h5v16h-5M10 8l-4 4 4 4m-4-4h10",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  stop: "M6 6h12v12H6z",
  replay: "M4 12a8 8 0 1 1 2.5 5.8M4 12V7m0 5h5",
  fork: "M7 4v5a4 4 0 0 0 4 4h2a4 4 0 0 1 4 4v3M7 20v-7m7-6 3-3 3 3",
  priority: "M12 20V5m-6 6 6-6 6 6",
  revoke: "M9 12h6M7 8H6a4 4 0 0 0 0 8h1m10-8h1a4 4 0 0 1 0 8h-1",
  download: "M12 4v11m-5-5 5 5 5-5M5 20h14",
  copy: "M9 9h11v11H9V9Zm-4 6V4h11",
  check: "m5 13 4.5 4.5L19 7",
  pause: "M8 5v14M16 5v14",
  play: "M7 4.5v15l12-7.5-12-7.5Z",
  drain: "M4 5h16l-6 8v6l-4 1v-7L4 5Z",
  warn: "M12 4 2.5 20h19L12 4Zm0 6v5m0 2.5h.01",
  clock: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18Zm0-14v5l3.5 2",
  link: "M10 14a4 4 0 0 0 6 .5l3-3a4 4 0 0 0-6-6l-1 1m2 3.5a4 4 0 0 0-6-.5l-3 3a4 4 0 0 0 6 6l1-1",
  plus: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6 6 18",
  inbox: "M4 13 6.5 5h11L20 13v6H4v-6Zm0 0h5l1.2 2.5h3.6L15 13h5",
  fit: "M4 9V4h5m6 0h5v5m0 6v5h-5m-6 0H4v-5",
  minus: "M5 12h14",
};

export const Icon = ({ name }) => html`
  <svg
    viewBox="0 0 24 24"
    fill="none"
    stroke="currentColor"
    stroke-width="1.7"
    stroke-linecap="round"
    stroke-linejoin="round"
    aria-hidden="true"
  >
    <path d=${PATHS[name]} />
  </svg>
`;

export const Mark = () => html`
  <svg viewBox="0 0 32 32" aria-hidden="true">
    <rect width="32" height="32" rx="8" fill="#3b5bdb" />
    <path
      d="M8 10h7a4 4 0 0 1 4 4v4a4 4 0 0 0 4 4h1"
      fill="none"
      stroke="#fff"
      stroke-width="2.6"
      stroke-linecap="round"
    />
    <path
      d="M8 22h3a4 4 0 0 0 4-4M19 14a4 4 0 0 1 4-4h1"
      fill="none"
      stroke="#aebcff"
      stroke-width="2.6"
      stroke-linecap="round"
    />
  </svg>
`;
