// An evaluated run: the table beside the paper's, curves, errors, confusions, and test photos by what went wrong.

import { get, photoUrl, post } from "./api.js";
import { confusion, curves, shares } from "./charts.js";
import { byId, h, refill } from "./dom.js";
import { openScene, state } from "./state.js";

const WAIT = 1000; // ms between two looks at a run that is being scored

const number = (x) => (x === null ? "–" : x.toFixed(2));

export async function createRun(root, { failed, say }) {
  root.hidden = false;
  const figures = h("div", { className: "figures" });
  const gallery = h("div", { className: "gallery" });
  let sort = "hit";
  let data = await get("/api/run");
  refill(root, h("h2", null, `Run ${data.run}`), figures, gallery);
  render();
  while (!data.report && !data.problem) {
    say(data.place || "Scoring the test photos …");
    await new Promise((done) => setTimeout(done, WAIT));
    data = await get("/api/run");
  }
  say(data.problem ? "" : `${data.photos.length} test photos`);
  render();
  if (data.photos.length) await open(order()[0]);

  function render() {
    const { report } = data;
    refill(figures,
      data.problem ? h("p", { className: "problem" }, data.problem) : null,
      report ? table(report) : h("p", { className: "quiet" }, "The test photos are being scored, once: the scores are kept in the run's folder. The curves are here already."),
      data.curves.map((stage) => curves(`${stage.stage}: loss`, [
        { name: "training", kind: "thin", points: stage.steps },
        { name: "held out", kind: "bold", points: stage.epochs.map((x) => [x.total, x["selection loss"] !== undefined && stage.stage === "selection" ? x["selection loss"] : x.loss]) }].filter((line) => line.points.length > 1))),
      recallCurves(),
      report ? breakdown(report) : null,
      report ? confusion(report.confusion) : null,
      report ? h("details", { className: "notes" }, h("summary", null, "Notes"), h("ul", null, report.notes.map((note) => h("li", null, note)))) : null);
    renderGallery();
  }

  function recallCurves() {
    const names = [...new Set(data.curves.flatMap((stage) => stage.epochs.flatMap((x) => Object.keys(x).filter((name) => name.startsWith("R@")))))];
    const lines = names.map((name, at) => ({ name, kind: at ? "thin" : "bold", points: data.curves.flatMap((stage) => stage.epochs.filter((x) => name in x).map((x) => [x.total, x[name]])) }));
    return curves("Held-out recall, percent", lines.filter((line) => line.points.length > 1));
  }

  function table(report) {
    const ks = [...new Set(report.columns.map((x) => x.k))];
    return h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Recall" }, h("table", { className: "recall", id: "recall" },
      h("caption", null, `Recall in percent, ${report.dataset} ${report.split}, ${report.protocol}`),
      h("thead", null,
        h("tr", null, h("th", { scope: "col" }, ""), ks.map((k) => h("th", { scope: "colgroup", colSpan: report.columns.filter((x) => x.k === k).length }, k === "free" ? "free k" : `k = ${k}`))),
        h("tr", null, h("th", { scope: "col" }, ""), report.columns.map((x) => h("th", { scope: "col" }, `R@${x.N}`)))),
      h("tbody", null, report.table.map((line) => h("tr", { className: line.paper ? "paper" : line.name === "predictions" ? "own" : "" }, h("th", { scope: "row" }, line.name === "predictions" ? "this run" : line.name), line.cells.map((x) => h("td", null, number(x))))))));
  }

  function breakdown(report) {
    const last = report.outcomes.at(-1);
    if (!last) return null;
    const parts = report.outcomes.filter((x) => x.N === last.N && x.k === last.k).map((x) => ({ name: x.outcome, share: x.share ?? 0, count: x.ground_truths }));
    return shares(`What became of ${parts.reduce((sum, x) => sum + x.count, 0)} ground truths (k = ${last.k}, best ${last.N})`, parts);
  }

  /** Photo numbers: with most of what is sorted by first; for hits, those with the fewest first. */
  function order() {
    const value = (photo) => (sort === "hit" ? photo.truths - photo.hit : photo[sort]);
    return data.photos.map((photo, at) => at).filter((at) => data.photos[at].truths).sort((a, b) => value(data.photos[b]) - value(data.photos[a]) || a - b);
  }

  function renderGallery() {
    if (!data.report) return refill(gallery);
    const words = { hit: "most missed", ...Object.fromEntries(data.report.names.filter((name) => name !== "hit").map((name) => [name, name])) };
    refill(gallery, h("label", null, "Test photos, most of ", h("select", { id: "sort", "data-key": "sort", onchange: (event) => { sort = event.target.value; renderGallery(); } },
      Object.entries(words).map(([value, text]) => h("option", { value, selected: value === sort }, text))), " first"),
    h("ol", { className: "photos", id: "run-photos" }, order().slice(0, 300).map((at) => {
      const photo = data.photos[at];
      return h("li", null, h("button", { type: "button", "data-key": `photo ${at}`, "data-photo": String(at), onclick: () => open(at) },
        h("span", { className: "photo-name" }, photo.name),
        h("span", { className: "stack" }, data.report.names.map((name, index) => photo[name] ? h("span", { className: `outcome o${index}`, style: { width: `${(100 * photo[name]) / photo.truths}%` }, title: `${name}: ${photo[name]}` }) : null)),
        h("span", { className: "quiet" }, `${photo.hit} of ${photo.truths}`)));
    })));
  }

  async function open(number) {
    try {
      const again = () => post("/api/run/open", { number });
      const found = await again();
      const url = await photoUrl(found.photo);
      openScene({ photo: { image: found.image, size: found.size, id: found.photo, url, again }, boxes: found.boxes.map(({ box, label, score }) => ({ box, label, score: score ?? 1 })), truth: { annotations: found.truth, hits: [] }, quiet: true });
      const ids = state.boxes.map((box) => box.id);
      const relations = found.relations.map((x) => ({ ...x, subject: ids[x.subject.box], object: ids[x.object.box] }));
      state.truth.hits = relations.filter((x) => x.hit);
      state.answer = { relations, names: new Map() };
      for (const button of gallery.querySelectorAll("[data-photo]")) button.setAttribute("aria-current", String(button.dataset.photo === String(number)));
      byId("tab-relations").click();
      const { hit, truths, duplicate } = data.photos[number];
      say(`${hit} of ${truths} annotated relations found${duplicate ? `, ${duplicate} repeat those` : ""}`);
    } catch (error) {
      failed(error);
    }
  }
}
