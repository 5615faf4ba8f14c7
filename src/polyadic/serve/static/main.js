// The page: opens photos, asks for relations while boxes move, and puts the parts together.

import { base64, get, latest, onConnection, photoUrl, post, useAddress } from "./api.js";
import { createAnnotate } from "./annotate.js";
import { createAsk } from "./ask.js";
import { byId, h, refill } from "./dom.js";
import { createFolder } from "./folder.js";
import { createGraph } from "./graph.js";
import { createList } from "./list.js";
import { createRun } from "./run.js";
import { createStage } from "./stage.js";
import { addBox, annotate, boxById, boxNames, canUndo, changed, isAnnotated, openScene, removeAnnotation, removeBox, renameBox, sceneMessage, state, undo, watch, withPhoto } from "./state.js";

let problem = "";

function say(text) {
  byId("status").textContent = text;
}

function warn(text) {
  problem = text;
  const banner = byId("banner");
  banner.textContent = text;
  banner.hidden = !text;
}

onConnection((online, text, refused) => {
  warn(text);
  byId("renew").hidden = !refused;
});
byId("address").addEventListener("change", (event) => {
  if (!useAddress(event.target.value)) return warn("No token in this text: paste the whole address that polyadic serve printed.");
  event.target.value = "";
});

/** A request failed: say why. */
function failed(error) {
  warn(error.message.replace(/^[a-z]+(?= )/, (word) => word[0].toUpperCase() + word.slice(1))); // not the name of a file
}

async function open(message, busy) {
  warn("");
  say(busy);
  try {
    const again = () => post("/api/detect", message);
    const found = await again();
    const url = await photoUrl(found.photo);
    openScene({ photo: { image: found.image, size: found.size, id: found.photo, url, again }, boxes: found.boxes });
    say(`${found.boxes.length} boxes`);
    if (message.photo && !found.boxes.length) say(state.about.detects ? "No boxes found: draw them" : "No detector: draw boxes");
  } catch (error) {
    say("");
    failed(error);
  }
}

async function openFile(file) {
  if (file.size > state.about.limits.bytes) return warn(`${file.name} has ${(file.size / 1e6).toFixed(0)} MB, more than ${(state.about.limits.bytes / 1e6).toFixed(0)} MB.`);
  open({ name: file.name.slice(0, 200), photo: await base64(file) }, "Finding boxes …");
}

// ---- relations follow the boxes

const ask = latest(async () => {
  const ids = state.boxes.map((box) => box.id);
  if (!state.photo || ids.length < 2) {
    state.answer = null;
    changed("scene");
    return;
  }
  try {
    const answer = await withPhoto(() => post("/api/relations", sceneMessage()));
    const relations = answer.relations.map((x) => ({ ...x, subject: ids[x.subject.box], object: ids[x.object.box] }));
    state.answer = { relations, note: answer.note, names: new Map(ids.map((id, at) => [id, answer.boxes[at].names])) };
    if (problem) warn("");
    if (!Number.isNaN(answer.milliseconds)) say(`${answer.milliseconds.toFixed(0)} ms, ${answer.model}`);
    changed("scene", "answer");
  } catch (error) {
    failed(error);
  }
});
watch("boxes", () => ask());

// ---- the parts

function showTab(name) {
  state.tab = name;
  for (const tab of byId("tabs").children) {
    const on = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !on;
  }
  changed("tab", "scene");
}

function radio(group, attribute, set) {
  group.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    for (const other of group.children) other.setAttribute("aria-checked", String(other === button));
    set(button.dataset[attribute]);
  });
}

const setTool = (tool) => {
  state.tool = tool;
  for (const button of byId("tools").children) button.setAttribute("aria-checked", String(button.dataset.tool === tool));
  changed("tool");
};

function focusName(id) {
  if (state.selected !== id) return;
  requestAnimationFrame(() => requestAnimationFrame(() => byId("box-name")?.select()));
}

const annotations = createAnnotate(byId("annotate"), { failed, focus: (id) => stage.focus(id) });
const questions = createAsk(byId("ask"));
const link = (subject, object) => {
  showTab("annotate");
  annotations.link(subject, object);
};
const askPair = (subject, object) => {
  showTab("ask");
  questions.askPair(subject, object);
};
const stage = createStage(byId("stage"), { ask: () => showTab("ask"), link, rename: focusName });
createGraph(byId("stage"));
createList(byId("relations"), { accept: (x) => (isAnnotated(x) ? removeAnnotation(x) : annotate(x)), askPair });

