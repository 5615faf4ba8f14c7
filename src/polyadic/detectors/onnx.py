"""A detector from an `.onnx` file, run by onnxruntime, which is an optional extra.

The layout is YOLOX's. Input: the raw image, BGR from 0 to 255, resized to fit and padded with grey at the right and the
bottom. Output: [1, A, 5 + K], for each cell of three grids its box, objectness and K class scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Float, Float32, Int

from polyadic.boxes import suppress
from polyadic.pretrained import synonyms
from polyadic.structures.detections import Detections
from polyadic.structures.images import Photo, open_photo
from polyadic.structures.inputs import regular_file
from polyadic.structures.labels import LabelMap, NameMapping, UnknownPolicy
from polyadic.structures.scenes import scale_boxes
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

STRIDES = (8, 16, 32)  # YOLOX: pixels per cell of each grid
GREY = 114  # YOLOX: of the padding
SAME_CLASS = 0.45  # YOLOX's demo: one object lights several cells, whose boxes overlap less than 0.7
_LONGEST = 12.0  # log of a side in cells: a wider box would leave any picture, and floats soon after


@final
class OnnxDetector:
    """Detect boxes in the photo's frame; best first.

    NMS runs twice: per class at IoU 0.45, then across classes at `nms`, the paper's step before pairs are formed.

    Scores are objectness times class score, and so is `distribution`, without the classes that the vocabulary lacks.
    Class scores are independent, so a row that sums to more than 1 is divided by its sum. `label_map.report()` lists
    which classes map; `dropped` counts the boxes of the others, over all photos.
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
        self._session = _open(self.path, threads)
        self._input, self.size = _input(self._session, self.path.name)
        grey = self._run(np.full((1, 3, *self.size), GREY, np.float32))
        self._decoded = is_decoded(grey, self.size)
        table = synonyms(vocabulary) if mapping is None else mapping
        self.label_map = LabelMap.match(read_names(names, self.path, grey.shape[1] - 5), vocabulary, table)
        self.dropped: Counter[str] = Counter()

    def __call__(self, photo: Any) -> Detections:
        """Detect in a path, a PIL image, an array, a tensor or a `Photo`."""
        seen = open_photo(photo)
        pixels, shrunk = letterbox(seen, self.size)
        boxes, classes = decode(self._run(pixels), self.size, self._decoded)
        labels, scores = classes.argmax(1), classes.max(1)
        sure = np.flatnonzero(scores >= self.score)
        sure = sure[np.argsort(-scores[sure], kind="stable")]
        boxes = boxes[sure].clip(0, np.asarray([*shrunk, *shrunk]))
        rows = _best(boxes, labels[sure], scores[sure], self.nms)
        mapped = self.label_map.apply(labels[sure[rows]], self.unknown)
        self.dropped.update(mapped.unknown)
        rows = rows[mapped.rows]
        return Detections(
            seen.name,
            scale_boxes(boxes[rows], shrunk, seen.size),
            mapped.labels,
            scores[sure[rows]],
            seen.size,
            distribution=self.label_map.spread(classes[sure[rows]]),
        ).take(np.arange(min(self.most, len(rows))))

    def detect(self, photos: Sequence[Any]) -> list[Detections]:
        """Detect in each photo, one at a time: such models are exported for a batch of one."""
        return [self(photo) for photo in photos]

    def _run(self, pixels: Float32[np.ndarray, "1 3 H W"]) -> Float[np.ndarray, "A D"]:
        output = np.asarray(self._session.run(None, {self._input: pixels})[0])
        height, width = self.size
        cells = sum((height // stride) * (width // stride) for stride in STRIDES)
        if output.ndim != 3 or output.shape[:2] != (1, cells) or output.shape[2] < 6:
            raise PolyadicError(
                f"{self.path.name}: expected YOLOX's output [1, {cells}, 5 + classes] for a picture of {width} x "
                f"{height}, got {list(output.shape)}"
            )
        raw: np.ndarray = output[0].astype(np.float64)
        if not (np.isfinite(raw).all() and (raw[:, 4:] >= 0).all() and (raw[:, 4:] <= 1 + 1e-4).all()):
            raise PolyadicError(
                f"{self.path.name}: expected objectness and class scores in [0, 1], as YOLOX exports them"
            )
        return raw


def letterbox(photo: Photo, size: tuple[int, int]) -> tuple[Float32[np.ndarray, "1 3 H W"], tuple[float, float]]:
    """Resize and pad an image to (height, width); also return the (width, height) that the image itself covers."""
    from PIL.Image import Resampling

    height, width = size
    ratio = min(height / photo.image.height, width / photo.image.width)
    shrunk = max(1, round(photo.image.width * ratio)), max(1, round(photo.image.height * ratio))
    pixels = np.full((1, 3, height, width), GREY, np.float32)
    picture = np.asarray(photo.image.resize(shrunk, Resampling.BILINEAR), np.float32)
    pixels[0, :, : shrunk[1], : shrunk[0]] = picture[..., ::-1].transpose(2, 0, 1)
    return pixels, (float(shrunk[0]), float(shrunk[1]))


def decode(
    raw: Float[np.ndarray, "A D"], size: tuple[int, int], decoded: bool
) -> tuple[Float[np.ndarray, "A 4"], Float[np.ndarray, "A K"]]:
    """Compute boxes in pixels of the network's (height, width), and objectness times class scores."""
    centre, extent = raw[:, :2], raw[:, 2:4]
    if not decoded:
        corner, stride = _cells(size)
        centre, extent = (centre + corner) * stride, np.exp(np.minimum(extent, _LONGEST)) * stride
    return np.concatenate([centre - extent / 2, centre + extent / 2], 1), raw[:, 4:5] * raw[:, 5:]


def is_decoded(raw: Float[np.ndarray, "A D"], size: tuple[int, int]) -> bool:
    """Tell whether boxes are in pixels already: the reading that puts boxes nearer to their cells is right."""
    corner, stride = _cells(size)
    as_pixels, as_offsets = raw[:, :2] / stride - corner, raw[:, :2]
    return bool(np.median(np.abs(as_pixels)) < np.median(np.abs(as_offsets)) and (raw[:, 2:4] >= 0).all())


def _cells(size: tuple[int, int]) -> tuple[Float[np.ndarray, "A 2"], Float[np.ndarray, "A 1"]]:
    """List column and row of each cell, grid by grid and row by row, and its stride."""
    corners, strides = [], []
    for stride in STRIDES:
        rows, columns = np.mgrid[: size[0] // stride, : size[1] // stride]
        corners.append(np.stack([columns.ravel(), rows.ravel()], 1))
        strides.append(np.full((rows.size, 1), float(stride)))
    return np.concatenate(corners).astype(np.float64), np.concatenate(strides)


def _best(
    boxes: Float[np.ndarray, "N 4"], labels: Int[np.ndarray, " N"], scores: Float[np.ndarray, " N"], nms: float
) -> Int[np.ndarray, " M"]:
    """Run NMS per class, then across classes; boxes without area are dropped."""
    rows = np.flatnonzero((boxes[:, 2:] > boxes[:, :2]).all(1))
    apart = labels[rows, None] * (boxes.max(initial=0) + 1)  # offsets per class keep classes apart
    rows = rows[suppress(boxes[rows] + apart, scores[rows], SAME_CLASS)]
    return np.asarray(rows[suppress(boxes[rows], scores[rows], nms)])


def _open(path: Path, threads: int) -> Any:
    if path.is_dir():
        raise PolyadicError(f"{path} is a folder, expected an .onnx file")
    if not path.exists():
        raise PolyadicError(f"no file {path}")
    regular_file(path)
    try:
        import onnxruntime
    except ImportError as error:
        raise PolyadicError("detectors from .onnx files need onnxruntime: pip install 'polyadic[onnx]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # errors are raised
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base class
        reason = " ".join(str(error).split())
        raise PolyadicError(f"{path.name} is not an ONNX model that onnxruntime can run ({reason:.120})") from error


def _input(session: Any, file: str) -> tuple[str, tuple[int, int]]:
    """Find the name and the (height, width) of the input."""
    given = session.get_inputs()
    shape = list(given[0].shape)
    sides = [side for side in shape[2:] if isinstance(side, int) and side > 0 and side % STRIDES[-1] == 0]
    if len(given) != 1 or given[0].type != "tensor(float)" or shape[1:2] != [3] or len(shape) != 4 or len(sides) != 2:
        raise PolyadicError(
            f"{file}: expected one float input [1, 3, H, W] with fixed H and W, multiples of {STRIDES[-1]}, got "
            f"{' and '.join(f'{entry.type} {list(entry.shape)}' for entry in given)}"
        )
    return given[0].name, (sides[0], sides[1])


def read_names(given: Any, path: Path, classes: int) -> Sequence[str] | Mapping[int, str]:
    """Read the class names: given, or one per line of a file."""
    if given is None:
        beside = sorted(path.parent.glob("*.names"))
        matching = [file for file in beside if file.stem == path.stem] or beside
        if len(matching) != 1:
            what = ", ".join(file.name for file in matching) or "no .names file"
            raise PolyadicError(
                f"{path.name}: the names of its {classes} classes are needed (names, one per line); beside it: {what}"
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
    if len(given) != classes:
        raise PolyadicError(f"{where}: {len(given)} names, but {path.name} has {classes} classes")
    return given  # type: ignore[no-any-return]
