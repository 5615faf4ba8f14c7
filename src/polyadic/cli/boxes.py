"""Boxes for `polyadic predict`: the run's detector, or detectors and a file, whose boxes are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyadic.cli.options import echo
from polyadic.structures.vocabulary import PolyadicError

if TYPE_CHECKING:
    from polyadic.experiments.photos import Item
    from polyadic.model.relation_model import RelationModel
    from polyadic.structures.labels import NameMapping, UnknownPolicy
    from polyadic.structures.vocabulary import Vocabulary


@dataclass(frozen=True)
class BoxOptions:
    """The options that say where boxes come from and how their class names are read."""

    words: tuple[str, ...]  # --detector
    file: Path | None  # --detections
    names: Path | None
    categories: Path | None
    mapping: Path | None
    unknown: UnknownPolicy

    def __post_init__(self) -> None:
        twice = next((word for at, word in enumerate(self.words) if word in self.words[:at]), None)
        if twice is not None:
            raise PolyadicError(f"--detector: {twice} is given twice")

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of all that give boxes: the file, then the detectors."""
        return (*([] if self.file is None else [str(self.file)]), *self.words)

    @property
    def joined(self) -> bool:
        return len(self.sources) > 1

    def needs_photos(self) -> bool:
        return bool(self.words) or self.file is None

    def prepare(self, model: RelationModel, photos: Sequence[Path]) -> list[Item]:
        """Set the model's detector, and list what to predict."""
        from polyadic.detectors.witnesses import Witnesses

        table = self._table(model.vocabulary)
        detectors = {word: _load(word, model, self, table) for word in self.words}
        if self.joined and self.mapping is not None and self.file is None:
            self._check_mapping(detectors)
        given = None if self.file is None else self._read(self.file, model, table)
        items = _items(model, photos, given, self)
        if self.joined and self.file is not None:
            recorded = {item.name: item.detections for item in items}
            detectors = {str(self.file): lambda photo: recorded[photo.name], **detectors}
            items = [replace(item, detections=None) for item in items]
        if detectors:
            model.set_detector(Witnesses(detectors) if self.joined else detectors[self.words[0]])
        return items

    def _table(self, vocabulary: Vocabulary) -> NameMapping:
        """Return the user's mapping, by default from COCO's names; where boxes are joined, no detector needs it all."""
        from polyadic.pretrained import synonyms
        from polyadic.structures.labels import Synonyms, read_mapping

        if self.mapping is None:
            return synonyms(vocabulary)
        if not self.joined:
            return self.mapping
        return Synonyms({name: target or "" for name, target in read_mapping(self.mapping).items()})

    def _check_mapping(self, detectors: dict[str, Any]) -> None:
        from polyadic.structures.labels import check_names, read_mapping

        maps = [detector.label_map for detector in detectors.values() if hasattr(detector, "label_map")]
        classes = {name for label_map in maps for name in label_map.names.values()}
        check_names(read_mapping(self.mapping), classes, "mapping: no detector has a class")

    def _read(self, file: Path, model: RelationModel, table: NameMapping) -> list[Any]:
        from polyadic.io.records import read_detections

        return list(read_detections(file, model.vocabulary, table, unknown=self.unknown, categories=self.categories))

    def describe(self, model: RelationModel, verbose: bool) -> tuple[str, list[str]]:
        """Name the sources of boxes in one line; `verbose`: also list how their class names are mapped."""
        texts, reports = [], []
        detectors = self.detectors(model)
        for name in self.sources or detectors:
            label_map = getattr(detectors.get(name), "label_map", None)
            mapped = "" if label_map is None else f" ({label_map.summary()}{'' if verbose else '; -v lists them'})"
            texts.append(f"{name}{mapped}")
            reports += [] if label_map is None or not verbose else [label_map.report()]
        return ", ".join(texts), reports

    def detectors(self, model: RelationModel) -> dict[str, Any]:
        """Return the detectors that are used, by name."""
        from polyadic.detectors.witnesses import Witnesses

        if isinstance(model.detector, Witnesses):
            return model.detector.detectors
        return {} if self.file is not None else {(*self.words, "the run's detector")[0]: model.detector}

    def class_names(self, model: RelationModel) -> list[object]:
        """List the class names of the detectors, which need not be in one of their files, and what each maps to."""
        maps = [getattr(detector, "label_map", None) for detector in self.detectors(model).values()]
        return [(label_map.names, label_map.targets) for label_map in maps if label_map is not None]

    def files(self, model: RelationModel) -> list[Path | None]:
        """List the files of the detectors, each detector's after a None."""
        from polyadic.detectors import COCO_NETWORKS, HUB
        from polyadic.pretrained import DETECTOR, detector_folder

        found: list[Path | None] = []
        for word in self.words or ("",):
            found.append(None)
            if word in COCO_NETWORKS:
                from polyadic.detectors.coco import weights_file

                found += model_files(weights_file(word))
            elif word.startswith(HUB):
                found += model_files(self.detectors(model)[word].folder)
            elif word:
                found += model_files(detector_folder() if word == DETECTOR else Path(word))
        return found

    def report_dropped(self, model: RelationModel) -> None:
        """Report detections dropped for lack of a matching class."""
        for name, detector in self.detectors(model).items():
            dropped: Any = getattr(detector, "dropped", None)
            if dropped:
                most = ", ".join(f"{label} ({n:,})" for label, n in dropped.most_common(5))
                more = f" and {len(dropped) - 5} more classes" if len(dropped) > 5 else ""
                boxes = f"{dropped.total():,} box{'es' * (dropped.total() > 1)}"
                where = f"{name}: " if self.joined else ""
                echo(f"note: {where}dropped {boxes} of classes unknown to the model: {most}{more}", err=True)


