"""The networks of a suite: built with the seed's initial weights, and who has which."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from flbench.core.networks import SeveralNetworks
from flbench.core.parameters import checked
from flbench.core.seeding import rng, seed_torch, torch_seed
from flbench.core.targets import task_of
from flbench.errors import PluginError, Undefined, UserError
from flbench.plugin.isolation import produced
from flbench.plugin.registry import entries, find, load_entry
from flbench.run.composition import MethodStack
from flbench.suite import Component, Suite, load_suite


class LastPosition(nn.Module):
    """A network of text that gives the logits after the last token alone, (b, T) -> (b, C).

    Samples of tokens with one label each are so predicted by any network of text.

    Args:
        net: gives (b, T, V); what gives (b, V) stays as it is.
        classes: C; logits of further tokens are left out.
    """

    def __init__(self, net: nn.Module, classes: int) -> None:
        super().__init__()
        self.net, self.classes = net, classes

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, shape (b, C)."""
        logits: Tensor = self.net(x)
        return (logits[:, -1] if logits.dim() == 3 else logits)[:, : self.classes]


def build_network(
    suite: Suite,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
    index: int = 0,
    tokens: int = 0,
) -> nn.Module:
    """The suite's network with the seed's initial weights, the same for every method.

    Of several networks each has the weights that it would have alone.

    Args:
        suite: names the networks.
        shape: of a sample.
        classes: number of labels.
        seed: of the run.
        index: above 0 it gives other weights of the same networks.
        tokens: number of different tokens of samples with one label each (`LastPosition`).
    """
    size = max(classes, tokens)
    try:
        nets = [build_alone(model, shape, size, seed, index) for model in suite.networks]
    except UserError as error:
        if not tokens or type(error) is not UserError:
            raise
        raise UserError(f"{error}{text_advice(shape)}") from None
    nets = [LastPosition(net, classes) for net in nets] if tokens else nets
    return nets[0] if len(nets) == 1 else SeveralNetworks(nets, common_head=suite.common_head)


def build_alone(
    model: Component, shape: tuple[int, ...], classes: int, seed: int, index: int
) -> nn.Module:
    """One network; arguments as of `build_network`."""
    entry = find("models", model.name)
    build = load_entry(entry)
    owner = f"model '{model.name}'"
    params = checked(owner, build, model.params, skip=2)

    def built() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            seed_torch(torch_seed(seed, "init", *([index] if index else [])))
            return produced(model.name, owner, nn.Module, lambda: build(shape, classes, **params))

    net = built()
    if any(map(is_lazy, (*net.parameters(), *net.buffers()))):
        raise PluginError(f"{owner}: it has lazy layers, expected all shapes to be known")
    if not any(True for _ in net.parameters()):
        raise PluginError(f"{owner}: it has no parameters, so that there is nothing to train")
    if not entry.is_core:
        refuse_unlike(owner, net, built())
    return net


def refuse_unlike(owner: str, one: nn.Module, other: nn.Module) -> None:
    """Refuse a network that is not new, or not the same, when it is built again for a seed.

    Raises:
        PluginError: it is not.
    """
    mine, theirs = ({id(p) for p in net.parameters() if p.requires_grad} for net in (one, other))
    if mine & theirs:  # what is frozen may be loaded once
        raise PluginError(
            f"{owner}: built twice it is the same network, which a run before has trained: build a"
            " new one in each call (no cache)"
        )
    state, again = one.state_dict(), other.state_dict()
    wrong = [
        key
        for key, value in state.items()
        if key not in again or not (value.is_meta or torch.equal(value, again[key]))
    ]
    if wrong or len(state) != len(again):
        raise PluginError(
            f"{owner}: built twice for one seed it has other weights ('{next(iter(wrong), '')}'):"
            " draw them with torch, whose generator is seeded here"
        )


