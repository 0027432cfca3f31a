"""Sensors of four makes: numbers to predict, generated; no files are needed.

Eight inputs are normal. The first five act alike in all makes; what the last three add has other
signs in each, so that a model of all makes cannot be right for any:

    y = 20 + 3 x1 - 2 x2 + 1.5 sin(2 x3) + x4 x5 + 2 (s1 x6 + s2 x7 + s3 |x8|) + 0.5 e

with s = (1, 1, 1), (-1, 1, -1), (1, -1, -1), (-1, -1, 1) for the four makes, and e normal.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from flbench.core.dataset import Dataset, DatasetInfo

SAMPLES = 2_400
SIGNS = np.array([[1, 1, 1], [-1, 1, -1], [1, -1, -1], [-1, -1, 1]])
"""Of each make, for the last three inputs."""
NOISE = 0.5
"""Deviation of what no input explains."""
TITLES = {"sensors": "Sensors"}
MEDIUM = "sensors"
ABOUT = {"sensors": DatasetInfo(source="generated", licence="MIT", samples=SAMPLES)}


def sensors(root: Path) -> Dataset:
    """Numbers that eight inputs give, in four domains: makes of sensors; generated.

    x of shape (2400, 8), y of shape (2400,), float32; domains 0..3.
    """
    generator = np.random.default_rng(0)
    x, make = generator.normal(0, 1, (SAMPLES, 8)), np.arange(SAMPLES) % len(SIGNS)
    alike = 3 * x[:, 0] - 2 * x[:, 1] + 1.5 * np.sin(2 * x[:, 2]) + x[:, 3] * x[:, 4]
    own = (SIGNS[make] * np.column_stack([x[:, 5], x[:, 6], np.abs(x[:, 7])])).sum(axis=1)
    y = 20 + alike + 2 * own + generator.normal(0, NOISE, SAMPLES)
    return Dataset(
        "sensors",
        torch.as_tensor(x, dtype=torch.float32),
        torch.as_tensor(y, dtype=torch.float32),
        1,
        domains=torch.as_tensor(make),
        label_names=("reading",),
        domain_names=tuple(f"make {number}" for number in range(1, len(SIGNS) + 1)),
        task="numbers",
    )
