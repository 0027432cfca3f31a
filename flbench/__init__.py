"""flbench: a benchmark suite for personalised and clustered federated learning.

The names below are what plugins may import; they are loaded when first used, so that importing
flbench costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flbench import clustering as clustering
    from flbench import curves as curves
    from flbench import scoring as scoring
    from flbench import skew as skew
    from flbench.averaging import Weighting as Weighting
    from flbench.averaging import effective_steps as effective_steps
    from flbench.averaging import member_mean as member_mean
    from flbench.averaging import shared_mean as shared_mean
    from flbench.averaging import weighted_mean as weighted_mean
    from flbench.bank import mean_of as mean_of
    from flbench.client import ClientModule as ClientModule
    from flbench.client import LocalPhase as LocalPhase
    from flbench.client import cross_entropy as cross_entropy
    from flbench.conformance import Conformance as Conformance
    from flbench.context import Context as Context
    from flbench.dataset import Dataset as Dataset
    from flbench.dataset import Partition as Partition
    from flbench.errors import Undefined as Undefined
    from flbench.errors import UserError as UserError
    from flbench.hookspecs import hookimpl as hookimpl
    from flbench.layout import ParameterLayout as ParameterLayout
    from flbench.parameters import Presets as Presets
    from flbench.personal import newcomers as newcomers
    from flbench.personal import own_rows as own_rows
    from flbench.personal import same_group as same_group
    from flbench.results import Result as Result
    from flbench.results import RoundRecord as RoundRecord
    from flbench.results import RunInfo as RunInfo
    from flbench.state import Kind as Kind
    from flbench.state import Membership as Membership
    from flbench.state import Memory as Memory
    from flbench.state import Models as Models
    from flbench.state import Personal as Personal
    from flbench.state import Phase as Phase
    from flbench.state import Scores as Scores
    from flbench.state import Setup as Setup
    from flbench.state import Stage as Stage
    from flbench.state import Start as Start
    from flbench.state import State as State
    from flbench.state import Upload as Upload
    from flbench.suite import LocalTraining as LocalTraining

__version__ = "0.1.0"

_HOMES = {
    "averaging": ("Weighting", "effective_steps", "member_mean", "shared_mean", "weighted_mean"),
    "bank": ("mean_of",),
    "client": ("ClientModule", "LocalPhase", "cross_entropy"),
    "conformance": ("Conformance",),
    "context": ("Context",),
    "errors": ("Undefined", "UserError"),
    "hookspecs": ("hookimpl",),
    "layout": ("ParameterLayout",),
    "parameters": ("Presets",),
    "personal": ("newcomers", "own_rows", "same_group"),
    "results": ("Result", "RoundRecord", "RunInfo"),
    "dataset": ("Dataset", "Partition"),
    "state": (
        "Kind",
        "Membership",
        "Memory",
        "Models",
        "Personal",
        "Phase",
        "Scores",
        "Setup",
        "Stage",
        "Start",
        "State",
        "Upload",
    ),
    "suite": ("LocalTraining",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

_TOOLBOX = ("clustering", "curves", "scoring", "skew")

__all__ = sorted([*_HOME_OF, *_TOOLBOX, "__version__"])


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    if name in _HOME_OF:
        return getattr(importlib.import_module(f"flbench.{_HOME_OF[name]}"), name)
    if name in _TOOLBOX:
        return importlib.import_module(f"flbench.{name}")
    from flbench.deprecations import served

    return served(name)


def __dir__() -> list[str]:
    return __all__
