"""Detectors of the Hugging Face hub or of a local folder, through transformers, which is an optional extra.

Those with classes of their own (DETR, RT-DETR, YOLOS) are run as they are. Those with an open vocabulary (OWL-ViT,
Grounding DINO) are asked for the relation model's objects, in as many prompts as they need.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from polyadic.detectors import HUB
from polyadic.detectors.candidates import Candidates
from polyadic.pretrained import synonyms
from polyadic.structures.detections import Detections
from polyadic.structures.images import Photo, open_photo
from polyadic.structures.labels import LabelMap, NameMapping, UnknownPolicy
from polyadic.structures.vocabulary import PolyadicError, Vocabulary

_GROUNDED = ("grounding-dino", "mm-grounding-dino")  # read all names in one text, and score each of its tokens
_OPEN = ("owlvit", "owlv2", *_GROUNDED)
_FILES: Any = {"allow_patterns": ["*.json", "*.txt", "*.model", "*.safetensors"], "ignore_patterns": ["*/*"]}


@final
class HubDetector:
    """Detect boxes in the photo's frame; best first, NMS across classes at `nms`.

    `label_map.report()` lists which classes map: of an open vocabulary, all. `dropped` counts the boxes of the others.
    """

    def __init__(
        self,
        name: str,
        vocabulary: Vocabulary,
        *,
        mapping: NameMapping = None,
        unknown: UnknownPolicy = "drop",
        device: str | torch.device = "cpu",
        score: float | None = None,  # ours: 0.3, as for ONNX files; of an open vocabulary, the model's own default
        nms: float = 0.7,  # paper
        most: int = 100,
    ) -> None:
        """`name` is a repository of the hub, downloaded at first use, or a folder of `save_pretrained`."""
        if not ((score is None or 0 <= score <= 1) and 0 < nms <= 1 and most >= 1):
            raise PolyadicError(
                f"HubDetector: expected score and nms from 0 to 1, most from 1, got {score}, {nms}, {most}"
            )
        self.name, self.unknown, self.nms, self.most = f"{HUB}{name}", unknown, nms, most
        _import()
        self.folder = _find(name)
        self._network, self._processor, is_open = _load(self.folder, self.name)
        self._device = torch.device(device)
        self._network.to(self._device)
        config = self._network.config
        self._kind: str = config.model_type
        names: Any = vocabulary.objects if is_open else {int(at): str(word) for at, word in config.id2label.items()}
        self.label_map = LabelMap.match(names, vocabulary, synonyms(vocabulary) if mapping is None else mapping)
        self.prompts = self._split(vocabulary.objects) if is_open else []
        self.score = self._default_score() if score is None else score
        self.dropped: Counter[str] = Counter()

    def __call__(self, photo: Any) -> Detections:
        """Detect in a path, a PIL image, an array, a tensor or a `Photo`."""
        seen = open_photo(photo)
        with torch.no_grad(), self._reporting(seen.name):
            parts = [self._ask(seen, prompt) for prompt in self.prompts] or [self._look(seen)]
        found, unknown = (
            Candidates.join(parts).choose(self.score, 1.0, self.nms).name(seen, self.label_map, self.unknown, self.name)
        )
        self.dropped.update(unknown)
        return found.take(np.arange(min(self.most, len(found))))

    def detect(self, photos: Sequence[Any]) -> list[Detections]:
        """Detect in each photo, one at a time: a batch would pad photos, which changes their boxes."""
        return [self(photo) for photo in photos]

    @contextmanager
    def _reporting(self, photo: str) -> Iterator[None]:
        """Report in one line what transformers raises, but for a lack of memory."""
        try:
            yield
        except Exception as error:  # its exceptions have no common base class
            if isinstance(error, PolyadicError | MemoryError) or "alloc" in str(error):
                raise
            raise PolyadicError(f"{self.name} fails on {photo} ({_reason(error)})") from error

    def _look(self, photo: Photo) -> Candidates:
        """Run a model with classes of its own."""
        inputs = self._processor(images=photo.image, return_tensors="pt").to(self._device)
        process = self._processor.post_process_object_detection
        return _candidates(process(self._network(**inputs), threshold=self.score, target_sizes=_frame(photo))[0], photo)

    def _ask(self, photo: Photo, prompt: range) -> Candidates:
        """Ask for some of the objects."""
        words = [_word(self.label_map.names[at]) for at in prompt]
        inputs = self._processor(images=photo.image, text=[words], return_tensors="pt").to(self._device)
        output = self._network(**inputs)
        if self._kind in _GROUNDED:
            result = self._read_tokens(output, inputs["input_ids"][0], len(words))
            result["boxes"] = result["boxes"] * result["boxes"].new_tensor([*photo.size, *photo.size])
        else:
            result = self._processor.post_process_grounded_object_detection(
                output, threshold=self.score, target_sizes=_frame(photo)
            )[0]
        return _candidates({**result, "labels": result["labels"] + prompt.start}, photo)

    def _read_tokens(self, output: Any, ids: Tensor, count: int) -> dict[str, Tensor]:
        """Score each name by the mean of its tokens, which a dot separates; boxes as shares of the photo."""
        dot = self._processor.tokenizer.convert_tokens_to_ids(".")
        ends = (ids == dot).nonzero().flatten().tolist()
        assert len(ends) == count, "a dot after each name, none inside"
        tokens = output.logits[0].sigmoid()
        starts = [1, *(end + 1 for end in ends)]  # after [CLS]
        names = torch.stack([tokens[:, low:high].mean(1) for low, high in zip(starts, ends, strict=False)], 1)
        scores, labels = names.max(1)
        middle, half = output.pred_boxes[0, :, :2], output.pred_boxes[0, :, 2:] / 2
        return {"boxes": torch.cat([middle - half, middle + half], 1), "labels": labels, "scores": scores}

    def _split(self, names: Sequence[str]) -> list[range]:
        """Split the names into prompts that fit the model."""
        tokenizer = self._processor.tokenizer
        limit = min(tokenizer.model_max_length, getattr(self._network.config, "max_text_len", 1 << 30))
        lengths = [len(tokenizer(_word(name)).input_ids) for name in names]  # with its first and last token
        longest = max(range(len(names)), key=lengths.__getitem__)
        joint = self._kind in _GROUNDED
        if lengths[longest] + joint > limit:  # a dot after each name
            raise PolyadicError(f"{self.name}: {names[longest]!r:.60} is too long for its prompts of {limit} tokens")
        if not joint:
            return [range(len(names))]
        prompts, start, used = [], 0, 0
        for at, length in enumerate(lengths):
            room = length - 1  # a dot, but no first and last token
            if used + room > limit - 2:
                prompts.append(range(start, at))
                start, used = at, 0
            used += room
        return [*prompts, range(start, len(names))]

    def _default_score(self) -> float:
        if not self.prompts:
            return 0.3
        process: Callable[..., Any] = self._processor.post_process_grounded_object_detection
        return float(inspect.signature(process).parameters["threshold"].default)


def _find(name: str) -> Path:
    """Return a folder, or the hub's cached copy; download it if there is none."""
    import huggingface_hub

    place = Path(name).expanduser()
    if name and place.is_dir():
        return place
    try:
        with suppress(FileNotFoundError):  # nothing is asked of the hub that is here already
            return Path(huggingface_hub.snapshot_download(name, local_files_only=True, **_FILES))
        return Path(huggingface_hub.snapshot_download(name, **_FILES))
    except (OSError, ValueError) as error:
        raise PolyadicError(f"{HUB}{name}: no such folder, and the hub does not give it ({_reason(error)})") from error


