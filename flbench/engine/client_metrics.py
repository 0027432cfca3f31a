"""Client metrics: metrics of each client's test samples, computed batch by batch.

A metric is a `torchmetrics.Metric`, made by a factory: an entry point of group `flbench.metrics`,
one of the classes of torchmetrics that may be asked for (`client_metrics/torchmetrics_classes.py`),
or what a method's hook `metrics` brings. It is updated with logits (b, C) and labels (b,), for text
with one row per token, from a client's first sample to its last one, and then reset for another
client: no samples are kept, unless the metric keeps them. Of other tasks it gets numbers and
targets, or probabilities and labels, (b, C) each.

The headline of such a task (`flbench.tasks`) is a metric, too, the first of a run.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from flbench.client_metrics.tasks import AtOnce, computed_at_once, task_judged
from flbench.client_metrics.torchmetrics_classes import (
    HOMES,
    LIBRARY,
    allowed,
    checked_params,
    is_class,
    refuse_too_large,
    task_of_class,
    usual_params,
)
from flbench.core import torchvision_compat as torchvision_compat
from flbench.core.parameters import checked
from flbench.errors import BadParameter, PluginError, UnknownName, in_one_line
from flbench.plugin.isolation import IsolatedPlugin
from flbench.plugin.registry import entries, find, load_entry
from flbench.suite import Component
from flbench.tasks import TASKS, TaskName

TRIED = 8
"""Samples on which a metric is tried before a run begins."""


@dataclass(frozen=True)
class ClientMetric:
    """A metric as it was asked for.

    Attributes:
        label: its name in results: the name with its parameters.
        package: distribution and version that it comes from.
        make: number of classes -> a new `torchmetrics.Metric`.
        plugin: the method's plugin that brings it; "" = a person or a suite asks for it.
        at_once: computes it for many clients, without an instance for each; None = it cannot.
    """

    label: str
    name: str
    params: Mapping[str, Any]
    package: str
    make: Callable[[int], Any]
    plugin: str = ""
    at_once: AtOnce | None = None


def find_metric(asked: Component, task: TaskName | None = "classes") -> ClientMetric:
    """The metric of a name, installed or a class of torchmetrics; it is not made yet.

    Args:
        asked: its name and parameters.
        task: what it judges; None = it is not known yet.

    Raises:
        UnknownName: there is none, it is a class that may not be asked for, or it has no such
            parameter.
        BadParameter: a value does not fit its parameter, or it judges another task.
    """
    name, params, at_once = asked.name, asked.params, None
    known = entries("metrics")
    if name in known:
        entry = find("metrics", name)
        factory = load_entry(entry)
        if task is not None and (other := task_judged(factory)) != task:
            raise BadParameter(f"metric '{name}' judges {other}, and the data set has {task}")
        values = checked(f"metric '{name}'", factory, params, skip=1)
        package, at_once = f"{entry.distribution} {entry.version}", computed_at_once(factory)
        make: Callable[[int], Any] = lambda classes: factory(classes, **values)  # noqa: E731
    elif is_class(name):
        of_task = task or task_of_class(name)
        values, package = checked_params(name, params, of_task), f"{LIBRARY} {version(LIBRARY)}"
        make = _maker(name, values, of_task)
    else:
        listed = "or a class of torchmetrics such as MulticlassF1Score; installed"
        raise UnknownName("metric", name, known, listed)
    return ClientMetric(asked.label, name, params, package, make, at_once=at_once)


def _maker(name: str, params: Mapping[str, Any], task: TaskName) -> Callable[[int], Any]:
    """What makes an instance of a class of torchmetrics; the name and its parameters are checked.

    Raises:
        UnknownName: the installed torchmetrics does not have it, or not one of its parameters.
    """
    last, _ = allowed(name, task)
    home = import_module(HOMES[task])
    kind = getattr(home, last, None)
    if kind is None:
        raise UnknownName(f"class of {LIBRARY} {version(LIBRARY)}", name, vars(home), "it has")
    known = inspect.signature(kind).parameters
    for key in params:
        if key not in known:
            raise UnknownName(f"parameter of metric '{name}'", key, known, listed="declared")

    def make(classes: int) -> Any:  # noqa: ANN401 - a Metric
        refuse_too_large(name, params, classes, task)
        usual = usual_params(task, classes)
        return kind(**{key: usual[key] for key in usual if key in known}, **params)

    return make


def metrics_of_task(task: TaskName) -> list[ClientMetric]:
    """What is computed of every client, unasked: the headline, and what is reported beside it."""
    if task == "classes":  # accuracy is counted without a metric
        return []
    names = (TASKS[task].headline, *TASKS[task].beside)
    return [find_metric(Component(name=name), task) for name in names]


@dataclass
class ClientMetrics:
    """The metrics of a run, by label, with their instances.

    Attributes:
        classes: outputs of the network, C.
        warn: called when code of a metric changes a process-wide setting.
        directions: label -> whether higher is better; None = neither.
        on_common: labels of those that are computed on the test samples of all clients, for each
            client alike (`on_common_samples` of the metric's class).
        task: what is predicted; of another than `classes`, the first metric is the headline.
    """

    metrics: Mapping[str, ClientMetric]
    classes: int
    device: torch.device
    warn: Callable[[str], None] = lambda message: None
    directions: dict[str, bool | None] = field(default_factory=dict)
    on_common: set[str] = field(default_factory=set)
    task: TaskName = "classes"
    _idle: list[list[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = ", ".join(self.metrics)
        self._isolated, self._names = IsolatedPlugin(names, self.warn), f"metrics {names}"
        with self.isolated():
            instances = self.taken()
            for label, metric in zip(self.metrics, instances, strict=True):
                self._try(label, metric)
                direction = getattr(metric, "higher_is_better", None)
                self.directions[label] = direction if isinstance(direction, bool) else None
                if getattr(metric, "on_common_samples", False):
                    self.on_common.add(label)
        self._idle.append(instances)

    def isolated(self) -> AbstractContextManager[None]:
        """A block in which their code runs; settings that it changes are restored at its end."""
        return self._isolated.acting(self._names)

    @property
    def labels(self) -> list[str]:
        """Their names in results."""
        return list(self.metrics)

    @cached_property
    def own(self) -> ClientMetrics | None:
        """Those of each client's own test samples, if there are some."""
        labels = [label for label in self.metrics if label not in self.on_common]
        return self._some(labels) if labels else None

    @cached_property
    def common(self) -> ClientMetrics | None:
        """Those of all clients' test samples, if there are some."""
        labels = [label for label in self.metrics if label in self.on_common]
        return self._some(labels) if labels else None

    @cached_property
    def headline(self) -> ClientMetrics | None:
        """The headline alone; None = it is accuracy, which no metric counts."""
        return None if self.task == "classes" else self._some(self.labels[:1])

    @cached_property
    def singly(self) -> ClientMetrics:
        """Those that are computed client by client."""
        labels = [label for label, one in self.metrics.items() if one.at_once is None]
        return self._some(labels)

    def _some(self, labels: Sequence[str]) -> ClientMetrics:
        if labels == self.labels:
            return self
        some = {label: self.metrics[label] for label in labels}
        return replace(self, metrics=some, directions={}, on_common=set(), _idle=[])

    def at_once(self, logits: Tensor, y: Tensor, lengths: Tensor) -> Mapping[str, Tensor]:
        """The values of n clients by the labels of those that are not in `singly`, shape (n,).

        Args:
            logits: of the samples of one client after the other, shape (m, C).
            y: shape (m, C).
            lengths: samples of each client, shape (n,).
        """
        rows, y = self._as_metrics_take(logits, y)
        return {
            label: one.at_once(rows, y, lengths).double()
            for label, one in self.metrics.items()
            if one.at_once is not None
        }

    def taken(self) -> list[Any]:
        """Instances for one client, in the order of the labels, without samples."""
        return self._idle.pop() if self._idle else [self._made(label) for label in self.metrics]

    def given_back(self, instances: list[Any]) -> None:
        """Reset the instances of a client, for another one."""
        for label, metric in zip(self.metrics, instances, strict=True):
            with self.acting(label):
                metric.reset()
        self._idle.append(instances)

    def add(self, instances: Sequence[Any], logits: Tensor, y: Tensor) -> None:
        """Add samples of the client whose instances these are.

        Metrics of torchmetrics take a batch that lies in [0, 1] for probabilities. Logits are made
        log-probabilities, which are logits that never do, so values do not depend on batches.
        Labels of which several may hold are given with probabilities, which always do.
        """
        rows, y = self._as_metrics_take(logits, y)
        for label, metric in zip(self.metrics, instances, strict=True):
            with self.acting(label):
                metric.update(rows.clone(), y.clone())  # it may write to them

    def _as_metrics_take(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.task == "classes":
            return logits.log_softmax(dim=-1).reshape(-1, logits.shape[-1]), y.reshape(-1)
        if self.task == "labels":
            return logits.double().sigmoid(), y.long()
        return (logits[:, 0], y[:, 0]) if self.classes == 1 else (logits, y)

    def values(self, instances: Sequence[Any]) -> list[float]:
        """The client's value of each metric; NaN = undefined."""
        return [self._value(*pair) for pair in zip(self.metrics, instances, strict=True)]

    @contextmanager
    def acting(self, label: str) -> Iterator[None]:
        """Run code of a metric in the block; what it raises names the metric.

        All of it runs in inference mode: tensors that are made there cannot be changed elsewhere.
        """
        try:
            with torch.inference_mode():
                yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit as well
            raise PluginError(f"metric '{self._title(label)}': {in_one_line(error)}") from error

    def _title(self, label: str) -> str:
        plugin = self.metrics[label].plugin
        return f"{label}' of '{plugin}" if plugin else label

    def _made(self, label: str) -> Any:  # noqa: ANN401 - a Metric
        with self.acting(label):
            metric = self.metrics[label].make(self.classes)
        if not all(callable(getattr(metric, one, None)) for one in ("update", "compute", "reset")):
            got = type(metric).__name__
            raise PluginError(
                f"metric '{self._title(label)}': expected a torchmetrics.Metric (update, compute,"
                f" reset), got {got}"
            )
        with self.acting(label):
            for part in metric.modules() if isinstance(metric, torch.nn.Module) else ():
                # its samples are one client's, which one process has
                setattr(part, "distributed_available_fn", _alone)  # noqa: B010 - torchmetrics' own
            return metric.to(self.device) if hasattr(metric, "to") else metric

    def _value(self, label: str, metric: Any) -> float:  # noqa: ANN401 - a Metric
        with self.acting(label):
            value = metric.compute()
        shape = tuple(getattr(value, "shape", ()))
        if math.prod(shape) != 1 or isinstance(value, (Mapping, Sequence)):
            got = f"a tensor of shape {shape}" if shape else type(value).__name__
            raise PluginError(
                f"metric '{self._title(label)}': expected one number per client, got {got}; choose"
                f" how it averages, such as --metric {self.metrics[label].name}:average=macro"
            )
        with self.acting(label):
            return float(value)

    def _try(self, label: str, metric: Any) -> None:  # noqa: ANN401 - a Metric
        """Feed it a few samples, before a run takes hours: twice, as for two clients."""
        y = torch.arange(min(TRIED, self.classes), device=self.device)
        logits = torch.nn.functional.one_hot(y, self.classes).float()
        if self.task != "classes":
            y = torch.arange(TRIED, device=self.device)[:, None] % 2 == torch.zeros_like(logits[:1])
            logits = y.flip(0).float()
            y = y.float() if self.task == "numbers" else y.to(torch.int8)
        found = []
        for _ in range(2):
            with self.acting(label):
                metric.update(*self._as_metrics_take(logits, y))
            found.append(self._value(label, metric))
            with self.acting(label):
                metric.reset()
        if found[0] != found[1] and not all(map(math.isnan, found)):
            raise PluginError(
                f"metric '{self._title(label)}': after reset the same samples give {found[1]:g},"
                f" before {found[0]:g}; declare what it keeps with add_state"
            )


def _alone() -> bool:
    """Whether other processes have samples of the same client."""
    return False


class Stream:
    """The metrics of n clients on samples that come chunk by chunk, those of several mixed.

    A client has instances of the metrics from its first sample to its last one. What is computed of
    all clients at once waits for the last chunk.
    """

    def __init__(self, metrics: ClientMetrics, positions: Tensor | None, lengths: Tensor) -> None:
        """As in `flbench.federation.pooled.Pooled`."""
        self._metrics = metrics
        owners = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
        at = torch.arange(len(owners), device=lengths.device) if positions is None else positions
        self._rows, self._lengths = at, lengths
        self._chunks: list[tuple[Tensor, Tensor]] = []
        order = at.argsort(stable=True)
        self._positions, self._owners = at[order].contiguous(), owners[order]
        self._left = lengths.tolist()
        self._open: dict[int, list[Any]] = {}
        shape = len(self._left), len(metrics.singly.labels)
        self._singly = torch.full(shape, torch.nan, dtype=torch.float64)

    @property
    def values(self) -> Tensor:
        """Value of each client and metric, shape (n, metrics), float64; NaN = undefined."""
        singly, labels = self._metrics.singly.labels, self._metrics.labels
        if len(singly) == len(labels):
            return self._singly
        found = dict(zip(singly, self._singly.T, strict=True))
        if self._chunks:
            logits, y = map(torch.cat, zip(*self._chunks, strict=True))
            rows, lengths = self._rows, self._lengths
            at_once = self._metrics.at_once(logits[rows], y[rows], lengths)
            found |= {label: values.cpu() for label, values in at_once.items()}
        nothing = torch.full((len(self._left),), torch.nan, dtype=torch.float64)
        return torch.stack([found.get(label, nothing) for label in labels], dim=1)

    def add(self, at: int, logits: Tensor, y: Tensor) -> None:
        """Add the samples from position `at` on, in the order of their positions."""
        if len(self._metrics.singly.labels) < len(self._metrics.labels):
            self._chunks.append((logits, y))
        if not self._metrics.singly.labels:
            return
        ends = torch.tensor([at, at + len(y)], device=self._positions.device)
        first, last = torch.searchsorted(self._positions, ends).tolist()
        places, owners = self._positions[first:last] - at, self._owners[first:last]
        with self._metrics.isolated():
            for client in owners.unique().tolist():
                rows = places[owners == client]
                self._add(client, logits[rows], y[rows])

    def _add(self, client: int, logits: Tensor, y: Tensor) -> None:
        """Add samples of one client; its values are computed after the last one."""
        if client not in self._open:
            self._open[client] = self._metrics.singly.taken()
        self._metrics.singly.add(self._open[client], logits, y)
        self._left[client] -= len(y)
        if not self._left[client]:
            instances = self._open.pop(client)
            values = self._metrics.singly.values(instances)
            self._singly[client] = torch.tensor(values, dtype=torch.float64)
            self._metrics.singly.given_back(instances)
