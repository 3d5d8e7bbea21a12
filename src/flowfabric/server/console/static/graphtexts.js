// What is written in the picture of a flow.
const POLICIES = { any_of: "any", quorum: "of", all_of: "all" };

/** A text as far as it fits a width. */
export function clipped(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && pen.measureText(`${text.slice(0, end)}…`).width > width) end -= Math.max(1, Math.floor(end / 8));
  return `${text.slice(0, end)}…`;
}

/** What a group of edges asks for, where they arrive: "any of 3", "2/3 of 5". */
export function groupText(group) {
  const { kind, k } = group.policy;
  const need = kind === "quorum" ? k : kind === "any_of" ? 1 : group.total_deps;
  return kind === "any_of"
    ? `any of ${group.total_deps}: ${group.satisfied_count}/1`
    : kind === "quorum"
      ? `${need} ${POLICIES[kind]} ${group.total_deps}: ${group.satisfied_count}/${need}`
      : `${group.satisfied_count} of ${group.total_deps}`;
}

/** What a group of edges asks for, drawn above the member. */
export function badge(pen, node, colour) {
  const text = groupText(node.group);
  pen.font = `600 10.5px ${colour.sans}`;
  const width = pen.measureText(text).width + 14;
  const done = node.group.group_state === "satisfied";
  const bad = node.group.group_state === "impossible";
  const [strong] = colour[done ? "completed" : bad ? "failed" : "limited"];
  pen.fillStyle = colour.surface;
  pen.strokeStyle = strong;
  pen.lineWidth = 1.2;
  pen.beginPath();
  pen.roundRect(node.x - 4, node.y - 15, width, 18, 9);
  pen.fill();
  pen.stroke();
  pen.fillStyle = strong;
  pen.textBaseline = "middle";
  pen.fillText(text, node.x + 3, node.y - 5.5);
  pen.textBaseline = "alphabetic";
}
