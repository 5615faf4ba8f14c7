// Arrows between boxes, with labels that avoid each other.

import { clamp, s, textWidth } from "./dom.js";

const HEIGHT = 18; // of a label

const middle = ([x1, y1, x2, y2]) => [(x1 + x2) / 2, (y1 + y2) / 2];

/** Where the line from the middle of a box to a point leaves the box. */
function leave(box, [x, y]) {
  const [cx, cy] = middle(box);
  const [dx, dy] = [x - cx, y - cy];
  const times = Math.min((box[2] - box[0]) / 2 / Math.max(Math.abs(dx), 1e-6), (box[3] - box[1]) / 2 / Math.max(Math.abs(dy), 1e-6), 1);
  return [cx + dx * times, cy + dy * times];
}

/** Plan a curved arrow; where boxes overlap, it runs between their middles. */
function curve(from, to, bend) {
  const inside = (box, [x, y]) => x > box[0] && x < box[2] && y > box[1] && y < box[3];
  let [a, b] = [middle(from), middle(to)];
  if (!inside(from, b) && !inside(to, a)) {
    const [p, q] = [leave(from, b), leave(to, a)];
    const near = Math.hypot(p[0] - q[0], p[1] - q[1]) < 60; // an arrow needs some length: start inside the boxes
    const mix = (x, y) => x.map((value, i) => (near ? (value + y[i]) / 2 : y[i]));
    [a, b] = [mix(a, p), mix(b, q)];
  }
  else if (Math.hypot(a[0] - b[0], a[1] - b[1]) < 24) a = [from[0] + (from[2] - from[0]) / 4, from[1] + 14];
  const [dx, dy] = [b[0] - a[0], b[1] - a[1]];
  const length = Math.hypot(dx, dy) || 1;
  const off = (bend * Math.min(40, length / 4)) / length;
  const control = [(a[0] + b[0]) / 2 - dy * off, (a[1] + b[1]) / 2 + dx * off];
  const at = (t) => [0, 1].map((i) => (1 - t) ** 2 * a[i] + 2 * t * (1 - t) * control[i] + t * t * b[i]);
  return { a, b, control, at };
}

export const overlaps = (p, q) => p[0] < q[2] && q[0] < p[2] && p[1] < q[3] && q[1] < p[3];

/** Where the label of an arrow can be, best first. */
function places(arc, width, [w, h]) {
  return [0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8].flatMap((t) => [[0, 0], [0, -HEIGHT], [0, HEIGHT], [width / 2 + 4, 0], [-width / 2 - 4, 0]].map(([dx, dy]) => {
    const [x, y] = arc.at(t);
    const left = clamp(x - width / 2 + dx, 2, Math.max(2, w - width - 2));
    const top = clamp(y - HEIGHT / 2 + dy, 2, Math.max(2, h - HEIGHT - 2));
    return [left, top, left + width, top + HEIGHT];
  }));
}

/**
 * Draw arrows. Each item has key, from, to (boxes on the screen), text, kind (a class) and whether it is bold.
 * `taken` are places of other labels; `prefix` is that of the heads. A label without a free place is left out, unless
 * its arrow is bold.
 */
export function drawArrows(lineLayer, labelLayer, items, taken, size, prefix) {
  const used = [...taken];
  const labels = [];
  const lines = items.map((item, at) => {
    const twin = items.slice(0, at).filter((x) => x.pair === item.pair || x.pair === item.reverse).length;
    const arc = curve(item.from, item.to, 0.8 + 0.9 * twin);
    const width = textWidth(item.text, true) + 16;
    const spots = places(arc, width, size);
    const free = spots.find((spot) => !used.some((other) => overlaps(spot, other)));
    if (free) used.push(free);
    const [left, top] = free ?? spots[0];
    const path = `M${arc.a} Q${arc.control} ${arc.b}`;
    const look = `${item.kind}${item.bold ? " bold" : ""}${item.faded ? " faded" : ""}`;
    if (free || item.bold) labels.push(s("g", { class: `tag ${look}`, "data-key": item.key },
      s("rect", { class: "chip", x: left, y: top, width, height: HEIGHT, rx: 9 }),
      s("text", { x: left + width / 2, y: top + 13, "text-anchor": "middle" }, item.text)));
    return s("g", { class: `arrow ${look}`, "data-key": item.key },
      s("path", { class: "halo", d: path }),
      s("path", { class: "line", d: path, "marker-end": `url(#${prefix}-${item.kind}${item.bold ? "-bold" : ""})` }));
  });
  for (const group of [lines, labels]) group.sort((a, b) => a.classList.contains("bold") - b.classList.contains("bold"));
  lineLayer.replaceChildren(...lines);
  labelLayer.replaceChildren(...labels);
}

/** The heads of the arrows, one per look. */
export const heads = (prefix) =>
  s("defs", null, ["model", "stated", "hit", "wrong"].flatMap((kind) => ["", "-bold"].map((bold) =>
    s("marker", { id: `${prefix}-${kind}${bold}`, class: `head ${kind}${bold ? " bold" : ""}`, viewBox: "0 0 10 10", refX: 8.5, refY: 5, markerWidth: 13, markerHeight: 13, markerUnits: "userSpaceOnUse", orient: "auto" },
      s("path", { d: "M0 0.8 L10 5 L0 9.2 L2.6 5 Z" })))));
