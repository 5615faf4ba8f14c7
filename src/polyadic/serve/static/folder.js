// A folder of photos: which are done, saved on disk after every change, opened one after the other.

import { get, photoUrl, post } from "./api.js";
import { byId, h, refill } from "./dom.js";
import { changed, indexed, openScene, sceneMessage, state, watch } from "./state.js";

const SOON = 400; // ms after the last change

export async function createFolder(root, { failed, say }) {
  const project = await get("/api/folder");
  let at = -1;
  let dirty = false;
  let saving = Promise.resolve();
  let timer = 0;
  let opening = false;
  const status = h("output", { className: "quiet", id: "saved", role: "status" });
  const progress = h("span", { id: "progress" });
  const picker = h("select", { id: "photos", "aria-label": "Photo", onchange: () => go(Number(picker.value)) });
  const done = h("button", { type: "button", className: "primary", id: "done", onclick: finish }, "Done, next");
  root.hidden = false;
  byId("open").hidden = true;
  root.append(h("b", null, project.folder), progress, h("button", { type: "button", id: "previous", onclick: () => go(at - 1) }, "‹ Previous"), picker, h("button", { type: "button", id: "next", onclick: () => go(at + 1) }, "Next ›"), done, status);

  function render() {
    const finished = project.photos.filter((photo) => photo.state === "done").length;
    progress.textContent = `${finished} of ${project.photos.length} done`;
    const marks = { done: "✓ ", draft: "… ", todo: "" };
    refill(picker, project.photos.map((photo, number) => h("option", { value: String(number), selected: number === at }, marks[photo.state] + photo.name)));
    done.textContent = project.photos[at]?.state === "done" ? "Done ✓, next" : "Done, next";
  }

  async function go(number) {
    if (number < 0 || number >= project.photos.length || opening) return render();
    opening = done.disabled = true;
    if (!(await flush())) {
      opening = done.disabled = false;
      return render();
    }
    say("Opening …");
    try {
      const again = () => post("/api/folder/open", { number });
      const found = await again();
      const url = await photoUrl(found.photo);
      at = number;
      openScene({ photo: { image: found.image, size: found.size, id: found.photo, url, again }, boxes: found.boxes, annotations: found.relations });
      clean = snapshot();
      dirty = false;
      status.textContent = ""; // "Saved" was of the photo before
      say(`${found.boxes.length} boxes`);
    } catch (error) {
      at = number; // an unreadable photo can be left again, and nothing is saved for it
      openScene({ photo: null, boxes: [] });
      clean = snapshot();
      dirty = false;
      status.textContent = "";
      say("");
      failed(error);
    }
    opening = false;
    done.disabled = !state.photo;
    render();
  }

  let clean = "";
  const snapshot = () => JSON.stringify([state.boxes, state.annotations]);

  function note() {
    if (opening || at < 0 || snapshot() === clean) return;
    dirty = true;
    status.textContent = "Not saved yet";
    clearTimeout(timer);
    timer = setTimeout(() => save(stays()), SOON);
  }

  /** A photo that was done stays so, unless a new box has no name yet. */
  const stays = () => project.photos[at].state === "done" && state.boxes.every((box) => box.label);

  /** Save one after the other; a failed save stays dirty and is tried again. */
  function save(isDone) {
    clearTimeout(timer);
    saving = saving.then(async () => {
      const content = snapshot();
      const { options, ...scene } = sceneMessage();
      try {
        const saved = await post("/api/folder/save", { ...scene, number: at, relations: indexed(state.annotations), done: isDone });
        project.photos[at].state = saved.state;
        clean = content;
        dirty = snapshot() !== content;
        status.textContent = dirty ? "Not saved yet" : "Saved";
        if (dirty) save(stays());
        return true;
      } catch (error) {
        failed(error);
        return false;
      } finally {
        render();
      }
    });
    return saving;
  }

  const flush = async () => (dirty ? save(stays()) : true);

  async function finish() {
    done.disabled = true;
    const saved = await save(true);
    done.disabled = false;
    if (!saved) return;
    const rest = [...project.photos.keys()].map((n) => (n + at + 1) % project.photos.length);
    const next = rest.find((n) => project.photos[n].state !== "done");
    if (next === undefined) say("All photos are done");
    else await go(next);
  }

  watch("boxes annotations", note);
  window.addEventListener("beforeunload", (event) => dirty && event.preventDefault());
  for (const name of ["objects", "predicates"]) {
    const known = new Set(state.about[name]);
    byId(name).append(...project[name].filter((value) => !known.has(value)).map((value) => h("option", { value })));
  }
  byId("tab-annotate").click();
  const first = project.photos.findIndex((photo) => photo.state !== "done");
  await go(Math.max(0, first));
  changed("scene");
}
