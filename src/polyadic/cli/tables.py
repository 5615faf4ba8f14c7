"""Tables on the terminal (rich). Programs read the JSON of the same values."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.table import Table

from polyadic.datasets.check import Check
from polyadic.evaluation.compare import Comparison
from polyadic.evaluation.misses import OUTCOMES, Misses
from polyadic.evaluation.protocol import Protocol
from polyadic.progress import safe_console

if TYPE_CHECKING:  # results load torch
    from rich.console import Console

    from polyadic.experiments.results import Cell, Column, Row, TableLine

FEW = 5  # examples of each kind of problem


def _console() -> Console:
    """Create a console wide enough for our tables; a narrow terminal wraps lines."""
    return safe_console(soft_wrap=True, width=max(safe_console().width, 120))


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", first_width: int | None = None
) -> None:
    """Print a table: names on the left, numbers to the right."""
    console = _console()
    if title:
        console.print(title)
    table = Table(box=None, padding=(0, 1, 0, 1))
    for at, name in enumerate(header):
        justify, width = ("right", None) if at else ("left", first_width)
        table.add_column(name, justify=justify, no_wrap=True, min_width=width)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    console.print(table)


def check_table(name: str, check: Check, everything: bool) -> None:
    """Print the problems of one split by kind, and missing images."""
    console = _console()
    console.print(f"{name} {check.split}: {check.images:,} images, {check.relations:,} relations", style="bold")
    few = None if everything else FEW
    for kind, problems in check.kinds.items():
        console.print(f"  {problems[0].severity}: {kind}: {len(problems):,}")
        _list(console, [str(problem) for problem in problems], few)
    if check.missing:
        where = f"looked for at {check.first_missing}"
        console.print(f"  missing pictures: {len(check.missing):,} of {check.images:,}, {where}")
        _list(console, check.missing, few)
    if not check.problems and not check.missing:
        console.print("  no problems")


def _list(console: Console, lines: Sequence[str], few: int | None) -> None:
    for line in lines[:few]:
        console.print(f"    {line}")
    if few is not None and len(lines) > few:
        console.print(f"    and {len(lines) - few:,} more (--all lists them)")


def stats_table(value: dict[str, Any]) -> None:
    """Print the splits side by side, then the most and least frequent classes."""
    console, splits = _console(), value["splits"]
    classes = ("object classes", "predicates")
    rows = [[key, *(_statistic(split[key]) for split in splits)] for key in splits[0] if key not in ("split", *classes)]
    for key in classes:
        counts = (f"{split[key]['occurring']} of {split[key]['known']}" for split in splits)
        rows.append([f"{key} that occur", *counts])
        rows.append([f"{key}, perplexity", *(f"{split[key]['perplexity']:.1f}" for split in splits)])
    print_table([value["dataset"], *(split["split"] for split in splits)], rows)
    if "zero-shot" in value:
        zero = value["zero-shot"]
        share = "" if zero["share"] is None else f" ({zero['share']:.1%})"
        console.print(f"zero-shot test truths: {zero['zero-shot truths']:,} of {zero['truths']:,}{share}")
    for key in classes:
        shown = [f"{name} {n:,}" for name, n in splits[0][key]["counts"].items()]
        if len(shown) > 13:
            shown = [*shown[:8], "...", *shown[-4:]]
        console.print(f"{key} in {splits[0]['split']}: {', '.join(shown)}")


def _statistic(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return f"{value['mean']:.1f} (median {value['median']:g}, {value['min']} to {value['max']})"
    return f"{value:.1%}" if isinstance(value, float) else f"{value:,}"


def comparison_table(file: str, result: Comparison, notes: Sequence[str], free: Container[Protocol]) -> None:
    """Print recalls in percent, one block per protocol: the predictions, the count table, the ceilings.

    Protocols in `free` have the k that was chosen on the validation split.
    """
    console = _console()
    console.print(f"{file} on {result.dataset} {result.split}, recall in percent", style="bold")
    for protocol in dict.fromkeys(recall.protocol for _, recall in result.rows):
        both = (*result.rows, *result.ceilings)
        recalls = [(what, recall) for what, recall in both if recall.protocol == protocol]
        counts = f"{recalls[0][1].truths:,} truths in {recalls[0][1].images:,} images"
        chosen = ", free k" if replace(protocol, subset="all") in free else ""
        rows = []
        for what in dict.fromkeys(what for what, _ in recalls):
            some = [recall for name, recall in recalls if name == what]
            numbers = [recall.recall for recall in some] + [recall.mean_recall for recall in some]
            rows.append([what, *map(percent, numbers)])
            if some[0].recall_interval:
                between = [recall.recall_interval for recall in some] + [recall.mean_recall_interval for recall in some]
                rows.append(["  95% interval", *map(_between, between)])
        header = ["", *(f"{name}@{top}" for name in ("R", "mR") for top in protocol.tops)]
        print_table(header, rows, title=f"\n{protocol.label}{chosen} ({counts})")
    for note in [*notes, *result.notes]:
        console.print(f"\n{note}")


def outcome_table(misses: Misses | None) -> None:
    """Print the error breakdown of the ground truths in percent: a block per protocol, a line per N."""
    for protocol in dict.fromkeys(row.protocol for row in misses or ()):
        some = [row for row in misses or () if row.protocol == protocol]
        rows = [[f"top {row.top}", *map(percent, row.shares)] for row in some]
        title = f"\noutcomes of {some[0].truths:,} ground truths in percent: {protocol.label}"
        print_table(["", *OUTCOMES], rows, title=title)


def ablation_table(rows: Sequence[Row], task: str = "phrase-classification", *, exponent: float) -> None:
    """Print the paper's Table 4: recalls in percent, mean and deviation over seeds, the paper's below them."""
    from polyadic.experiments.table4 import COLUMNS, table4

    first = next(row for row in rows if row.task == task)
    name = f"{first.dataset} test, {first.protocol.partition(',')[0]}"
    _console().print(f"{name}, recall in percent, {_seeds(rows)}", style="bold")
    _lines_table("", table4(rows, task, exponent=exponent), [(task, k, n) for k, n in COLUMNS], losses=True)


def table1_table(name: str, result: Comparison, free: Mapping[Protocol, int | None], notes: Sequence[str]) -> None:
    """Print the paper's Table 1: recalls in percent."""
    from polyadic.experiments.results import comparison_rows
    from polyadic.experiments.table1 import COLUMNS, headline

    console = _console()
    protocol = next(recall.protocol for _, recall in result.rows)
    console.print(f"{name} on {result.dataset} {result.split}, {protocol.name}, recall in percent", style="bold")
    by_task(headline(comparison_rows(result, free), result.dataset, columns=COLUMNS), COLUMNS)
    for note in dict.fromkeys([*notes, *result.notes]):
        console.print(note)


