"""LocalTrainer: the part of Lightning's Trainer that the training of one client needs.

It lets a ClientModule make epochs and steps. A module that overrides hooks, has schedulers or
optimises by hand gets the calls of `Trainer.fit`, in its order and with its arguments; any other
one takes the short way, which computes the same. Lightning's own methods of the module (`log`,
`optimizers`, `manual_backward`, `clip_gradients`, ...) find in it what they look for in a Trainer,
its strategy and its precision plugin.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from flbench.core import torchvision_compat as torchvision_compat
from flbench.core.client_module import ClientModule, Term
from flbench.core.lightning_hooks import hooks_of
from flbench.engine.optimizer_step import OptimizerStep
from flbench.engine.optimizers import Optimizers, configured, scaled_rate
from flbench.errors import PluginError, Undefined

# isort: split
from lightning.fabric import Fabric
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.trainer.connectors.logger_connector.logger_connector import _LoggerConnector
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection

HAS = (
    *("current_epoch", "global_step", "max_epochs", "num_training_batches"),
    *("estimated_stepping_batches", "optimizers", "lr_scheduler_configs", "callback_metrics"),
    *("gradient_clip_val", "should_stop", "world_size"),
)
"""What a module may ask of `self.trainer`."""


class Space(Protocol):
    """What it trains in: a Workspace, whose methods these are."""

    fabric: Fabric
    step: OptimizerStep

    @property
    def device(self) -> torch.device: ...  # noqa: D102 - see Workspace

    def clear_gradients(self) -> None: ...  # noqa: D102 - see Workspace

    def snapshot(self) -> Tensor: ...  # noqa: D102 - see Workspace

    def restore_frozen(self, before: Tensor, trained: Tensor) -> None: ...  # noqa: D102 - likewise

    def by_parameter(self, mask: Tensor) -> dict[int, Tensor]: ...  # noqa: D102 - see Workspace


class Absent:
    """Stands for a part of a Trainer that is not there."""

    def __init__(self, name: str, use: str) -> None:
        self._name, self._use = name, use

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of whatever is absent
        raise AttributeError(f"{self._name}.{name}: there is no {self._name} here: {self._use}")


class Outside:
    """Stands for the trainer where no client trains: in evaluation, and at the server."""

    current_epoch = global_step = global_rank = local_rank = 0

    @property
    def logger(self) -> Absent:
        """What `self.logger` is."""
        return LOGGER

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of a Trainer
        raise AttributeError(
            f"self.trainer.{name}: self.log and self.trainer are there in local training only"
        )


OUTSIDE = Outside()
LOGGER = Absent("self.logger", "use self.log, whose numbers reach the result and all sinks")


class LocalTrainer:
    """Trains the module of a workspace, one client at a time; what a module finds in it is `HAS`.

    Attributes:
        hooks: those that the module overrides.
        is_plain: whether the module takes the short way.
        losses: the loss of each step of this client that had one.
        made: batches that this client has trained on.

    Raises:
        PluginError: the module overrides a hook that is never called, or `configure_optimizers`
            returns none of Lightning's forms.
        Undefined: the suite clips gradients, and the module optimises by hand.
    """

    barebones = False
    training = is_global_zero = True
    world_size = 1
    global_rank = local_rank = 0
    progress_bar_callback = None
    logger = LOGGER
    loggers = ()
    gradient_clip_algorithm = None
    _accelerator_connector = SimpleNamespace(is_distributed=False)

    def __init__(self, space: Space, module: ClientModule) -> None:
        self.space, self.module = space, module
        self.hooks = hooks_of(module)
        self._takes_batch_idx = takes_batch_idx(module)
        self.automatic = module.automatic_optimization
        self.clip_norm = module.local.clip_norm
        self.max_epochs = self.estimated_stepping_batches = math.ceil(module.local.epochs)
        self.num_training_batches = 1
        self._start()
        with self.attached():
            self.first = configured(module)
        self.is_plain = self.automatic and self.first.is_plain and not self.hooks
        self._usual_rate, self._rates = module.local.lr, self.first.rates()
        self._use(self.first)

    def not_in_lanes(self) -> str | None:
        """Why several clients cannot be trained at once; None = no reason is known."""
        if not self.automatic:
            return "it optimises by hand"
        if self.hooks:
            clips = "; local.clip_norm clips in lanes too"
            hint = clips if "configure_gradient_clipping" in self.hooks else ""
            return f"it overrides {', '.join(sorted(self.hooks))}{hint}"
        if any(config.reduce_on_plateau for config in self.lr_scheduler_configs):
            return "its learning rate follows a number that one client logs"
        return None

    def rates(self, epochs: Sequence[int], batches: Sequence[int], most: int) -> list[float]:
        """The learning rate at each step of a client whose module has schedulers.

        Args:
            epochs: of each phase.
            batches: of an epoch of each phase.
            most: steps that the client makes.

        Raises:
            Undefined: a scheduler changes another setting of the optimiser.
        """
        self._start()
        self.max_epochs, self.estimated_stepping_batches = sum(epochs), most
        self.space.clear_gradients()  # without gradients a step changes nothing
        found, rates = self._renewed(), list[float]()
        settings = [name for name in found.each[0].defaults if name != "lr"]
        usual = [found.each[0].param_groups[0][name] for name in settings]
        for times, count in zip(epochs, batches, strict=True):
            for _ in range(times):
                for batch_idx in range(min(count, most - len(rates))):
                    group = found.each[0].param_groups[0]
                    if [group[name] for name in settings] != usual:
                        raise Undefined("its scheduler changes more than the learning rate")
                    rates.append(float(group["lr"]))
                    found.each[0].step()
                    self._schedule("step", batch_idx)
                    if batch_idx + 1 == count:
                        self._schedule("epoch", self.current_epoch)
                self.current_epoch += 1
        return rates

    def _renewed(self) -> Optimizers:
        """New optimisers and schedulers, with the learning rate of this client and round."""
        with self.attached():
            found = configured(self.module)
        usual, now = self._usual_rate, self.module.local.lr
        found.scale([scaled_rate(rate, usual, now) for rate in self._rates])
        self._use(found)
        return found

    def _start(self) -> None:
        """Forget the client before."""
        self.terms: Sequence[Term] = ()
        self.trained: Tensor | None = None
        self.counted: dict[int, Tensor] = {}
        self.losses: list[Tensor] = []
        self.made = self.current_epoch = self._updates = 0
        self.should_stop = False
        self.batch: Any = None
        self._logged: _LoggerConnector | None = None
        self._collected: _ResultCollection | None = None

    def _use(self, found: Optimizers) -> None:
        self.optimizers = found.each
        self.lr_scheduler_configs = found.schedulers
        self._lightning_optimizers: list[Any] = []
        if not self.is_plain:
            wrap = LightningOptimizer._to_lightning_optimizer
            self._lightning_optimizers = [wrap(one, self) for one in found.each]  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of a Trainer
        known = ", ".join(HAS)
        raise AttributeError(f"self.trainer.{name}: in local training the trainer has {known}")

    # The training of one client.

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Let the module find this trainer."""
        state = vars(self.module)
        before, state["_trainer"] = state["_trainer"] or OUTSIDE, self
        try:
            yield
        finally:
            state["_trainer"], state["_current_fx_name"] = before, None
            self.batch = None

    @contextmanager
    def client(self, terms: Sequence[Term]) -> Iterator[None]:
        """The training of one client, from its first phase to its report.

        Args:
            terms: are added to every batch's loss.
        """
        self._start()
        self.terms = terms
        if terms and not self.automatic:
            raise Undefined(
                f"{self.module.provided_by} optimises by hand (automatic_optimization = False), so"
                " another method's `local_term` cannot be added to its loss"
            )
        with self.attached():
            yield
        self.terms, self.trained, self.counted = (), None, {}

    def begin(self, epochs: int, batches: int) -> None:
        """Begin, with new optimisers and schedulers where the module has not one optimiser alone.

        Args:
            epochs: of all phases.
            batches: that the client will train on.
        """
        if self.is_plain:
            return
        self.max_epochs, self.estimated_stepping_batches = epochs, batches
        self.space.clear_gradients()
        self._renewed()
        self.call("on_fit_start")
        self.call("on_train_start")

    def begin_phase(self, trained: Tensor | None, batches: int) -> None:
        """Begin a phase: optimisers forget what they know of earlier steps, as momentum.

        Args:
            trained: mask of the scalars that it trains, shape (W,), bool; None = all.
            batches: of an epoch.
        """
        self.trained, self.num_training_batches = trained, batches
        self.counted = {}
        if self.is_plain:
            self.space.step.forget()
        for optimizer in () if self.is_plain else self.optimizers:
            optimizer.state.clear()

    def end(self) -> None:
        """End the training of a client; its report may follow."""
        if not self.is_plain:
            self.call("on_train_end")
            self.call("on_fit_end")
        vars(self.module)["_current_fx_name"] = None

    def epoch(self, batches: Iterable[Any]) -> None:
        """Train on the batches of an epoch."""
        if self.is_plain:
            self._plain_epoch(batches)
        else:
            self._hooked_epoch(batches)
        self.current_epoch += 1

    # The short way.

    def _plain_epoch(self, batches: Iterable[Any]) -> None:
        space, module, trained, losses = self.space, self.module, self.trained, self.losses
        autocast, backward, terms = space.fabric.autocast, space.fabric.backward, self.terms
        step, clip_norm = self.training_step, self.clip_norm
        vars(module)["_current_fx_name"] = "training_step"
        for batch_idx, batch in enumerate(batches):
            self.batch = batch
            before = None if trained is None else space.snapshot()
            with autocast():
                loss = step(batch, batch_idx)
                if terms or type(loss) is not Tensor:
                    loss = self._with_terms(loss)
            space.clear_gradients()
            if loss is not None:
                backward(loss)
                if clip_norm:
                    self._clip_by_norm(self.optimizers[0], clip_norm)
                space.step()
                if before is not None and trained is not None:
                    space.restore_frozen(before, trained)
                losses.append(loss.detach())
            self.made += 1
            if self._logged is not None:
                self._end_batch()
        if self._logged is not None:
            self._end_logs()
            self._logged.reset_results()

    @property
    def training_step(self) -> Callable[[Any, Any], Any]:
        """The module's, as a function of a batch and its number."""
        if self._takes_batch_idx:
            return self.module.training_step
        step: Callable[[Any], Any] = self.module.training_step  # type: ignore[assignment]
        return lambda batch, _: step(batch)

    def _with_terms(self, output: Any) -> Tensor | None:  # noqa: ANN401 - Lightning's STEP_OUTPUT
        """The loss of a step's output, with the terms of other methods; None = it is skipped."""
        loss = output if isinstance(output, Tensor) else loss_of(output)
        if loss is not None:
            for term in self.terms:
                loss = loss + term(self.module)
        return loss

    # The Trainer's way.

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - a hook
        """Call a hook of the module; `self.log` knows then in which one it is."""
        state = vars(self.module)
        outer, state["_current_fx_name"] = state["_current_fx_name"], name
        answer = getattr(self.module, name)(*arguments, **named)
        state["_current_fx_name"] = outer
        return answer

    def _hooked_epoch(self, batches: Iterable[Any]) -> None:
        ended = False
        self.call("on_train_epoch_start")
        for batch_idx, batch in enumerate(batches):
            ended = batch_idx + 1 == self.num_training_batches
            batch = self.call("on_before_batch_transfer", batch, 0)
            batch = self.call("transfer_batch_to_device", batch, self.space.device, 0)
            self.batch = batch = self.call("on_after_batch_transfer", batch, 0)
            skips = self.call("on_train_batch_start", batch, batch_idx) == -1
            output = {} if skips else self._step(batch, batch_idx)
            ended = ended or skips
            self._schedule("step", batch_idx)
            if ended:
                self._schedule("epoch", self.current_epoch)
            if skips:
                break
            self.call("on_train_batch_end", output, batch, batch_idx)
            if self._logged is not None:
                self._end_batch()
            self._schedule("step", batch_idx, by_metric=True)
            if self.should_stop:
                break
        self.batch = None
        self.call("on_train_epoch_end")
        self._end_logs()
        if ended:
            self._schedule("epoch", self.current_epoch, by_metric=True)
        if self._logged is not None:
            self._logged.reset_results()

    def _step(self, batch: Any, batch_idx: int) -> dict[str, Any]:  # noqa: ANN401 - any batch
        """Train on a batch; what `on_train_batch_end` gets."""
        before = None if self.trained is None else self.space.snapshot()
        output = (self._automatic if self.automatic else self._by_hand)(batch, batch_idx)
        if before is not None and self.trained is not None:
            self.space.restore_frozen(before, self.trained)
        self.made += 1
        loss = output.get("loss")
        if isinstance(loss, Tensor):
            self.losses.append(loss)
        return output

    def _automatic(self, batch: Any, batch_idx: int) -> dict[str, Any]:  # noqa: ANN401 - see above
        optimizer, results = self.optimizers[0], list[dict[str, Any]]()

        @torch.enable_grad()
        def closure() -> Tensor | None:
            with self.space.fabric.autocast():
                output = self._training_step(batch, batch_idx)
                loss = self._with_terms(output)
            self.call("on_before_zero_grad", optimizer)
            self.call("optimizer_zero_grad", self.current_epoch, batch_idx, optimizer)
            if loss is None:
                results.append({})
                return None
            self.backward(loss)
            value = loss.detach().clone()
            others = output if isinstance(output, Mapping) else {}
            results.append({**others, "loss": value})
            return value

        wrapped = self._lightning_optimizers[0]
        self.call("optimizer_step", self.current_epoch, batch_idx, wrapped, closure)
        if not results:
            raise PluginError(
                f"{self.module.provided_by}: optimizer_step does not call its closure, which makes"
                " the training step: optimizer.step(closure=optimizer_closure)"
            )
        self._updates += 1
        return results[-1]

    def _by_hand(self, batch: Any, batch_idx: int) -> dict[str, Any]:  # noqa: ANN401 - see above
        for optimizer in self._lightning_optimizers:
            optimizer._on_after_step = self._count
        with self.space.fabric.autocast():
            output = self._training_step(batch, batch_idx)
        found = dict(output) if isinstance(output, Mapping) else {"loss": output}
        if isinstance(found.get("loss"), Tensor):
            found["loss"] = found["loss"].detach()
        return {} if output is None else found

    def _training_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ANN401 - see above
        number = (batch_idx,) if self._takes_batch_idx else ()
        return self.call("training_step", batch, *number)

    def _count(self) -> None:
        self._updates += 1

    def _schedule(self, interval: str, number: int, *, by_metric: bool = False) -> None:
        """Let schedulers of an interval make a step after the batch or epoch of a number."""
        for config in self.lr_scheduler_configs if self.automatic else ():
            due = config.interval == interval and (number + 1) % config.frequency == 0
            if not due or config.reduce_on_plateau != by_metric:
                continue
            metric = self.callback_metrics.get(str(config.monitor)) if by_metric else None
            if by_metric and metric is None:
                if not config.strict:
                    continue
                known = ", ".join(self.callback_metrics) or "nothing"
                raise PluginError(
                    f"{self.module.provided_by}: a scheduler monitors '{config.monitor}', which no"
                    f" self.log has given; logged so far: {known}"
                )
            self.call("lr_scheduler_step", config.scheduler, metric)

    @property
    def global_step(self) -> int:
        """Steps of optimisers so far."""
        return self.made if self.is_plain else self._updates

    # What `self.log` looks for.

    @property
    def _results(self) -> _ResultCollection:
        """Where numbers are collected; it is asked for before every one of them."""
        if self._logged is None or self._collected is None:
            self._collected = _ResultCollection(training=True)
            self._logged = _LoggerConnector(self)  # type: ignore[arg-type]
        results = self._collected
        if self.batch is not None and results.batch is not self.batch:
            results.batch = self.batch  # `on_batch_start` asks here again
            self._logged.on_batch_start(self.batch)
        return results

    @property
    def _logger_connector(self) -> _LoggerConnector:
        assert self._logged is not None, "`_results` is asked for first"
        return self._logged

    def _end_batch(self) -> None:
        """Take the values of the step."""
        assert self._results is not None, "it knows the batch, even if none of it was logged"
        self.batch = None
        self._logger_connector.on_batch_end()

    def _end_logs(self) -> None:
        """Take the means of the epoch."""
        self.batch = None
        if self._logged is not None:
            self._logged.epoch_end_reached()
            self._logged.on_epoch_end()

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """What was logged: of a step its last value, of an epoch the last one's mean."""
        return {} if self._logged is None else dict(self._logged.callback_metrics)

    def logged(self) -> dict[str, float]:
        """The same as numbers."""
        return {name: float(value) for name, value in self.callback_metrics.items()}

    # The strategy and the precision plugin.

    @property
    def strategy(self) -> LocalTrainer:
        """What makes the steps of an optimiser."""
        return self

    @property
    def precision_plugin(self) -> LocalTrainer:
        """What clips gradients."""
        return self

    @property
    def lightning_module(self) -> ClientModule:
        """The module."""
        return self.module

    @property
    def gradient_clip_val(self) -> float | None:
        """The suite's `local.clip_norm`; None = no clipping."""
        return self.clip_norm or None

    @staticmethod
    def reduce(value: Any, *_: Any, **__: Any) -> Any:  # noqa: ANN401 - any tensor
        """What several processes would share of a number: nothing, a client trains in one."""
        return value

    def backward(
        self,
        loss: Tensor,
        optimizer: Optimizer | None = None,
        *arguments: Any,  # noqa: ANN401 - of `loss.backward`
        **named: Any,  # noqa: ANN401 - see above
    ) -> None:
        """Compute the gradients of a loss, between the hooks."""
        self.call("on_before_backward", loss)
        self.module.backward(loss, *arguments, **named)
        self.call("on_after_backward")

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        **named: Any,  # noqa: ANN401 - of the optimiser's step
    ) -> Any:  # noqa: ANN401 - what it returns
        """Let an optimiser make a step, after the closure and what looks at the gradients."""

        def whole() -> Any:  # noqa: ANN401 - what the closure returns
            answer = closure()
            self.call("on_before_optimizer_step", optimizer)
            if self.automatic:
                self.call(
                    "configure_gradient_clipping",
                    optimizer,
                    gradient_clip_val=self.gradient_clip_val,
                    gradient_clip_algorithm=None,
                )
            return answer

        return optimizer.step(closure=whole, **named)

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, algorithm: str) -> None:
        """Clip the gradients of an optimiser's parameters, by "norm" or by "value"."""
        if clip_val <= 0:
            return
        if algorithm == "value":
            clip_grad_value_(parameters_of(optimizer), clip_val)
        else:
            self._clip_by_norm(optimizer, clip_val)

    def _clip_by_norm(self, optimizer: Optimizer, most: float) -> None:
        """Clip by the norm of all scalars that are trained."""
        parameters = parameters_of(optimizer)
        known = [(id(one), one.grad) for one in parameters if one.grad is not None]
        slopes = [slope for _, slope in known]
        if self.trained is not None:
            self.counted = self.counted or self.space.by_parameter(self.trained)
            slopes = [slope * self.counted[number] for number, slope in known]
        clip_grads_with_norm_(parameters, most, get_total_norm(slopes))


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """The parameters that an optimiser updates."""
    return [one for group in optimizer.param_groups for one in group["params"]]


def takes_batch_idx(module: ClientModule) -> bool:
    """Whether `training_step` has the argument, which it may leave out.

    Raises:
        PluginError: it asks for an iterator of batches.
    """
    names = list(inspect.signature(module.training_step).parameters)
    if "dataloader_iter" in names:
        raise PluginError(
            f"{module.provided_by}: training_step gets a batch, not a dataloader_iter: write"
            " training_step(self, batch, batch_idx)"
        )
    return "batch_idx" in names or len(names) > 1


def loss_of(output: Any) -> Tensor | None:  # noqa: ANN401 - Lightning's STEP_OUTPUT
    """The loss of what `training_step` returned, if that is no tensor.

    Raises:
        PluginError: it has none.
    """
    if output is None:
        return None
    if isinstance(output, Mapping) and isinstance(output.get("loss"), Tensor):
        loss: Tensor = output["loss"]
        return loss
    raise PluginError(
        "training_step returned " + type(output).__name__ + ", expected the loss as a tensor, a"
        " dict with 'loss', or None"
    )
