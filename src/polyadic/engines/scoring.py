"""Score a folder of Parquet files in several processes; the result equals that of one, to the bit. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, takewhile
from pathlib import Path

from polyadic.engines.local import Lost, run_tasks
from polyadic.evaluation.compare import Comparer, Comparison
from polyadic.evaluation.matching import paired
from polyadic.io.parquet import read_parquet
from polyadic.progress import track
from polyadic.structures.detections import Detections
from polyadic.structures.relations import Relations
from polyadic.structures.scenes import Dataset
from polyadic.structures.vocabulary import PolyadicError

_PARTS = 4  # tasks per process: all end at about the same time


@dataclass(frozen=True)
class Scoring:
    """What is scored, and how; sent to the processes."""

    files: Sequence[Path]
    data: Dataset
    make: partial[Comparer]
    detections: Mapping[str, Detections] | None = None

    def run(self, workers: int) -> Comparison:
        """Score the files in `workers` processes; images without a record come last, as in one process."""
        tasks = min(len(self.files), workers * _PARTS)
        parts: dict[int, tuple[Comparer, list[str]]] = {}
        for task, part in track(run_tasks(partial(self.start, tasks), range(tasks), workers), "scoring", tasks):
            if isinstance(part, Lost):
                raise PolyadicError(f"{self.files[0].parent}: {part.problem}")
            parts[task] = part
        total, seen = self.make(), set[str]()
        for _, (sums, names) in sorted(parts.items()):
            twice = next((name for name in names if name in seen), None)
            if twice is not None:
                raise PolyadicError(f"{self.files[0].parent}: image {twice!r} is in two files")
            seen.update(names)
            total.merge(sums)
        for scene in self.data:
            if scene.name not in seen:
                total.update(scene, None, self.detections)
        return total.result(self.data)

    def start(self, tasks: int) -> partial[tuple[Comparer, list[str]]]:
        """Return the function that scores every `tasks`-th file, from one on."""
        return partial(self.part, tasks)

    def part(self, tasks: int, first: int) -> tuple[Comparer, list[str]]:
        sums, names = self.make(), list[str]()
        pairs = paired(self.data, read_all(self.files[first::tasks], self.data))
        for scene, answer in takewhile(lambda pair: pair[1] is not None, pairs):
            sums.update(scene, answer, self.detections)
            names.append(scene.name)
        sums.evaluator.flushed()
        return sums, names


def read_all(files: Sequence[Path], data: Dataset) -> Iterator[Relations]:
    """Read the predictions of several files."""
    names = frozenset(scene.name for scene in data)
    return chain.from_iterable(read_parquet(path, data.vocabulary, names) for path in files)
