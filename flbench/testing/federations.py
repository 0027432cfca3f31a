"""The small federations of the kit: points, images, text, and points of other tasks.

Each has six clients in two groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from flbench.core.dataset import Dataset
from flbench.datasets.digits import digits
from flbench.errors import UnknownName

CLASSES = 4
SAMPLES = 72
WORDS, LENGTH = 8, 6
"""Tokens of the text's vocabulary, and of a sample."""


@dataclass(frozen=True)
class SmallFederation:
    """Samples, and the fields of the suite that go with them.

    Attributes:
        samples: makes the data set of so many samples.
        settings: fields of the suite, as its file has them.
        normed: the network with BatchNorm; None = no built-in network for such samples has it.
    """

    samples: Callable[[int], Dataset]
    settings: Mapping[str, object]
    normed: Mapping[str, object] | None


def points(samples: int = SAMPLES, seed: int = 0) -> Dataset:
    """Four labels, each a normal distribution around a point in three dimensions.

    Returns:
        x of shape (samples, 3), float32; labels 0, 1, 2, 3, 0, 1, ...
    """
    generator = np.random.default_rng(seed)
    y = np.arange(samples) % CLASSES
    centres = np.array([[2, 0, 0], [0, 2, 0], [0, 0, 2], [-2, -2, 0]], dtype=np.float32)
    x = centres[y] + generator.normal(0, 0.7, (samples, 3)).astype(np.float32)
    return Dataset("small", torch.as_tensor(x), torch.as_tensor(y), CLASSES)


def images(samples: int = SAMPLES) -> Dataset:
    """Handwritten digits 0 to 3, shape (samples, 1, 8, 8); labels 0, 1, 2, 3, 0, 1, ..."""
    pooled = digits(Path())
    of_label = [(pooled.y == label).nonzero()[:, 0] for label in range(CLASSES)]
    each = -(-samples // CLASSES)
    rows = torch.stack([own[:each] for own in of_label], dim=1).flatten()[:samples]
    return Dataset("small-images", pooled.x[rows], pooled.y[rows], CLASSES)


def text(samples: int = SAMPLES) -> Dataset:
    """Two languages of eight words, in each of which a word is mostly followed by one other.

    Returns:
        x and y of shape (samples, 6), int64; domains 0, 1, 0, 1, ...
    """
    generator = np.random.default_rng(0)
    domain = np.arange(samples) % 2
    tokens = np.empty((samples, LENGTH + 1), dtype=np.int64)
    tokens[:, 0] = generator.integers(0, WORDS, samples)
    for place in range(LENGTH):
        follower = (tokens[:, place] + 1 + 2 * domain) % WORDS
        other = generator.integers(0, WORDS, samples)
        tokens[:, place + 1] = np.where(generator.random(samples) < 0.8, follower, other)
    blocks = torch.as_tensor(tokens)
    return Dataset(
        "small-text", blocks[:, :-1], blocks[:, 1:], WORDS, domains=torch.as_tensor(domain)
    )


def numbers(samples: int = SAMPLES) -> Dataset:
    """Points in three dimensions, and a number for each, which two domains make otherwise.

    Returns:
        x of shape (samples, 3), y of shape (samples,), float32; domains 0, 1, 0, 1, ...
    """
    x, domain = _in_domains(samples)
    slopes = np.array([[4, -2, 6], [4, -2, -6]])
    y = 20 + (x * slopes[domain]).sum(axis=1) + 2 * np.abs(x[:, 0])
    return Dataset(
        "small-numbers", torch.as_tensor(x, dtype=torch.float32),
        torch.as_tensor(y, dtype=torch.float32), 1, domains=torch.as_tensor(domain), task="numbers",
    )  # fmt: skip


def labels(samples: int = SAMPLES) -> Dataset:
    """Points in three dimensions, and four labels of which each may have any.

    Returns:
        x of shape (samples, 3), float32; y of shape (samples, 4), int64; domains 0, 1, 0, 1, ...
    """
    x, domain = _in_domains(samples)
    turned = np.where(domain == 1, -x[:, 2], x[:, 2])
    y = np.stack([x[:, 0] > 0, x[:, 1] > 0.5, turned > 0, x[:, 0] + x[:, 1] > 0], axis=1)
    return Dataset(
        "small-labels", torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y).long(), 4,
        domains=torch.as_tensor(domain), task="labels",
    )  # fmt: skip


def _in_domains(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Points, shape (samples, 3), and their domains, 0, 1, 0, 1, ..."""
    return np.random.default_rng(0).normal(0, 1, (samples, 3)), np.arange(samples) % 2


CNN = {"name": "normed-cnn", "width": 2}
NORMED = {"name": "mlp", "hidden": 3, "norm": True}
BY_DOMAIN = {"partition": {"name": "by-domain"}}
"""Of samples without classes."""
FEDERATIONS: dict[str, SmallFederation] = {
    "small": SmallFederation(points, {}, NORMED),
    "small-images": SmallFederation(images, {"model": CNN}, CNN),
    "small-text": SmallFederation(
        text, {"model": {"name": "gpt2", "layers": 1, "width": 8, "heads": 2}}, None
    ),
    "small-numbers": SmallFederation(numbers, BY_DOMAIN, NORMED),
    "small-labels": SmallFederation(labels, BY_DOMAIN, NORMED),
}
"""By the name of the data set; the first is the usual one."""


def federation_of(dataset: str) -> SmallFederation:
    """The small federation with a data set.

    Raises:
        UnknownName: the kit has no such data set.
    """
    if dataset not in FEDERATIONS:
        raise UnknownName("data set of the kit", dataset, FEDERATIONS, listed="there are")
    return FEDERATIONS[dataset]
