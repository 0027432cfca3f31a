"""Client memory: what the clients of a run keep between rounds, one entry per client.

Entries may have different lengths, such as the samples of a k-NN store: the table of a memory,
shape (N, m, ...), is then padded with NaN at the end of the entries that are shorter than m.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def padded(entries: Sequence[Tensor]) -> Tensor:
    """Stack entries of one shape or of different lengths, (m_i, ...) -> (n, max m_i, ...).

    Example:
        >>> padded([torch.tensor([1.0]), torch.tensor([2.0, 3.0])])
        tensor([[1., nan],
                [2., 3.]])
    """
    if len({entry.shape for entry in entries}) == 1:
        return torch.stack(list(entries))
    return pad_sequence(list(entries), batch_first=True, padding_value=torch.nan)


def unpadded(entry: Tensor) -> Tensor:
    """A client's entry, shape (m, ...), without the padding at its end.

    Example:
        >>> unpadded(torch.tensor([[2.0, 1.0], [torch.nan, torch.nan]]))
        tensor([[2., 1.]])
    """
    if not entry.numel():
        return entry
    used = (~entry.isnan()).flatten(1).any(dim=1) if entry.ndim > 1 else ~entry.isnan()
    return entry[: int(used.nonzero().max()) + 1] if bool(used.any()) else entry[:0]


def store(table: Tensor, clients: Tensor, entries: Tensor) -> Tensor:
    """A copy of a memory in which some clients have new entries.

    Args:
        table: shape (N, ...); (N, 0) as long as nothing was kept.
        clients: ids, shape (n,).
        entries: shape (n, ...); where they are longer than those of the table, its entries are
            padded.
    """
    if not table[0].numel():  # nothing yet: the entries say what they are
        table = table.new_full((len(table), *entries.shape[1:]), torch.nan)
    if table.shape[1:] == entries.shape[1:]:
        new = table.clone()
    else:
        longest = max(table.shape[1], entries.shape[1])
        table, entries = (_extended(it.transpose(0, 1), longest) for it in (table, entries))
        new, entries = table.transpose(0, 1).contiguous(), entries.transpose(0, 1)
    new[clients] = entries
    return new


def _extended(entry: Tensor, length: int) -> Tensor:
    """An entry, shape (m, ...), with NaN at its end up to a length."""
    missing = entry.new_full((length - len(entry), *entry.shape[1:]), torch.nan)
    return torch.cat([entry, missing])
