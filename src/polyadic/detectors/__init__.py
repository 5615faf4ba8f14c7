"""Detectors: boxes of a photo, each with P(class | box) (Implementation details).

`load_detector` opens all of them: one that was trained here, torchvision's with COCO weights, an `.onnx` file, or a
model of the Hugging Face hub.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from polyadic.detectors.coco import CocoDetector
    from polyadic.detectors.detector import Detector
    from polyadic.detectors.hub import HubDetector
    from polyadic.detectors.onnx import OnnxDetector
    from polyadic.structures.labels import NameMapping, UnknownPolicy
    from polyadic.structures.vocabulary import Vocabulary

COCO_NETWORKS = ("resnet50-fpn", "mobilenetv3-fpn")  # torchvision's, by name
HUB = "hf:"  # before the name of a model of the Hugging Face hub


def load_detector(
    source: str | Path,
    vocabulary: Vocabulary,
    *,
    device: str | torch.device = "cpu",
    names: Any = None,
    mapping: NameMapping = None,
    unknown: UnknownPolicy = "drop",
) -> Detector | CocoDetector | OnnxDetector | HubDetector:
    """Load a detector whose labels are objects of the vocabulary.

    Args:
        source: A folder of `polyadic detect train` or `Detector.save`; an `.onnx` file of YOLOX or of the DETR family;
            "resnet50-fpn" or "mobilenetv3-fpn", torchvision's Faster R-CNN trained on COCO; or "hf:" and the name of a
            model of the Hugging Face hub or a folder of one, which is asked for the vocabulary's objects if it can be.
        vocabulary: The relation model's; a saved detector must have been trained with it.
        device: Where the network runs; an `.onnx` file runs on the CPU.
        names: The class names of an `.onnx` file in order, or a file of them; by default a `.names` file beside it.
        mapping: From the detector's class names to objects, where names differ.
        unknown: What happens to boxes of other classes: "drop" or "keep".
    """
    if str(source) in COCO_NETWORKS:
        from polyadic.detectors.coco import CocoDetector

        return CocoDetector(vocabulary, str(source), mapping=mapping, unknown=unknown, device=device)
    if str(source).startswith(HUB):
        from polyadic.detectors.hub import HubDetector

        name = str(source).removeprefix(HUB)
        return HubDetector(name, vocabulary, mapping=mapping, unknown=unknown, device=device)
    if Path(source).suffix.lower() == ".onnx":
        from polyadic.detectors.onnx import OnnxDetector

        return OnnxDetector(source, vocabulary, names=names, mapping=mapping, unknown=unknown)
    from polyadic.detectors.detector import Detector
    from polyadic.pretrained import DETECTOR, detector_folder

    folder = detector_folder() if str(source) == DETECTOR else Path(source).expanduser()
    return Detector.load(folder, device, vocabulary)
