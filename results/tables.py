"""Tables of README, docs and the model card, from the csv files beside this one: `make tables`.

Each stands between `<!-- table NAME -->` and `<!-- end -->`; nothing between them is written by hand.
"""

from __future__ import annotations

import csv
import math
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from scipy.stats import ttest_1samp

from polyadic.config import PRESETS
from polyadic.experiments.paper import TABLES as PAPER_TABLES
from polyadic.experiments.results import FREE, Cell, Column, TableLine, read_rows, select
from polyadic.experiments.table1 import COLUMNS, FIXED, TASKS, shares
from polyadic.experiments.table1 import headline as headline_lines
from polyadic.experiments.table1 import ingredients as ingredient_lines
from polyadic.experiments.table4 import ALL, MODEL, OURS, PHRASES, PREDICATES, table4

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "docs/benchmarks.md",
    "docs/claims.md",
    "docs/predict.md",
    "docs/scale.md",
    "docs/serve.md",
    "docs/vrd.md",
)
CARDS = ("vrd-boxes", "vrd-photos", "vrd-detector")
DOCUMENTS = (*PAGES, *(f"src/polyadic/pretrained/{name}/CARD.md" for name in CARDS))
BOXES, PIXELS, BOTH = (ROOT / "results" / f"{name}.csv" for name in ("vrd-boxes", "vrd-ablation", "vrd-lu-pixels"))
LABELS = ROOT / "results" / "vrd-labels.csv"
PHOTOS, NANO, WITNESSES, ALL_WITNESSES = (
    ROOT / "results" / f"{name}.csv" for name in ("vrd-photos", "vrd-photos-nano", "vrd-witnesses", "vrd-all-witnesses")
)
_BLOCK = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_LABELS = {
    "plain": "ours, plain",
    "cross-fitted": "**ours, cross-fitted**",
    "plain, mean of the seeds' models": "ours, plain, three models as one (rank 30)",
    "cross-fitted, mean of the seeds' models": "ours, cross-fitted, three models as one (rank 30)",
    "Lang. Cues, Lu's proposals": "Language Cues (Plummer et al. 2017)",
    "VRD, Lu's proposals": "Lu et al. 2016",
    "LargeVRU, Lu's proposals": "LargeVRU (Zhang et al. 2019)",
    "the paper, Lu's proposals": "the paper (VGG16 pixels)",
}


def in_short() -> str:
    """Ours beside the paper's: detection on Lu's boxes, classification of true ones."""
    lines = {line.label: line for line in headline_lines(read_rows(BOXES), "vrd")}
    paper, ours = lines["the paper, Lu's proposals"], lines["cross-fitted"]
    body = [
        [f"{task} detection, k = {k}", _pair(paper, task, k), "", _pair(ours, task, k)]
        for task in ("relationship", "phrase")
        for k in ("1", "10")
    ]
    photos = {line.label: line for line in headline_lines(read_rows(PHOTOS), "vrd")}
    helped = {line.label: line for line in headline_lines(read_rows(WITNESSES))}["ours+DEIMv2+MOSAIC"]
    for task in ("relationship", "phrase"):
        cells = [_pair(line, task, "10") for line in (photos["the paper, better proposals"], photos["ours"])]
        body.append([f"{task} detection from photos alone, k = 10", cells[0], "", cells[1]])
    body.append(["relationship, photos alone, two more detectors", "", "", _pair(helped, "relationship", "10")])
    pixels = _lines(PHRASES)
    published = _papers(pixels["Rank-5 w/ X_sel & prior"])[1:]
    recipe, best = (_recalls_of(pixels[label + ALL]) for label in ("Rank-5 w/ X_sel & prior^0.5", OURS))
    for name, *cells in zip(("free k", "k = 1"), published, recipe, best, strict=True):
        body.append([f"phrase classification, {name}", *cells])
    seen = {line.label: line for line in table4(read_rows(LABELS), exponent=1.0)}[
        f"Rank-1 w/ box-conditioned prior{ALL}"
    ]
    for name, numbers in zip(("free k", "k = 1"), _recalls_of(seen), strict=True):
        body.append([f"phrase classification, {name}, with a COCO detector's features", "", "", numbers])
    return _table(["R@50 / R@100", "the paper", "its recipe, adapted", "ours"], body)


