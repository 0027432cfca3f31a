"""Every method of a LightningModule is called, refused, or a module's own tool."""

from __future__ import annotations

import re

import lightning
import pytest
from lightning.pytorch import LightningModule
from packaging.version import Version
from torch import nn

from flbench import ClientModule, LocalTraining
from flbench.core.lightning_hooks import ALWAYS, HOOKS, REFUSED, TOOLS, hooks_of
from flbench.errors import PluginError


def public_methods() -> set[str]:
    """The public methods of the installed LightningModule that are not torch's."""
    return {
        name
        for kind in LightningModule.__mro__
        if kind.__module__.startswith("lightning")
        for name, value in vars(kind).items()
        if not name.startswith("_")
        and hasattr(value, "__get__")
        and not isinstance(value, property)
    }


def test_every_method_of_lightning_is_in_one_table() -> None:
    tables = [{*ALWAYS, *HOOKS}, set(REFUSED), set(TOOLS)]
    for name in public_methods():
        assert sum(name in table for table in tables) == 1, name
    assert {*ALWAYS, *HOOKS} <= public_methods(), "what is called is there"
    newer = {name for name in TOOLS if name not in public_methods()}
    assert not newer or Version(lightning.__version__) < Version("2.6"), newer


def with_methods(*names: str) -> ClientModule:
    kind = type("Module", (ClientModule,), {name: lambda self, *given: None for name in names})
    module: ClientModule = kind(nn.Linear(1, 1), LocalTraining())
    return module


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_never_called_is_refused_with_what_to_use(name: str) -> None:
    with pytest.raises(PluginError, match=rf"^Module: {name} .*{re.escape(REFUSED[name])}$"):
        hooks_of(with_methods("on_train_start", name))


def test_hooks_are_those_that_a_module_overrides() -> None:
    assert hooks_of(with_methods()) == frozenset()
    assert hooks_of(with_methods("training_step", "log", "mine")) == frozenset()
    assert hooks_of(with_methods(*HOOKS)) == set(HOOKS)
    module = with_methods()
    vars(module)["on_train_end"] = lambda: None
    assert hooks_of(module) == {"on_train_end"}
