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
from polyadic.experiments.results import FREE, Cell, TableLine, read_rows, select
from polyadic.experiments.table1 import FIXED, shares
from polyadic.experiments.table1 import headline as headline_lines
from polyadic.experiments.table1 import ingredients as ingredient_lines
from polyadic.experiments.table4 import ALL, MODEL, OURS, PHRASES, PREDICATES, table4

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/benchmarks.md", "docs/predict.md", "docs/vrd.md")
DOCUMENTS = (*PAGES, "src/polyadic/pretrained/vrd-boxes/CARD.md")
BOXES, PIXELS, BOTH = (ROOT / "results" / f"{name}.csv" for name in ("vrd-boxes", "vrd-ablation", "vrd-lu-pixels"))
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
    pixels = _lines(PHRASES)
    published = _papers(pixels["Rank-5 w/ X_sel & prior"])[1:]
    recipe, best = (_recalls_of(pixels[label + ALL]) for label in ("Rank-5 w/ X_sel & prior^0.5", OURS))
    for name, *cells in zip(("free k", "k = 1"), published, recipe, best, strict=True):
        body.append([f"phrase classification, {name}", *cells])
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


def speed() -> str:
    """Milliseconds per image, beside the paper's."""
    with (ROOT / "results" / "vrd-speed.csv").open() as file:
        rows = list(csv.DictReader(file))
    parts = ("learning_ms", "features_ms", "heads_ms", "ranking_ms", "inference_ms")
    names = [part.removesuffix("_ms") for part in parts]
    head = ["ms per image", *names, "dense / exact ranking", "epoch, s"]
    body = []
    for row in rows:
        median, least, most = (f"{float(row[f'dense_ratio_{name}']):.0f}x" for name in ("median", "least", "most"))
        times = [f"{float(row[part]):.1f}" for part in parts]
        name = f"{row['sources']}, rank {row['rank']}"
        body.append([name, *times, f"{median} ({least} to {most})", f"{float(row['epoch_s']):.0f}"])
    return _table(head, [*body, ["the paper, VGG16 on its GPU", "210", "", "", "", "570", "", "360"]])


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
    for data, name in (("synthetic", "toy"), ("VRD", "vrd-ablation")):
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
    head = ["answers", "filler", "behind", "mirrored", "repeats", "predicates", "photos without", "renamed"]
    percent = {"filler", "behind", "mirrored", "repeats"}
    body = [[what, *(f"{values[what][name]:.0f}{'%' * (name in percent)}" for name in head)] for what in kinds]
    return _table(["", *head], body)


def calibration() -> str:
    """The mean probability of answers beside the share that was annotated."""
    rows = {what.removeprefix("probability "): row for what, row in _answers().items() if "probability" in what}
    head = ["probability", "answers", "mean", "annotated"]
    body = [
        [what, f"{row['answers']:,.0f}", f"{row['mean probability']:.1f}%", f"{row['annotated']:.1f}%"]
        for what, row in rows.items()
    ]
    return _table(head, body)


def _answers() -> dict[str, dict[str, float]]:
    """Read the measures by what was measured."""
    values: dict[str, dict[str, float]] = {}
    with (ROOT / "results" / "answers.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            values.setdefault(row["what"], {})[row["measure"]] = float(row["value"])
    return values


TABLES: dict[str, Callable[[], str]] = {
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
    "vrd-speed": speed,
    "photos": photos,
    "evaluation": evaluation,
    "rank-differences": rank_differences,
}


def _recalls(lines: Sequence[TableLine]) -> str:
    columns = [("relationship", "1"), ("relationship", "10"), ("phrase", "1"), ("phrase", "10")]
    head = ["R@50 / R@100", *(f"{task} k = {k}" for task, k in columns)]
    body = [[_LABELS.get(line.label, line.label), *(_pair(line, *column) for column in columns)] for line in lines]
    return _table(head, body)


def _pair(line: TableLine, task: str, k: str) -> str:
    return _both([number for number, column in zip(line.cells, FIXED, strict=True) if column[:2] == (task, k)])


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
