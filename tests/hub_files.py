"""Tiny random detectors as the Hugging Face hub has them, each in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

SIDES = {"shortest_edge": 32, "longest_edge": 64}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_yolos(folder: Path, classes: Sequence[str]) -> Path:
    """A detector with classes of its own."""
    from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessor

    torch.manual_seed(0)
    config = YolosConfig(
        **_layers(16),
        image_size=[32, 32],
        patch_size=16,
        num_detection_tokens=6,
        id2label=dict(enumerate(classes)),
        label2id={name: at for at, name in enumerate(classes)},
    )
    return _save(folder, _spread(YolosForObjectDetection(config)), YolosImageProcessor(size=SIDES))


def write_owl(folder: Path) -> Path:
    """A detector of whatever it is asked for, each name in a text of its own."""
    from transformers import (
        CLIPTokenizer,
        OwlViTConfig,
        OwlViTForObjectDetection,
        OwlViTImageProcessor,
        OwlViTProcessor,
    )

    torch.manual_seed(0)
    words = ["!", "<|startoftext|>", "<|endoftext|>", *LETTERS, *(f"{letter}</w>" for letter in LETTERS)]
    tokenizer = CLIPTokenizer(vocab={word: at for at, word in enumerate(words)}, merges=[], model_max_length=16)
    text = {
        **_layers(16),
        "vocab_size": len(words),
        "max_position_embeddings": 16,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    vision = {**_layers(16), "image_size": 32, "patch_size": 16}
    config = OwlViTConfig(text_config=text, vision_config=vision, projection_dim=16)
    processor = OwlViTProcessor(OwlViTImageProcessor(size={"height": 32, "width": 32}), tokenizer)
    return _save(folder, _spread(OwlViTForObjectDetection(config)), processor)


def write_grounding(folder: Path, most: int = 24) -> Path:
    """A detector of whatever it is asked for, all names in one text of at most so many tokens."""
    from transformers import (
        BertTokenizer,
        GroundingDinoConfig,
        GroundingDinoForObjectDetection,
        GroundingDinoImageProcessor,
        GroundingDinoProcessor,
    )

    torch.manual_seed(0)
    pieces = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *pieces]
    tokenizer = BertTokenizer(vocab={word: at for at, word in enumerate(words)})
    swin = {"model_type": "swin", "image_size": 32, "embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1]}
    config = GroundingDinoConfig(
        backbone_config={**swin, "window_size": 2, "out_features": ["stage2", "stage3", "stage4"]},
        text_config={**_layers(16), "model_type": "bert", "vocab_size": len(words)},
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        num_queries=5,
        max_text_len=most,
        disable_custom_kernels=True,
    )
    processor = GroundingDinoProcessor(
        GroundingDinoImageProcessor(size={"shortest_edge": 64, "longest_edge": 96}), tokenizer
    )
    return _save(folder, GroundingDinoForObjectDetection(config), processor)


def _layers(width: int) -> dict[str, Any]:
    return {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": width}


def _spread(network: Any) -> Any:
    """Draw larger weights, so that boxes differ."""
    for weight in network.parameters():
        weight.data.normal_(0, 0.5)
    return network


def _save(folder: Path, network: Any, processor: Any) -> Path:
    from transformers import logging

    logging.disable_progress_bar()
    network.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