def _headline(leave_out: str = "better proposals", **options: str) -> str:
    """Relationship and phrase detection, without the lines that have these words."""
    lines = headline_lines(read_rows(BOXES), "vrd", **options)  # type: ignore[arg-type]
    return _recalls([line for line in lines if leave_out not in line.label])


def ingredients() -> str:
    """One ingredient changed at a time: held-out loss, recall on held-out and on test images."""
    rows = read_rows(BOXES)
    tested = {line.label: line for line in ingredient_lines(rows, "test")}
    head = ["", "held-out loss", "held-out k = 10", "test rel. k = 1", "test rel. k = 10", "test phrase k = 10"]
    body = []
    for line in ingredient_lines(rows, "validation"):
        other = tested[line.label]
        cells = ["" if line.loss is None else _one(line.loss), _pair(line, "relationship", "10")]
        cells += [_pair(other, *column) for column in (("relationship", "1"), ("relationship", "10"), ("phrase", "10"))]
        body.append([line.label, *cells])
    return _table(head, body)


def misses() -> str:
    """Error breakdown of the ground truths."""
    rows = read_rows(BOXES)
    body = [
        [f"{fit}, best {top}", *(_one(share, 1) for share in shares(rows, fit, 10, top).values())]
        for fit in ("plain", "cross-fitted")
        for top in (50, 100)
    ]
    return _table(["k = 10, percent of the ground truths", *shares(rows, "plain", 10, 50)], body)


def photos_alone(leave_out: str = "Lu's proposals", **options: str) -> str:
    """Relationship and phrase detection on a detector's own boxes, without the lines that have these words."""
    rows = [row for path in (PHOTOS, NANO, WITNESSES) for row in read_rows(path)]
    lines = headline_lines(rows, "vrd", **options)  # type: ignore[arg-type]
    return _recalls([line for line in lines if leave_out not in line.label])


def photos_card() -> str:
    """The rows of the detector's own boxes alone."""
    return _recalls(headline_lines(read_rows(PHOTOS)))


def all_witnesses(**options: str) -> str:
    """Relationship and phrase detection on the boxes of all detectors together, Lu's included."""
    return _recalls(headline_lines(read_rows(ALL_WITNESSES), **options))  # type: ignore[arg-type]


def photos_misses() -> str:
    """Error breakdown of the ground truths, by set of boxes."""
    rows = [row for path in (PHOTOS, NANO, WITNESSES, ALL_WITNESSES) for row in read_rows(path)]
    names = list(dict.fromkeys(row.fit for row in rows))
    body = [[_named(name), *(_one(share, 1) for share in shares(rows, name, 10, 100).values())] for name in names]
    return _table(["k = 10, best 100, percent of the ground truths", *shares(rows, names[0], 10, 100)], body)


def detector() -> str:
    """Quality and speed of the detector in the package."""
    with (ROOT / "results" / "detector.csv").open() as file:
        value = {row["measure"]: float(row["value"]) for row in csv.DictReader(file)}
    found = [f"{value[f'any name at {n}']:.1f} / {value[f'right name at {n}']:.1f}" for n in (10, 20, 30, 50)]
    head = ["boxes per photo", "AP50", *(f"found among {n}" for n in (10, 20, 30, 50)), "ms, one thread"]
    return _table(head, [[f"{value['boxes']:.1f}", f"{value['AP50']:.1f}", *found, f"{value['ms']:.0f}"]])


