"""Published formats: the official files of VRD (Lu et al. 2016), neural-motifs' pickles, COCO's results.

Lu's `relationship_det_result.mat` and `objectDetRCNN.mat` hold one cell per test image, without names: `imagePath.mat`
beside them has the order. Classes count from 1. Small unsigned integers would wrap in differences, so everything is
cast on reading.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from jaxtyping import Float, Int

from polyadic.structures.detections import ABOVE_ONE, Detections, Size, apply
from polyadic.structures.labels import LabelMap, LabelReader, NameMapping, UnknownPolicy, warn_dropped
from polyadic.structures.relations import Relations
from polyadic.structures.vocabulary import PolyadicError, Vocabulary


@contextmanager
def located(where: str) -> Iterator[None]:
    """Prefix errors with the place in a file."""
    try:
        yield
    except PolyadicError as error:
        raise PolyadicError(f"{where}: {error}") from error


def read_lu_relations(path: Path, vocabulary: Vocabulary) -> Iterator[Relations]:
    """Read scored triplets. A box with its label is one detection: the file repeats both in each prediction."""
    fields = {"rlp_labels": 3, "rlp_confs": 1, "sub_bboxes": 4, "obj_bboxes": 4}
    for name, (labels, scores, subjects, objects) in _images(path, fields, "relationship_det_result.mat"):
        with located(f"{path.name}, image {name}"):
            triplets = _classes(labels, vocabulary.sizes)
            ends = np.concatenate([np.c_[subjects, triplets[:, 0]], np.c_[objects, triplets[:, 2]]])
            boxes, index = np.unique(ends, axis=0, return_inverse=True)
            image = Relations(name, boxes[:, :4], index.reshape(2, -1).T, triplets, scores[:, 0])
        yield image


def read_lu_detections(path: Path, vocabulary: Vocabulary) -> Iterator[Detections]:
    """Read a detector's boxes, labels and confidences."""
    fields = {"detection_bboxes": 4, "detection_labels": 1, "detection_confs": 1}
    for name, (boxes, labels, scores) in _images(path, fields, "objectDetRCNN.mat"):
        with located(f"{path.name}, image {name}"):
            classes = _classes(labels, (len(vocabulary.objects),))[:, 0]
            image = Detections(name, boxes, classes, scores[:, 0])
        yield image


def _images(path: Path, fields: dict[str, int], like: str) -> Iterator[tuple[str, list[np.ndarray]]]:
    content = _load(path)
    listed = _cells(_load(path.with_name("imagePath.mat")), "imagePath", "imagePath.mat")
    names = [_name(cell, f"imagePath.mat, image {row}") for row, cell in enumerate(listed)]
    columns = []
    for field in fields:
        key = next((key for key in content if key == field or key.startswith(f"{field}_")), None)
        if key is None:
            has = ", ".join(k for k in content if k[0] != "_")
            raise PolyadicError(f"{path.name}: no field {field!r}; it has {has}. Expected a file like Lu's {like}")
        cells = _cells(content, key, path.name)
        if len(cells) != len(names):
            raise PolyadicError(f"{path.name}, {key}: {len(cells)} images, but imagePath.mat names {len(names)}")
        columns.append(cells)
    for row, name in enumerate(names):
        arrays = [
            _numbers(column[row], width, f"{path.name}, image {name}, {field}")
            for column, (field, width) in zip(columns, fields.items(), strict=True)
        ]
        if len({len(array) for array in arrays}) > 1:
            raise PolyadicError(
                f"{path.name}, image {name}: fields of different lengths {[len(array) for array in arrays]}"
            )
        yield name, arrays


