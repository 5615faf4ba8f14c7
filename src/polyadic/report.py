"""Tables and progress for people (rich). Programs take the JSON of the same values."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from polyadic.datasets.check import Check
from polyadic.evaluation.compare import Comparison, without_k
from polyadic.evaluation.misses import FATES, Misses
from polyadic.evaluation.protocol import Protocol

if TYPE_CHECKING:  # both load torch
    from polyadic.experiments.ablation import Ablation
    from polyadic.experiments.boxes_table import BoxesTable

_FEW = 5


def _console() -> Console:
    """Standard output, wide enough for our tables: a narrow terminal folds lines. Names are no markup."""
    width = max(Console().width, 120)
    return Console(soft_wrap=True, width=width, markup=False, highlight=False, emoji=False)


def check_table(name: str, check: Check, everything: bool) -> None:
    """What is wrong in one split, kind by kind."""
    console = _console()
    console.print(
        f"{name} {check.split}: {check.images:,} images, {check.relations:,} relations", style="bold", highlight=False
    )
    few = None if everything else _FEW
    for kind, problems in check.kinds.items():
        console.print(f"  {problems[0].severity}: {kind}: {len(problems):,}")
        _list(console, [str(problem) for problem in problems], few)
    if check.missing:
        where = f"looked for at {check.first_missing}"
        console.print(f"  missing pictures: {len(check.missing):,} of {check.images:,}, {where}")
        _list(console, check.missing, few)
    if not check.problems and not check.missing:
        console.print("  nothing is wrong")


def _list(console: Console, lines: Sequence[str], few: int | None) -> None:
    for line in lines[:few]:
        console.print(f"    {line}")
    if few is not None and len(lines) > few:
        console.print(f"    and {len(lines) - few:,} more (--all lists them)")


def stats_table(value: dict[str, Any]) -> None:
    """The splits side by side, then the most and least frequent classes."""
    console, splits = _console(), value["splits"]
    table = Table(title=f"{value['dataset']}", title_justify="left")
    table.add_column("")
    for split in splits:
        table.add_column(split["split"], justify="right")
    for key in splits[0]:
        if key in ("split", "object classes", "predicates"):
            continue
        table.add_row(key, *(_cell(split[key]) for split in splits))
    for key in ("object classes", "predicates"):
        table.add_row(f"{key} that occur", *(f"{split[key]['occurring']} of {split[key]['known']}" for split in splits))
        table.add_row(f"{key}, perplexity", *(f"{split[key]['perplexity']:.1f}" for split in splits))
    console.print(table)
    if "zero-shot" in value:
        zero = value["zero-shot"]
        share = "" if zero["share"] is None else f" ({zero['share']:.1%})"
        console.print(
            f"zero-shot test truths: {zero['zero-shot truths']:,} of {zero['truths']:,}{share}", highlight=False
        )
    for key in ("object classes", "predicates"):
        counts = list(splits[0][key]["counts"].items())
        shown = [f"{name} {n:,}" for name, n in counts]
        if len(shown) > 13:
            shown = [*shown[:8], "...", *shown[-4:]]
        console.print(f"{key} in {splits[0]['split']}: {', '.join(shown)}")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return f"{value['mean']:.1f} (median {value['median']:g}, {value['min']} to {value['max']})"
    return f"{value:.1%}" if isinstance(value, float) else f"{value:,}"


def comparison_table(file: str, result: Comparison, notes: Sequence[str], free: Container[Protocol]) -> None:
    """Recalls in percent, one block per protocol: the predictions, the count table, the ceilings.

    Protocols in `free` have the k that was chosen on the validation split.
    """
    console = _console()
    console.print(f"{file} on {result.dataset} {result.split}, recall in percent", style="bold")
    for protocol in dict.fromkeys(row.protocol for _, row in result.rows):
        mine = [(what, row) for what, row in result.rows if row.protocol == protocol]
        of = f"{mine[0][1].truths:,} truths in {mine[0][1].images:,} images"
        chosen = ", free k" if replace(protocol, subset="all") in free else ""
        console.print(f"\n{protocol.label}{chosen} ({of})")
        table = Table(box=None, padding=(0, 1, 0, 1))
        table.add_column("", no_wrap=True)
        for name in ("R", "mR"):
            for top in protocol.tops:
                table.add_column(f"{name}@{top}", justify="right", no_wrap=True)
        for what in dict.fromkeys(what for what, _ in mine):
            rows = [row for name, row in mine if name == what]
            table.add_row(what, *(_percent(row.recall) for row in rows), *(_percent(row.mean_recall) for row in rows))
            if rows[0].recall_interval:
                between = [row.recall_interval for row in rows] + [row.mean_recall_interval for row in rows]
                table.add_row("  95% interval", *(_between(each) for each in between))
        for what, each, value in result.ceilings:
            if each == without_k(protocol):
                table.add_row(what, *[_percent(value)] * len(protocol.tops))
        console.print(table)
    for note in [*notes, *result.notes]:
        console.print(f"\n{note}")


def misses_table(misses: Misses | None) -> None:
    """Where the truths go, in percent: a block per protocol, a line per N. Nothing where nobody asked."""
    console = _console()
    for protocol in dict.fromkeys(row.protocol for row in misses or ()):
        rows = [row for row in misses or () if row.protocol == protocol]
        console.print(f"\nwhere {rows[0].truths:,} truths go, in percent: {protocol.label}")
        table = Table(box=None, padding=(0, 1, 0, 1))
        for name in ("", *FATES):
            table.add_column(name, justify="right" if name else "left", no_wrap=True)
        for row in rows:
            table.add_row(f"best {row.top} answers", *(_percent(share) for share in row.shares))
        console.print(table)


def ablation_table(ablation: Ablation, task: str = "phrase-classification") -> None:
    """As the paper's Table 4: recalls in percent, mean and deviation over seeds, the paper's below them."""
    from polyadic.experiments.table4 import COLUMNS, table4

    lines, first = table4(ablation, task), next(row for row in ablation.rows if task in row.protocol)
    console = _console()
    seeds = f"{len(ablation.seeds)} seed{'s' if len(ablation.seeds) > 1 else ''}"
    console.print(f"{first.dataset} test, {first.protocol.partition(',')[0]}, recall in percent, {seeds}", style="bold")
    table = Table(box=None, padding=(0, 1, 0, 1))
    table.add_column("", no_wrap=True)
    names = [f"{'free k' if k == 'free' else f'k = {k}'} R@{n}" for k, n in COLUMNS]
    for name in [*names, "held-out loss"]:
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        cells = [_mean(cell.mean, cell.deviation) for cell in line.cells]
        loss = "" if line.loss is None else _mean(line.loss.mean, line.loss.deviation)
        table.add_row(line.label, *cells, loss)
        if line.paper is not None:
            table.add_row("  the paper", *(_percent(value) for value in line.paper), style="dim")
    console.print(table)


def table1_table(name: str, result: Comparison, free: Mapping[Protocol, int | None], notes: Sequence[str]) -> None:
    """As the paper's Table 1: recalls in percent."""
    from polyadic.experiments.table1 import COLUMNS, TASKS, TOPS, table1

    console = _console()
    protocol = next(row.protocol for _, row in result.rows)
    console.print(f"{name} on {result.dataset} {result.split}, {protocol.name}, recall in percent", style="bold")
    lines = table1(result, free)
    for task in TASKS:
        table = Table(box=None, padding=(0, 1, 0, 1))
        table.add_column(f"{task} detection", no_wrap=True, min_width=28)
        for _, k, top in (column for column in COLUMNS if column[0] == task):
            words = f"free k R@{top}" if k == "free" else f"k = {k} R@{top}" if top == TOPS[0] else f"R@{top}"
            table.add_column(words, justify="right", no_wrap=True)
        for line in lines:
            cells = [value for value, column in zip(line.cells, COLUMNS, strict=True) if column[0] == task]
            table.add_row(line.label, *(_percent(value) for value in cells))
        console.print(table)
        console.print("")
    for note in dict.fromkeys([*notes, *result.notes]):
        console.print(note)


