// Where the members of a flow stand, worked out beside the page: dagre for graphs it can do well, layers for large ones.
import { graphlib, layout } from "./vendor/dagre.js";

const WIDTH = 168;
const HEIGHT = 44;
const BETWEEN = 22;
const RANKS = 64;
/** Beyond this many members dagre takes seconds; plain layers take milliseconds and look alike. */
const CAREFUL = 400;

function careful(nodes, edges) {
  const graph = new graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: BETWEEN, ranksep: RANKS, marginx: 20, marginy: 20 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const id of nodes) graph.setNode(id, { width: WIDTH, height: HEIGHT });
  for (const [from, to] of edges) graph.setEdge(from, to);
  layout(graph);
  return nodes.map((id) => {
    const { x, y } = graph.node(id);
    return [x - WIDTH / 2, y - HEIGHT / 2];
  });
}

/** Longest paths give the layers; within a layer members stand near those they depend on. */
function layered(nodes, edges) {
  const number = new Map(nodes.map((id, index) => [id, index]));
  const count = nodes.length;
  const after = Array.from({ length: count }, () => []);
  const before = Array.from({ length: count }, () => []);
  const open = new Int32Array(count);
  for (const [from, to] of edges) {
    const a = number.get(from);
    const b = number.get(to);
    if (a === undefined || b === undefined || a === b) continue;
    after[a].push(b);
    before[b].push(a);
    open[b] += 1;
  }
  const layer = new Int32Array(count);
  const queue = [];
  for (let at = 0; at < count; at += 1) if (!open[at]) queue.push(at);
  for (let head = 0; head < queue.length; head += 1) {
    const at = queue[head];
    for (const next of after[at]) {
      layer[next] = Math.max(layer[next], layer[at] + 1);
      open[next] -= 1;
      if (!open[next]) queue.push(next);
    }
  }
  const layers = [];
  for (let at = 0; at < count; at += 1) (layers[layer[at]] ||= []).push(at);
  const place = new Float64Array(count);
  const settle = () =>
    layers.forEach((members) =>
      members?.forEach((at, index) => {
        place[at] = index - members.length / 2;
      }),
    );
  settle();
  for (let sweep = 0; sweep < 4; sweep += 1) {
    const neighbours = sweep % 2 ? after : before;
    for (const members of sweep % 2 ? [...layers].reverse() : layers) {
      if (!members) continue;
      const middle = new Map(
        members.map((at) => [
          at,
          neighbours[at].length
            ? neighbours[at].reduce((sum, each) => sum + place[each], 0) / neighbours[at].length
            : place[at],
        ]),
      );
      members.sort((a, b) => middle.get(a) - middle.get(b));
      members.forEach((at, index) => {
        place[at] = index - members.length / 2;
      });
    }
  }
  // A very wide layer is folded, so that the picture is not a line.
  const result = new Array(count);
  let x = 20;
  for (const members of layers) {
    if (!members) continue;
    const rows = Math.max(1, Math.min(members.length, Math.max(24, Math.ceil(Math.sqrt(members.length) * 2.2))));
    const columns = Math.ceil(members.length / rows);
    members.forEach((at, index) => {
      const row = index % rows;
      const column = Math.floor(index / rows);
      result[at] = [x + column * (WIDTH + 14), (row - Math.min(rows, members.length) / 2) * (HEIGHT + BETWEEN)];
    });
    x += columns * (WIDTH + 14) + RANKS;
  }
  return result;
}

/** Members without edges stand in rows, in the order they were made. */
function rows(nodes) {
  const columns = Math.max(1, Math.ceil(Math.sqrt(nodes.length / 1.6)));
  return nodes.map((_, index) => [
    20 + (index % columns) * (WIDTH + 22),
    20 + Math.floor(index / columns) * (HEIGHT + BETWEEN),
  ]);
}

onmessage = ({ data }) => {
  const { key, nodes, edges } = data;
  let places;
  try {
    places = !edges.length ? rows(nodes) : nodes.length <= CAREFUL ? careful(nodes, edges) : layered(nodes, edges);
  } catch {
    places = layered(nodes, edges);
  }
  postMessage({ key, places, width: WIDTH, height: HEIGHT });
};