def _load(folder: Path, name: str) -> tuple[Any, Any, bool]:
    """Return network, processor, and whether the vocabulary is open."""
    import transformers

    with _quiet(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
            is_open = config.model_type in _OPEN
            if not is_open and type(config) not in transformers.MODEL_FOR_OBJECT_DETECTION_MAPPING:
                raise PolyadicError(
                    f"{name}: expected an object detector, OWL-ViT or Grounding DINO, got a model of type "
                    f"{config.model_type!r}"
                )
            kinds: Any = transformers.AutoModelForObjectDetection, transformers.AutoImageProcessor
            if is_open:
                kinds = transformers.AutoModelForZeroShotObjectDetection, transformers.AutoProcessor
            processor = kinds[1].from_pretrained(folder, trust_remote_code=False)
            network, info = kinds[0].from_pretrained(
                folder,
                config=config,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
            )
        except PolyadicError:
            raise
        except Exception as error:  # its exceptions have no common base class
            raise PolyadicError(f"{name}: not a model that transformers can load ({_reason(error)})") from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise PolyadicError(f"{name}: {len(missing):,} weights are missing, such as {missing[0]}")
    return network.eval(), processor, is_open


def _import() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise PolyadicError(
            "detectors of the Hugging Face hub need transformers: pip install 'polyadic[hf]'"
        ) from error


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Silence progress bars and reports of loading: what matters is raised."""
    logging = transformers.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return "its weights are not of its config" if "ignore_mismatched_sizes" in text else f"{text:.160}"


def _word(name: str) -> str:
    """Write a name as prompts do; dots separate names there."""
    return name.lower().replace(".", " ").replace("?", " ")


def _frame(photo: Photo) -> Float[Tensor, "1 2"]:
    return torch.tensor([photo.size[::-1]])  # (height, width)


def _candidates(result: Mapping[str, Tensor], photo: Photo) -> Candidates:
    boxes, labels, scores = (result[key].cpu().numpy() for key in ("boxes", "labels", "scores"))
    corners = boxes.astype(np.float64).clip(0, np.asarray([*photo.size, *photo.size]))
    return Candidates(corners, labels.astype(np.int64), scores.astype(np.float64).clip(0, 1))
