// Small charts in SVG: curves of training, bars of outcomes, a confusion view.

import { h, s } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [340, 150, 40, 20];

const nice = (x) => (Math.abs(x) >= 100 ? x.toFixed(0) : Math.abs(x) >= 10 ? x.toFixed(1) : x.toFixed(2));

/** Draw lines: [{name, points: [[x, y], ...], kind}]. */
export function curves(title, lines) {
  const points = lines.flatMap((line) => line.points).filter(([, y]) => Number.isFinite(y));
  if (points.length < 2) return null;
  const [xs, ys] = [0, 1].map((i) => points.map((p) => p[i]));
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  const px = (x) => LEFT + ((x - x0) / (x1 - x0 || 1)) * (WIDTH - LEFT - 8);
  const py = (y) => HEIGHT - BOTTOM - ((y - y0) / (y1 - y0 || 1)) * (HEIGHT - BOTTOM - 10);
  const ticks = [y0, (y0 + y1) / 2, y1];
  return h("figure", { className: "chart" },
    h("figcaption", null, title, lines.map((line) => h("span", { className: `line-key ${line.kind}` }, line.name))),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${lines.map((line) => `${line.name} from ${nice(line.points[0][1])} to ${nice(line.points.at(-1)[1])}`).join(", ")}` },
      ticks.map((y) => [s("line", { class: "grid", x1: LEFT, x2: WIDTH - 8, y1: py(y), y2: py(y) }), s("text", { class: "tick-text", x: LEFT - 6, y: py(y) + 4, "text-anchor": "end" }, nice(y))]),
      [x0, x1].map((x, at) => s("text", { class: "tick-text", x: px(x), y: HEIGHT - 5, "text-anchor": at ? "end" : "start" }, `${at ? "step " : ""}${x}`)),
      lines.map((line) => s("polyline", { class: `curve ${line.kind}`, points: line.points.map(([x, y]) => `${px(x)},${py(y)}`).join(" ") })),
      lines.filter((line) => line.points.length < 40).flatMap((line) => line.points.map(([x, y]) => s("circle", { class: `curve ${line.kind}`, cx: px(x), cy: py(y), r: 2.5 })))));
}

/** Shares of outcomes as one bar, with a legend that has the numbers. */
export function shares(title, parts) {
  return h("figure", { className: "chart" }, h("figcaption", null, title),
    h("div", { className: "stack", role: "img", "aria-label": parts.map((x) => `${x.name} ${x.share.toFixed(1)}%`).join(", ") }, parts.map((x, at) => h("span", { className: `outcome o${at}`, style: { width: `${x.share}%` }, title: `${x.name}: ${x.share.toFixed(1)}%` }))),
    h("ul", { className: "outcomes" }, parts.map((x, at) => h("li", null, h("span", { className: `outcome o${at}` }), `${x.name} ${x.share.toFixed(1)}%`, h("span", { className: "quiet" }, ` ${x.count}`)))));
}

/** Annotated predicates in rows, the predicates that were predicted for their boxes in columns. */
export function confusion({ names, counts, totals, none }) {
  const cell = (n, total, right) => {
    const share = total ? n / total : 0;
    return h("td", { className: `${right ? "right" : ""}${share > 0.5 ? " strong" : ""}`, style: { "--share": String(share) }, title: `${n} of ${total}` }, share >= 0.005 ? String(Math.round(100 * share)) : "");
  };
  const table = h("table", { className: "confusion" },
    h("caption", null, "Annotated predicate (row) and the best prediction for its boxes and names (column), in percent of the row"),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, ""), names.map((name) => h("th", { scope: "col" }, h("span", null, name))), h("th", { scope: "col" }, h("span", null, "none")))),
    h("tbody", null, names.map((name, row) => h("tr", null, h("th", { scope: "row" }, name, h("span", { className: "quiet" }, ` ${totals[row]}`)), counts[row].map((n, column) => cell(n, totals[row], row === column)), cell(none[row], totals[row], false)))));
  return h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Confusion of predicates" }, table);
}
