"""Graphs of recorded steps give the bits of the steps, or are not used."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.nn import functional as F
from toy import Play, toy_dataset

from flbench.engine.lanes import vectorised
from flbench.engine.options import EngineOptions
from flbench.engine.recording import cuda_graphs as lane_graph
from flbench.engine.recording.cuda_graphs import CAPTURES, CHECKED, GraphedProgram, with_graphs
from flbench.engine.recording.program import LaneProgram

CPU = torch.device("cpu")


class Repeats:
    """Stands for a CUDA graph: it calls the function again, and writes to the same outputs."""

    made = 0
    replays = 0

    def __init__(self, function: Callable[[], list[Tensor]]) -> None:
        Repeats.made += 1
        self.function = function
        self.outputs = [torch.zeros_like(one) for one in function()]  # no kernel has run yet

    def replay(self) -> None:
        Repeats.replays += 1
        for own, new in zip(self.outputs, self.function(), strict=True):
            own.copy_(new)


class Unlike(Repeats):
    """Its loss has another last bit."""

    def replay(self) -> None:
        super().replay()
        self.outputs[-1].copy_(self.outputs[-1].nextafter(torch.tensor(9.0)))


class Fixed(Repeats):
    """Computes from the inputs of the first replay for ever."""

    def replay(self) -> None:
        super().replay()
        self.replay = lambda: None  # type: ignore[method-assign]


class Refuses(Repeats):
    """Cannot capture."""

    def __init__(self, function: Callable[[], list[Tensor]]) -> None:
        super().__init__(function)
        raise RuntimeError("operation not permitted when stream is capturing")


class Stops(Repeats):
    """Cannot be replayed."""

    def replay(self) -> None:
        super().replay()
        raise RuntimeError("a launch failed")


@pytest.fixture(autouse=True)
def captured_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call is captured, on the CPU too."""
    monkeypatch.setattr(vectorised, "USES", 1)
    monkeypatch.setattr(lane_graph, "CALLS", 2)
    monkeypatch.setitem(CAPTURES, "cpu", Repeats)
    monkeypatch.setattr(Repeats, "made", 0)
    monkeypatch.setattr(Repeats, "replays", 0)


WEIGHT = torch.linspace(-1, 1, 6).view(3, 2)


def gradients(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x @ w @ WEIGHT, y) + 0.1 * w.square().mean()

    return list(vmap(grad_and_value(loss))(w, x, y))


def inputs(lanes: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(lanes, 4, 3, generator=generator)
    x = torch.randn(lanes, 5, 4, generator=generator)
    return [w, x, torch.randint(2, (lanes, 5), generator=generator)]


def recorded(function: Callable[..., list[Tensor]] = gradients) -> LaneProgram:
    return LaneProgram(function, inputs(2), inputs(3))


def graphed(program: LaneProgram) -> GraphedProgram:
    found = with_graphs(program, CPU)
    assert isinstance(found, GraphedProgram)
    return found


def calls(program: Any, number: int, lanes: int = 4) -> None:
    """Call with other inputs each time; the outputs have the bits of the function."""
    for seed in range(number):
        given = inputs(lanes, seed)
        found, expected = program(lanes, given), gradients(*given)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True)), seed
        assert all(torch.equal(*pair) for pair in zip(given, inputs(lanes, seed), strict=True))


def test_replays_compute_from_their_own_inputs() -> None:
    program = graphed(recorded())
    calls(program, 6)
    assert Repeats.made == 1
    assert Repeats.replays == 5, "in the second call, and in all after it"
    outputs, again = program(4, inputs(4)), program(4, inputs(4, 1))
    assert [a.data_ptr() for a in outputs] == [a.data_ptr() for a in again], "those of the graph"
    calls(program, 6, lanes=7)
    assert Repeats.made == 2, "one for each number of lanes"


@pytest.mark.parametrize("kind", [Unlike, Fixed, Refuses, Stops])
def test_a_graph_that_fails_is_not_used(
    kind: type[Repeats], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CAPTURES, "cpu", kind)
    program = graphed(recorded())
    calls(program, 1 + CHECKED)
    assert program.has_failed
    before = Repeats.replays
    calls(program, 6)
    calls(program, 6, lanes=7)
    assert (Repeats.made, Repeats.replays) == (1, before), "nor is another one made"