def boxes_tables(found: BoxesTable) -> None:
    """Table 1 on given proposals, then where the truths go and what each ingredient is worth."""
    from polyadic.experiments import boxes_rows

    console = _console()

    def show(title: str, lines: Sequence[boxes_rows.Line], more: Mapping[str, str] | None = None) -> None:
        for task in dict.fromkeys(task for task, _, _ in boxes_rows.COLUMNS):  # both at once are too wide
            table = Table(box=None, padding=(0, 1, 0, 1))
            table.add_column(f"{title}{task} detection", no_wrap=True, min_width=28)
            for _, k, top in (column for column in boxes_rows.COLUMNS if column[0] == task):
                table.add_column(f"k = {k} R@{top}", justify="right", no_wrap=True)
            if more:
                table.add_column("held-out loss", justify="right", no_wrap=True)
            for line in lines:
                cells = [cell for cell, column in zip(line.cells, boxes_rows.COLUMNS, strict=True) if column[0] == task]
                end = [more.get(line.label, "")] if more else []
                table.add_row(line.label, *(_mean(cell.mean, cell.deviation) for cell in cells), *end)
            console.print(table)
            console.print("")

    seeds = f"{len(found.seeds)} seed{'s' if len(found.seeds) > 1 else ''}"
    console.print(f"{found.dataset} test, lu2016, recall in percent, {seeds}", style="bold")
    show("", boxes_rows.headline(found.rows, found.dataset))
    show("zero-shot, ", boxes_rows.headline(found.rows, found.dataset, "zero-shot"))
    show("mean recall, ", boxes_rows.headline(found.rows, found.dataset, mean_recall=True))
    if found.losses:
        losses = {name: _mean(*astuple(cell)) for name, cell in boxes_rows.held_out_losses(found.losses).items()}
        for split in ("validation", "test"):
            lines = boxes_rows.ingredients(found.rows, split)
            show(f"ingredients, {split}, ", lines, losses if split == "validation" else None)
    for fit in dict.fromkeys(row.fit for row in found.fates):
        parts = boxes_rows.shares(found.fates, fit, 10, 100)
        words = ", ".join(f"{fate} {_mean(*astuple(cell))}" for fate, cell in parts.items())
        console.print(f"where the truths go, {fit}, k = 10, best 100, in percent: {words}")


def _mean(value: float, deviation: float) -> str:
    return _percent(value) if math.isnan(deviation) else f"{value:.2f} ± {deviation:.2f}"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _between(interval: tuple[float, float] | None) -> str:
    return "-" if interval is None or math.isnan(interval[0]) else f"{interval[0]:.1f}-{interval[1]:.1f}"
