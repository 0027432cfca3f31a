"""GPT-2 of transformers, as a network from tokens to logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from flbench.core import torchvision_compat as torchvision_compat
from flbench.core.effect import only_with
from flbench.core.parameters import OpensFile
from flbench.errors import UserError
from flbench.models.pretrained import PretrainedWeights
from flbench.results.files import user_path

if TYPE_CHECKING:
    from transformers import GPT2Model

RANDOM = only_with("pretrained", None)
SOURCE = PretrainedWeights("gpt2", "a pretrained GPT-2", "pretrained")
ATTENTION = "flbench"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def build(
    shape: tuple[int, ...],
    classes: int,
    pretrained: Annotated[
        str | None,
        OpensFile(),
        "folder with config and weights, which has its own sizes; none = random",
    ] = None,
    layers: Annotated[int, Field(ge=1), RANDOM, "number of blocks"] = 2,
    width: Annotated[int, Field(ge=1), RANDOM, "features of a token"] = 64,
    heads: Annotated[int, Field(ge=1), RANDOM, "attention heads; they divide the width"] = 2,
    context: Annotated[
        int | None, Field(ge=1), RANDOM, "longest text it can read; none = the samples' length"
    ] = None,
    dropout: Annotated[
        float | None, Field(ge=0, lt=1), "none = as the folder says, or 0 without one"
    ] = None,
) -> nn.Module:
    """GPT-2, tokens to next-token logits; small and random, or pretrained from a folder.

    The number of classes is the vocabulary's size. The output layer's weights are the embedding's,
    so no part of the network is a head. Nothing is ever downloaded.

    Raises:
        MissingData: the folder or its weights are not there.
        UserError: they are something else, or the heads do not divide the width.
    """
    if len(shape) != 1 or shape[0] < 1:
        raise UserError(f"gpt2 expects samples of tokens, (length,), got samples of shape {shape}")
    from transformers import AttentionInterface, GPT2Config, GPT2Model

    folder = None if pretrained is None else user_path(pretrained)
    settings: dict[str, Any]
    if folder is not None:
        settings = _settings(folder, classes)
    elif width % heads:
        raise UserError(f"gpt2 expects heads that divide the width {width}, got heads={heads}")
    else:
        longest, dropout = context or shape[0], dropout or 0.0
        settings = {"vocab_size": classes, "n_positions": longest, "n_layer": layers}
        settings |= {"n_embd": width, "n_head": heads, "bos_token_id": None, "eos_token_id": None}
    if dropout is not None:
        settings |= dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), dropout)
    AttentionInterface.register(ATTENTION, attend)
    settings["attn_implementation"] = ATTENTION
    try:
        config = GPT2Config(**settings)
        net = GPT2Model(config)
    except Exception as error:
        if folder is None:
            raise
        raise SOURCE.unfit(folder, f"settings of no GPT-2 ({type(error).__name__})") from None
    if shape[0] > config.n_positions:
        raise UserError(
            f"gpt2 expects samples of at most {config.n_positions} tokens, its context, got samples"
            f" of shape {shape}"
        )
    if folder is not None:
        _load_weights(folder, net)
    return Tokens(net)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float,
    **_: object,
) -> tuple[Tensor, Tensor]:
    """Attention whose dropout is the layer `attn_dropout`, so that executors can replace it.

    Query, key and value have shape (b, heads, T, d); the mask is added to the logits.

    Returns:
        The output, shape (b, T, heads, d), and the attention weights, shape (b, heads, T, T).
    """
    weights = F.softmax(query @ key.transpose(-1, -2) * scaling + mask, dim=-1).to(value.dtype)
    dropped: Tensor = module.get_submodule("attn_dropout")(weights)
    return (dropped @ value).transpose(1, 2), weights


class Tokens(nn.Module):
    """A transformer without an output layer, whose embedding is used as one."""

    def __init__(self, transformer: GPT2Model) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, x: Tensor) -> Tensor:
        """Return the next-token logits of every position, (b, T) int64 -> (b, T, V)."""
        causal = torch.full((x.shape[-1], x.shape[-1]), -torch.inf, device=x.device).triu(1)
        output = self.transformer(x, attention_mask=causal[None, None], use_cache=False)
        return F.linear(output.last_hidden_state, self.transformer.wte.weight)


def _settings(folder: Path, classes: int) -> dict[str, Any]:
    """Read a pretrained folder's configuration."""
    path = folder / "config.json"
    if not path.is_file():
        raise SOURCE.missing(folder, "no config.json there")
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        kind, size, tied = held["model_type"], held["vocab_size"], held.get("tie_word_embeddings")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SOURCE.unfit(folder, "a config.json that is not a model's") from None
    if kind != "gpt2" or tied is False:
        raise SOURCE.unfit(folder, f"a {kind}" if kind != "gpt2" else "an output layer of its own")
    if size != classes:
        raise SOURCE.unfit(folder, f"a vocabulary of {size} for data of {classes} tokens")
    return dict(held)


def _load_weights(folder: Path, net: GPT2Model) -> None:
    """Copy a pretrained folder's weights into a network, in place."""
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise SOURCE.missing(folder, f"neither {' nor '.join(WEIGHTS)}")
    given = {name.removeprefix("transformer."): t for name, t in SOURCE.read(path).items()}
    output = given.pop("lm_head.weight", None)  # some files hold the shared weights twice
    if output is not None and not torch.equal(output, given.get("wte.weight", output)):
        raise SOURCE.unfit(path, "an output layer of its own")
    masks = (".attn.bias", ".attn.masked_bias")  # constants in older files
    SOURCE.copy(path, {k: t for k, t in given.items() if not k.endswith(masks)}, net)
