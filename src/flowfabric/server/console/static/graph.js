// The picture of a flow, on a canvas: only what is in view is drawn, so thousands of members move as easily as ten.
import { html, useEffect, useRef, useState } from "./dom.js";
import { plural, shortId, words } from "./format.js";
import { Icon } from "./icons.js";
import { badge, clipped, groupText } from "./graphtexts.js";

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const TONES = {
  waiting: "waiting",
  waiting_children: "children",
  active: "active",
  resumable: "resumable",
  suspended: "suspended",
  delayed: "delayed",
  rate_limited: "limited",
  completed: "completed",
  failed: "failed",
  expired: "expired",
  cancelled: "cancelled",
  skipped: "skipped",
};

/** How soon a layout that could not be started is tried again. */
const LAY_AGAIN = 2_000;

class Picture {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.scale = 1;
    this.x = 0;
    this.y = 0;
    this.nodes = [];
    this.edges = [];
    this.hover = null;
    this.found = null;
    this.fitted = false;
    this.touched = false;
    this.held = false;
    this.frame = 0;
    this.colours();
  }
  colours() {
    this.colour = {
      line: style("--line-strong"),
      surface: style("--surface"),
      text: style("--text"),
      soft: style("--text-soft"),
      accent: style("--accent"),
      sans: style("--sans"),
    };
    for (const tone of new Set(Object.values(TONES))) this.colour[tone] = [style(`--${tone}`), style(`--${tone}-soft`)];
  }
  place(places, width, height, members, edges, groups) {
    this.size = [width, height];
    this.nodes = members.map((member, index) => ({
      member,
      x: places[index][0],
      y: places[index][1],
      group: groups.get(member.execution_id),
    }));
    const at = new Map(this.nodes.map((node) => [node.member.execution_id, node]));
    this.edges = edges
      .map((edge) => ({ from: at.get(edge.from), to: at.get(edge.to), state: edge.state }))
      .filter((edge) => edge.from && edge.to);
    // Unless somebody has looked around already.
    if (!this.touched) this.fit();
    this.centre();
    this.draw();
  }
  update(members, groups) {
    this.nodes.forEach((node, index) => {
      node.member = members[index];
      node.group = groups.get(node.member.execution_id);
    });
    this.draw();
  }
  fit() {
    if (!this.nodes.length || !this.canvas.clientWidth) return;
    this.fitted = true;
    let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
    for (const node of this.nodes) {
      left = Math.min(left, node.x);
      top = Math.min(top, node.y);
      right = Math.max(right, node.x + this.size[0]);
      bottom = Math.max(bottom, node.y + this.size[1]);
    }
    const { clientWidth, clientHeight } = this.canvas;
    this.scale = Math.min(1.1, (clientWidth - 48) / (right - left), (clientHeight - 48) / (bottom - top));
    this.x = (clientWidth - (right - left) * this.scale) / 2 - left * this.scale;
    this.y = (clientHeight - (bottom - top) * this.scale) / 2 - top * this.scale;
    this.draw();
  }
  /** Show all of it, now and after the next layout. */
  fitAll() {
    this.held = false;
    this.touched = false;
    this.fit();
  }
  /** Mark a member and keep it in the middle, wherever it is placed, until somebody looks around. */
  show(id) {
    this.found = id;
    this.held = Boolean(id);
    this.centre();
    this.draw();
  }
  centre() {
    const node = this.held && this.nodes.find((each) => each.member.execution_id === this.found);
    if (!node) return;
    this.x = this.canvas.clientWidth / 2 - (node.x + this.size[0] / 2) * this.scale;
    this.y = this.canvas.clientHeight / 2 - (node.y + this.size[1] / 2) * this.scale;
  }
  zoom(factor, cx = this.canvas.clientWidth / 2, cy = this.canvas.clientHeight / 2) {
    this.touched = true;
    this.held = false;
    const next = Math.max(0.02, Math.min(2.5, this.scale * factor));
    this.x = cx - ((cx - this.x) * next) / this.scale;
    this.y = cy - ((cy - this.y) * next) / this.scale;
    this.scale = next;
    this.draw();
  }
  draw() {
    if (!this.frame)
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.paint();
      });
  }
  at(px, py) {
    const x = (px - this.x) / this.scale;
    const y = (py - this.y) / this.scale;
    return (
      this.nodes.find(
        (node) => x >= node.x && x <= node.x + this.size[0] && y >= node.y && y <= node.y + this.size[1],
      ) || null
    );
  }
  paint() {
    const { canvas, context: pen, scale, colour } = this;
    const ratio = devicePixelRatio || 1;
    const wide = canvas.clientWidth;
    const high = canvas.clientHeight;
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
      canvas.width = Math.round(wide * ratio);
      canvas.height = Math.round(high * ratio);
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, high);
    if (!this.size) return;
    pen.translate(this.x, this.y);
    pen.scale(scale, scale);
    const [w, h] = this.size;
    const left = -this.x / scale;
    const top = -this.y / scale;
    const right = left + wide / scale;
    const bottom = top + high / scale;
    const far = scale < 0.3;
    let drawn = 0;
    pen.lineWidth = far ? 1 / scale / 1.5 : 1.4;
    for (const lit of [false, true]) {
      pen.strokeStyle = lit ? colour.accent : colour.line;
      pen.globalAlpha = lit ? 1 : far ? 0.35 : 0.8;
      pen.beginPath();
      for (const edge of this.edges) {
        const near = this.hover && (edge.from === this.hover || edge.to === this.hover);
        if (Boolean(near) !== lit) continue;
        const x1 = edge.from.x + w;
        const y1 = edge.from.y + h / 2;
        const x2 = edge.to.x;
        const y2 = edge.to.y + h / 2;
        if (Math.max(x1, x2) < left || Math.min(x1, x2) > right || Math.max(y1, y2) < top || Math.min(y1, y2) > bottom)
          continue;
        pen.moveTo(x1, y1);
        if (far) pen.lineTo(x2, y2);
        else {
          const bend = Math.max(24, Math.abs(x2 - x1) / 2);
          pen.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
        }
      }
      pen.stroke();
    }
    pen.globalAlpha = 1;
    for (const node of this.nodes) {
      if (node.x + w < left || node.x > right || node.y + h < top || node.y > bottom) continue;
      drawn += 1;
      const [strong, soft] = colour[TONES[node.member.public_state] || "waiting"];
      const marked = node === this.hover || node.member.execution_id === this.found;
      if (far) {
        pen.fillStyle = strong;
        pen.fillRect(node.x, node.y, w, h);
        continue;
      }
      pen.fillStyle = soft;
      pen.strokeStyle = marked ? colour.accent : strong;
      pen.lineWidth = marked ? 2.6 : 1.2;
      pen.beginPath();
      pen.roundRect(node.x, node.y, w, h, 9);
      pen.fill();
      pen.stroke();
      pen.fillStyle = strong;
      pen.beginPath();
      pen.arc(node.x + 14, node.y + h / 2, 4, 0, 7);
      pen.fill();
      if (scale > 0.42) {
        pen.textBaseline = "middle";
        pen.fillStyle = colour.text;
        pen.font = `560 12.5px ${colour.sans}`;
        pen.fillText(
          clipped(pen, node.member.execution_kind || shortId(node.member.execution_id), w - 36),
          node.x + 26,
          node.y + h / 2 - 8,
        );
        pen.fillStyle = colour.soft;
        pen.font = `400 11px ${colour.sans}`;
        pen.fillText(clipped(pen, words(node.member.public_state), w - 36), node.x + 26, node.y + h / 2 + 9);
      }
      if (node.group && node.group.policy.kind !== "all_of" && scale > 0.3) badge(pen, node, colour);
    }
    canvas.dataset.drawn = drawn;
  }
}

