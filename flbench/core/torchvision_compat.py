"""Make torchvision importable next to a CPU build of torch.

The torchvision wheels on PyPI are compiled against CUDA; next to a CPU-only torch their operator
library does not load, and the import fails with `operator torchvision::nms does not exist`.
torchmetrics (hence lightning) and transformers also import torchvision. With the two missing
schemas declared, data sets, models and transforms work; only the box operators themselves do not.
Where the operators are present this module does nothing.

Import this module before lightning, torchmetrics, transformers or torchvision.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def declare_missing_operators() -> torch.library.Library | None:
    """Declare torchvision's operators if its own library cannot be loaded.

    Returns:
        The library that holds the declarations (it must be kept alive), or None if nothing was
        missing.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or hasattr(torch.ops.torchvision, "nms"):
        return None
    try:
        for compiled in Path(spec.origin).parent.glob("_C*"):
            torch.ops.load_library(str(compiled))
    except OSError:
        pass
    if hasattr(torch.ops.torchvision, "nms"):
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    return library


_DECLARED = declare_missing_operators()