def refuse_other_samples(suite: Suite, net: nn.Module, sample: Tensor) -> None:
    """Refuse tokens where a network expects numbers, and the reverse.

    Args:
        suite: names the networks.
        net: the suite's network, or all of them.
        sample: one, shape (1, ...).

    Raises:
        UserError: a network cannot take it.
    """
    is_tokens = not sample.is_floating_point()
    nets = net.networks if isinstance(net, SeveralNetworks) else [net]
    for model, one in zip(suite.networks, nets, strict=True):
        if is_tokens == any(isinstance(part, nn.Embedding) for part in one.modules()):
            continue
        training = one.training
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                one.eval()(sample)
        except (RuntimeError, TypeError, ValueError) as error:
            numbers, tokens = "numbers (float32)", "tokens (whole numbers)"
            want, got = (numbers, tokens) if is_tokens else (tokens, numbers)
            advice = text_advice(tuple(sample.shape[1:])) if is_tokens else ""
            raise UserError(f"{model.name} expects samples of {want}, got {got}{advice}") from error
        finally:
            one.train(training)


def text_advice(shape: tuple[int, ...]) -> str:
    """What to type for samples of tokens: the networks that take them and their suites.

    Args:
        shape: of a sample.
    """
    suites, models = [], set()
    for name in entries("suites"):
        with suppress(Exception):  # a suite or network of somebody else's may not load
            model = load_suite(name).model
            net = build_alone(model, shape, 2, 0, 0)
            if any(isinstance(part, nn.Embedding) for part in net.modules()):
                suites.append(name)
                models.add(model.name)
    if not suites:
        return ""
    return (
        f": tokens are taken by suites {', '.join(suites)}, or --set model={min(models)}; if they"
        " are no tokens, save them as float32"
    )


def refuse_other_answers(net: nn.Module, name: str, x: Tensor, y: Tensor, classes: int) -> None:
    """Refuse a network that gives something else than one number for each class or target.

    Args:
        net: the suite's network, on the CPU.
        name: of the network.
        x: a sample, shape (1, ...).
        y: its label, shape (1,); for text shape (1, T); of other tasks (1, C).
        classes: C, number of labels, or of other outputs.

    Raises:
        UserError: it does, or something else in each pass.
    """
    modes = {part: part.training for part in net.modules()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            found, again = net.eval()(x), net(x)
    except Exception:  # the run says where
        return
    finally:
        for part, mode in modes.items():
            part.training = mode
    has_classes = task_of(y) == "classes"
    want = (*y.shape, classes) if has_classes else (len(y), classes)
    if isinstance(found, Tensor) and tuple(found.shape) == want:
        same = isinstance(again, Tensor) and again.shape == found.shape
        if same and torch.allclose(found, again, rtol=1e-3, atol=1e-4, equal_nan=True):
            return
        raise UserError(
            f"model '{name}': two passes over one sample in eval mode differ: expected the same,"
            " without random numbers or counters in its forward"
        )
    got = type(found).__name__
    got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {got}"
    what = "logits of every class" if has_classes else f"{classes} outputs"
    raise UserError(
        f"model '{name}': expected {'logits' if has_classes else 'outputs'}, a tensor of shape"
        f" {want} for one sample, got {got}: let its forward return the {what} alone"
    )


def draw_networks(suite: Suite, seed: int, names: Sequence[int]) -> Tensor | None:
    """Number of the network of each client, shape (n,), int64; None = there is one network.

    `names` are those of the clients in random addresses, so a client keeps its network when the ids
    change.
    """
    if not suite.further_models:
        return None
    count = len(suite.networks)
    return torch.tensor([int(rng(seed, "network", name).integers(count)) for name in names])


def refuse_within_one_network(suite: Suite, method: MethodStack) -> None:
    """Refuse a method that needs equal networks on a suite with several.

    Raises:
        Undefined: a plugin of the method does not declare `across_networks`.
    """
    if suite.further_models and (names := method.within_one_network):
        raise Undefined(
            f"{names[0]}: clients of this suite have {len(suite.networks)} different networks; a"
            " method that runs across networks says so with `across_networks = True`"
        )