export function Graph({ members, edges, groups, found }) {
  const canvas = useRef(null);
  const picture = useRef(null);
  const shape = useRef("");
  const [tip, setTip] = useState(null);
  const [placed, setPlaced] = useState(false);
  const newest = useRef(null);
  const worker = useRef(null);
  const busy = useRef(false);
  const retry = useRef(null);
  const lay = () => {
    if (busy.current || !newest.current) return;
    const given = newest.current;
    newest.current = null;
    if (given.shape === shape.current) {
      picture.current.update(given.members, given.groups);
      return;
    }
    busy.current = true;
    worker.current ||= new Worker(globalThis.ffTrusted.createScriptURL("layout.js"), { type: "module" });
    worker.current.onmessage = ({ data }) => {
      busy.current = false;
      shape.current = given.shape;
      picture.current.place(data.places, data.width, data.height, given.members, given.edges, given.groups);
      setPlaced(true);
      lay();
    };
    worker.current.onerror = () => {
      // Its code did not arrive: a new one asks for it again.
      worker.current.terminate();
      worker.current = null;
      busy.current = false;
      newest.current ??= given;
      retry.current = setTimeout(lay, LAY_AGAIN);
    };
    worker.current.postMessage({
      key: given.shape,
      nodes: given.members.map((member) => member.execution_id),
      edges: given.edges.map((edge) => [edge.from, edge.to]),
    });
  };
  useEffect(
    () => () => {
      clearTimeout(retry.current);
      worker.current?.terminate();
    },
    [],
  );
  useEffect(() => {
    const own = (picture.current = new Picture(canvas.current));
    const observer = new ResizeObserver(() => (own.fitted ? own.draw() : own.fit()));
    observer.observe(canvas.current);
    const theme = () => {
      own.colours();
      own.draw();
    };
    addEventListener("ff-theme", theme);
    return () => {
      observer.disconnect();
      removeEventListener("ff-theme", theme);
    };
  }, []);
  useEffect(() => {
    const now = `${members.length}/${edges.length}/${members[0]?.execution_id}`;
    if (shape.current === now && !busy.current) {
      picture.current.update(members, groups);
      return undefined;
    }
    // A layout that is under way is finished and shown; then the newest is laid out, anything in between is skipped.
    newest.current = { shape: now, members, edges, groups };
    lay();
    return undefined;
  }, [members, edges, groups]);
  useEffect(() => {
    picture.current.show(found);
  }, [found]);
  const pointers = useRef(new Map());
  const moved = useRef(0);
  const place = (event) => {
    const box = canvas.current.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const down = (event) => {
    canvas.current.setPointerCapture(event.pointerId);
    pointers.current.set(event.pointerId, place(event));
    moved.current = 0;
  };
  const move = (event) => {
    const own = picture.current;
    const [x, y] = place(event);
    const before = pointers.current.get(event.pointerId);
    if (!before) {
      const node = own.at(x, y);
      if (node !== own.hover) {
        own.hover = node;
        own.draw();
      }
      setTip(node ? { node, x, y } : null);
      return;
    }
    const others = [...pointers.current].filter(([id]) => id !== event.pointerId);
    if (others.length) {
      const [ox, oy] = others[0][1];
      own.zoom(
        Math.hypot(x - ox, y - oy) / Math.max(1, Math.hypot(before[0] - ox, before[1] - oy)),
        (x + ox) / 2,
        (y + oy) / 2,
      );
    } else {
      own.touched = true;
      own.held = false;
      own.x += x - before[0];
      own.y += y - before[1];
      own.draw();
    }
    moved.current += Math.abs(x - before[0]) + Math.abs(y - before[1]);
    pointers.current.set(event.pointerId, [x, y]);
  };
  const up = (event) => {
    pointers.current.delete(event.pointerId);
    const node = picture.current.at(...place(event));
    if (moved.current < 5 && node) location.hash = `#/executions/${encodeURIComponent(node.member.execution_id)}`;
  };
  const wheel = (event) => {
    event.preventDefault();
    picture.current.zoom(Math.exp(-event.deltaY / 400), ...place(event));
  };
  useEffect(() => {
    const element = canvas.current;
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, []);
  return html`
    <div class="graph" data-placed=${String(placed)}>
      <canvas
        ref=${canvas}
        role="img"
        data-found=${found || null}
        aria-label=${`Graph of ${plural(members.length, "member")} and ${plural(edges.length, "edge")}; the table below shows the same.`}
        onPointerDown=${down}
        onPointerMove=${move}
        onPointerUp=${up}
        onPointerCancel=${up}
        onPointerLeave=${() => {
          picture.current.hover = null;
          setTip(null);
          picture.current.draw();
        }}
      ></canvas>
      ${!placed && html`<p class="loading">Laying out ${plural(members.length, "member")}…</p>`}
      ${
        tip &&
        html`
          <div
            class="tip"
            style=${{ left: `${Math.min(tip.x + 14, Math.max(0, (canvas.current?.clientWidth || 400) - 300))}px`, top: `${tip.y + 14}px` }}
          >
            <strong>${tip.node.member.execution_kind || "(no kind)"}</strong>
            <div class="soft">
              ${words(tip.node.member.public_state)}${tip.node.member.blocking_reason && tip.node.member.blocking_reason !== "none" ? `, ${words(tip.node.member.blocking_reason)}` : ""}
            </div>
            ${
              tip.node.group &&
              html`<div class="soft">${groupText(tip.node.group)}, ${words(tip.node.group.group_state)}</div>`
            }
            <div class="mono faint tiny">${tip.node.member.execution_id}</div>
          </div>
        `
      }
      <div class="tools">
        <button type="button" class="button icon" aria-label="Zoom in" onClick=${() => picture.current.zoom(1.3)}>
          <${Icon} name="plus" />
        </button>
        <button type="button" class="button icon" aria-label="Zoom out" onClick=${() => picture.current.zoom(1 / 1.3)}>
          <${Icon} name="minus" />
        </button>
        <button type="button" class="button icon" aria-label="Show all" onClick=${() => picture.current.fitAll()}>
          <${Icon} name="fit" />
        </button>
      </div>
    </div>
  `;
}
