"""Annotations of a folder of photos, kept on disk beside them as COCO with `rel_annotations`.

Every save rewrites `train.json` atomically, so that a kill loses nothing that was acknowledged. Photos that are done
are its images; those under way are in its key `drafts`, where `polyadic train` does not see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL.Image import new

from polyadic.datasets import coco, load_dataset
from polyadic.experiments.photos import find_photos
from polyadic.files import atomic_write, lock, parse_json
from polyadic.serve.answers import Answerer
from polyadic.serve.export import extended, scene_of, vocabulary_of
from polyadic.serve.messages import OpenRequest, PageBox, PageOptions, PageRelation, RelationsRequest, SaveRequest
from polyadic.structures.images import Photo, open_photo
from polyadic.structures.inputs import regular_file
from polyadic.structures.scenes import Dataset, Scene
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

FILE = "train.json"
MADE = "polyadic serve"
FILLED = 10  # relations of a photo that is filled in


class Draft(msgspec.Struct):
    """A photo's annotations on its upright frame."""

    size: tuple[float, float]
    boxes: list[PageBox]
    relations: list[PageRelation]


@dataclass
class Project:
    """The photos of a folder, which of them are done or under way, and the file of both."""

    root: Path
    photos: list[Path]
    vocabulary: Vocabulary
    fill: float | None = None  # fill in relations of at least this probability
    scenes: dict[str, Scene] = field(default_factory=dict)  # done
    drafts: dict[str, Draft] = field(default_factory=dict)
    frames: dict[str, Photo] = field(default_factory=dict)  # opened photos without their pixels

    @classmethod
    @contextmanager
    def open(cls, root: Path, vocabulary: Vocabulary, fill: float | None = None) -> Iterator[Project]:
        """Open a folder and keep other servers out of it; continue what `train.json` has, if it is ours."""
        root = root.expanduser()
        if not root.is_dir():
            raise PolyadicError(f"{root} is not a folder of photos")
        photos = [path for path in find_photos([str(root)]) if path.is_file()]
        project = cls(root, photos, vocabulary, fill)
        with lock(root / f".{FILE}.lock", f"{root}: another server is annotating it; stop that one first"):
            if (root / FILE).exists():
                project._read()
            yield project

    def _read(self) -> None:
        content: Any = parse_json(regular_file(self.root / FILE).read_bytes(), str(self.root / FILE))
        if not isinstance(content, dict) or content.get("made") != MADE:
            raise PolyadicError(
                f"{self.root / FILE} was not written by polyadic serve, so it is not replaced: move it away first"
            )
        data = load_dataset("coco", self.root)
        self.vocabulary = extended(self.vocabulary, data.vocabulary.objects, data.vocabulary.predicates)
        objects = np.array([self.vocabulary.objects.index(name) for name in data.vocabulary.objects])
        predicates = np.array([self.vocabulary.predicates.index(name) for name in data.vocabulary.predicates])
        for scene in data:
            relations = scene.relations.copy()
            relations[:, 1] = predicates[relations[:, 1]]
            self.scenes[scene.name] = replace(scene, labels=objects[scene.labels], relations=relations)
        try:
            self.drafts = msgspec.convert(content.get("drafts", {}), dict[str, Draft])
        except msgspec.ValidationError as error:
            raise PolyadicError(f"{self.root / FILE}, drafts: {error}") from error

    def _name(self, number: int) -> str:
        if number >= len(self.photos):
            raise PolyadicError(f"the folder has {len(self.photos)} photos, there is no number {number}")
        return self.photos[number].relative_to(self.root).as_posix()

    def _photo(self, number: int) -> Photo:
        """Open by content, not by path: errors name the photo alone."""
        name = self._name(number)
        try:
            photo = open_photo(regular_file(self.photos[number]).read_bytes(), name)
        except OSError as error:
            raise PolyadicError(f"{name} cannot be read ({error.strerror})") from None
        self.frames[name] = replace(photo, image=new("RGB", (1, 1)))
        return photo

    def state(self, name: str) -> str:
        return "done" if name in self.scenes else "draft" if name in self.drafts else "todo"

    def describe(self) -> dict[str, Any]:
        """List the photos and how far they are."""
        names = [self._name(number) for number in range(len(self.photos))]
        return {
            "folder": self.root.resolve().name,
            "file": FILE,
            "photos": [{"name": name, "state": self.state(name)} for name in names],
            "objects": list(self.vocabulary.objects),
            "predicates": list(self.vocabulary.predicates),
        }

    def show(self, request: OpenRequest, answerer: Answerer) -> dict[str, Any]:
        """Open a photo with its annotations, else with the detector's boxes and the model's relations, if wanted."""
        photo = self._photo(request.number)
        record = answerer.detect_photo(photo)
        draft = self.drafts.get(photo.name)
        if photo.name in self.scenes:
            draft = self._draft(self.scenes[photo.name], photo)
        if draft is None:
            draft = self._filled(record, answerer)
        return {**record, **msgspec.to_builtins(draft), "state": self.state(photo.name)}

    def _draft(self, scene: Scene, photo: Photo) -> Draft:
        """Turn a dataset's annotations upright."""
        names = self.vocabulary
        boxes = [
            PageBox(box=tuple(corners), label=names.objects[label])
            for corners, label in zip(photo.upright(scene.boxes).tolist(), scene.labels.tolist(), strict=True)
        ]
        relations = [
            PageRelation(subject=subject, predicate=names.predicates[predicate], object=object)
            for subject, predicate, object in scene.relations.tolist()
        ]
        return Draft(photo.size, boxes, relations)

    def _filled(self, record: dict[str, Any], answerer: Answerer) -> Draft:
        boxes = msgspec.convert(record["boxes"], list[PageBox])
        draft = Draft(tuple(record["size"]), boxes, [])
        if self.fill is None or len(boxes) < 2:
            return draft
        options = PageOptions(least=self.fill, top=FILLED)
        request = RelationsRequest(size=draft.size, boxes=boxes, photo=record["photo"], options=options)
        for x in answerer.relations(request)["relations"]:
            ends = x["subject"]["box"], x["object"]["box"]
            draft.relations.append(PageRelation(subject=ends[0], predicate=x["predicate"], object=ends[1]))
        return draft

    def save(self, request: SaveRequest) -> dict[str, Any]:
        """Write a photo's annotations; those of a photo that is done must have names for all boxes."""
        photo = self.frames.get(self._name(request.number)) or self._photo(request.number)
        unnamed = next((at for at, box in enumerate(request.boxes) if not box.label), None)
        if request.done and unnamed is not None:
            raise PolyadicError(f"box {unnamed + 1} has no name: name it or delete it, then the photo is done")
        if max((end for x in request.relations for end in (x.subject, x.object)), default=-1) >= len(request.boxes):
            raise PolyadicError(f"a relation points to a box beyond the {len(request.boxes)} there are")
        scenes, drafts, vocabulary = dict(self.scenes), dict(self.drafts), self.vocabulary
        drafts.pop(photo.name, None)
        scenes.pop(photo.name, None)
        if request.done:
            vocabulary = vocabulary_of(vocabulary, request, request.relations)
            named = msgspec.structs.replace(request, image=photo.name)
            scenes[photo.name] = scene_of(named, request.relations, vocabulary, photo)
        else:
            drafts[photo.name] = Draft(request.size, request.boxes, request.relations)
        order = sorted(scenes)
        extra = {"made": MADE, "drafts": msgspec.to_builtins(drafts)}
        dataset = Dataset("coco", "train", vocabulary, tuple(scenes[name] for name in order), self.root, extra)
        try:
            with atomic_write(self.root / FILE) as part:
                part.write_bytes(msgspec.json.encode(coco.content(dataset)))
        except OSError as error:
            raise PolyadicError(f"{FILE} cannot be written ({error.strerror}); it is as it was before") from error
        self.scenes, self.drafts, self.vocabulary = scenes, drafts, vocabulary
        return {"state": self.state(photo.name)}
