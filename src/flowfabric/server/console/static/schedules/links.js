// Where schedules are: an id means something only together with its namespace.
import { listHref } from "../searchlinks.js";

export const schedulePage = (id, namespace) =>
  `#/schedules/${encodeURIComponent(id)}?namespace=${encodeURIComponent(namespace)}`;
export const schedulePath = (id, namespace, verb) =>
  `v1/schedules/${encodeURIComponent(id)}${verb ? `/${verb}` : ""}?namespace=${encodeURIComponent(namespace)}`;
/** The list of what a schedule has started. */
export const runsHref = (id, namespace) =>
  listHref({ tag: `flowfabric.schedule=${id}`, ns: namespace });
