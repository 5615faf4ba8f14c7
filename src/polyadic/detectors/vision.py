"""torchvision, checked once: one that was built for another torch fails in many ways at import."""

from __future__ import annotations

import torch

from polyadic.structures.vocabulary import PolyadicError

try:
    from torchvision import models, ops
    from torchvision.models import detection
except (RuntimeError, ImportError, AttributeError) as error:
    fit = "install both together: pip install --upgrade torch torchvision"
    raise PolyadicError(
        f"torch {torch.__version__} and the installed torchvision do not fit ({error}); {fit}"
    ) from error

__all__ = ["detection", "models", "ops"]