def test_there_are_few_graphs_and_they_end_with_their_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.collect()
    monkeypatch.setattr(lane_graph, "GRAPHS", len(lane_graph._ALIVE) + 2)
    before = len(lane_graph._ALIVE)
    program, other = graphed(recorded()), graphed(recorded())
    for lanes in (3, 4, 5):
        calls(program, 4, lanes)
        calls(other, 4, lanes)
    assert Repeats.made == 2
    assert len(lane_graph._ALIVE) == before + 2
    del program, other
    assert len(lane_graph._ALIVE) == before, "nothing else holds them"


def test_large_inputs_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    step = recorded()
    largest = sum(one.nbytes for one in inputs(4)) / step.operations
    monkeypatch.setattr(lane_graph, "LARGEST", largest)
    program = graphed(step)
    calls(program, 4, lanes=5)
    assert Repeats.made == 0
    calls(program, 4, lanes=4)
    assert Repeats.made == 1


def test_inputs_that_are_not_read_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    real = torch._foreach_copy_
    monkeypatch.setattr(
        torch, "_foreach_copy_", lambda own, new: (copied.append(len(own)), real(own, new))
    )

    def function(w: Tensor, unread: Tensor, x: Tensor) -> list[Tensor]:
        return [w * x + 1]

    fewer, more = ([torch.rand(lanes, 3) for _ in range(3)] for lanes in (2, 3))
    program = LaneProgram(function, fewer, more)
    assert (program.reads, program.operations) == ({0, 2}, 2)
    step = graphed(program)
    for seed in range(4):
        w, unread, x = torch.rand(3, 5, 3, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(step(5, [w, unread, x])[0], w * x + 1)
    assert set(copied) == {2}


def test_a_device_without_room_has_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [49, 100]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: tuple(free))
    assert lane_graph.has_room(CPU)
    assert not lane_graph.has_room(torch.device("cuda"))
    free[0] = 50
    assert lane_graph.has_room(torch.device("cuda"))
    monkeypatch.setattr(lane_graph, "has_room", lambda device: False)
    calls(graphed(recorded()), 4)
    assert Repeats.made == 0


def test_other_devices_have_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(CAPTURES, "cpu")
    program = recorded()
    assert with_graphs(program, CPU) is program


def test_what_a_program_reads_on_the_host_prevents_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph would keep its value. Numbers that the program has made itself do not change."""
    monkeypatch.setitem(CAPTURES, "meta", Repeats)
    program = recorded()
    assert program.outside == [WEIGHT]
    assert with_graphs(program, torch.device("meta")) is program
    own = recorded(lambda w, x, y: [torch.where(x > 0, x, 0.5) + torch.arange(4)])
    assert isinstance(with_graphs(own, torch.device("meta")), GraphedProgram)


def test_a_program_that_writes_to_its_inputs_has_no_graphs() -> None:
    """Also where it wrote nothing new in the recordings."""

    def clamps(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        return [w[:, 1:].clamp_(-100, 100) * 2]

    def clamps_copy(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        return [w.clone().clamp_(-1, 1) * 2]

    def counts(w: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        TOTAL.add_(1)
        return [w + 1]

    assert recorded(clamps).writes
    assert recorded(counts).writes
    assert not recorded(clamps_copy).writes
    program = recorded(clamps)
    assert with_graphs(program, CPU) is program


TOTAL = torch.zeros(3)


def test_a_constant_in_other_memory_needs_another_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "WEIGHT", WEIGHT.clone())
    program = graphed(recorded())
    calls(program, 4)
    WEIGHT.mul_(2)
    calls(program, 4)
    assert Repeats.made == 1
    kept = WEIGHT.data
    WEIGHT.data = WEIGHT * 2
    calls(program, 4)
    assert Repeats.made == 2
    assert kept.data_ptr() != WEIGHT.data_ptr()


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


RAGGED: dict[str, Any] = {
    "dataset": toy_dataset(samples=105),
    "partition": {"name": "iid"},
    "participation": 1.0,
    "rounds": 3,
}


def last(play_toy: Play, method: str, optimizer: str, net: Any, accelerator: str) -> bytes:
    """The last models of a run."""
    momentum = 0.9 if optimizer in ("sgd", "rmsprop") else 0.0
    local = {"epochs": 2, "batch_size": 4, "lr": 0.05, "momentum": momentum, "optimizer": optimizer}
    engine = EngineOptions("vectorised", accelerator)
    changes = {**RAGGED, "local": local, **({"net": net} if net else {})}
    played = play_toy(method, engine=engine, **changes)
    assert not played.said
    return bytes(played.state.models.cpu().numpy().tobytes())


@pytest.mark.parametrize(
    ("method", "optimizer", "net"),
    [("fedprox", "sgd", normed), ("fedrep", "adam", None), ("scaffold", "sgd", None)],
    ids=["fedprox", "fedrep", "scaffold"],
)
def test_a_run_ends_with_the_bytes_of_one_without_graphs(
    play_toy: Play, method: str, optimizer: str, net: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With terms, phases, received tensors and buffers; nothing keeps what a replay overwrites."""
    with_replays = last(play_toy, method, optimizer, net, "cpu")
    assert Repeats.replays > CHECKED * Repeats.made > 0
    monkeypatch.delitem(CAPTURES, "cpu")
    assert with_replays == last(play_toy, method, optimizer, net, "cpu")