def photos() -> str:
    """The pretrained model from photos alone, beside Lu's boxes."""
    with (ROOT / "results" / "photos.csv").open() as file:
        rows = list(csv.DictReader(file))
    value = {(row["boxes"], row["measure"]): float(row["value"]) for row in rows}
    columns = [(task, k) for task in ("relationship", "phrase") for k in (1, 10)]
    head = ["R@50 / R@100", *(f"{task} k = {k}" for task, k in columns)]
    head += ["boxes per image", "on annotated objects", "AP50"]
    body = []
    for boxes in dict.fromkeys(row["boxes"] for row in rows):
        cells = [" / ".join(f"{value[boxes, f'{task} k = {k} R@{n}']:.2f}" for n in (50, 100)) for task, k in columns]
        about = [value[boxes, name] for name in ("boxes per image", "on annotated objects", "AP50")]
        body.append([boxes, *cells, f"{about[0]:.1f}", f"{about[1]:.0f}%", f"{about[2]:.1f}"])
    return _table(head, body)


def evaluation() -> str:
    """Speed-ups over the loops, images per second, memory."""
    with (ROOT / "results" / "evaluation.csv").open() as file:
        rows = list(csv.DictReader(file))
    body = []
    for row in sorted(rows, key=lambda row: row["case"] == "streaming"):
        cells = []
        for name in ("loop", "tuned loop"):
            ratios = [row[f"{name} ratio{word}"] for word in ("", " least", " most")]
            median, least, most = (f"{float(ratio):.0f}x" if ratio else "" for ratio in ratios)
            cells.append(f"**{median}** ({least} to {most})" if median else "")
        memory = f"{float(row['memory growth MB']):.1f} MB" if row["memory growth MB"] else ""
        rate = f"{float(row['images per second']):,.0f}"
        body.append([row["case"], f"{int(row['images']):,}", *cells, rate, memory])
    return _table(["", "images", "faster than the loop", "than the tuned loop", "images per second", "memory"], body)


def _speed_rows() -> list[dict[str, str]]:
    with (ROOT / "results" / "vrd-speed.csv").open() as file:
        return list(csv.DictReader(file))


def _speed_name(row: dict[str, str]) -> str:
    return f"{row.get('backbone') or row['sources']}, rank {row['rank']}"


def speed() -> str:
    """Milliseconds per image, beside the paper's; rows of earlier versions lack some columns."""
    parts = ("learning", "features", "heads", "ranking", "inference")
    more = {"exact": "exact top 100", "dense": "dense top 100", "inference_exact": "inference, exact"}
    more["inference_dense"] = "inference, dense"
    head = ["ms per image", *parts, *more.values(), "dense / exact ranking", "loss / step", "epoch, s"]
    body = []
    for row in _speed_rows():
        median, least, most = (f"{float(row[f'dense_ratio_{name}']):.0f}x" for name in ("median", "least", "most"))
        times = [f"{float(row[f'{part}_ms']):.1f}" if row.get(f"{part}_ms") else "" for part in (*parts, *more)]
        share = f"{100 * float(row['loss_share']):.2g}%" if row.get("loss_share") else ""
        epoch = f"{float(row['epoch_s']):.0f}"
        body.append([_speed_name(row), *times, f"{median} ({least} to {most})", share, epoch])
    paper = ["the paper, VGG16 on its GPU", "210", *[""] * 7, "570", "", "", "360"]
    return _table(head, [*body, paper])


def speed_memory() -> str:
    """Peak memory of ranking 20, 50 and 100 boxes, in MB."""
    boxes = (20, 50, 100)
    ways = {"whole": "all tensors at once (computed)", "pairwise": "dense, a pair at a time"}
    ways |= {"compiled": "dense, compiled, no tensor", "exact": "exact"}
    body = [
        [f"{_speed_name(row)}: {words}", *(f"{float(row[f'{way}_mb_{n}']):,.1f}" for n in boxes)]
        for row in _speed_rows()
        if row.get("exact_mb_20")
        for way, words in ways.items()
    ]
    return _table(["MB", *(f"{n} boxes, {n * (n - 1):,} pairs" for n in boxes)], body)


