"""HookCaller: calls the hooks of one run, merges the answers and checks them.

A run has a plugin manager of its own: defaults first, then the suite, the sinks and the methods, so
that pluggy asks the method named last first. Every plugin is registered behind a `HookGuard`: a
hook of another audience is refused, what a hook raises becomes one line that names plugin and hook,
an answer carries the plugin's name, process-wide settings are restored after third-party code ran
(`isolation`), and what it writes to its arguments is found (`arguments`).
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import FrozenInstanceError, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import pluggy
import torch

from flbench.core import hookspecs
from flbench.core.dataset import Indices, Partition
from flbench.core.hookspecs import Audience
from flbench.core.knowledge import noting
from flbench.core.per_client import FOR_ALL, all_marked
from flbench.core.state import (
    Dispatched,
    Membership,
    Message,
    Models,
    Personal,
    Scores,
    Setup,
    Stage,
    State,
    Upload,
)
from flbench.core.types import Phase
from flbench.errors import (
    FlbenchError,
    PluginError,
    Undefined,
    UnknownName,
    UserError,
    in_one_line,
    text_of,
)
from flbench.plugin import fedavg_defaults, validation
from flbench.plugin.arguments import Marks, copied
from flbench.plugin.isolation import DEFAULTS, TORCH, IsolatedPlugin, Snapshot, snapshot
from flbench.plugin.validation import HookResult

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from flbench.core.client_module import ClientModule, LocalWork
    from flbench.core.context import Context

Layer = tuple[str, object]
Coder = Callable[[Message], Message]
Acting = Callable[[], AbstractContextManager[None]]
"""Gives the block in which a plugin's code runs."""
LISTENERS = hookspecs.hooks_for("sink")
"""Hooks of sinks: an error in one is a warning, and the run goes on."""
COPIED = ("partition", *LISTENERS)
"""Hooks of which each plugin gets copies, of a random generator too."""
STARTS = ("params", "active", "rows", "sent_mask", "returned_mask", "trained_mask", "server_mask")
"""Fields of `Start` of which the first answer counts."""
ADDED = (TORCH,)
"""Settings that `client_module` may change: layers draw their first weights from this generator,
which the core has seeded."""