/** The bar below the photo: name, names that the model finds likelier, delete. */
function renderSelection() {
  const box = boxById(state.selected);
  const bar = byId("selection");
  if (!box) return refill(bar, state.photo ? h("p", { className: "quiet" }, `${state.boxes.length} boxes. Select one to rename or delete it.`) : null);
  const input = h("input", { type: "text", id: "box-name", "data-key": "box-name", "data-box": box.id, value: box.label ?? "", list: "objects", maxLength: 100, placeholder: "name of this box", onchange: () => renameBox(box.id, input.value), onkeydown: (event) => {
    if (event.key === "Enter") {
      renameBox(box.id, input.value);
      stage.focus(box.id);
    }
  } });
  const likely = (state.answer?.names.get(box.id) ?? []).filter((x) => x.name !== box.label && x.probability >= 0.005).slice(0, 2);
  refill(bar, h("label", { htmlFor: "box-name" }, "Box"), input,
    likely.map((x) => h("button", { type: "button", className: "small", "data-key": `n ${x.name}`, title: `P(name | all pairs) = ${x.probability.toPrecision(2)}`, onclick: () => renameBox(box.id, x.name) }, `${x.name} ${Math.round(100 * x.probability)}%`)),
    h("button", { type: "button", className: "small danger", id: "delete", "data-key": "delete", onclick: () => removeBox(box.id) }, "Delete"));
}
watch("selection answer", () => {
  const typing = document.activeElement?.id === "box-name" && document.activeElement.dataset.box === state.selected;
  if (!typing) renderSelection();
});
watch("scene annotations", () => (byId("undo").disabled = !canUndo()));

byId("tabs").addEventListener("click", (event) => event.target.id.startsWith("tab-") && showTab(event.target.id.slice(4)));
byId("tabs").addEventListener("keydown", (event) => {
  const tabs = [...byId("tabs").children].filter((tab) => !tab.hidden);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const next = tabs[(tabs.indexOf(event.target) + step + tabs.length) % tabs.length];
  showTab(next.id.slice(4));
  next.focus();
});
radio(byId("tools"), "tool", setTool);
radio(byId("views"), "view", (view) => {
  state.view = view;
  changed("view");
});
byId("undo").addEventListener("click", undo);
byId("file").addEventListener("change", (event) => {
  const [file] = event.target.files;
  if (file) openFile(file);
  event.target.value = "";
});
byId("examples").addEventListener("change", (event) => {
  if (event.target.value) open({ example: event.target.value }, "Opening …");
  event.target.value = "";
});
const emptyCanvas = () => {
  warn("");
  openScene({ photo: { image: "canvas", size: [800, 600], id: null, url: null }, boxes: [] });
  setTool("draw");
  say("Draw boxes");
};
byId("empty").addEventListener("click", emptyCanvas);

const newBox = () => {
  if (!state.photo) return;
  const [w, h] = state.photo.size;
  const box = addBox([0.4 * w, 0.4 * h, 0.6 * w, 0.6 * h]);
  focusName(box.id);
};
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea")) return;
  if ((event.ctrlKey || event.metaKey) && event.key === "z") undo();
  else if (event.ctrlKey || event.metaKey || event.altKey) return;
  else if (event.key === "n") newBox();
  else if (event.key === "v") setTool("move");
  else if (event.key === "b") setTool("draw");
  else if (event.key === "l") setTool("link");
  else return;
  event.preventDefault();
});
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("dropping");
});
for (const name of ["dragleave", "drop"]) document.addEventListener(name, () => document.body.classList.remove("dropping"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  const [file] = event.dataTransfer?.files ?? [];
  if (file && state.about?.folder) warn("This page annotates a folder: put the photo there and start polyadic serve again.");
  else if (file) openFile(file);
});

// ---- start

async function start() {
  state.about = await get("/api/about");
  const { objects, predicates, examples } = state.about;
  byId("objects").append(...objects.map((value) => h("option", { value })));
  byId("predicates").append(...predicates.map((value) => h("option", { value })));
  byId("examples").append(...examples.map(({ name, title }) => h("option", { value: name }, title)));
  byId("api-link").href = `/static/api.html${location.search}`;
  byId("empty").hidden = state.about.pixels; // such a model needs a photo
  changed("about");
  document.body.dataset.ready = "true";
  if (state.about.folder) await createFolder(byId("folder"), { failed, say });
  if (state.about.run) await createRun(byId("run"), { failed, say });
}
start().catch(failed);