def _ablation(task: str) -> str:
    """The paper's recipe beside the paper, trained without the held-out pictures and with them; ours at the end."""
    lines = _lines(task)
    body = []
    for label, line in lines.items():
        if label.endswith(ALL):
            continue
        loss = "" if line.loss is None else _one(line.loss)
        again = _recalls_of(lines[label + ALL]) if label + ALL in lines else ["", ""]
        body.append([_bold(label), *_recalls_of(line), loss, *again])
        if line.paper is not None:
            body.append([*_papers(line), "", "", ""])
    head = ["R@50 / R@100", "free k", "k = 1", "held-out loss", "all pictures: free k", "all pictures: k = 1"]
    return _table(head, body)


def paper_network(*names: str, exponent: float = 1.0) -> str:
    """Rows on the paper's own backbone, beside the paper; of several files, the baselines of the first."""
    first, *others = (read_rows(ROOT / "results" / f"{name}.csv") for name in names)
    rows = [*first, *(row for rows in others for row in rows if row.rank is not None)]
    body = []
    for line in table4(sorted(rows, key=lambda row: row.rank or 0), exponent=exponent):
        paper = ["", ""] if line.paper is None else _papers(line)[1:]
        body.append([line.label, *_recalls_of(line), "" if line.loss is None else _one(line.loss), *paper])
    head = ["R@50 / R@100", "free k", "k = 1", "held-out loss", "the paper: free k", "the paper: k = 1"]
    used = [at for at in range(len(head)) if any(row[at] for row in body)]
    return _table([head[at] for at in used], [[row[at] for at in used] for row in body])


def paper_detection(name: str, leave_out: str) -> str:
    """The paper's backbone on a detector's boxes, in the columns of the paper's Table 1, one of its blocks."""
    kinds = [(task, k) for task in TASKS for k in (FREE, "1", "10")]
    body = []
    for line in PAPER_TABLES[1].lines(read_rows(ROOT / "results" / f"{name}.csv")):
        if line.label.endswith(leave_out):
            continue
        cells = dict(zip(COLUMNS, line.cells, strict=True))
        body.append(
            [
                _LABELS.get(line.label, line.label),
                *(_both([cells[task, k, top] for top in (50, 100)]) for task, k in kinds),
            ]
        )
    return _table(["R@50 / R@100", *(f"{task}, {'free k' if k == FREE else f'k = {k}'}" for task, k in kinds)], body)


_PARTS = {
    "ψ_c": "psi_c",
    "ψ_c, P(X_sel)": "psi_c + selected",
    "ψ_c, P(X_sel), ψ_u (the paper's)": "psi_c + selected + prior",
    "ψ_c, P(X_sel), ψ_u^0.5": "psi_c + selected + tempered prior",
}


def differences(name: str, parts: str, k: str, top: int) -> list[float]:
    """Recall of rank 5 minus that of rank 1 in phrase classification, one number per seed."""
    rows = select(read_rows(ROOT / "results" / f"{name}.csv"), what=MODEL, task=PHRASES, parts=parts, k=k, N=top)
    one, five = ({row.seed: row.recall or 0.0 for row in select(rows, rank=rank)} for rank in (1, 5))
    return [five[seed] - one[seed] for seed in one]


def p_value(numbers: Sequence[float]) -> float:
    """Two-sided t-test of a mean of 0."""
    return float(ttest_1samp(numbers, 0.0).pvalue)


def rank_differences() -> str:
    """Rank 5 against rank 1, paired by seed."""
    columns = [(k, top) for k in (FREE, "1") for top in (50, 100)]
    head = ["rank 5 − rank 1", *(f"{'free k' if k == FREE else f'k = {k}'} R@{top}" for k, top in columns)]
    body = []
    for data, name in (("synthetic", "toy"), ("VRD", "vrd-ablation"), ("VRD, VGG16", "vrd-vgg16")):
        for words, parts in _PARTS.items():
            cells = []
            for k, top in columns:
                if numbers := differences(name, parts, k, top):
                    each = ", ".join(f"{x:+.1f}" for x in numbers)
                    cells.append(f"{fmean(numbers):+.2f} ({each}; p = {p_value(numbers):.3f})")
            if cells:
                body.append([f"{data}: {words}", *cells])
    return _table(head, body)


