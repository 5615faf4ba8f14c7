// The scene graph: boxes as nodes around a circle, relations as edges.

import { colour, h, s, textWidth } from "./dom.js";
import { drawArrows, heads } from "./arrows.js";
import { boxById, boxNames, changed, keyOf, select, state, watch } from "./state.js";

export function createGraph(root) {
  const [lines, labels] = [0, 1].map(() => s("g", { class: "arrows", "aria-hidden": "true" }));
  const nodes = s("g");
  const svg = s("svg", { class: "graph", role: "group", "aria-label": "Scene graph" }, heads("graph"), lines, labels, nodes);
  const none = h("p", { class: "hint quiet" }, "No relations to draw.");
  root.append(svg, none);

  function render() {
    const on = state.view === "graph" && state.photo;
    const relations = (state.tab === "annotate" && state.annotations.length ? state.annotations : state.answer?.relations ?? []).filter((x) => boxById(x.subject) && boxById(x.object));
    svg.style.display = on && relations.length ? "" : "none";
    none.hidden = !on || relations.length > 0;
    if (!on || !relations.length) return;
    const [width, height] = [root.clientWidth, Math.min(560, Math.max(320, root.clientWidth * 0.75))];
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.style.width = `${width}px`;
    svg.style.height = `${height}px`;
    const names = boxNames();
    const ids = [...new Set(relations.flatMap((x) => [x.subject, x.object]))];
    const places = new Map(ids.map((id, at) => {
      const angle = (2 * Math.PI * at) / ids.length - Math.PI / 2;
      const half = textWidth(names.get(id), true) / 2 + 14;
      const x = width / 2 + Math.cos(angle) * (width / 2 - half - 14);
      const y = height / 2 + Math.sin(angle) * (height / 2 - 34);
      return [id, [x - half, y - 15, x + half, y + 15]];
    }));
    nodes.replaceChildren(...ids.map((id) => {
      const [x1, y1, x2, y2] = places.get(id);
      const [fill, ink] = colour(boxById(id).label);
      const node = s("g", { class: `node${id === state.selected ? " selected" : ""}`, tabindex: 0, role: "button", "aria-label": names.get(id) },
        s("rect", { x: x1, y: y1, width: x2 - x1, height: y2 - y1, rx: 15, style: { fill } }),
        s("text", { x: (x1 + x2) / 2, y: (y1 + y2) / 2 + 5, "text-anchor": "middle", style: { fill: ink } }, names.get(id)));
      node.addEventListener("click", () => select(id));
      node.addEventListener("keydown", (event) => event.key === "Enter" && select(id));
      return node;
    }));
    const items = relations.map((x) => ({
      key: keyOf(x), pair: `${x.subject} ${x.object}`, reverse: `${x.object} ${x.subject}`, from: places.get(x.subject), to: places.get(x.object),
      text: x.predicate, kind: "model", bold: state.hover === keyOf(x), faded: state.hover !== null && state.hover !== keyOf(x),
    }));
    drawArrows(lines, labels, items, [...places.values()], [width, height], "graph");
  }

  new ResizeObserver(() => changed("view")).observe(root);
  watch("scene view tab hover", render);
}