class HookCaller:
    """The hooks of one run: calls them, merges their answers, checks what comes back.

    `suite`, `methods` (in the order they were named) and `sinks` are names with instances; `warn`
    is called when a sink fails, when a plugin changes a process-wide setting, or when two methods
    say what clients start from. `read` is what the hooks have read of clients that no byte was
    counted for.

    Raises:
        PluginError: a plugin declares a hook, or an argument of one, that does not exist, or a
            hook that is not for its audience.
    """

    def __init__(
        self,
        suite: Layer,
        methods: Sequence[Layer],
        sinks: Sequence[Layer] = (),
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._manager = pluggy.PluginManager("flbench")
        self._manager.add_hookspecs(hookspecs)
        self._between_hooks = IsolatedPlugin("+".join(name for name, _ in methods), warn)
        self._settings: Snapshot = []
        self._trainer = "defaults"
        self._weigher = "defaults"
        self._given: dict[str, object] = {}
        self.read: set[str] = set()
        self._warn = functools.cache(warn)  # says each line once
        layers: list[tuple[str, Audience, Layer]] = [
            ("defaults", "method", ("defaults", fedavg_defaults)),
            ("suite", "suite", suite),
            *(("sink", "sink", sink) for sink in sinks),
            *(("method", "method", method) for method in methods),
        ]
        for kind, audience, (name, plugin) in layers:
            isolated = IsolatedPlugin(name, warn)
            guard = HookGuard(plugin, audience, isolated, warn, lambda: self._given)
            try:
                # A suite may be called like a method: pluggy knows them by kind and name.
                self._manager.register(guard, f"{kind}:{name}")
                self._manager.check_pending()
            except pluggy.PluginValidationError as error:
                raise PluginError(f"{name}: {' '.join(str(error).split())}") from error

    def overridden(self) -> Iterator[str]:
        """Say, for every single-answer hook that two methods answer, who is asked first."""
        for hook, caller in vars(self._manager.hook).items():
            impls = [one for one in reversed(caller.get_hookimpls()) if not one.wrapper]
            asked = [impl.plugin_name.split(":") for impl in impls]
            rivals = [name for kind, name in asked if kind == "method"]
            if caller.spec.opts["firstresult"] and len(rivals) > 1:
                yield f"{hook}: {rivals[0]} (named last) wins over {', '.join(rivals[1:])}"

    def listen(self, hook: str, **arguments: object) -> None:
        """Call a hook of the sinks."""
        getattr(self._manager.hook, hook)(**arguments)

    def _call(self, hook: str, **arguments: Any) -> Any:  # noqa: ANN401 - any hook's answer
        outer, self._given = self._given, arguments  # `ctx.train` calls hooks within a hook
        try:
            with noting(self.read):
                return getattr(self._manager.hook, hook)(**arguments)
        except PluginError as error:
            raise validation.in_round(arguments.get("ctx"), str(error)) from error.__cause__
        finally:
            self._given = outer

    @contextmanager
    def reading(self, what: str, ctx: Context, **given: object) -> Iterator[None]:
        """Find what functions write that hooks gave: in training, encoding or evaluation.

        Raises:
            PluginError: a tensor inside of what is given was written in the block.
        """
        marks = Marks(given)
        yield
        if path := marks.written():
            raise validation.in_round(ctx, f"{self._between_hooks.name}: {what} {_wrote(path)}")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Restore settings that a plugin's code changes between hooks: in training or evaluation.

        They are restored when a round begins and when the block ends.
        """
        self._settings = snapshot(DEFAULTS)
        try:
            yield
        finally:
            self._restore()
            self._settings = []

    def _restore(self) -> None:
        name = self._between_hooks.name
        self._between_hooks.restore(self._settings, f"{name}'s training or evaluation")

    def partition(
        self, labels: Indices, domains: Indices | None, clients: int, rng: np.random.Generator
    ) -> Partition:
        """The partition; every suite answers."""
        answer = self._call("partition", labels=labels, domains=domains, clients=clients, rng=rng)
        return validation.partition(answer, clients, len(labels))

    def needs(self, ctx: Context) -> list[HookResult]:
        """What each plugin says that it needs at the least."""
        answers = self._call("needs", ctx=ctx)
        return [HookResult(one.plugin, validation.needs(one, ctx)) for one in answers]

    def setup(self, ctx: Context) -> Setup:
        """Bank and membership of the plugin named last, memories of all."""
        answers, merged = self._call("setup", ctx=ctx), Setup()
        first: HookResult | None = None
        for answer in answers:
            value = validation.setup(answer, ctx)
            if value.models is not None and answer.plugin != "defaults":
                first = first or answer
                validation.same_bank(first, answer)
            twice = sorted(set(merged.memory) & set(value.memory))
            if twice:
                raise PluginError(f"{answer.plugin}.setup: memory '{twice[0]}' is declared twice")
            merged = Setup(
                models=value.models if merged.models is None else merged.models,
                membership=value.membership if merged.membership is None else merged.membership,
                memory={**merged.memory, **value.memory},
            )
        for answer in answers:
            validation.fits(answer, merged, ctx)
        assert merged.models is not None, "the defaults answer"
        rows = len(merged.models)
        memory = {name: validation.per_row(kept, rows) for name, kept in merged.memory.items()}
        return replace(merged, memory=memory)

    def plan(self, state: State, ctx: Context) -> Sequence[Stage]:
        """The stages of this round."""
        self._restore()
        return validation.plan(self._call("plan", state=state, ctx=ctx), ctx)

    def dispatch(self, state: State, stage: Stage, ctx: Context) -> Dispatched:
        """Field by field the first answer; extras of all, the plugin named last before others."""
        found: dict[str, HookResult] = {}
        extras: dict[str, Tensor] = {}
        own: dict[str, Tensor] = {}
        for answer in self._call("dispatch", state=state, stage=stage, ctx=ctx):
            start = validation.start(answer, stage, ctx)
            if twice := sorted((extras.keys() | own) & (start.extras.keys() | start.client_memory)):
                text = f"two methods give clients '{twice[0]}': rename it in one of them"
                raise validation.in_round(ctx, f"{answer.plugin}.dispatch: {text}")
            extras, own = {**start.extras, **extras}, {**start.client_memory, **own}
            for name in STARTS:
                if getattr(start, name) is not None:
                    found.setdefault(name, HookResult(answer.plugin, getattr(start, name)))
            first = found["params"].plugin if start.params is not None else answer.plugin
            if answer.plugin not in (first, "defaults"):
                models = f"models of {first} (named last), not of {answer.plugin}"
                self._warn(f"dispatch: clients start from {models}")
        params: Tensor = found["params"].value
        acting, candidates, width = params.shape
        lost = stage.clients[state.membership.home[stage.clients] < 0].tolist()
        if lost and found["params"].plugin == "defaults":
            text = f"client {lost[0]} has no home model: answer `dispatch` for undecided clients"
            raise validation.in_round(ctx, f"defaults.dispatch: {text}")
        for name, (plugin, tensor) in found.items():
            if name != "params":
                bank = len(state.models)
                validation.start_field(plugin, name, tensor, candidates, bank, stage, ctx)
        everyone = torch.ones(acting, candidates, dtype=torch.bool)
        given = {name: answer.value for name, answer in found.items()}
        crosses, trained = given["sent_mask"], given.get("trained_mask")
        returned, at_server = given.get("returned_mask", crosses), given.get("server_mask")
        if at_server is not None:
            crosses, returned = crosses & ~at_server, returned & ~at_server
        dispatched = Dispatched(
            params=params,
            active=given.get("active", everyone),
            rows=given.get("rows"),
            sent_mask=crosses.expand(acting, width),
            returned_mask=returned.expand(acting, width),
            trained_mask=None if trained is None else trained.expand(acting, width),
            server_mask=None if at_server is None else at_server.expand(acting, width),
            extras=extras,
            client_memory=own,
        )
        if ctx.networks is None:
            return dispatched
        return within_networks(dispatched, f"{found['params'].plugin}.dispatch", stage, ctx)

    def client_module(self, net: nn.Module, ctx: Context) -> ClientModule:
        """The LightningModule that trains on one client."""
        answer = self._call("client_module", net=net, ctx=ctx)
        self._trainer = answer.plugin if answer else self._trainer
        module = validation.client_module(answer, ctx)
        module.provided_by = self._trainer
        return module

    def metrics(self, ctx: Context) -> dict[str, tuple[str, Callable[[int], Any]]]:
        """The metrics that methods bring: label -> plugin and factory."""
        found: dict[str, tuple[str, Callable[[int], Any]]] = {}
        for answer in self._call("metrics", ctx=ctx):
            for label, make in validation.metrics(answer, ctx).items():
                if label in found:
                    raise PluginError(
                        f"{answer.plugin}.metrics: '{label}' is a metric of {found[label][0]} too"
                    )
                found[label] = (answer.plugin, make)
        return found

    def local_work(self, state: State, stage: Stage, ctx: Context) -> LocalWork:
        """What the methods say about training in a stage; a newcomer gets no terms."""
        ask = partial(self._call, state=state, stage=stage, ctx=ctx)
        loss = ask("batch_loss")
        terms = ask("local_term") if stage.uses_local_terms else []
        return validation.local_work(loss, ask("phases"), terms, ask("report"), state, ctx)

    def encode(self, state: State, stage: Stage, upload: Upload, ctx: Context) -> list[Coder]:
        """What turns a trained model into what is sent, the plugin named first before others."""
        answers = self._call("encode", state=state, stage=stage, upload=upload, ctx=ctx)
        return [validation.encode(answer, state, ctx) for answer in reversed(answers)]

    def decode(self, state: State, stage: Stage, upload: Upload, ctx: Context) -> Upload:
        """What the server makes of the messages that arrived, of a stage's called clients."""
        answer = self._call("decode", state=state, stage=stage, upload=upload, ctx=ctx)
        return upload if answer is None else validation.decode(answer, upload, ctx)

    def score(
        self, state: State, stage: Stage, phase: Phase, upload: Upload | None, ctx: Context
    ) -> Scores | None:
        """Who benefits from what, if anybody measures it."""
        answer = self._call("score", state=state, stage=stage, phase=phase, upload=upload, ctx=ctx)
        return None if answer is None else validation.score(answer, state, ctx)

    def cluster(
        self, state: State, stage: Stage, phase: Phase, scores: Scores | None, ctx: Context
    ) -> Membership | None:
        """Who is served by which model, if that changes."""
        answer = self._call(
            "cluster", state=state, stage=stage, phase=phase, scores=scores, ctx=ctx
        )
        return None if answer is None else validation.cluster(answer, state, ctx)

    def weighted(self, state: State, stage: Stage, upload: Upload, ctx: Context) -> Upload:
        """The upload with how much each client counts, if a plugin has a say in it."""
        if len(self._manager.hook.weights.get_hookimpls()) == 1:
            return upload  # by samples, which are read only where somebody averages by them
        answer = self._call("weights", state=state, stage=stage, upload=upload, ctx=ctx)
        weights = validation.weights(answer, upload, ctx)
        self._weigher = answer.plugin
        return replace(upload, weights=weights)

    def aggregate(self, state: State, stage: Stage, upload: Upload, ctx: Context) -> Models:
        """The new bank.

        Raises:
            Undefined: a plugin says how much clients count, and nobody looks at it.
        """
        given = upload if upload.weights is None else UploadWithNote(**vars(upload))
        answer = self._call(
            "aggregate", state=state, stage=stage, upload=given,
            membership=state.membership, ctx=ctx,
        )  # fmt: skip
        models = validation.aggregate(answer, state, ctx)
        deaf = isinstance(given, UploadWithNote) and not given.asked
        if deaf and self._weigher not in ("defaults", answer.plugin):
            rule = f"{answer.plugin} averages by a rule of its own"
            raise Undefined(f"{rule}, so {self._weigher} changes nothing: name one of them")
        return models

    def personalise(self, state: State, clients: Tensor, ctx: Context) -> Personal:
        """The model each client is judged by."""
        answer = self._call("personalise", state=state, clients=clients, ctx=ctx)
        return validation.personal("personalise", answer, state, clients, ctx)

    def join(self, state: State, clients: Tensor, ctx: Context) -> Personal:
        """The model of each newcomer."""
        answer = self._call("join", state=state, clients=clients, ctx=ctx)
        return validation.personal("join", answer, state, clients, ctx)


@all_marked
@dataclass(frozen=True)
class UploadWithNote(Upload):
    """An upload that notes whether its weights are read, also of what is made of it.

    Attributes:
        asked: has an entry if somebody read them.
    """

    asked: list[bool] = field(default_factory=list, metadata=FOR_ALL)

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - any field
        if name == "weights":
            self.asked.append(True)
        return super().__getattribute__(name)


def within_networks(start: Dispatched, who: str, stage: Stage, ctx: Context) -> Dispatched:
    """The start of clients with different networks: each gets its own network, and nothing else."""
    assert ctx.networks is not None, "there are several"
    wanted = ctx.networks[stage.clients]
    validation.own_network(who, start.params, wanted, stage.clients, ctx)
    own, device = ctx.layout.of_networks[wanted], start.params.device
    # Of other networks a client has the initial weights, whatever the row carries.
    others = ctx.initial_rows(stage.clients)[:, None].to(device)
    rows = torch.where(own[:, None].to(device), start.params, others)
    return replace(start, params=rows).within(own)


class HookGuard:
    """The hooks of a plugin, each guarded, and nothing else of it; registered in its place."""

    def __init__(
        self,
        plugin: object,
        audience: Audience,
        isolated: IsolatedPlugin,
        warn: Callable[[str], None],
        given: Callable[[], Mapping[str, object]],
    ) -> None:
        self._name = isolated.name
        home: Any = plugin if inspect.ismodule(plugin) else type(plugin)
        unmarked = [] if inspect.ismodule(plugin) else hookspecs.unmarked_hooks(home, audience)
        for hook in unmarked:
            warn(f"{self._name}.{hook} is not marked with @hookimpl: it is never called")
        for attribute, options in hookspecs.hook_marks(home):
            hook = options.get("specname") or attribute
            acting: Acting = nullcontext
            refuse_hook(self._name, audience, hook, options)
            if not _is_core(plugin):
                quiet = ADDED if hook == "client_module" else ()
                acting = partial(_acting, isolated, f"{self._name}.{hook}", quiet, given)
            function = getattr(plugin, attribute)
            refuse_arguments(self._name, hook, function)
            if hook in COPIED:
                function = _on_copies(function)
            call: Callable[..., Any]
            if hook in LISTENERS:
                call = _listening(self._name, hook, function, acting, warn)
            else:
                guard = _wrapper if options.get("wrapper") else _guarded
                call = guard(self._name, hook, function, acting)
            # `wraps` copies the mark of a function, but not that of a static method.
            vars(call).update(flbench_impl=options)
            setattr(self, attribute, call)

    def __repr__(self) -> str:
        """The plugin's name, for pluggy's messages."""
        return self._name


def _is_core(plugin: object) -> bool:
    """Whether it is part of flbench. A suite is not: it calls any package's partition."""
    home = plugin.__name__ if inspect.ismodule(plugin) else type(plugin).__module__
    return home.startswith("flbench.") and home != "flbench.suite"


def refuse_hook(name: str, audience: Audience, hook: str, options: Mapping[str, Any]) -> None:
    """Refuse what a plugin of an audience may not answer.

    Raises:
        PluginError: there is no such hook, it is for others, or it is wrapped in a way that is not
            supported.
    """
    own = hookspecs.hooks_for(audience)
    everyone = (*hookspecs.hooks_for("method"), *hookspecs.hooks_for("sink"))
    if hook not in everyone and not options.get("optionalhook"):
        raise PluginError(f"{name}: {UnknownName('hook', hook, own, f'of a {audience}')}")
    if hook in hookspecs.hooks_for("method") and hook not in own:
        raise PluginError(
            f"{name}.{hook}: '{name}' is a {audience}, and '{hook}' is a hook of methods; a"
            f" {audience} may answer {', '.join(own)} (methods are offered under flbench.methods)"
        )
    if options.get("hookwrapper"):
        raise PluginError(f"{name}.{hook}: use hookimpl(wrapper=True)")
    if options.get("wrapper") and hook in LISTENERS:
        raise PluginError(f"{name}.{hook}: listeners return nothing to wrap: use hookimpl")


def refuse_arguments(name: str, hook: str, function: Callable[..., Any]) -> None:
    """Refuse a misspelt argument with a default, at which pluggy does not look.

    Other names may be an author's own constants.

    Raises:
        PluginError: there is one.
    """
    spec = getattr(hookspecs, hook, None)
    if spec is None:  # optional, of another version
        return
    known = list(inspect.signature(spec).parameters)
    own = inspect.signature(function).parameters.values()
    for one in own:
        is_own = one.default is one.empty or one.name in known
        if not is_own and difflib.get_close_matches(one.name, known, n=1, cutoff=0.6):
            expected = UnknownName("argument", one.name, known, "it has")
            raise PluginError(f"{name}.{hook}: {expected}")


@contextmanager
def _acting(
    isolated: IsolatedPlugin,
    what: str,
    quiet: Collection[str],
    given: Callable[[], Mapping[str, object]],
) -> Iterator[None]:
    """Run a hook of third-party code, restore what it changed, refuse what it wrote."""
    marks = Marks(given())
    with isolated.acting(what, quiet):
        yield
    if path := marks.written():
        raise PluginError(_wrote(path))


def _wrote(path: str) -> str:
    """What a person reads of a write into an argument."""
    return f"wrote to {path}, which is not its own: write to a copy (`clone()`) and return that"


def _on_copies(function: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that gets copies of its arguments."""

    @functools.wraps(function)
    def call(*args: object, **more: object) -> object:
        return function(*copied(args), **dict(zip(more, copied(tuple(more.values())), strict=True)))

    return call


def _listening(
    name: str, hook: str, function: Callable[..., Any], acting: Acting, warn: Callable[[str], None]
) -> Callable[..., None]:
    """A hook that decides nothing; of its errors the first one is a warning."""
    warned = False

    @functools.wraps(function)
    def call(*args: object, **more: object) -> None:
        nonlocal warned
        try:
            with acting():
                function(*args, **more)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit as well
            if not warned:
                warn(f"{name}.{hook} failed ({in_one_line(error)}); the run goes on")
            warned = True

    return call


def _guarded(
    name: str, hook: str, function: Callable[..., Any], acting: Acting
) -> Callable[..., HookResult | None]:
    """A hook whose errors are one line."""

    @functools.wraps(function)
    def call(*args: object, **more: object) -> HookResult | None:
        try:
            with acting():
                value = function(*args, **more)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit as well
            _refuse(name, hook, error)
        return None if value is None else HookResult(name, value)

    return call


def _wrapper(
    name: str, hook: str, function: Callable[..., Any], acting: Acting
) -> Callable[..., Generator[None, Any, Any]]:
    """A hook that wraps those of other plugins: it gets and gives values, not `HookResult`s.

    Errors of the other plugins pass it by.
    """

    def act(step: Callable[[], object]) -> tuple[bool, Any]:
        """Whether the hook came to its end in this step, and what it returned then."""
        try:
            with acting():
                try:
                    step()
                except StopIteration as end:
                    return True, end.value
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit as well
            _refuse(name, hook, error)
        return False, None

    @functools.wraps(function)
    def call(*args: object, **more: object) -> Generator[None, Any, Any]:
        steps = function(*args, **more)
        answer, ended = None, act(lambda: next(steps))[0]
        if not ended:
            answer = yield
            ended, value = act(lambda: steps.send(_values(answer)))
            if ended:
                return _answers(name, hook, answer, value)
        raise PluginError(f"{name}.{hook}: a wrapper yields once, and returns the answer")

    return call


def _values(answer: Any) -> Any:  # noqa: ANN401 - any hook's answer
    """What plugins answered, without their names; a list where all of them count."""
    if isinstance(answer, list):
        return [one.value for one in answer]
    return None if answer is None else answer.value


def _answers(name: str, hook: str, answer: Any, value: Any) -> Any:  # noqa: ANN401 - any hook's answer
    """What a wrapper returned; answers that it passed on keep the names of their plugins."""
    if isinstance(answer, list):
        if not isinstance(value, (list, tuple)):
            raise PluginError(f"{name}.{hook}: a wrapper yields once, and returns the answer")
        known = {id(one.value): one for one in answer}
        return [known.get(id(one)) or HookResult(name, one) for one in value]
    if value is None or (answer is not None and value is answer.value):
        return None if value is None else answer
    return HookResult(name, value)


def _refuse(name: str, hook: str, error: BaseException) -> NoReturn:
    """Raise the error that flbench shows of what a hook raised."""
    if type(error).__module__ == "bdb":  # a person leaves the debugger, and with it the run
        raise KeyboardInterrupt from None
    found = _in_one_line(name, hook, error)
    if found is error:  # which must not be its own cause
        raise error
    raise found from error


def _in_one_line(name: str, hook: str, error: BaseException) -> FlbenchError:
    """What a hook raised, as the error that flbench shows."""
    match error:
        case Undefined():
            return Undefined(f"{name}: {text_of(error)}")
        case UserError():
            return PluginError(f"{name}.{hook}: {text_of(error)}")
        case FlbenchError():
            return error
        case FrozenInstanceError():
            hint = "a plugin keeps nothing; declare a memory in `setup`"
            return PluginError(f"{name}.{hook}: {text_of(error)}: {hint}")
    return PluginError(f"{name}.{hook} raised {in_one_line(error)}")
