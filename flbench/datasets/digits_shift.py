"""The digits in five domains: the same ten labels, seen through five different lenses.

The 1,797 images of scikit-learn's digits are dealt to five domains, each of which changes how its
images look: plain, shifted by a pixel, blurred, on a textured ground, faint. A small stand-in,
offline, for collections of real domains such as Digit-5.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flbench.dataset import About, Dataset
from flbench.datasets import digits

ABOUT = About(
    source="computed from digits",
    licence=digits.ABOUT.licence,
    samples=digits.ABOUT.samples,
)
DOMAINS = ("plain", "shifted", "blurred", "textured", "faint")


def load(root: Path) -> Dataset:
    """Handwritten digits in five domains (plain, shifted, blurred, textured, faint)."""
    pooled = digits.load(root)
    generator = np.random.default_rng(0)
    domain = torch.as_tensor(generator.permutation(len(pooled.y)) % len(DOMAINS))
    texture = torch.as_tensor(generator.random((len(pooled.y), 1, 8, 8)), dtype=torch.float32)
    x = torch.empty_like(pooled.x)
    for number, name in enumerate(DOMAINS):
        mine = domain == number
        x[mine] = seen(name, pooled.x[mine], texture[mine])
    return Dataset("digits-shift", x, pooled.y, pooled.classes, domain)


def seen(domain: str, x: Tensor, texture: Tensor) -> Tensor:
    """Images of one domain, shape (m, 1, 8, 8), between 0 and 1."""
    if domain == "shifted":
        return torch.roll(x, 1, dims=3)
    if domain == "blurred":
        return F.avg_pool2d(x, 3, stride=1, padding=1)
    if domain == "textured":
        return (x - 0.7 * texture).abs()
    return 0.35 + 0.3 * x if domain == "faint" else x
