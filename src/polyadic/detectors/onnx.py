"""A detector from an `.onnx` file, run by onnxruntime, which is an optional extra.

The names of inputs and outputs say which layout it has: the DETR family's (`detr.py`), else YOLOX's (`yolox.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from polyadic.detectors.detr import DetrLayout, is_detr
from polyadic.detectors.yolox import YoloxLayout
from polyadic.pretrained import synonyms
from polyadic.structures.detections import Detections
from polyadic.structures.images import open_photo
from polyadic.structures.inputs import existing_file, regular_file
from polyadic.structures.labels import LabelMap, NameMapping, UnknownPolicy
from polyadic.structures.vocabulary import PolyadicError, Vocabulary


@final
class OnnxDetector:
    """Detect boxes in the photo's frame; best first.

    NMS runs per class (YOLOX alone, at IoU 0.45), then across classes at `nms`, the paper's step before pairs are
    formed.

    YOLOX's scores are objectness times class score, and so is `distribution`, without the classes that the vocabulary
    lacks. Class scores are independent, so a row that sums to more than 1 is divided by its sum. The DETR family gives
    scores without distributions. `label_map.report()` lists which classes map; `dropped` counts the boxes of the
    others, over all photos.
    """

    def __init__(
        self,
        path: str | Path,
        vocabulary: Vocabulary,
        *,
        names: Sequence[str] | Mapping[int, str] | str | Path | None = None,
        mapping: NameMapping = None,
        unknown: UnknownPolicy = "drop",
        score: float = 0.3,  # YOLOX's demo
        nms: float = 0.7,  # paper
        most: int = 100,
        threads: int = 1,
    ) -> None:
        """`names` are the class names in the model's order, or a file with one per line; by default a `.names` file."""
        if not (0 <= score <= 1 and 0 < nms <= 1 and most >= 1 and threads >= 1):
            raise PolyadicError(
                f"OnnxDetector: expected score and nms from 0 to 1, most and threads from 1, "
                f"got {score}, {nms}, {most}, {threads}"
            )
        self.path = Path(path).expanduser()
        self.unknown, self.score, self.nms, self.most = unknown, score, nms, most
        session = _open(self.path, threads)
        layout = DetrLayout if is_detr(session) else YoloxLayout
        self._layout: DetrLayout | YoloxLayout = layout(session, self.path.name)
        table = synonyms(vocabulary) if mapping is None else mapping
        self.label_map = LabelMap.match(read_names(names, self.path, self._layout.classes), vocabulary, table)
        self.dropped: Counter[str] = Counter()

    def __call__(self, photo: Any) -> Detections:
        """Detect in a path, a PIL image, an array, a tensor or a `Photo`."""
        seen = open_photo(photo)
        chosen = self._layout(seen).choose(self.score, self._layout.same_class, self.nms)
        found, unknown = chosen.name(seen, self.label_map, self.unknown, self.path.name)
        self.dropped.update(unknown)
        return found.take(np.arange(min(self.most, len(found))))

    def detect(self, photos: Sequence[Any]) -> list[Detections]:
        """Detect in each photo, one at a time: such models are exported for a batch of one."""
        return [self(photo) for photo in photos]


def _open(path: Path, threads: int) -> Any:
    existing_file(path, "an .onnx file")
    try:
        import onnxruntime
    except ImportError as error:
        raise PolyadicError("detectors from .onnx files need onnxruntime: pip install 'polyadic[onnx]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # errors are raised
    try:
        providers = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(str(path), options, providers, enable_fallback=False)  # it would print
        _ = [entry.name for entry in (*session.get_inputs(), *session.get_outputs())]  # raises if one is no text
    except Exception as error:  # its exceptions have no common base class
        reason = " ".join(str(error).split())
        raise PolyadicError(f"{path.name} is not an ONNX model that onnxruntime can run ({reason:.120})") from error
    return session


def read_names(given: Any, path: Path, classes: int | None) -> Sequence[str] | Mapping[int, str]:
    """Read the class names: given, or one per line of a file."""
    if given is None:
        beside = sorted(path.parent.glob("*.names"))
        matching = [file for file in beside if file.stem == path.stem] or beside
        if len(matching) != 1:
            what = ", ".join(file.name for file in matching) or "no .names file"
            whose = "its classes" if classes is None else f"its {classes} classes"
            raise PolyadicError(
                f"{path.name}: the names of {whose} are needed (names, one per line); beside it: {what}"
            )
        given = matching[0]
    where = "names"
    if isinstance(given, str | Path):
        where = Path(given).name
        try:
            lines = regular_file(Path(given).expanduser()).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise PolyadicError(f"{given} cannot be read, expected one class name per line ({error})") from error
        given = [line.strip() for line in lines if line.strip()]
    if classes is not None and len(given) != classes:
        raise PolyadicError(f"{where}: {len(given)} names, but {path.name} has {classes} classes")
    return given  # type: ignore[no-any-return]
