// The photo with its boxes: moved, resized, drawn, linked and deleted by mouse, touch or keyboard.

import { clamp, colour, h, s, textWidth } from "./dom.js";
import { drawArrows, heads, overlaps } from "./arrows.js";
import { addBox, boxById, boxNames, changed, isAnnotated, keyOf, remember, removeBox, select, state, watch } from "./state.js";

const LEAST = 8; // px of a new box on the screen
const HANDLES = { nw: [0, 1], n: [1], ne: [2, 1], e: [2], se: [2, 3], s: [3], sw: [0, 3], w: [0] };
const ARROWS = 8;

export function createStage(root, { ask, link, rename }) {
  const image = s("image", { preserveAspectRatio: "none" });
  const sheet = s("rect", { class: "sheet" });
  const boxLayer = s("g");
  const [lineLayer, labelLayer] = [0, 1].map(() => s("g", { class: "arrows", "aria-hidden": "true" })); // no line crosses a name
  const draft = s("rect", { class: "draft", visibility: "hidden" });
  const rubber = s("line", { class: "rubber", visibility: "hidden" });
  const svg = s("svg", { role: "group", "aria-label": "Photo with boxes" }, heads("stage"), sheet, image, lineLayer, boxLayer, labelLayer, draft, rubber);
  const hint = h("div", { class: "hint" }, h("p", null, "Drop a photo here"), h("p", { class: "quiet" }, "or open one, an example, or an empty canvas above. Nothing leaves this computer."));
  root.append(svg, hint);

  const shown = new Map(); // box id -> elements
  let scale = 1;
  let gesture = null;
  let linkFrom = null; // by keyboard
  let refocusing = false;

  const onScreen = (box) => box.map((x) => x * scale);

  function fit() {
    if (!state.photo) return;
    const [w, h] = state.photo.size;
    const room = Math.max(200, window.innerHeight - (window.innerWidth < 820 ? 260 : 210));
    scale = Math.min(root.clientWidth / w, room / h);
    const [width, height] = [w * scale, h * scale];
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.style.width = `${width}px`;
    svg.style.height = `${height}px`;
    for (const element of [image, sheet]) {
      element.setAttribute("width", width);
      element.setAttribute("height", height);
    }
  }

  function render() {
    hint.hidden = Boolean(state.photo || state.about?.folder);
    svg.style.display = state.photo && state.view === "photo" ? "" : "none";
    if (!state.photo) return;
    fit();
    if (image.getAttribute("href") !== (state.photo.url ?? "")) image.setAttribute("href", state.photo.url ?? "");
    image.style.display = state.photo.url ? "" : "none";
    svg.dataset.tool = state.tool;
    renderBoxes();
    renderArrows();
  }

  function renderBoxes() {
    const names = boxNames();
    for (const [id, parts] of shown) {
      if (boxById(id)) continue;
      const focused = parts.group.contains(document.activeElement);
      parts.group.remove();
      shown.delete(id);
      if (focused) [...shown.values()].at(-1)?.group.focus();
    }
    const area = (box) => (box[2] - box[0]) * (box[3] - box[1]);
    const order = [...state.boxes].sort((a, b) => area(b.box) - area(a.box)); // small ones above, where they can be reached
    for (const box of order) if (!shown.has(box.id)) shown.set(box.id, createBox(box.id));
    const wanted = order.map((box) => shown.get(box.id).group);
    if (!gesture && wanted.some((group, at) => boxLayer.children[at] !== group)) {
      const focused = document.activeElement;
      boxLayer.append(...wanted);
      refocusing = true; // the focus returns, which selects nothing
      if (focused?.isConnected && focused !== document.activeElement) focused.focus();
      refocusing = false;
    }
    const related = new Set(state.hover?.split(" ").filter((word, at, all) => at === 0 || at === all.length - 1) ?? []);
    const chips = [];
    for (const box of state.boxes) {
      const { group, outline, area, label, chip, handles } = shown.get(box.id);
      const [x1, y1, x2, y2] = onScreen(box.box);
      const [fill, ink] = colour(box.label);
      const name = names.get(box.id);
      const selected = box.id === state.selected;
      for (const element of [outline, area]) {
        element.setAttribute("x", x1);
        element.setAttribute("y", y1);
        element.setAttribute("width", Math.max(0, x2 - x1));
        element.setAttribute("height", Math.max(0, y2 - y1));
      }
      outline.style.stroke = fill;
      const width = textWidth(name, true) + 12;
      const corners = chipPlaces([x1, y1, x2, y2], width);
      const free = corners.find(([x, y]) => !chips.some((chip) => overlaps([x, y, x + width, y + 20], chip)));
      const [left, top] = free ?? corners[0] ?? [x1, y1];
      if (free) chips.push([left, top, left + width, top + 20]);
      chip.setAttribute("x", left);
      chip.setAttribute("y", top);
      chip.setAttribute("width", width);
      chip.style.fill = fill;
      label.setAttribute("x", left + 6);
      label.setAttribute("y", top + 14);
      label.style.fill = ink;
      label.textContent = name;
      group.classList.toggle("crowded", !free); // its name would hide another: shown when the box is pointed at
      group.classList.toggle("selected", selected);
      group.classList.toggle("partner", box.id === state.partner && state.tab === "ask");
      group.classList.toggle("related", related.has(box.id));
      group.classList.toggle("linking", box.id === linkFrom);
      group.setAttribute("aria-label", `${name}, box at ${box.box.map(Math.round).join(", ")}${selected ? ", selected" : ""}`);
      for (const [key, handle] of Object.entries(handles)) {
        const hx = key.includes("w") ? x1 : key.includes("e") ? x2 : (x1 + x2) / 2;
        const hy = key.includes("n") ? y1 : key.includes("s") ? y2 : (y1 + y2) / 2;
        handle.setAttribute("transform", `translate(${hx} ${hy})`);
      }
    }
  }

  /** Where the name of a box can be, best first. */
  function chipPlaces([x1, y1, x2, y2], width) {
    const most = state.photo.size[0] * scale - width;
    const corners = [[x1, y1 - 20], [x1, y1], [x2 - width, y1 - 20], [x2 - width, y1], [x1, y2 - 20], [x1, y1 + 20], [x2 - width, y2 - 20]];
    return corners.filter(([, y]) => y >= 0).map(([x, y]) => [clamp(x, 0, Math.max(0, most)), y]);
  }

  function createBox(id) {
    const outline = s("rect", { class: "outline", rx: 2 });
    const area = s("rect", { class: "area" });
    const chip = s("rect", { class: "chip", height: 20, rx: 3 });
    const label = s("text", { class: "name" });
    const handles = Object.fromEntries(Object.keys(HANDLES).map((key) => [key,
      s("g", { class: `handle ${key}`, "data-handle": key }, s("rect", { class: "hit", x: -11, y: -11, width: 22, height: 22 }), s("rect", { class: "dot", x: -4, y: -4, width: 8, height: 8, rx: 1.5 }))]));
    const group = s("g", { class: "box", tabindex: 0, role: "button", "data-id": id }, area, outline, chip, label, Object.values(handles));
    group.addEventListener("focus", () => refocusing || select(id));
    group.addEventListener("dblclick", () => rename(id));
    group.addEventListener("keydown", (event) => onKey(event, id));
    return { group, outline, area, chip, label, handles };
  }

  function renderArrows() {
    const relations = state.answer?.relations ?? [];
    const items = [];
    const add = (x, kind, bold, faded = false) => {
      const [from, to] = [boxById(x.subject), boxById(x.object)];
      if (!from || !to) return;
      items.push({ key: keyOf(x), pair: `${x.subject} ${x.object}`, reverse: `${x.object} ${x.subject}`, from: onScreen(from.box), to: onScreen(to.box), text: x.predicate, kind, bold, faded });
    };
    const hovered = (x) => state.hover === keyOf(x);
    if (state.tab === "annotate") for (const x of state.annotations) add(x, "stated", hovered(x), state.hover && !hovered(x));
    const hits = state.truth ? new Set(state.truth.hits.map(keyOf)) : null;
    const kind = (x) => (hits ? (hits.has(keyOf(x)) ? "hit" : "wrong") : "model");
    relations.forEach((x, at) => {
      if (state.tab === "annotate" && isAnnotated(x)) return;
      if (at < ARROWS || hovered(x)) add(x, kind(x), hovered(x), state.hover !== null && !hovered(x));
    });
    const taken = [...shown.values()].filter(({ group }) => !group.classList.contains("crowded")).map(({ chip }) => {
      const [x, y, w] = ["x", "y", "width"].map((name) => Number(chip.getAttribute(name)));
      return [x, y, x + w, y + 20];
    });
    drawArrows(lineLayer, labelLayer, items, taken, state.photo.size.map((x) => x * scale), "stage");
  }

  // ---- pointer

  const point = (event) => {
    const place = svg.getBoundingClientRect();
    const [w, h] = state.photo.size;
    return [clamp((event.clientX - place.left) / scale, 0, w), clamp((event.clientY - place.top) / scale, 0, h)];
  };
  const boxAt = (event) => document.elementFromPoint(event.clientX, event.clientY)?.closest?.("[data-id]")?.dataset.id ?? null;

  svg.addEventListener("pointerdown", (event) => {
    if (!state.photo || event.button > 0) return;
    const id = event.target.closest("[data-id]")?.dataset.id;
    const handle = event.target.closest("[data-handle]")?.dataset.handle;
    const start = point(event);
    if (state.tool === "draw") gesture = { kind: "draw", start };
    else if (state.tool === "link" && id) gesture = { kind: "link", id, start };
    else if (id) gesture = { kind: handle ? "resize" : "move", id, handle, start, before: [...boxById(id).box], moved: false };
    else {
      select(null);
      return;
    }
    if (id && state.tool !== "draw") {
      select(id);
      shown.get(id).group.focus({ preventScroll: true });
    }
    svg.setPointerCapture(event.pointerId);
    event.preventDefault();
  });

  // a finger on a box drags it, elsewhere it scrolls the page
  svg.addEventListener("touchstart", (event) => gesture && event.preventDefault(), { passive: false });

  svg.addEventListener("pointermove", (event) => {
    if (!gesture) return;
    const now = point(event);
    if (gesture.kind === "draw") {
      const [x1, y1, x2, y2] = onScreen(spanned(gesture.start, now));
      for (const [name, value] of Object.entries({ x: x1, y: y1, width: x2 - x1, height: y2 - y1, visibility: "visible" })) draft.setAttribute(name, value);
    } else if (gesture.kind === "link") {
      const [x1, y1, x2, y2] = onScreen([...gesture.start, ...now]);
      for (const [name, value] of Object.entries({ x1, y1, x2, y2, visibility: "visible" })) rubber.setAttribute(name, value);
    } else {
      if (!gesture.moved) {
        if (Math.hypot(now[0] - gesture.start[0], now[1] - gesture.start[1]) * scale < 2) return;
        remember();
        gesture.moved = state.dragging = true;
      }
      const [dx, dy] = [now[0] - gesture.start[0], now[1] - gesture.start[1]];
      boxById(gesture.id).box = gesture.kind === "move" ? shifted(gesture.before, dx, dy) : resized(gesture.before, gesture.handle, dx, dy);
      changed("scene", "boxes");
    }
  });

  function finish(event) {
    if (!gesture) return;
    const done = gesture;
    gesture = null;
    draft.setAttribute("visibility", "hidden");
    rubber.setAttribute("visibility", "hidden");
    if (done.kind === "draw" && event.type === "pointerup") {
      const box = spanned(done.start, point(event));
      if ((box[2] - box[0]) * scale >= LEAST && (box[3] - box[1]) * scale >= LEAST) rename(addBox(box).id);
    } else if (done.kind === "link" && event.type === "pointerup") {
      const target = boxAt(event);
      if (target && target !== done.id) link(done.id, target);
    }
    if (state.dragging) {
      state.dragging = false;
      changed("scene", "boxes", "selection");
    }
  }
  svg.addEventListener("pointerup", finish);
  svg.addEventListener("pointercancel", finish);

  // ---- geometry, in pixels of the photo

  const spanned = (a, b) => [Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.max(a[0], b[0]), Math.max(a[1], b[1])];

  function shifted(box, dx, dy) {
    const [w, h] = state.photo.size;
    dx = clamp(dx, -box[0], w - box[2]);
    dy = clamp(dy, -box[1], h - box[3]);
    return [box[0] + dx, box[1] + dy, box[2] + dx, box[3] + dy];
  }

  function resized(box, handle, dx, dy) {
    const moved = [...box];
    for (const side of HANDLES[handle]) {
      const other = moved[(side + 2) % 4];
      const limit = state.photo.size[side % 2];
      const least = Math.min(4 / scale, limit);
      const value = box[side] + (side % 2 ? dy : dx);
      moved[side] = side < 2 ? clamp(value, 0, Math.max(0, other - least)) : clamp(value, Math.min(limit, other + least), limit);
    }
    return moved;
  }

  // ---- keyboard

  const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  function onKey(event, id) {
    const box = boxById(id);
    const step = STEPS[event.key];
    if (step) {
      const unit = event.ctrlKey || event.metaKey ? 1 : Math.max(1, Math.round(Math.max(...state.photo.size) / 60));
      const [dx, dy] = step.map((x) => x * unit);
      remember();
      box.box = event.shiftKey ? resized(box.box, "se", dx, dy) : shifted(box.box, dx, dy);
      changed("scene", "boxes");
    } else if (event.key === "Delete" || event.key === "Backspace") removeBox(id);
    else if (event.key === "Enter" || event.key === " ") {
      if (linkFrom && linkFrom !== id) link(linkFrom, id);
      else rename(id);
      linkFrom = null;
    } else if (event.key === "l" || event.key === "L") {
      linkFrom = id;
      changed("scene");
    } else if (event.key === "p" || event.key === "P") ask();
    else if (event.key === "Escape") {
      linkFrom = null;
      changed("scene");
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  new ResizeObserver(() => render()).observe(root);
  watch("scene view tool tab hover", render);
  return { focus: (id) => shown.get(id)?.group.focus() };
}
