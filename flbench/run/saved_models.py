"""Saved models: a client's model from the file that `--save-models` writes, ready to predict.

    models = fl.open_models("flbench-results/.../seed-0.models.safetensors")
    logits = models.module(3)(x)

The network is built by the installed package that the file names, and gets the numbers of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from flbench.core.bank_budget import RowStore
from flbench.core.client_module import EVALUATION, ClientModule, Received
from flbench.core.layout import ParameterLayout
from flbench.core.networks import has_forward_hooks
from flbench.core.parameters import declared
from flbench.core.state import Personal
from flbench.engine.ledger import CommunicationLedger
from flbench.errors import UserError
from flbench.federation.federation import Samples
from flbench.plugin.hooks import HookCaller
from flbench.plugin.registry import find, load_entry
from flbench.results.files import user_path
from flbench.results.schema import first_problem
from flbench.run.composition import compose, joined
from flbench.run.context import RunContext, RunServices
from flbench.run.networks import build_network
from flbench.run.rounds import Run
from flbench.run.saved_files import CONTEXT, NET, OTHER, RECEIVED, ModelsAbout, Predicts, read_saved
from flbench.run.saving import Saving, Served
from flbench.run.setup import build_module
from flbench.suite import Component, Suite


def file_name(name: str) -> str:
    """The name of a tensor in a file, from that in a ClientModule.

    Example:
        >>> file_name("net.body.0.weight"), file_name("personal.weight")
        ('body.0.weight', 'client_module.personal.weight')
    """
    return name.removeprefix(NET) if name.startswith(NET) else f"{OTHER}{name}"


def models_of(
    run: Run, saving: Saving, served: Served, about: Mapping[str, Any]
) -> tuple[ModelsAbout, dict[str, Tensor]]:
    """What a file of models holds; `about` is what it says of the run."""
    space, context, personal = run.executor.workspace, run.context, served.personal
    tensors = tensors_of(served.models, space.layout)
    own = {slot.name for slot in space.layout.slots}
    common = {
        file_name(name): tensor.detach().cpu().clone()
        for name, tensor in _named(space.module)
        if name not in own
    }
    known = {f"{RECEIVED}{name}": tensor.cpu() for name, tensor in personal.extras.items()}
    if (predicts := predicting(run, personal, saving.tokens)) == "module":
        known[f"{CONTEXT}samples"] = context.samples.cpu()
        known[f"{CONTEXT}label_counts"] = context.counted.cpu()
    made = ModelsAbout(
        **about,
        clients=served.clients.tolist(),
        rows=served.rows.tolist(),
        shape=list(run.held_out.x.shape[1:]),
        outputs=context.outputs,
        tokens=saving.tokens,
        predicts=predicts,
        common=sorted(common),
    )
    return made, {**tensors, **common, **known}


def tensors_of(models: Tensor, layout: ParameterLayout) -> dict[str, Tensor]:
    """The tensors of some models, rows of shape (k, W), by their names in a file: (k, ...) each."""
    found = {}
    for slot in layout.slots:
        tensor = models[:, slot.start : slot.stop].reshape(len(models), *slot.shape)
        found[file_name(slot.name)] = tensor.long() if slot.kind == "counter" else tensor
    return found


def predicting(run: Run, personal: Personal, tokens: int) -> Predicts:
    """What turns samples into logits; see `ModelsAbout.predicts`."""
    if personal.predictor is not None or personal.transductive:
        return "predictor"
    module, plain = run.executor.workspace.module, ClientModule
    if personal.extras or has_forward_hooks(module):
        return "module"
    kind = type(module)
    if kind.forward is not plain.forward or kind.predict is not plain.predict:
        return "module"
    shape, outputs = tuple(run.held_out.x.shape[1:]), run.context.outputs
    net = build_network(run.suite, shape, outputs, run.seed, tokens=tokens)
    names = {name for name, _ in _named(net)}
    return "network" if {file_name(name) for name, _ in _named(module)} == names else "module"


class PersonalModule(nn.Module):
    """What a client predicts with, where it takes code of the method.

    Args:
        module: the method's module, with the client's model.
        start: the model as a row, shape (W,).
        received: what the client received to predict with, by name.
    """

    def __init__(self, module: ClientModule, start: Tensor, received: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.module = module
        module.start, module.received = start, Received(received, EVALUATION)

    def forward(self, x: Tensor) -> Tensor:
        """What is judged for samples, shape (b, ...) -> (b, C); of text (b, T, C)."""
        return self.module.predict(x)


@dataclass(frozen=True)
class SavedModels:
    """The models that served the clients of a run, at the round that its result reports.

    Attributes:
        path: of the file.
        about: suite, method, seed, fingerprints, and who uses which model.
        tensors: by name; those of the models have shape (k, ...), one entry per model.
    """

    path: Path
    about: ModelsAbout
    tensors: Mapping[str, Tensor]

    @property
    def clients(self) -> list[int]:
        """Ids of the clients that have a model here: those that the result judges."""
        return list(self.about.clients)

    def state(self, client: int) -> dict[str, Tensor]:
        """The parameters and buffers of a client's model, by the network's own names.

        Raises:
            UserError: no model of the client is in the file.
        """
        row, aside = self.about.rows[self._place(client)], (RECEIVED, CONTEXT)
        models = {name: one for name, one in self.tensors.items() if not name.startswith(aside)}
        common = set(self.about.common)
        return {name: one if name in common else one[row] for name, one in models.items()}

    def module(self, client: int) -> nn.Module:
        """A client's model in evaluation mode: samples as in the data set -> logits, or numbers.

        Numbers are deviations from `about.target_mean`, in units of `about.target_deviation`. It is
        the network itself where the method leaves predictions to it, else the method's module, for
        which its package must be installed.

        Raises:
            UserError: no model of the client is in the file, or it does not predict without its
                run.
        """
        state, about = self.state(client), self.about
        if about.predicts == "predictor":
            raise UserError(
                f"{self.path}: {about.method.name} predicts with what only its run has: take the"
                " parameters (`state`), or the predictions (--save-predictions)"
            )
        suite = _suite(self.path, about)
        net = build_network(
            suite, tuple(about.shape), about.outputs, about.seed, tokens=about.tokens
        )
        if about.predicts == "network":
            _load(self.path, net, {name: name for name, _ in _named(net)}, state)
            return net.eval()
        module = _method_module(self, suite, net)
        _load(self.path, module, {name: file_name(name) for name, _ in _named(module)}, state)
        place = self._place(client)
        received = {
            name.removeprefix(RECEIVED): tensor[place]
            for name, tensor in self.tensors.items()
            if name.startswith(RECEIVED)
        }
        row = ParameterLayout.of(module).flatten(module)
        return PersonalModule(module, row, received).eval()

    def _place(self, client: int) -> int:
        """The place of a client in the index."""
        try:
            return self.about.clients.index(client)
        except ValueError:
            raise UserError(
                f"{self.path}: no model of client {client}: it has those of {self.clients}"
            ) from None


def open_models(path: str | Path) -> SavedModels:
    """The models that `--save-models` wrote; nothing of the file is executed.

    Args:
        path: of the file, `seed-<n>.models.safetensors` beside the result.

    Raises:
        UserError: it is no such file, or its parts do not fit each other.
        MachineError: it cannot be read.
    """
    found = user_path(path)
    about, tensors = read_saved(found, ModelsAbout)
    _refuse_misfits(found, about, tensors)
    return SavedModels(found, about, tensors)


def _refuse_misfits(path: Path, about: ModelsAbout, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a file whose index does not fit its tensors."""
    models, clients = max(about.rows) + 1, len(about.clients)
    if len(about.rows) != clients or len(set(about.clients)) != clients:
        raise UserError(f"{path}: one model for each of {clients} clients expected")
    if missing := sorted(set(about.common) - tensors.keys()):
        raise UserError(f"{path}: the tensor '{missing[0]}' is missing")
    for name, tensor in tensors.items():
        if name.startswith(CONTEXT) or name in about.common:
            continue
        wanted = clients if name.startswith(RECEIVED) else models
        if not tensor.dim() or len(tensor) != wanted:
            got = list(tensor.shape)
            raise UserError(f"{path}: '{name}': {wanted} entries expected, got shape {got}")