def _load(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    if not path.exists():
        raise PolyadicError(f"no {path}; Lu's files name their images in imagePath.mat, in the same folder")
    try:
        return dict(loadmat(path, mat_dtype=True))
    except Exception as error:  # a damaged file raises almost anything
        raise PolyadicError(
            f"{path} is not a complete MATLAB file of version 5 ({error})".replace("\n", " ")
        ) from error


def _cells(content: dict[str, Any], key: str, file: str) -> Any:
    if key not in content or not isinstance(content[key], np.ndarray) or content[key].dtype != object:
        raise PolyadicError(f"{file}: expected a cell array {key!r}")
    return content[key].ravel()


def _name(cell: Any, where: str) -> str:
    """Read a cell that holds one text."""
    while isinstance(cell, np.ndarray) and cell.dtype == object and cell.size == 1:
        cell = cell.ravel()[0]
    texts = np.ravel(cell)
    if texts.dtype.kind != "U" or texts.size != 1:
        raise PolyadicError(f"{where}: expected the name of an image, got {texts.dtype} {list(np.shape(cell))}")
    return str(texts[0])


def _numbers(cell: Any, width: int, where: str) -> Float[np.ndarray, "N width"]:
    """Read a cell that holds numbers [n, width]; an empty one has any width."""
    array = np.asarray(cell)
    if array.dtype.kind not in "iuf" or array.size % width:
        raise PolyadicError(f"{where}: expected numbers [n, {width}], got {array.dtype} {list(array.shape)}")
    return array.astype(np.float64).reshape(-1, width)


def _whole(array: np.ndarray, what: str) -> Int[np.ndarray, "*N"]:
    """Convert numbers that must be whole and fit into 64 bits."""
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iuf" or not ((array % 1 == 0) & (np.abs(array) < 2.0**53)).all():
        raise PolyadicError(f"{what} must be whole numbers, got {array.dtype} such as {array.ravel()[0]!r:.40}")
    return array.astype(np.int64)


def _classes(labels: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Convert classes that count from 1 to ours, which count from 0."""
    classes = _whole(labels, "classes") - 1
    wrong = (classes < 0) | (classes >= np.array(sizes))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise PolyadicError(f"row {row}: class {labels[row, column]:g} is outside 1 to {sizes[column]}")
    return classes


_KEYS = ("pred_boxes", "pred_classes", "obj_scores", "pred_rel_inds", "rel_scores")
_ALLOWED = {
    *(("numpy", name) for name in ("ndarray", "dtype")),
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
}


class _ArraysOnly(pickle.Unpickler):
    """Unpickle arrays only: a pickle could run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it holds a {module}.{name}, expected arrays only")


def from_motifs(entry: Mapping[str, Any], image: str, vocabulary: Vocabulary) -> Relations:
    """Convert one image's dictionary: every predicate of every pair is one prediction."""
    missing = next((key for key in _KEYS if key not in entry), None)
    if missing:
        raise PolyadicError(f"{image}: no {missing!r}; an entry has {', '.join(_KEYS)}")
    boxes, classes, confidences, pairs, rel = (np.asarray(entry[key]) for key in _KEYS)
    classes = _whole(classes, f"{image}: pred_classes") - 1
    pairs = _whole(pairs, f"{image}: pred_rel_inds").reshape(-1, 2)
    n = len(vocabulary.predicates)
    rel = rel.astype(np.float64).reshape(-1, n + 1) if rel.size == len(pairs) * (n + 1) else rel
    if rel.shape != (len(pairs), n + 1):
        raise PolyadicError(
            f"{image}: rel_scores must be [{len(pairs)}, {n + 1}] (background first), got {list(rel.shape)}"
        )
    if len(classes) and not 0 <= classes.min() <= classes.max() < len(vocabulary.objects):
        raise PolyadicError(f"{image}: pred_classes must lie in 1 to {len(vocabulary.objects)}")
    if len(pairs) and not 0 <= pairs.min() <= pairs.max() < len(classes):
        raise PolyadicError(f"{image}: pred_rel_inds point to box {pairs.max()} of {len(classes)}")
    confidences = confidences.astype(np.float64)
    scores = confidences[pairs].prod(1)[:, None] * rel[:, 1:]  # [pairs, P]
    pair, predicate = np.divmod(np.arange(scores.size), n)
    ends = classes[pairs[pair]]
    triplets = np.stack([ends[:, 0], predicate, ends[:, 1]], axis=1)
    return Relations(image, boxes, pairs[pair], triplets, scores.ravel(), labels=classes, confidences=confidences)


def read_motifs(path: Path, vocabulary: Vocabulary, images: Sequence[str]) -> Iterator[Relations]:
    """Read a pickled list of entries, in the order of `images`, or a dictionary by image name."""
    try:
        with path.open("rb") as file:
            entries = _ArraysOnly(file, encoding="latin1").load()
    except Exception as error:  # a damaged pickle raises almost anything
        raise PolyadicError(f"{path} is not a pickle of neural-motifs entries ({error})".replace("\n", " ")) from error
    if isinstance(entries, Mapping):
        rows = [(str(image), entry) for image, entry in entries.items()]
    elif isinstance(entries, list) and len(entries) == len(images):
        rows = list(zip(images, entries, strict=True))
    else:
        what = f"{len(entries)} entries" if isinstance(entries, list) else f"a {type(entries).__name__}"
        raise PolyadicError(f"{path.name}: expected one entry for each of the {len(images):,} images, got {what}")
    for number, (image, entry) in enumerate(rows):
        where = f"{path.name}, entry {number}"
        if not isinstance(entry, Mapping):
            raise PolyadicError(f"{where}: expected a dictionary, got a {type(entry).__name__}")
        with located(where):
            try:
                relations = from_motifs(entry, image, vocabulary)
            except (TypeError, ValueError, IndexError, OverflowError) as error:
                if isinstance(error, PolyadicError):
                    raise
                raise PolyadicError(f"arrays of the wrong kind ({error})".replace("\n", " ")) from error
        yield relations


class CocoResult(msgspec.Struct):
    """One box of COCO's results, or one annotation of a COCO file."""

    image_id: int | str
    category_id: int
    bbox: tuple[float, float, Annotated[float, msgspec.Meta(ge=0)], Annotated[float, msgspec.Meta(ge=0)]]
    score: Annotated[float, msgspec.Meta(ge=0, le=1 + ABOVE_ONE)] = 1.0

    @property
    def corners(self) -> tuple[float, float, float, float]:
        """The box as xyxy."""
        x, y, width, height = self.bbox
        return x, y, x + width, y + height


class CocoCategory(msgspec.Struct):
    """A class name by its id."""

    id: int
    name: str


class CocoImage(msgspec.Struct):
    """An image's file by its id."""

    id: int | str
    file_name: str
    width: Annotated[float, msgspec.Meta(gt=0)] | None = None
    height: Annotated[float, msgspec.Meta(gt=0)] | None = None

    @property
    def size(self) -> Size:
        """(width, height), if the file has both."""
        return None if self.width is None or self.height is None else (self.width, self.height)


def from_coco_results(
    records: Any,
    categories: Any,
    vocabulary: Vocabulary,
    *,
    images: Any = None,
    mapping: NameMapping = None,
    unknown: UnknownPolicy = "drop",
) -> dict[str, Detections]:
    """Convert COCO's results, {image_id, category_id, bbox [x, y, width, height], score} each, by image.

    `categories` and `images` are COCO's lists, or the content of a COCO file that has them. With images, keys are file
    names, and images without results are there, empty; without, keys are ids.
    """
    reader = LabelReader(vocabulary, mapping, unknown)
    detections = {image.image: image for image in coco_images(records, categories, reader, images)}
    warn_dropped("COCO results", reader.dropped, unknown)
    return detections


def coco_images(records: Any, categories: Any, reader: LabelReader, images: Any = None) -> Iterator[Detections]:
    """Convert COCO results image by image, in the order of the list of images, else of the results."""
    if isinstance(records, Mapping):  # a whole COCO file has all three
        categories = records if categories is None else categories
        images = records if images is None else images
        records = records.get("annotations")
    results = _convert(records, list[CocoResult], "results")
    label_map = LabelMap.match(_category_names(categories), reader.vocabulary, reader.mapping)
    frames = _frames(categories if images is None else images)
    rows: dict[Any, list[CocoResult]] = {key: [] for key in frames or ()}
    for at, result in enumerate(results):
        if frames is not None and result.image_id not in frames:
            raise PolyadicError(f"COCO results[{at}]: image_id {result.image_id!r} is not in the list of images")
        rows.setdefault(result.image_id, []).append(result)
    for key, some in rows.items():
        name, size = (str(key), None) if frames is None else (frames[key].file_name, frames[key].size)
        boxes = np.array([result.corners for result in some]).reshape(-1, 4)
        scores = np.array([min(result.score, 1.0) for result in some])
        labels = [result.category_id for result in some]
        mapped = apply(label_map, labels, reader.unknown, f"COCO results, image {name}")
        reader.dropped.update(mapped.unknown)
        yield Detections(name, boxes[mapped.rows], mapped.labels, scores[mapped.rows], size)


def _category_names(source: Any) -> Mapping[int, str]:
    """Get class names by id, from a COCO file's content, its list of categories, or such a mapping itself."""
    listed = source.get("categories", source) if isinstance(source, Mapping) else source
    if isinstance(listed, Mapping):
        names: dict[int, str] = _convert(listed, dict[int, str], "categories", strict=False)  # JSON's keys are text
        return names
    return {category.id: category.name for category in _convert(listed, list[CocoCategory], "categories")}


def _frames(source: Any) -> dict[Any, CocoImage] | None:
    """Get the images by id, if there is a list of them."""
    listed = source.get("images") if isinstance(source, Mapping) else source
    if not isinstance(listed, list | tuple) or not all(isinstance(x, Mapping) and "file_name" in x for x in listed[:1]):
        return None
    images = _convert(listed, list[CocoImage], "images")
    frames = {image.id: image for image in images}
    if len(frames) < len(images) or len({image.file_name for image in images}) < len(images):
        raise PolyadicError("COCO images: an id or file_name occurs twice")
    return frames


def _convert(value: Any, kind: Any, what: str, *, strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise PolyadicError(f"COCO {what}: {error}") from error
