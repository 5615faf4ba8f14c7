// The state of the page, and who is told when it changes.

import { forgetColours } from "./dom.js";

export const state = {
  about: null, // what the server says of itself
  photo: null, // {image, size, id, url, again: opens it once more}
  boxes: [], // {id, box: [x1, y1, x2, y2], label, score}
  selected: null, // a box's id
  partner: null, // the box selected before it
  tool: "move",
  view: "photo",
  tab: "relations",
  hover: null, // the key of a relation
  dragging: false,
  answer: null, // {relations, names, ...}, boxes by id
  annotations: [], // {subject, predicate, object}, boxes by id
  truth: null, // of an evaluated run: {annotations, hits}
  options: { k: 1, top: 10, rank: null, prior: null, least: 0.01, order: "informative", labels: "keep", mirror: "drop" },
};

const watchers = new Map(); // topic -> functions
let pending = new Set();
let counter = 0;
const past = [];

export const newId = () => `b${++counter}`;

/** Watch topics: scene (photo, boxes, answer, annotations, selection), boxes (they moved: ask again), options. */
export function watch(topics, call) {
  for (const topic of topics.split(" ")) {
    if (!watchers.has(topic)) watchers.set(topic, new Set());
    watchers.get(topic).add(call);
  }
}

export function changed(...topics) {
  if (!pending.size) requestAnimationFrame(flush);
  for (const topic of topics) pending.add(topic);
}

function flush() {
  const topics = pending;
  pending = new Set();
  const calls = new Set([...topics].flatMap((topic) => [...(watchers.get(topic) ?? [])]));
  for (const call of calls) call();
}

export const boxById = (id) => state.boxes.find((box) => box.id === id);

export function select(id) {
  if (id === state.selected) return;
  if (state.selected && boxById(state.selected)) state.partner = state.selected;
  state.selected = id;
  if (state.partner === id) state.partner = null;
  changed("scene", "selection");
}

/** Remember the boxes and annotations, before they change. */
export function remember() {
  past.push(JSON.stringify([state.boxes, state.annotations]));
  if (past.length > 100) past.shift();
}

export const canUndo = () => past.length > 0;

export function undo() {
  if (!past.length) return;
  [state.boxes, state.annotations] = JSON.parse(past.pop());
  if (!boxById(state.selected)) state.selected = null;
  changed("scene", "boxes", "annotations", "selection");
}

export function addBox(box, label = null, score = 1) {
  remember();
  const added = { id: newId(), box, label, score };
  state.boxes.push(added);
  select(added.id);
  changed("scene", "boxes");
  return added;
}

export function removeBox(id) {
  remember();
  state.boxes = state.boxes.filter((box) => box.id !== id);
  state.annotations = state.annotations.filter((x) => x.subject !== id && x.object !== id);
  if (state.selected === id) state.selected = null;
  if (state.partner === id) state.partner = null;
  changed("scene", "boxes", "annotations", "selection");
}

export function renameBox(id, label) {
  const box = boxById(id);
  const name = label.trim().slice(0, 100) || null;
  if (!box || box.label === name) return;
  remember();
  box.label = name;
  box.score = 1; // a person said so
  changed("scene", "boxes", "selection");
}

/** Show another scene: forget the previous one. */
export function openScene({ photo, boxes, annotations = [], truth = null, quiet = false }) {
  if (state.photo?.url) URL.revokeObjectURL(state.photo.url);
  past.length = 0;
  forgetColours();
  state.photo = photo;
  state.boxes = boxes.map((box) => ({ score: 1, label: null, ...box, id: newId() }));
  const ids = state.boxes.map((box) => box.id);
  state.annotations = annotations.map((x) => ({ subject: ids[x.subject], predicate: x.predicate, object: ids[x.object] }));
  Object.assign(state, { selected: null, partner: null, hover: null, answer: null, truth });
  changed("scene", "annotations", "selection", ...(quiet ? [] : ["boxes"])); // quiet: its relations are known
}

export const keyOf = (x) => `${x.subject} ${x.predicate} ${x.object}`;
export const isAnnotated = (x) => state.annotations.some((other) => keyOf(other) === keyOf(x));

export function annotate(x) {
  if (x.subject === x.object || isAnnotated(x)) return;
  remember();
  state.annotations.push({ subject: x.subject, predicate: x.predicate, object: x.object });
  changed("scene", "annotations");
}

export function removeAnnotation(x) {
  remember();
  state.annotations = state.annotations.filter((other) => keyOf(other) !== keyOf(x));
  changed("scene", "annotations");
}

/** Name each box as the server does: its class, numbered from left to right where several have the same. */
export function boxNames() {
  const names = new Map();
  const groups = new Map();
  for (const box of state.boxes) {
    const name = box.label ?? "?";
    groups.set(name, [...(groups.get(name) ?? []), box]);
  }
  for (const [name, group] of groups) {
    group.sort((a, b) => a.box[0] + a.box[2] - b.box[0] - b.box[2] || a.box[1] + a.box[3] - b.box[1] - b.box[3]);
    group.forEach((box, at) => names.set(box.id, group.length > 1 ? `${name} ${at + 1}` : name));
  }
  return names;
}

/** Send a request about the photo; where the server has dropped the photo, open it again first. */
export async function withPhoto(send) {
  try {
    return await send();
  } catch (error) {
    if (error.status !== 410 || !state.photo?.again) throw error;
    state.photo.id = (await state.photo.again()).photo;
    return send();
  }
}

/** The scene as the server takes it. */
export const sceneMessage = () => ({
  image: state.photo.image,
  size: state.photo.size,
  photo: state.photo.id,
  boxes: state.boxes.map(({ box, label, score }) => ({ box, label, score })),
  options: state.options,
});

export const indexed = (annotations) => {
  const place = new Map(state.boxes.map((box, at) => [box.id, at]));
  return annotations.map((x) => ({ subject: place.get(x.subject), predicate: x.predicate, object: place.get(x.object) }));
};