def _lines(task: str) -> dict[str, TableLine]:
    lines = table4(read_rows(PIXELS), task, exponent=PRESETS["vrd-pixels"].ranking.prior)
    return {line.label: line for line in lines}


def _bold(label: str) -> str:
    return f"**{label}**" if label == OURS else label


def _recalls_of(line: TableLine) -> list[str]:
    return [_both(line.cells[:2]), _both(line.cells[2:])]


def _papers(line: TableLine) -> list[str]:
    assert line.paper is not None
    return [f"the paper, {line.label}", *(" / ".join(map(str, x)) for x in (line.paper[:2], line.paper[2:]))]


def answers() -> str:
    """What a person reads, in the paper's ranking and in answers."""
    values = _answers()
    kinds = [what for what in values if not what.startswith("probability")]
    percent = ["filler", "behind", "mirrored", "repeats", "rivals", "in most photos", "commonest", "annotated"]
    head = ["answers", *percent, "predicates", "photos without", "renamed"]
    body = [[what, *(f"{values[what][name]:.0f}{'%' * (name in percent)}" for name in head)] for what in kinds]
    return _table(["", *head], body)


def calibration() -> str:
    """The mean probability of answers beside the share that was annotated."""
    rows = {what.removeprefix("probability "): row for what, row in _answers().items() if "probability" in what}

    def cells(row: dict[str, float], kind: str) -> list[str]:
        means = (row.get(f"{kind}: {name}") for name in ("mean probability", "annotated"))
        return [f"{row[f'{kind}: answers']:,.0f}", *("" if x is None else f"{x:.1f}%" for x in means)]

    head = ["probability", *(f"{kind}{x}" for kind in ("others", "clothes") for x in ("", ": mean", ": annotated"))]
    return _table(head, [[what, *cells(row, "others"), *cells(row, "clothes")] for what, row in rows.items()])