def paper_table(number: int, rows: Sequence[Row], note: str) -> None:
    """Print the paper's Table 1, 2 or 3 with the published rows: recalls in percent, and a note below."""
    from polyadic.experiments.paper import TABLES

    table = TABLES[number]
    title = f"Table {number}: {table.dataset} test, {table.protocol}, recall in percent, {_seeds(rows)}"
    _console().print(title, style="bold")
    columns = next(iter(table.columns.values()))
    if table.detects and len(table.columns) == 1:
        by_task(table.lines(rows), columns)
    else:
        names = [
            f"{task if len(table.columns) > 1 else 'free k' if k == 'free' else f'k = {k}'} R@{n}"
            for task, k, n in columns
        ]
        print_table(["", *names], [[line.label, *map(mean, line.cells)] for line in table.lines(rows)])
    if note:
        _console().print(note)


def boxes_tables(rows: Sequence[Row]) -> None:
    """Print Table 1 on given proposals, the effect of each ingredient, and the outcomes of the ground truths."""
    from polyadic.experiments.table1 import FIXED, columns_of, headline, ingredients, shares

    console, dataset, columns = _console(), rows[0].dataset, columns_of(rows)
    console.print(f"{dataset} test, lu2016, recall in percent, {_seeds(rows)}", style="bold")
    by_task(headline(rows, dataset), columns)
    by_task(headline(rows, subset="zero-shot"), columns, "zero-shot, ")
    by_task(headline(rows, metric="mean_recall"), columns, "mean recall, ")
    for split in ("validation", "test"):
        if lines := ingredients(rows, split):
            by_task(lines, FIXED, f"ingredients, {split}, ", losses=split == "validation")
    for fit in dict.fromkeys(row.fit for row in rows if row.outcome):
        words = ", ".join(f"{outcome} {mean(cell)}" for outcome, cell in shares(rows, fit, 10, 100).items())
        console.print(f"outcomes of the ground truths, {fit}, k = 10, top 100, in percent: {words}")


def by_task(lines: Sequence[TableLine], columns: Sequence[Column], title: str = "", *, losses: bool = False) -> None:
    """Print one table per task: both side by side are too wide."""
    for task in dict.fromkeys(task for task, _, _ in columns):
        places = [at for at, column in enumerate(columns) if column[0] == task]
        some = [replace(line, cells=tuple(line.cells[at] for at in places)) for line in lines]
        _lines_table(f"{title}{task} detection", some, [columns[at] for at in places], losses=losses, width=28)
        _console().print("")


def _lines_table(
    title: str, lines: Sequence[TableLine], columns: Sequence[Column], *, losses: bool, width: int | None = None
) -> None:
    header = [title, *(f"{'free k' if k == 'free' else f'k = {k}'} R@{top}" for _, k, top in columns)]
    header += ["held-out loss"] * losses
    rows = []
    for line in lines:
        loss = ["" if line.loss is None else mean(line.loss)] * losses
        rows.append([line.label, *map(mean, line.cells), *loss])
        if line.paper is not None:
            rows.append(["  the paper", *map(percent, line.paper)])
    print_table(header, rows, first_width=width)


def _seeds(rows: Sequence[Row]) -> str:
    n = len({row.seed for row in rows} - {None})
    return f"{n} seed{'s' if n > 1 else ''}"


def mean(cell: Cell) -> str:
    """Format a mean, with its deviation where there are several values."""
    return percent(cell.mean) if math.isnan(cell.deviation) else f"{cell.mean:.2f} ± {cell.deviation:.2f}"


def percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _between(interval: tuple[float, float] | None) -> str:
    return "-" if interval is None or math.isnan(interval[0]) else f"{interval[0]:.1f}-{interval[1]:.1f}"
