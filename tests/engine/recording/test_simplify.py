"""A simplified step gives the same bytes; each rule is applied where it holds, and only there."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from flbench.engine.recording.program import FEWER, MORE, LaneProgram, record
from flbench.engine.recording.simplify import simplify
from flbench.models import gpt2, lenet5, mlp, resnet9_gn

Function = Callable[..., list[Tensor]]


def same_bytes(ones: list[Tensor], others: list[Tensor]) -> bool:
    return all(
        one.shape == other.shape
        and one.dtype == other.dtype
        and one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes()
        for one, other in zip(ones, others, strict=True)
    )


def operations(graph: fx.Graph) -> list[str]:
    """Names of the operations of a graph, without parts of results and sizes."""
    return [
        node.target.overloadpacket.__name__
        for node in graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    ]


SPECIAL = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, 1.5, -2.0])
PAYLOAD = torch.tensor([0x7FC01234, 0xFFC00001 - 2**32], dtype=torch.int32).view(torch.float32)


def numbers(lanes: int) -> list[Tensor]:
    """Floats, with NaN of several payloads and -0.0, and integers."""
    floats = torch.cat([SPECIAL, PAYLOAD, torch.arange(2.0)]).repeat(lanes, 1).view(lanes, 3, 4)
    return [floats * torch.linspace(1, 2, 3)[:, None], torch.arange(lanes * 3).view(lanes, 3)]


def simplified(function: Function) -> list[str]:
    """What is left of a function, which then gives the same bytes and leaves its inputs alone."""
    graph, constants = record(function, numbers(FEWER), numbers(MORE))
    simplify(graph, constants)
    graph.lint()
    run, program = (
        fx.GraphModule(constants, graph).forward,
        LaneProgram(function, numbers(FEWER), numbers(MORE)),
    )
    for lanes in (1, 2, 5):
        for plain in (True, False):
            for _ in range(2):  # a program must not write its constants
                given, others = numbers(lanes), numbers(lanes)
                results = run(lanes, *given) if plain else program(lanes, given)
                assert same_bytes(results, function(*others))
                assert same_bytes(given, others)
                aliases = [one.untyped_storage().data_ptr() for one in (*given, *results)]
                wanted = function(*others)
                expected = [one.untyped_storage().data_ptr() for one in (*others, *wanted)]
                assert len(set(aliases)) == len(set(expected)), "the caller may write its outputs"
    return operations(graph)


# One case per rule: where it is applied, and what is left.


def unused(x: Tensor, y: Tensor) -> list[Tensor]:
    x.exp().sum()
    return [x + 1]


def unused_view(x: Tensor, y: Tensor) -> list[Tensor]:
    x[:, :2].transpose(1, 2)
    return [x + 1]


def repeated(x: Tensor, y: Tensor) -> list[Tensor]:
    return [(x + 2) * (x + 2)]


def repeated_parts(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x.max(dim=1).values * x.max(dim=1).values]


def constants(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x + torch.scalar_tensor(2.0) + torch.arange(4).view(1, 4).float()]


def times_one(x: Tensor, y: Tensor) -> list[Tensor]:
    return [torch.ops.aten.mul.Scalar(x, 1).exp() + (x / 1.0).exp() + (y * 1)[:, :, None]]


def copied(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x.clone() + x.clone().clone().exp()]


def turned_twice(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x.transpose(1, 2).transpose(1, 2) + x.unsqueeze(1).squeeze(1)]


def viewed_twice(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x.view(-1, 12).view(-1, 2, 6).view(-1, 6, 2) + 1]


def viewed_alike(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x.view(-1, 12) * x.view(len(x), -1)]


def shape_in_place(x: Tensor, y: Tensor) -> list[Tensor]:
    total = (x + 1).sum(dim=2)
    before = total * 2
    return [before, total.unsqueeze_(2) + x]


TURNED = "unsqueeze", "unsqueeze", "transpose", "add"


def one_more(x: Tensor, y: Tensor) -> list[Tensor]:
    turned = x.transpose(1, 2)
    return [
        x.view(-1, 1, 3, 4) * x.view(-1, 3, 4, 1)[:, :, :3],
        turned.view(-1, 4, 1, 3) + turned.view(1, -1, 4, 3).transpose(0, 1),
    ]


def one_more_at_the_end(x: Tensor, y: Tensor) -> list[Tensor]:
    """A view has another stride there than `unsqueeze` if the last stride is not one."""
    return [x.view(-1, 3, 4, 1) * 2, x.transpose(1, 2).view(-1, 4, 3, 1) * 2]


def one_less(x: Tensor, y: Tensor) -> list[Tensor]:
    total = x.sum(dim=1, keepdim=True)
    return [total.view(-1, 4) + x[:, 1:2].view(-1, 4), total[:, :, :1].view(-1, 1) + y]


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (one_more, ["transpose", "unsqueeze", "unsqueeze", "slice", "mul", *TURNED]),
        (one_more_at_the_end, ["unsqueeze", "mul", "transpose", "view", "mul"]),
        (one_less, ["sum", "squeeze", "slice", "squeeze", "add", "slice", "squeeze", "add"]),
        (unused, ["add"]),
        (unused_view, ["add"]),
        (repeated, ["add", "mul"]),
        (repeated_parts, ["max", "mul"]),
        (constants, ["add", "add"]),
        (times_one, ["exp", "add", "unsqueeze", "add"]),
        (copied, ["exp", "add"]),
        (turned_twice, ["add"]),
        (viewed_twice, ["view", "add"]),
        (viewed_alike, ["view", "mul"]),
        (shape_in_place, ["add", "sum", "mul", "unsqueeze", "add"]),
    ],
)
def test_operations_that_change_nothing_are_left_out(function: Function, left: list[str]) -> None:
    assert simplified(function) == left


# Where a rule would change a number, or let the caller write what it should not.


def written_between(x: Tensor, y: Tensor) -> list[Tensor]:
    own = x + 1
    before = (own * 2).exp()
    own.add_(1)
    return [before, (own * 2).exp()]


def written_through_a_view(x: Tensor, y: Tensor) -> list[Tensor]:
    own = x + 1
    before = (own * 2).exp()
    own[:, 0].zero_()
    return [before, (own * 2).exp()]


def written_without_effect(x: Tensor, y: Tensor) -> list[Tensor]:
    """With the few lanes of the recordings, no number is above 8."""
    own = y.clone()
    own.clamp_(max=8)
    return [own + y]


def constant_turned(x: Tensor, y: Tensor) -> list[Tensor]:
    row = torch.arange(4.0).exp()
    first = y[:, :1] * row
    row.unsqueeze_(1)
    return [first, y[:, :1] + row.sum(dim=1)]


def copy_written(x: Tensor, y: Tensor) -> list[Tensor]:
    own = x.clone()
    own.mul_(3)
    return [own + x]


def source_written(x: Tensor, y: Tensor) -> list[Tensor]:
    own = x + 1
    kept = own.clone()
    own.mul_(3)
    return [own, kept + 1]


def constant_written(x: Tensor, y: Tensor) -> list[Tensor]:
    count = torch.zeros(3, 4)
    count += 1
    return [x + count]


def repeated_and_written(x: Tensor, y: Tensor) -> list[Tensor]:
    one, other = x + 1, x + 1
    one.zero_()
    return [one * 2, other * 2]


def statistics_written(x: Tensor, y: Tensor) -> list[Tensor]:
    """BatchNorm's operation writes the running mean, and does not say so."""
    mean, deviation = torch.zeros(4), torch.ones(4)
    flat = (y[:, :, None] + torch.arange(4.0)).flatten(0, 1)
    torch.native_batch_norm(flat, None, None, mean, deviation, True, 0.1, 1e-5)
    return [mean + y[:, :1], deviation * y[:, :1]]


