"""The paper's Tables 1 to 3: a model trained on a dataset, scored in the table's columns beside the published numbers.

The paper's Table 4, the ablation, is `table4.ablate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from polyadic.config.schema import Config
from polyadic.evaluation.compare import PREDICTIONS
from polyadic.evaluation.protocol import Protocol, get_protocol
from polyadic.experiments.results import (
    FREE,
    Cell,
    Column,
    Results,
    Row,
    TableLine,
    comparison_rows,
    config_record,
    recall_cells,
    select,
)
from polyadic.experiments.runs import K, evaluate_run, open_run, train_run, training_seconds
from polyadic.experiments.table1 import COLUMNS, PAPER, TASKS, TOPS, read_proposals
from polyadic.experiments.table4 import PAPER as ABLATION
from polyadic.experiments.table4 import PHRASES
from polyadic.progress import say
from polyadic.structures.inputs import existing_file
from polyadic.training.examples import load_split

MODEL = "this model"
_PHRCLS = tuple((PHRASES, k, top) for k in (FREE, "1") for top in TOPS)


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper: where, how and in which columns a model is scored, and the published numbers."""

    dataset: str
    protocol: str
    columns: Mapping[str, Sequence[Column]]  # by the words after a row's name: Table 2 has a row for each k
    published: Mapping[str, Sequence[float]]  # by name, in the order of the columns; NaN where none was published

    @property
    def detects(self) -> bool:
        """Whether a model starts from a detector's boxes, rather than the true ones."""
        return all(protocol.task in TASKS for protocol in self.protocols)

    @property
    def protocols(self) -> list[Protocol]:
        """One per task, without k, which counts triplets of the joint distribution."""
        tasks = dict.fromkeys(task for some in self.columns.values() for task, _, _ in some)
        return [get_protocol(self.protocol).change(task=task, k_unit="triplet", tops=TOPS) for task in tasks]

    @property
    def ks(self) -> list[K]:
        words = dict.fromkeys(k for some in self.columns.values() for _, k, _ in some)
        return [FREE if word == FREE else int(word) for word in words]

    def lines(self, rows: Iterable[Row]) -> list[TableLine]:
        """List the published rows, then baselines and ceilings, then the model."""
        rows = [row for row in rows if row.subset == "all"]
        lines = [TableLine(name, tuple(map(Cell, numbers))) for name, numbers in self.published.items()]
        for what in sorted(dict.fromkeys(row.what for row in rows), key=lambda what: what == MODEL):
            for words, columns in self.columns.items():
                lines.append(TableLine(what + words, recall_cells(select(rows, what=what), columns)))
        return lines


TABLES = {
    1: PaperTable("vrd", "lu2016", {"": COLUMNS}, PAPER["vrd"]),
    2: PaperTable(
        "vg200",
        "vtranse",
        {
            words: tuple((task, k, top) for task in TASKS for top in TOPS)
            for words, k in ((" (k = 1)", "1"), (" (free k)", FREE))
        },
        {
            "VTransE": (5.5, 6.0, 9.5, 10.5),
            "PPRFCN": (6.0, 6.9, 10.6, 11.1),
            "DSL": (6.8, 8.0, 13.1, 15.6),
            "VSA": (6.0, 6.3, 9.7, 10.0),
            "MF-URLN": (14.4, 16.5, 26.6, 32.1),
            "the paper (k = 1)": (16.74, 18.69, 29.32, 33.42),
            "the paper (free k)": (18.52, 21.92, 31.58, 38.07),
        },
    ),
    3: PaperTable(
        "vg150",
        "motifs",
        {"": _PHRCLS},
        {
            "Freq-Overlap": (39.0, 43.4, 32.3, 32.9),
            "Message Passing": (43.4, 47.2, 34.6, 35.4),
            "Motifnet": (44.5, 47.7, 35.8, 36.5),
            "RelDN": (48.9, 50.8, 36.8, 36.8),
            "the paper": ABLATION["vg150"]["Rank-5 w/ X_sel & prior"],
        },
    ),
}


def with_boxes(config: Config, proposals: Path | None, training: Path | None) -> Config:
    """Say which boxes a model of Table 1 or 2 is trained on, and on which k is chosen.

    Those of the training images (`training`), on which the paper trains after the true boxes; else simulated ones like
    `proposals`, where the config asks for either.
    """
    if training is not None:
        then = {f"proposals.{name}": value for name, value in asdict(config.triplets).items()}
        config = config if config.proposals.epochs else config.change(**then)
        return config.change(**{"data.detections": str(training.expanduser().resolve())})
    if proposals is None or config.data.detections or config.data.simulate or config.data.detector:
        return config
    return config.change(**{"data.simulate": str(proposals.expanduser().resolve())})


def simulated_note(config: Config, proposals: Path | None) -> str:
    """Say on which simulated boxes a model of Table 1 or 2 rests, or nothing where it has real ones."""
    if not config.data.simulate:
        return ""
    files = [Path(file).name for file in config.data.simulate]
    same = proposals is not None and str(proposals.expanduser().resolve()) in config.data.simulate
    return f"{MODEL}: boxes of the training images are simulated, by a noise model fitted to {', '.join(files)}" + (
        ", the test images' own: transductive; --training-proposals takes a detector's" if same else ""
    )


def paper_table(
    table: PaperTable, config: Config, out: Path, *, seeds: Sequence[int], proposals: Path | None = None
) -> Results:
    """Train and score one model per seed; k is chosen on held-out images.

    Args:
        table: One of `TABLES`.
        config: The model, with the folder of a dataset in the table's layout.
        out: A folder for the runs; complete ones are reused.
        seeds: One training each.
        proposals: Boxes of the test images; by default those of the config's detector.
    """
    for file in config.data.detections:
        existing_file(file)  # before the work
    boxes = read_proposals(proposals, load_split(config, "test")) if proposals is not None else None
    rows: list[Row] = []
    for seed in seeds:
        folder = out.expanduser().resolve() / f"seed-{seed}"
        train_run(config.change(seed=seed), folder)
        scores = evaluate_run(open_run(folder), table.protocols, table.ks, detections=boxes)
        scored = comparison_rows(scores.result, scores.free)
        if not rows:
            rows += [row for row in scored if row.what != PREDICTIONS]
        seconds = round(training_seconds(folder), 1)
        rows += [replace(row, what=MODEL, seed=seed, seconds=seconds) for row in scored if row.what == PREDICTIONS]
        for note in dict.fromkeys((*scores.notes, *scores.result.notes)):
            say(note)
    return Results(tuple(rows), {"config": config_record(config), "seeds": list(seeds), "dataset": table.dataset})
