"""The elbow of a loss curve: pure functions that find where it bends most (DC-PFL)."""

from __future__ import annotations

import torch
from torch import Tensor


def radii(losses: Tensor, window: int) -> Tensor:
    """Radius of curvature: r = (1 + l'^2)^1.5 / l'' of a moving mean l over `window` entries.

    Args:
        losses: shape (t,).
        window: entries per mean.

    Returns:
        Shape (max(0, t - window - 1),): the first radius belongs to entry window + 2, counted from
        1; inf where l'' <= 1e-12, so that rounding errors are not taken for a bend.

    Example:
        >>> round(float(radii(torch.tensor([2.0, 1.25, 0.75]), 1)), 3)
        5.59
    """
    if len(losses) < window + 2:
        return torch.empty(0, dtype=losses.dtype)
    slope = losses.unfold(0, window, 1).mean(dim=1).diff()
    bend = slope.diff()
    radius = (1 + slope[1:] ** 2) ** 1.5 / bend.clamp(min=1e-12)
    return torch.where(bend > 1e-12, radius, torch.inf)


def turned(losses: Tensor, window: int, held: int) -> bool:
    """Whether the radius `held` entries ago is smaller than all later ones: the curve's elbow.

    Args:
        losses: shape (t,).
        window: entries per mean, as in `radii`.
        held: number of later entries that must have a larger radius.

    Example:
        >>> losses = torch.tensor([3.0, 2.0, 1.0, 1.0, 1.0])  # elbow at the fourth entry
        >>> [turned(losses[:t], 1, held=1) for t in (3, 4, 5)]
        [False, False, True]
    """
    found = radii(losses, window)
    return len(found) > held and bool(found[-1 - held] < found[len(found) - held :].min())