class Hashed(SimpleNamespace):
    __hash__ = object.__hash__


class Streams:
    """Stands for `torch.cuda`: notes what is done in which stream."""

    def __init__(self) -> None:
        self.now, self.log = "main", list[str]()

    def current_stream(self) -> Any:
        return SimpleNamespace(name="main", wait_stream=lambda other: self.log.append("main waits"))

    def Stream(self) -> Any:
        return SimpleNamespace(name="side", wait_stream=lambda other: self.log.append("side waits"))

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.now = self.now, stream.name
        yield
        self.now = before

    def CUDAGraph(self) -> Any:
        return Hashed(replay=lambda: self.log.append("replay"), pool=lambda: (0, 1))

    @contextmanager
    def graph(self, graph: Any, pool: object) -> Iterator[None]:
        before, self.now = self.now, "capture"
        yield
        self.now = before  # not if an error ends it, as with torch

    def set_stream(self, stream: Any) -> None:
        self.now = stream.name


def test_a_capture_is_warmed_up_and_ends_in_the_stream_it_began_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = Streams()
    for name in ("current_stream", "Stream", "stream", "CUDAGraph", "graph", "set_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(streams, name))

    def function() -> list[Tensor]:
        streams.log.append(streams.now)
        return [torch.ones(1)]

    def fails() -> list[Tensor]:
        if streams.now == "capture":
            raise RuntimeError("operation not permitted when stream is capturing")
        return function()

    captured = lane_graph.CudaGraph(function)
    captured.replay()
    warm_up = ["side waits", *["side"] * lane_graph.WARM_UP, "main waits"]
    assert streams.log == [*warm_up, "capture", "replay"]
    with pytest.raises(RuntimeError):
        lane_graph.CudaGraph(fails)
    assert streams.now == "main"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_run_on_a_device_ends_with_the_bytes_of_one_without_graphs(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counted(lane_graph.CudaGraph):
        replays = 0

        def replay(self) -> None:
            Counted.replays += 1
            super().replay()

    monkeypatch.setitem(CAPTURES, "cuda", Counted)
    with_replays = last(play_toy, "fedprox", "sgd", normed, "cuda")
    assert Counted.replays > CHECKED, "a graph was used"
    monkeypatch.delitem(CAPTURES, "cuda")
    assert with_replays == last(play_toy, "fedprox", "sgd", normed, "cuda")


def test_graphs_share_memory_with_those_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory goes with the last graph: torch refuses its handle then."""
    monkeypatch.setattr(lane_graph, "_CAPTURED", WeakSet())
    pools, number = list[object](), iter(range(9))

    class Graph:
        def __init__(self) -> None:
            self.own = next(number)

        def pool(self) -> int:
            return self.own

    @contextmanager
    def graph(graph: Graph, pool: int | None) -> Iterator[None]:
        pools.append(pool)
        graph.own = graph.own if pool is None else pool
        yield

    streams = Streams()
    for name in ("current_stream", "Stream", "stream", "set_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(streams, name))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    kept = [lane_graph.CudaGraph(list) for _ in range(3)]
    assert pools == [None, 0, 0]
    del kept[0]
    kept.append(lane_graph.CudaGraph(list))
    assert pools[3] == 0
    kept.clear()
    gc.collect()
    lane_graph.CudaGraph(list)
    assert pools[4] is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_graphs_are_captured_after_all_others_are_freed() -> None:
    x = torch.ones(3, device="cuda")
    for _ in range(2):
        graph = lane_graph.CudaGraph(lambda: [x + 1])
        graph.replay()
        assert graph.outputs[0].tolist() == [2, 2, 2]
        del graph
        gc.collect()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_capture_that_fails_leaves_the_stream() -> None:
    before = torch.cuda.current_stream()
    x = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError):
        lane_graph.CudaGraph(lambda: [x * float(x.sum())])
    assert torch.cuda.current_stream() == before