def _answers() -> dict[str, dict[str, float]]:
    """Read the measures by what was measured."""
    values: dict[str, dict[str, float]] = {}
    with (ROOT / "results" / "answers.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            values.setdefault(row["what"], {})[row["measure"]] = float(row["value"])
    return values


def serve() -> str:
    """Times of the page's requests by number of boxes."""
    rows = [row for row in _serve_rows() if row["what"] == "latency"]
    value = {(row["of"], row["boxes"], row["measure"]): float(row["value"]) for row in rows}
    kinds = {
        "server": "server, ms",
        "server, CPU": "its CPU time, ms",
        "request": "whole request, ms",
        "predict": "`RelationModel.predict`, ms",
    }
    body = [
        [n, *(f"{value[kind, n, 'median']:.1f} / {value[kind, n, 'p95']:.1f}" for kind in kinds)]
        for n in dict.fromkeys(row["boxes"] for row in rows)
    ]
    return _table(["boxes", *kinds.values()], body)


def serve_load() -> str:
    """Answers at saturation, and memory."""
    rows = [row for row in _serve_rows() if row["what"] != "latency"]
    return _table(["", "", ""], [[row["of"], row["measure"], row["value"]] for row in rows])


def _serve_rows() -> list[dict[str, str]]:
    with (ROOT / "results" / "serve.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _scale(what: str) -> list[dict[str, float]]:
    with (ROOT / "results" / "scale.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["what"] == what]
    texts = ("what", "engine", "note")
    return [{name: value if name in texts else float(value or "nan") for name, value in row.items()} for row in rows]  # type: ignore[misc]


def _steady(engine: str, workers: int) -> tuple[dict[str, float], float, float]:
    """The job of many photos, and its photos per second and CPU seconds per photo without the start-up."""
    rows = [row for row in _scale("photos") if (row["engine"], row["workers"]) == (engine, workers)]
    start, many = min(rows, key=lambda row: row["items"]), max(rows, key=lambda row: row["items"])
    n = many["items"] - start["items"]
    return start, n / (many["seconds"] - start["seconds"]), (many["cpu_seconds"] - start["cpu_seconds"]) / n


def scale() -> str:
    """Speed, speed-up, CPU time, memory and start-up of both engines; speeds of a busy machine are left out."""
    measured = {(str(row["engine"]), int(row["workers"])): row for row in _scale("photos") if row["note"] != "start-up"}
    body, alone = [], dict[str, float]()
    for (engine, workers), many in measured.items():
        start, speed, cpu = _steady(engine, workers)
        busy = not many["load"] <= 3  # of other work, when it began; not recorded: unknown
        if workers == 1 and not busy:
            alone[engine] = speed
        gain = "-" if busy or engine not in alone else f"{speed / alone[engine]:.2f}x"
        seen = engine == "local"  # Ray's processes are not children of the command: their CPU time is not counted
        cost = f"{1000 * cpu:.0f}" if seen else "-"
        numbers = ["-" if busy else f"{speed:.1f}", gain, cost, f"{many['peak_mb']:,.0f}"]
        begin = f"{start['seconds']:.0f}" if not busy else f"{start['cpu_seconds']:.0f} CPU" if seen else "-"
        body.append([engine, str(workers), *numbers, begin])
    head = ["engine", "workers", "photos per second", "speed-up", "CPU ms per photo", "largest process, MB"]
    return _table([*head, "start-up, s"], body)


def memory() -> str:
    """The largest process against the number of photos."""
    rows = _scale("memory")
    return _table(
        ["photos", *(f"{row['items']:,.0f}" for row in rows)],
        [["largest process, MB", *(f"{row['peak_mb']:,.0f}" for row in rows)]],
    )


def training_processes() -> str:
    """An epoch of stage 1 at the paper's sizes in one and two processes."""
    rows = _scale("train")
    body = [
        [
            f"{row['workers']:.0f}",
            f"{row['items']:.0f}",
            f"{row['seconds']:.1f}",
            f"{rows[0]['seconds'] / row['seconds']:.2f}x",
            f"{row['peak_mb'] / 1000:.1f}",
        ]
        for row in rows
    ]
    return _table(["processes", "images", "seconds of an epoch's steps", "speed-up", "largest process, GB"], body)


def visual_genome() -> str:
    """Time and memory of data of Visual Genome's size."""
    body = []
    for step in ("load and prior", "evidence epoch", "evaluation"):
        cells = [f"{row['seconds']:.1f} s, {row['peak_mb'] / 1000:.1f} GB" for row in _scale(f"vg {step}")]
        body.append([step, *cells])
    return _table(["time, memory", *(f"{row['items']:,.0f} images" for row in _scale("vg evaluation"))], body)


CORE_HOUR, GIGABYTE_MONTH = 0.04, 0.023  # dollars, of the order of what the large clouds ask


def budget() -> str:
    """CPU hours, storage and dollars of many photos, from the measured cost of one."""
    cpu = _steady("local", 1)[2]
    size = [row["bytes"] for row in _scale("photos") if row["engine"] == "local"][-1]
    body = []
    for power in range(4, 10):
        n = 10**power
        hours, gigabytes = n * cpu / 3600, n * size / 1e9
        cost = hours * CORE_HOUR
        body.append(
            [f"{n:,}", f"{hours:,.1f}", f"{gigabytes:,.2f}", f"{cost:,.2f}", f"{gigabytes * GIGABYTE_MONTH:,.2f}"]
        )
    per_thousand = 1000 * cpu / 3600 * CORE_HOUR
    body.append(["per 1,000", f"{1000 * cpu / 3600:.4f}", f"{1000 * size / 1e9:.4f}", f"{per_thousand:.4f}", ""])
    return _table(["photos", "CPU hours", "results, GB", "CPU, $", "storage, $ a month"], body)


TABLES: dict[str, Callable[[], str]] = {
    "paper-network": partial(
        paper_network, "vrd-paper", "vrd-paper-ranks", "vrd-paper-rank-1-seeds", "vrd-paper-rank-5-seeds"
    ),
    "vgg16": partial(paper_network, "vrd-vgg16", "vrd-vgg16-ranks", exponent=PRESETS["vrd-pixels"].ranking.prior),
    "vgg16-backbone": partial(paper_network, "vrd-vgg16-backbone", exponent=PRESETS["vrd-pixels"].ranking.prior),
    "vgg16-lu": partial(paper_detection, "vrd-vgg16-lu", "better proposals"),
    "vgg16-ours": partial(paper_detection, "vrd-vgg16-ours", "Lu's proposals"),
    "labels": partial(paper_network, "vrd-labels"),
    "scale": scale,
    "scale-memory": memory,
    "scale-train": training_processes,
    "scale-vg": visual_genome,
    "scale-budget": budget,
    "readme": in_short,
    "vrd-boxes": _headline,
    "answers": answers,
    "answers-calibration": calibration,
    "vrd-boxes-zero-shot": partial(_headline, subset="zero-shot"),
    "vrd-boxes-mean-recall": partial(_headline, "ceiling", metric="mean_recall"),
    "vrd-boxes-ingredients": ingredients,
    "vrd-boxes-misses": misses,
    "vrd-pixels": partial(_ablation, PHRASES),
    "vrd-pixels-predicates": partial(_ablation, PREDICATES),
    "vrd-lu-pixels": lambda: _recalls(headline_lines(read_rows(BOTH))),
    "vrd-photos": photos_alone,
    "vrd-photos-zero-shot": partial(photos_alone, subset="zero-shot"),
    "vrd-photos-mean-recall": partial(photos_alone, "ceiling", metric="mean_recall"),
    "vrd-photos-misses": photos_misses,
    "vrd-all-witnesses": all_witnesses,
    "vrd-all-witnesses-zero-shot": partial(all_witnesses, subset="zero-shot"),
    "vrd-photos-card": photos_card,
    "detector": detector,
    "vrd-speed": speed,
    "vrd-speed-memory": speed_memory,
    "photos": photos,
    "serve": serve,
    "serve-load": serve_load,
    "evaluation": evaluation,
    "rank-differences": rank_differences,
}


def _recalls(lines: Sequence[TableLine]) -> str:
    columns = list(dict.fromkeys(column[:2] for column in _columns(lines[0])))
    head = ["R@50 / R@100", *(f"{task} {k} k" if k == FREE else f"{task} k = {k}" for task, k in columns)]
    body = [[_named(line.label), *(_pair(line, *column) for column in columns)] for line in lines]
    return _table(head, body)


def _named(label: str) -> str:
    """Name a line; boxes are called by their file."""
    return _LABELS.get(label, label).replace(" and objectDetRCNN", " and Lu's")


def _pair(line: TableLine, task: str, k: str) -> str:
    return _both([number for number, column in zip(line.cells, _columns(line), strict=True) if column[:2] == (task, k)])


def _columns(line: TableLine) -> Sequence[Column]:
    """The columns of a line of Table 1, with free k or without."""
    return COLUMNS if len(line.cells) == len(COLUMNS) else FIXED


def _both(both: Sequence[Cell]) -> str:
    """R@50 and R@100, with the larger deviation."""
    if all(math.isnan(cell.deviation) for cell in both):
        return " / ".join(_one(cell) for cell in both)
    return f"{' / '.join(f'{cell.mean:.2f}' for cell in both)} ± {max(cell.deviation for cell in both):.2f}"


def _one(cell: Cell, digits: int = 2) -> str:
    if math.isnan(cell.mean):
        return "-"
    return f"{cell.mean:.{digits}f}" + ("" if math.isnan(cell.deviation) else f" ± {cell.deviation:.{digits}f}")


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def filled(text: str) -> str:
    """A document with its tables as the csv files have them."""
    return _BLOCK.sub(lambda block: block[1] + TABLES[block[2]]() + block[3], text)


def main() -> None:
    for name in DOCUMENTS:
        path = ROOT / name
        before = path.read_text(encoding="utf-8")
        after = filled(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"{name}: tables written", file=sys.stderr)


if __name__ == "__main__":
    main()