def _suite(path: Path, about: ModelsAbout) -> Suite:
    """The suite of a file; parameters that name files keep their defaults, as nothing is opened."""
    try:
        suite = about.asked
    except ValidationError as error:
        field, what = first_problem(error, about.suite)
        raise UserError(f"{path}: 'suite.{field}': {what}") from None
    first, *others = map(_without_files, suite.networks)
    return suite.model_copy(update={"model": first, "further_models": tuple(others)})


def _without_files(network: Component) -> Component:
    """A network and its parameters, but for those that name files."""
    known = declared(load_entry(find("models", network.name)), skip=2)
    opening = {name for name, one in known.items() if one.opens_file}
    kept = {name: value for name, value in network.params.items() if name not in opening}
    return Component(name=network.name, **kept)


def _method_module(saved: SavedModels, suite: Suite, net: nn.Module) -> ClientModule:
    """The module of the method that a file names, around a network."""
    about, nothing = saved.about, torch.empty(0)
    method = joined(suite, compose(about.method.name, about.method.params, stated=True))
    plain = ClientModule(net, suite.local)
    layout, clients = ParameterLayout.of(plain), suite.training_clients
    samples = saved.tensors.get(f"{CONTEXT}samples", torch.empty(0))
    counts = saved.tensors.get(f"{CONTEXT}label_counts", torch.empty(0))
    for name, tensor, shape in (
        ("samples", samples, [clients]),
        ("label_counts", counts, [clients, about.outputs]),
    ):
        if list(tensor.shape) != shape or tensor.is_floating_point():
            got = list(tensor.shape)
            raise UserError(f"{saved.path}: '{CONTEXT}{name}': shape {shape} expected, got {got}")
    context = RunContext(
        seed=about.seed,
        round=0,
        rounds=suite.rounds,
        clients=clients,
        cohort=nothing.long(),
        samples=samples,
        label_counts=counts,
        classes=about.outputs,
        task=about.task,
        layout=layout,
        initial=layout.flatten(plain),
        local=suite.local,
        row_per_client=method.row_per_client,
        services=RunServices(
            ledger=CommunicationLedger(clients),
            say=lambda message: None,
            store=RowStore(None),
            samples=Samples(nothing, nothing.long(), {}),
        ),
    )
    return build_module(HookCaller((suite.name, suite), method.layers), net, context)


def _named(module: nn.Module) -> list[tuple[str, Tensor]]:
    """The parameters and buffers of a module, by name."""
    return [*module.named_parameters(), *module.named_buffers()]


def _load(
    path: Path, module: nn.Module, names: Mapping[str, str], state: Mapping[str, Tensor]
) -> None:
    """Copy a model into a module whose tensors have the names `names` in the file.

    Raises:
        UserError: names, shapes or types are not those of the module.
    """
    if other := sorted(set(names.values()) ^ state.keys()):
        where = "the file" if other[0] in state else "the network"
        raise UserError(
            f"{path}: '{other[0]}' is in {where} alone: it was saved with another version of the"
            " package of the network or the method"
        )
    with torch.no_grad():
        for name, tensor in _named(module):
            saved = state[names[name]]
            wanted = torch.float32 if tensor.is_floating_point() else torch.int64
            found = saved.dtype, list(saved.shape)
            if found != (wanted, list(tensor.shape)):
                expected = wanted, list(tensor.shape)
                raise UserError(f"{path}: '{names[name]}': {expected} expected, got {found}")
            tensor.copy_(saved)