def load_model(folder: Path, device: str, threads: int) -> RelationModel:
    """Load a run's model, or a saved one."""
    import torch

    from polyadic.model.relation_model import RelationModel
    from polyadic.model.storage import pick_device

    if threads:
        torch.set_num_threads(threads)
    return RelationModel.load(folder, pick_device(device))


def model_files(path: Path) -> list[Path]:
    """List the files of a saved model or detector, or of a single file."""
    path = path.expanduser()
    if path.is_file():
        return [path]
    model = path / "model" if (path / "model").is_dir() else path
    return sorted(file for file in model.rglob("*") if file.suffix in (".safetensors", ".json"))


def _load(word: str, model: RelationModel, options: BoxOptions, table: NameMapping) -> Any:
    """Load one of torchvision's detectors by name, or one from a file or folder."""
    from polyadic.detectors import COCO_NETWORKS, load_detector

    if word in COCO_NETWORKS:
        from polyadic.detectors.coco import weights_file
        from polyadic.detectors.weights import pretrained

        if not weights_file(word).exists():
            size = f"{pretrained(word).meta['_file_size']:.0f} MB"
            echo(f"downloading the weights of torchvision's {word} once, {size}", err=True)
    try:
        detector = load_detector(
            word, model.vocabulary, device=model.device, names=options.names, mapping=table, unknown=options.unknown
        )
    except PolyadicError as error:
        if word not in COCO_NETWORKS:
            raise
        raise PolyadicError(f"{error}, or give --detector FILE.onnx, or boxes with --detections FILE") from error
    label_map = getattr(detector, "label_map", None)
    if label_map is not None and options.unknown == "drop" and max(label_map.targets.values(), default=-1) < 0:
        first = ", ".join(label_map.classes[:3])
        raise PolyadicError(
            f"--detector: none of the {len(label_map.classes):,} classes of {word} ({first}, ...) is an object of the "
            "model: give --mapping FILE, or --unknown keep"
        )
    return detector


def _items(model: RelationModel, photos: Sequence[Path], given: list[Any] | None, options: BoxOptions) -> list[Item]:
    """Pair photos with the given boxes, if any; without photos, list all images of the file of boxes."""
    from polyadic.experiments.photos import Item, match_detections

    if given is None:
        if not options.words and model.detector is None:
            raise PolyadicError(
                "this model has no detector: give --detector (a run of `polyadic detect train`, an .onnx file, or "
                "torchvision's resnet50-fpn), or boxes with --detections"
            )
        return [Item(str(path), path) for path in photos]
    if not photos and model.needs_photo:
        raise PolyadicError("PATHS are missing: this model sees pixels, so name the photos of --detections")
    if not photos and model.backbone is not None:
        echo("note: no photos are given, so this model sees the boxes alone", err=True)
    if photos:
        return match_detections(photos, {boxes.image: boxes for boxes in given})
    if not given:
        raise PolyadicError(f"{options.file}: no image in this file")
    lacking = [boxes.image for boxes in given if boxes.size is None]
    if lacking:
        raise PolyadicError(
            f"PATHS are missing, and {options.file} has no size for {len(lacking):,} of {len(given):,} images (the "
            f"first is {lacking[0]!r}): name the photos, or give each record a size"
        )
    return [Item(boxes.image, detections=boxes) for boxes in given]