AFTER = "slice", "add", "mul"


def outputs_alike(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x + 1, x + 1, x.clone(), x * 1, torch.zeros(3), (x + 1).view(-1, 12)]


def other_numbers(x: Tensor, y: Tensor) -> list[Tensor]:
    """1 and True, 0.0 and -0.0, 1.0 and 1 are equal as keys of a table."""
    two = x.fmod(2)
    return [two.clamp_min(0.0) * two.clamp_min(-0.0), y * 1.0, y * True, y + 0 * 1.0, y / 1]


def no_product_with_one(x: Tensor, y: Tensor) -> list[Tensor]:
    return [(x + 0) * (x * -1), x * 2 + x / 3]


def sixteen_bits(x: Tensor, y: Tensor) -> list[Tensor]:
    """A product of bfloat16 is rounded from one of 32 bits, which replaces NaN."""
    return [(x.bfloat16() * 1).view(torch.int16) + 1]


def other_layout(x: Tensor, y: Tensor) -> list[Tensor]:
    turned = x.transpose(1, 2)
    return [turned.contiguous().view(-1, 12) + 1, turned.reshape(-1, 3, 4) * 2]


def slices(x: Tensor, y: Tensor) -> list[Tensor]:
    first = [x[:1].view(3, 4) * 2, x.view(-1, 4)[:1].view(4) + 1]
    return [
        *first,
        x[:, :2].reshape(-1, 8) * 2,
        x.view(-1, 12)[:, 4:] * 3,
        x.view(-1, 4)[3:].view(-1) + 1,
    ]


