"""Lets torchvision be imported beside a torch for CPUs, whose operators its wheel does not find.

Loaders import torchvision for formats that are not used here; nothing calls the operators.
"""

from functools import cache
from typing import Any


@cache  # operators are declared once, and go with the library that declared them
def declare() -> Any:
    """Declare the operators that torchvision's import looks for."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
