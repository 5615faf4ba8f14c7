// Annotations: relations that a person states. Accepted from the list, corrected, or dragged from box to box.

import { blob, post } from "./api.js";
import { download, h, refill } from "./dom.js";
import { annotate, boxById, boxNames, changed, indexed, keyOf, remember, removeAnnotation, sceneMessage, state, watch, withPhoto } from "./state.js";

const FORMATS = { coco: ["COCO + rel_annotations", "train.json"], json: ["JSON", "json"], svg: ["SVG", "svg"], png: ["PNG", "png"] };

export function createAnnotate(root, { failed, focus }) {
  const list = h("ul", { className: "relations stated", id: "stated", "aria-live": "polite", "aria-label": "Annotations" });
  const none = h("p", { className: "quiet" }, "Accept relations with + in the list, or drag from box to box with the tool Link.");
  const offers = h("div", { className: "offers", id: "offers" });
  const what = h("p", { className: "quiet", id: "export-what" });
  const all = h("button", { type: "button", id: "accept-all", onclick: () => {
    const names = boxNames();
    remember();
    for (const x of state.answer?.relations ?? []) if (names.has(x.subject) && names.has(x.object) && !state.annotations.some((y) => keyOf(y) === keyOf(x))) state.annotations.push({ subject: x.subject, predicate: x.predicate, object: x.object });
    changed("scene", "annotations");
  } }, "Accept all shown");
  const buttons = h("div", { className: "exports" }, Object.entries(FORMATS).map(([format, [text]]) =>
    h("button", { type: "button", "data-export": format, onclick: () => exported(format) }, text)));
  root.append(h("div", { className: "line" }, all), offers, list, none, h("h3", null, "Export"), what, buttons);

  function render() {
    const names = boxNames();
    refill(list, state.annotations.filter((x) => names.has(x.subject) && names.has(x.object)).map((x) => {
      const key = keyOf(x);
      const input = h("input", { type: "text", value: x.predicate, list: "predicates", maxLength: 100, "data-key": `p ${key}`, "aria-label": `predicate between ${names.get(x.subject)} and ${names.get(x.object)}`, onchange: () => correct(x, input.value) });
      return h("li", { className: "relation", "data-relation": key, onpointerenter: () => point(key), onpointerleave: () => point(null) },
        h("span", { className: "end" }, names.get(x.subject)), input, h("span", { className: "end" }, names.get(x.object)),
        h("button", { type: "button", className: "accept", "data-key": `r ${key}`, "aria-label": `remove ${names.get(x.subject)} ${x.predicate} ${names.get(x.object)}`, onclick: () => removeAnnotation(x) }, "×"));
    }));
    none.hidden = state.annotations.length > 0;
    all.disabled = !state.answer?.relations.length;
    const n = state.annotations.length;
    what.textContent = n ? `${n} annotation${n === 1 ? "" : "s"} and all boxes.` : "Without annotations, the relations in the list are exported.";
    for (const button of buttons.children) button.disabled = !state.photo;
  }

  function point(key) {
    state.hover = key;
    changed("hover");
  }

  function correct(x, text) {
    const predicate = text.trim().slice(0, 100);
    if (!predicate) return render();
    remember();
    const own = state.annotations.find((other) => keyOf(other) === keyOf(x));
    if (own) own.predicate = predicate;
    changed("scene", "annotations");
  }

  /** Offer predicates for a new relation between two boxes, the likeliest first. */
  async function link(subject, object) {
    const names = boxNames();
    const close = () => {
      refill(offers);
      focus(object);
    };
    const add = (predicate) => {
      close();
      if (predicate.trim()) annotate({ subject, predicate: predicate.trim(), object });
    };
    const input = h("input", { type: "text", id: "new-predicate", list: "predicates", maxLength: 100, placeholder: "predicate", "aria-label": "Predicate of the new relation", onkeydown: (event) => {
      if (event.key === "Enter") add(input.value);
      if (event.key === "Escape") close();
    } });
    const likely = h("div", { className: "likely" });
    refill(offers, h("p", { className: "question" }, h("b", null, names.get(subject)), " ", input, " ", h("b", null, names.get(object))), likely,
      h("div", { className: "line" }, h("button", { type: "button", className: "primary", id: "add-relation", onclick: () => add(input.value) }, "Add"), h("button", { type: "button", onclick: close }, "Cancel")));
    input.focus();
    try {
      const ids = state.boxes.map((box) => box.id);
      const answer = await withPhoto(() => post("/api/ask", { ...sceneMessage(), pair: [ids.indexOf(subject), ids.indexOf(object)] }));
      likely.append(...answer.predicates.slice(0, 6).map((x) => h("button", { type: "button", className: "small", "data-offer": x.name, onclick: () => add(x.name) }, x.name)));
    } catch {
      // the field is enough
    }
  }

  async function exported(format) {
    const relations = state.annotations.length ? indexed(state.annotations) : (state.answer?.relations ?? []).filter((x) => boxById(x.subject) && boxById(x.object)).map((x) => ({ ...indexed([x])[0], probability: Math.min(1, x.probability) }));
    try {
      const name = format === "coco" ? FORMATS.coco[1] : `${state.photo.image.replace(/\.[^.]*$/, "") || "photo"}.${FORMATS[format][1]}`;
      download(await withPhoto(() => {
        const { options, ...scene } = sceneMessage();
        return blob("/api/export", { ...scene, format, relations });
      }), name);
    } catch (error) {
      failed(error);
    }
  }

  watch("scene annotations", render);
  render();
  return { link };
}