def asserts(x: Tensor, y: Tensor) -> list[Tensor]:
    torch._assert_async((y[:1, :1] >= 0).all())
    return [x + 1]


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (written_between, ["add", "mul", "exp", "add_", "mul", "exp"]),
        (written_through_a_view, ["add", "mul", "exp", "select", "zero_", "mul", "exp"]),
        (written_without_effect, ["clone", "clamp_", "add"]),
        (constant_turned, ["exp", "slice", "mul", "unsqueeze", "sum", "add"]),
        (copy_written, ["clone", "mul_", "add"]),
        (source_written, ["add", "clone", "mul_", "add"]),
        (constant_written, ["zeros", "add_", "add"]),
        (repeated_and_written, ["add", "add", "zero_", "mul", "mul"]),
        (
            statistics_written,
            ["zeros", "ones", "unsqueeze", "add", "view", "native_batch_norm", *AFTER],
        ),
        (outputs_alike, ["add", "add", "clone", "mul", "zeros", "add", "view"]),
        (sixteen_bits, ["_to_copy", "mul", "view", "add"]),
        (asserts, ["slice", "slice", "ge", "all", "_assert_async", "add"]),
    ],
)
def test_nothing_is_left_out_where_a_number_or_an_alias_would_change(
    function: Function, left: list[str]
) -> None:
    assert simplified(function) == left


@pytest.mark.parametrize("function", [other_numbers, no_product_with_one, other_layout, slices])
def test_numbers_of_another_type_or_sign_and_other_layouts_are_not_taken_for_equal(
    function: Function,
) -> None:
    simplified(function)


def test_a_shape_that_others_see_is_not_changed_in_place() -> None:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x.unsqueeze_(0).squeeze_(0) + 1]

    with pytest.raises(Exception, match="that others see"):
        record(function, numbers(FEWER), numbers(MORE))


def test_a_constant_of_the_module_is_read_when_the_program_runs() -> None:
    factor = torch.ones(4)

    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        return [y[:, :, None] * factor.exp()]

    program = LaneProgram(function, numbers(FEWER), numbers(MORE))
    factor.add_(1)
    assert same_bytes(program(4, numbers(4)), function(*numbers(4)))


