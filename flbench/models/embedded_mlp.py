"""A multi-layer perceptron for tables: numbers, and categories as embeddings."""

from __future__ import annotations

from collections import OrderedDict
from math import prod
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from flbench.errors import UserError


class EmbeddedCategories(nn.Module):
    """Numbers as they are, and an embedding of each category in place of its one-hot code.

    The embedding of a one-hot code is a product with a matrix, so it is a linear layer without a
    bias: executors take it for one.

    Args:
        numbers: columns of numbers, which come first.
        categories: values of each category, whose one-hot codes follow.
        width: of an embedding; a category with fewer values has as many.
    """

    def __init__(self, numbers: int, categories: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.sizes = [numbers, *categories]
        widths = [min(values, width) for values in categories]
        self.tables = nn.ModuleList(
            nn.Linear(values, own, bias=False)
            for values, own in zip(categories, widths, strict=True)
        )
        for table in self.tables:
            nn.init.normal_(table.weight)  # type: ignore[arg-type] # as torch's nn.Embedding
        self.width = numbers + sum(widths)

    def forward(self, x: Tensor) -> Tensor:
        """Embed samples, shape (b, d) -> (b, `width`)."""
        numbers, *codes = x.split(self.sizes, dim=-1)
        found = [table(code) for table, code in zip(self.tables, codes, strict=True)]
        return torch.cat([numbers, *found], dim=-1)


def build(
    shape: tuple[int, ...],
    classes: int,
    categories: Annotated[
        tuple[Annotated[int, Field(ge=2)], ...],
        "values of each category; their 0-1 columns are the last of a sample",
    ] = (),
    width: Annotated[int, Field(ge=1), "largest width of an embedding"] = 8,
    hidden: Annotated[int, Field(ge=1), "rectified units"] = 64,
) -> nn.Module:
    """Perceptron of tables with one hidden layer and embeddings of categories.

    Raises:
        UserError: samples have fewer columns than the categories have values.
    """
    columns, coded = prod(shape), sum(categories)
    if len(shape) != 1 or coded > columns:
        raise UserError(
            f"embedded-mlp expects samples of {coded} columns or more, the values of its"
            f" categories {list(categories)}, got samples of shape {shape}: set model.categories"
        )
    embedding = EmbeddedCategories(columns - coded, categories, width)
    body = nn.Sequential(embedding, nn.Linear(embedding.width, hidden), nn.ReLU())
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(hidden, classes)))
