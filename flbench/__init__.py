"""flbench: a benchmark suite for personalised and clustered federated learning.

The names below are what plugins may import; they are loaded when first used, so that importing
flbench costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flbench.core.client_memory import padded as padded
    from flbench.core.client_memory import unpadded as unpadded
    from flbench.core.client_module import Batch as Batch
    from flbench.core.client_module import BatchLoss as BatchLoss
    from flbench.core.client_module import ClientModule as ClientModule
    from flbench.core.client_module import LocalPhase as LocalPhase
    from flbench.core.client_module import PhaseRule as PhaseRule
    from flbench.core.client_module import Report as Report
    from flbench.core.client_module import Reporter as Reporter
    from flbench.core.conformance import Conformance as Conformance
    from flbench.core.context import Context as Context
    from flbench.core.dataset import Dataset as Dataset
    from flbench.core.dataset import Partition as Partition
    from flbench.core.effect import not_with as not_with
    from flbench.core.effect import only_with as only_with
    from flbench.core.hookspecs import hookimpl as hookimpl
    from flbench.core.layout import ParameterLayout as ParameterLayout
    from flbench.core.layout import Slot as Slot
    from flbench.core.local_training import LocalTraining as LocalTraining
    from flbench.core.model_bank import mean_of as mean_of
    from flbench.core.parameters import OpensFile as OpensFile
    from flbench.core.parameters import Presets as Presets
    from flbench.core.state import Membership as Membership
    from flbench.core.state import Memory as Memory
    from flbench.core.state import Message as Message
    from flbench.core.state import Models as Models
    from flbench.core.state import Needs as Needs
    from flbench.core.state import Personal as Personal
    from flbench.core.state import Scores as Scores
    from flbench.core.state import Setup as Setup
    from flbench.core.state import Stage as Stage
    from flbench.core.state import Start as Start
    from flbench.core.state import State as State
    from flbench.core.state import Upload as Upload
    from flbench.core.targets import cross_entropy as cross_entropy
    from flbench.core.targets import task_of as task_of
    from flbench.core.types import Kind as Kind
    from flbench.core.types import Phase as Phase
    from flbench.errors import FlbenchError as FlbenchError
    from flbench.errors import Undefined as Undefined
    from flbench.errors import UserError as UserError
    from flbench.results.events import RoundRecord as RoundRecord
    from flbench.results.events import RunInfo as RunInfo
    from flbench.results.hashed_fields import LATER as LATER
    from flbench.results.schema import Result as Result
    from flbench.run.saved_models import open_models as open_models
    from flbench.run.saved_predictions import read_predictions as read_predictions
    from flbench.sweeps.from_python import RunOptions as RunOptions
    from flbench.sweeps.from_python import run_suite as run_suite
    from flbench.sweeps.from_python import run_suites as run_suites
    from flbench.sweeps.suite_results import PairedDifference as PairedDifference
    from flbench.sweeps.suite_results import SuiteResults as SuiteResults
    from flbench.sweeps.suite_results import SvgFigure as SvgFigure
    from flbench.toolbox import asynchrony as asynchrony
    from flbench.toolbox import attacks as attacks
    from flbench.toolbox import clustering as clustering
    from flbench.toolbox import elbow as elbow
    from flbench.toolbox import heterogeneity as heterogeneity
    from flbench.toolbox import similarity as similarity
    from flbench.toolbox.aggregation import Weighting as Weighting
    from flbench.toolbox.aggregation import client_weights as client_weights
    from flbench.toolbox.aggregation import effective_steps as effective_steps
    from flbench.toolbox.aggregation import lloyd as lloyd
    from flbench.toolbox.aggregation import member_mean as member_mean
    from flbench.toolbox.aggregation import partial_mean as partial_mean
    from flbench.toolbox.aggregation import weighted_mean as weighted_mean
    from flbench.toolbox.learning import FlatNetwork as FlatNetwork
    from flbench.toolbox.learning import minimise as minimise
    from flbench.toolbox.personalisation import one_model_per_client as one_model_per_client
    from flbench.toolbox.personalisation import same_group as same_group

__version__ = "0.3.0"


_HOMES = {
    name: module
    for module, names in {
        "core.client_module": "Batch BatchLoss ClientModule LocalPhase PhaseRule Report Reporter",
        "core.client_memory": "padded unpadded",
        "core.conformance": "Conformance",
        "core.context": "Context",
        "core.dataset": "Dataset Partition",
        "core.hookspecs": "hookimpl",
        "core.layout": "ParameterLayout Slot",
        "core.local_training": "LocalTraining",
        "core.model_bank": "mean_of",
        "core.effect": "not_with only_with",
        "core.parameters": "OpensFile Presets",
        "core.state": "Membership Memory Message Models Needs Personal Scores Setup Stage Start"
        " State Upload",
        "core.targets": "cross_entropy task_of",
        "core.types": "Kind Phase",
        "errors": "FlbenchError Undefined UserError",
        "results.events": "RoundRecord RunInfo",
        "results.hashed_fields": "LATER",
        "results.schema": "Result",
        "run.saved_models": "open_models",
        "run.saved_predictions": "read_predictions",
        "sweeps.from_python": "RunOptions run_suite run_suites",
        "sweeps.suite_results": "PairedDifference SuiteResults SvgFigure",
        "toolbox": "asynchrony attacks clustering elbow heterogeneity similarity",
        "toolbox.aggregation": "Weighting client_weights effective_steps lloyd member_mean"
        " partial_mean weighted_mean",
        "toolbox.learning": "FlatNetwork minimise",
        "toolbox.personalisation": "one_model_per_client same_group",
    }.items()
    for name in names.split()
}
"""Public name -> its module, below flbench. Type checkers read the imports above instead."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    if name == "__all__":
        return sorted([*_HOMES, "__version__"])
    if name not in _HOMES:
        raise AttributeError(f"module 'flbench' has no attribute '{name}'")
    home = importlib.import_module(f"flbench.{_HOMES[name]}")
    if home.__package__ == home.__name__:  # a package: its public names are modules
        return importlib.import_module(f"{home.__name__}.{name}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