# Networks: the operations of their steps, with a term, received tensors and statistics.

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp.build((1, 4, 4), 4, hidden=8), (1, 4, 4)),
    "mlp with BatchNorm": (lambda: mlp.build((1, 4, 4), 4, hidden=8, norm=True), (1, 4, 4)),
    "lenet5": (lambda: lenet5.build((1, 16, 16), 4), (1, 16, 16)),
    "resnet9-gn": (lambda: resnet9_gn.build((3, 32, 32), 4), (3, 32, 32)),
    "gpt2": (lambda: gpt2.build((5,), 4, width=8), (5,)),
}
MARKS = {"resnet9-gn": [pytest.mark.slow, pytest.mark.long], "gpt2": [pytest.mark.slow]}


class Step:
    """A step of a network: gradients, loss and buffers of lanes, and inputs for it."""

    def __init__(self, name: str) -> None:
        make, self.shape = NETWORKS[name]
        torch.manual_seed(0)
        self.net = make()
        self.parameters = dict(self.net.named_parameters())
        self.buffers = dict(self.net.named_buffers())
        self.gradients = vmap(grad_and_value(self.loss, has_aux=True))

    def loss(self, theta: Any, start: Any, buffers: Any, x: Tensor, y: Tensor) -> Any:
        own = {name: tensor.clone() for name, tensor in buffers.items()}
        logits = functional_call(self.net, {**theta, **own}, (x,))
        loss = F.cross_entropy(logits.flatten(0, -2), y.flatten())
        for name, tensor in theta.items():
            loss = loss + 0.1 * (tensor - start[name]).square().sum()
        return loss, own

    def __call__(self, *given: Tensor) -> list[Tensor]:
        rest = iter(given)
        theta = {name: next(rest) for name in self.parameters}
        start = {name: next(rest) for name in self.parameters}
        buffers = {name: next(rest) for name in self.buffers}
        slopes, (loss, after) = self.gradients(theta, start, buffers, next(rest), next(rest))
        return [*slopes.values(), loss, *after.values()]

    def inputs(self, lanes: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(lanes)

        def near(tensor: Tensor) -> Tensor:
            many = tensor.detach().repeat(lanes, *[1] * tensor.dim())
            noise = torch.rand(many.shape, generator=generator) if many.is_floating_point() else 1
            return many + noise

        tables = [*self.parameters.values(), *self.parameters.values(), *self.buffers.values()]
        if len(self.shape) == 1:
            x = torch.randint(4, (lanes, 3, *self.shape), generator=generator)
            y = torch.randint(4, (lanes, 3, *self.shape), generator=generator)
        else:
            x = torch.randn(lanes, 3, *self.shape, generator=generator)
            y = torch.randint(4, (lanes, 3), generator=generator)
            y[:, 0] = -100  # a label that the loss ignores
        return [*map(near, tables), x, y]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name, ())) for name in NETWORKS],
)
def test_plain_and_simplified_steps_of_a_network_give_the_same_bytes(name: str) -> None:
    step = Step(name)
    fewer, more = step.inputs(FEWER), step.inputs(MORE)
    graph, constants = record(step, fewer, more)
    plain = fx.GraphModule(dict(constants), graph).forward
    before = operations(graph)
    program = LaneProgram(step, fewer, more)
    simple, folded = record(step, fewer, more)
    simplify(simple, folded)
    assert len(operations(simple)) < 0.9 * len(before)
    for lanes in (1, 2, 4):
        given = step.inputs(lanes)
        with torch.no_grad():
            expected = plain(lanes, *given)
        assert same_bytes(program(lanes, given), expected)
        if lanes == 1:
            assert same_bytes(expected, step(*given))


def test_a_result_of_one_part_is_no_tensor() -> None:
    """`split` gives a list, also where the part is all of it."""

    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        (one,) = x.split(x.shape[1], dim=1)
        return [one * 2, y.split(2 * y.shape[1], dim=1)[0] + 1]

    simplified(function)


def test_parts_of_a_result_stay_apart() -> None:
    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        one, two, _ = x.split(1, dim=1)
        return [one * two, x.max(dim=1).indices + x.min(dim=1).indices]

    graph, constants = record(function, numbers(FEWER), numbers(MORE))
    simplify(graph, constants)
    assert sum(node.target is operator.getitem for node in graph.nodes) == 4
    simplified(function)
