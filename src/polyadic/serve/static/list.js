// The ranked list, linked with the arrows by hovering, and the sliders of what is answered.

import { h, percent, refill } from "./dom.js";
import { boxNames, changed, isAnnotated, keyOf, select, state, watch } from "./state.js";

const PARTS = [["detector", "boxes", "The detector's confidence in both boxes"], ["psi_c", "ψc", "ψ_c: the joint distribution of the network"], ["psi_u", "ψu", "ψ_u: the triplet prior"], ["selected", "sel", "P(X_sel): that an annotator picks this pair"]];

/** A bar on a log scale: full at 1, empty at 0.0001. */
const strength = (x) => Math.max(0, Math.min(1, 1 + Math.log10(Math.max(x, 1e-9)) / 4));

function bars(parts) {
  return h("span", { className: "parts" }, PARTS.map(([key, name, text]) =>
    h("span", { className: `part ${key}`, title: `${text}: ${parts[key].toPrecision(2)}` },
      h("span", { className: "bar" }, h("span", { className: "fill", style: { width: `${100 * strength(parts[key])}%` } })))));
}

export function createList(root, { accept, askPair }) {
  const list = h("ol", { className: "relations", id: "list", "aria-live": "polite", "aria-label": "Relations, best first" });
  const note = h("p", { className: "quiet", id: "note" });
  const legend = h("p", { className: "legend", "aria-hidden": "true" }, h("span", null, "strength of "), PARTS.map(([key, name, text]) => h("span", { className: `key ${key}`, title: text }, name)));
  const truth = h("ul", { className: "truth", id: "truth" });
  root.append(legend, list, note, truth, createOptions());

  function render() {
    list.setAttribute("aria-busy", String(state.dragging));
    const names = boxNames();
    const relations = state.answer?.relations ?? [];
    legend.hidden = !relations.length;
    const hits = state.truth ? new Set(state.truth.hits.map(keyOf)) : null;
    refill(list, relations.filter((x) => names.has(x.subject) && names.has(x.object)).map((x) => {
      const key = keyOf(x);
      const hit = hits?.has(key);
      const text = `${names.get(x.subject)} ${x.predicate} ${names.get(x.object)}`;
      return h("li", { className: `relation${state.hover === key ? " hover" : ""}${hit ? " hit" : ""}`, "data-relation": key, onpointerenter: () => hover(key), onpointerleave: () => hover(null) },
        h("button", { type: "button", className: "words", "data-key": `w ${key}`, "aria-label": `${text}, ${percent(x.probability)}: ask about this pair`, onfocus: () => hover(key), onblur: () => hover(null), onclick: () => askPair(x.subject, x.object) },
          hit ? h("span", { className: "tick", title: "annotated in the ground truth" }, "✓ ") : null,
          h("span", { className: "end" }, names.get(x.subject)), " ", h("b", null, x.predicate), " ", h("span", { className: "end" }, names.get(x.object))),
        h("span", { className: "number" }, percent(x.probability)),
        h("button", { type: "button", className: "accept", "data-key": `a ${key}`, "aria-pressed": String(isAnnotated(x)), title: "Accept as an annotation", "aria-label": `accept ${text}`, onclick: () => accept(x) }, isAnnotated(x) ? "✓" : "+"),
        x.parts ? bars(x.parts) : null);
    }));
    const annotated = state.truth?.annotations ?? [];
    refill(truth, annotated.length ? h("li", { className: "quiet" }, "Annotated in this photo") : null, annotated.map((x) => h("li", { className: x.found ? "found" : "missed" }, x.found ? "✓ " : "✗ ", x.names.join(" "))));
    const few = state.photo && state.boxes.length < 2;
    note.textContent = !state.photo ? "Relations appear here." : few ? "Draw at least two boxes and name them." : state.answer?.note ?? "";
    note.hidden = !note.textContent;
  }

  function hover(key) {
    if (state.hover === key) return;
    state.hover = key;
    for (const item of list.children) item.classList.toggle("hover", item.dataset.relation === key);
    changed("hover");
  }

  watch("scene annotations", render);
  render();
  return { select };
}

function createOptions() {
  const rows = {};
  const slider = (name, label, title, props, read, show) => {
    const value = h("output", { className: "value" });
    const input = h("input", { type: "range", id: `slider-${name}`, ...props, oninput: () => {
      state.options[name] = read(Number(input.value));
      value.textContent = show(state.options[name]);
      changed("boxes", "options");
    } });
    rows[name] = { input, value, show };
    return h("div", { className: "slider", title }, h("label", { htmlFor: `slider-${name}` }, label), input, value);
  };
  const choice = (name, label, values) => h("label", { className: "choice" }, label, " ", h("select", { id: `choice-${name}`, onchange: (event) => {
    state.options[name] = event.target.value;
    changed("boxes", "options");
  } }, values.map(([value, text]) => h("option", { value }, text))));
  const details = h("details", { className: "options", open: window.innerWidth >= 820 }, h("summary", null, "What is answered"),
    slider("top", "Answers", "Relations in the list", { min: 1, max: 50, value: 10 }, (x) => x, String),
    slider("k", "k per pair", "Relations per ordered pair of boxes", { min: 1, max: 11, value: 1 }, (x) => (x > 10 ? null : x), (x) => x ?? "any"),
    slider("rank", "Rank", "The heaviest components of each pair's distribution that are used", { min: 1, max: 1, value: 1 }, (x) => x, String),
    slider("prior", "Prior's weight", "The exponent of the triplet prior ψ_u", { min: 0, max: 2, step: 0.05, value: 0 }, (x) => x, (x) => Number(x).toFixed(2)),
    h("div", { className: "choices" },
      choice("order", "Order", [["informative", "informative first"], ["likely", "most likely first"]]),
      choice("labels", "Names", [["keep", "keep"], ["refine", "refine by relations"]])));

  watch("about", () => {
    const { rank, prior } = state.about;
    rows.rank.input.max = rank;
    rows.rank.input.value = state.options.rank = rank;
    rows.rank.input.disabled = rank < 2;
    rows.prior.input.value = state.options.prior = prior;
    rows.prior.input.disabled = prior === null;
    for (const [name, { value, show }] of Object.entries(rows)) value.textContent = state.options[name] === null && name !== "k" ? "–" : show(state.options[name]);
  });
  return details;
}
