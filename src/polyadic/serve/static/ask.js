// Questions to the joint distribution: about two boxes, about names, and what changes if a label is certain.

import { h, percent, refill } from "./dom.js";
import { latest, post } from "./api.js";
import { boxById, boxNames, changed, keyOf, sceneMessage, select, state, watch, withPhoto } from "./state.js";

const SHOWN = 8; // predicates of a pair

const bar = (name, probability, extra) => h("li", { className: "row" },
  h("span", { className: "row-name" }, name),
  h("span", { className: "bar wide" }, h("span", { className: "fill", style: { width: `${100 * Math.min(1, probability)}%` } })),
  h("span", { className: "number" }, percent(probability)), extra ?? null);

export function createAsk(root) {
  let kind = "pair";
  let reversed = false;
  let pinned = null; // {box, label}
  const kinds = { pair: "Two boxes", names: "Names", label: "A certain label" };
  const choice = h("div", { className: "group", role: "radiogroup", "aria-label": "What to ask about" }, Object.entries(kinds).map(([key, text]) =>
    h("button", { type: "button", role: "radio", "data-ask": key, "aria-checked": String(key === kind), onclick: () => choose(key) }, text)));
  const form = h("div", { className: "ask-form" });
  const result = h("div", { className: "ask-result", "aria-live": "polite" });
  root.append(choice, form, result);

  const words = Object.fromEntries(["subject", "predicate", "object"].map((name) =>
    [name, h("input", { type: "text", id: `ask-${name}`, placeholder: name, maxLength: 100, list: name === "predicate" ? "predicates" : "objects", "aria-label": name, onchange: () => refresh() })]));
  const label = h("input", { type: "text", id: "ask-label", list: "objects", maxLength: 100, "aria-label": "Label that is certain", placeholder: "label", onchange: () => {
    const box = pinnedBox();
    pinned = label.value && box ? { box, label: label.value } : null;
    if (!pinned) renderForm();
    refresh();
  } });
  const pinnedBox = () => (pinned && boxById(pinned.box) ? pinned.box : state.selected);


  function choose(key) {
    kind = key;
    for (const button of choice.children) button.setAttribute("aria-checked", String(button.dataset.ask === key));
    renderForm();
    refresh();
  }

  const pair = () => {
    const ids = [state.partner, state.selected].filter((id) => id && boxById(id));
    return ids.length < 2 ? null : reversed ? ids.reverse() : ids;
  };

  function renderForm() {
    const names = boxNames();
    if (kind === "pair") {
      const ids = pair();
      refill(form, ids
        ? h("p", { className: "question" }, h("b", null, names.get(ids[0])), " ? ", h("b", null, names.get(ids[1])), " ", h("button", { type: "button", className: "small", "data-key": "swap", onclick: () => { reversed = !reversed; renderForm(); refresh(); } }, "Swap"))
        : h("p", { className: "quiet" }, "Select one box, then another: by mouse, or by Tab."));
    } else if (kind === "names") {
      refill(form, h("p", { className: "quiet" }, "Fix one or two names; the rest is the answer."), h("div", { className: "inputs" }, Object.values(words)));
    } else {
      const id = pinnedBox();
      const other = state.selected !== id && boxById(state.selected);
      const ask = () => { pinned = null; label.value = ""; renderForm(); refresh(); label.focus(); };
      refill(form, id
        ? h("div", { className: "inputs" }, h("span", null, "If ", h("b", null, names.get(id)), " is certainly a"), label,
          other && h("button", { type: "button", className: "small", id: "ask-other", onclick: ask }, `Ask about ${names.get(other.id)}`))
        : h("p", { className: "quiet" }, "Select a box."));
    }
  }

  const send = latest(async (message, show) => {
    try {
      show(await withPhoto(() => post("/api/ask", { ...message, photo: state.photo.id })));
    } catch (error) {
      refill(result, h("p", { className: "problem" }, error.message));
    }
  });

  function refresh() {
    if (state.tab !== "ask" || !state.photo) return;
    const ids = state.boxes.map((box) => box.id);
    const scene = sceneMessage();
    if (kind === "pair") {
      const both = pair();
      if (!both) return refill(result);
      send({ ...scene, pair: both.map((id) => ids.indexOf(id)) }, showPair);
    } else if (kind === "names") {
      const given = Object.fromEntries(Object.entries(words).map(([name, input]) => [name, input.value.trim()]).filter(([, word]) => word));
      if (![1, 2].includes(Object.keys(given).length) || ids.length < 2) return refill(result);
      send({ ...scene, given }, (answer) => showNames(answer, ids));
    } else {
      if (!pinned || !boxById(pinned.box) || ids.length < 2) return refill(result);
      send({ ...scene, fix: { box: ids.indexOf(pinned.box), label: pinned.label } }, (answer) => showFixed(answer, ids));
    }
  }

  function showPair(answer) {
    refill(result,
      h("h3", null, `P(predicate | ${answer.subject}, ${answer.object})`),
      h("ol", { className: "rows", id: "predicates-of-pair" }, answer.predicates.slice(0, SHOWN).map((x) => bar(x.name, x.probability))),
      h("h3", null, `Components of ψ_c (${answer.components.length} of rank ${answer.rank})`),
      h("p", { className: "quiet" }, "Modes of the pair: each has a weight P(r) and its own names."),
      h("ol", { className: "components", id: "components" }, answer.components.map((part, at) =>
        h("li", { className: "component", tabIndex: 0, "aria-label": `component ${at + 1}, weight ${percent(part.weight)}` },
          h("span", { className: "weight" }, h("span", { className: "bar wide" }, h("span", { className: "fill", style: { width: `${100 * part.weight}%` } })), percent(part.weight)),
          ["subject", "predicate", "object"].map((name) => h("span", { className: `factor ${name}` }, part[name].map((x) =>
            h("span", { className: "word", style: { opacity: String(0.75 + 0.25 * x.probability) }, title: `${name} ${percent(x.probability)}` }, x.name))))))), // the likelier, the darker
      h("h3", null, "Best triplets, all names free"),
      h("ol", { className: "rows" }, answer.triplets.map((x) => bar(x.names.join(" "), x.probability))));
  }

  function showNames(answer, ids) {
    const names = boxNames();
    const rows = answer.relations.map((x) => ({ ...x, from: ids[x.subject.box], to: ids[x.object.box] }));
    refill(result, h("h3", null, "Pairs and labels that fit"), h("ol", { className: "rows", id: "fitting" }, rows.map((x) => {
      const key = keyOf({ subject: x.from, predicate: x.predicate, object: x.to });
      const item = bar(`${x.subject.name} ${x.predicate} ${x.object.name}`, x.probability, h("span", { className: "where" }, `${names.get(x.from) ?? ""} → ${names.get(x.to) ?? ""}`));
      item.dataset.relation = key;
      item.addEventListener("pointerenter", () => point(key));
      item.addEventListener("pointerleave", () => point(null));
      return item;
    })), answer.relations.length ? null : h("p", { className: "quiet" }, answer.note ?? "Nothing fits."));
  }

  function showFixed(answer, ids) {
    const names = boxNames();
    refill(result,
      h("h3", null, "Names of all boxes, before and after"),
      h("ul", { className: "rows", id: "moved-names" }, answer.boxes.map((box, at) => {
        const [old, now] = [box.before[0], box.names[0]];
        return h("li", { className: "row" }, h("span", { className: "row-name" }, names.get(ids[at]) ?? ""), h("span", { className: "change" }, old ? `${old.name} ${percent(old.probability)} → ${now.name === old.name ? "" : `${now.name} `}${percent(now.probability)}` : ""));
      })),
      h("h3", null, "Relations, all other names free"),
      h("ol", { className: "rows", id: "moved-relations" }, answer.relations.map((x) => {
        const change = x.before === null ? "new" : x.probability > 1.02 * x.before ? "▲" : x.probability < 0.98 * x.before ? "▼" : "=";
        const text = x.before === null ? "was below all others" : `was ${percent(x.before)}`;
        return bar(`${x.subject.name} ${x.predicate} ${x.object.name}`, x.probability, h("span", { className: "where", title: text }, `${change} ${x.before === null ? "" : percent(x.before)}`));
      })));
  }

  function point(key) {
    state.hover = key;
    changed("hover");
  }

  watch("selection tab", () => {
    if (kind !== "names") renderForm();
    refresh();
  });
  watch("boxes options", refresh);
  renderForm();
  return {
    askPair(subject, object) {
      select(subject);
      select(object);
      reversed = false;
      choose("pair");
    },
  };
}
