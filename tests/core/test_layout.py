"""ParameterLayout: where every tensor of a network lies in its row."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from flbench.core.layout import ParameterLayout
from flbench.models import lenet5, mlp


def normed() -> nn.Module:
    """Two linear layers around BatchNorm, every scalar different."""
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    with torch.no_grad():
        for start, tensor in enumerate([*net.parameters(), *net.buffers()]):
            count = torch.arange(tensor.numel()).view(tensor.shape)
            tensor.copy_(100 * (start + 1) + count)
    return net


def places(layout: ParameterLayout) -> list[tuple[str, tuple[int, ...], int, int, str]]:
    return [(slot.name, slot.shape, slot.start, slot.stop, slot.kind) for slot in layout.slots]


def test_slots_of_a_network_with_batch_norm_by_hand() -> None:
    layout = ParameterLayout.of(normed())
    assert places(layout) == [
        ("0.weight", (3, 2), 0, 6, "parameter"),
        ("0.bias", (3,), 6, 9, "parameter"),
        ("1.weight", (3,), 9, 12, "parameter"),
        ("1.bias", (3,), 12, 15, "parameter"),
        ("2.weight", (2, 3), 15, 21, "parameter"),
        ("2.bias", (2,), 21, 23, "parameter"),
        ("1.running_mean", (3,), 23, 26, "buffer"),
        ("1.running_var", (3,), 26, 29, "buffer"),
        ("1.num_batches_tracked", (), 29, 30, "counter"),
    ]
    assert (layout.parameters, layout.buffers, layout.width) == (23, 7, 30)


def test_lenet5_has_the_sizes_of_the_papers() -> None:
    layout = ParameterLayout.of(lenet5.build((1, 28, 28), 10))
    assert (layout.parameters, layout.buffers) == (44_426, 0)
    assert ParameterLayout.of(lenet5.build((3, 32, 32), 10)).parameters == 62_006
    assert int(layout.head.sum()) == 84 * 10 + 10


def test_the_head_is_the_last_linear_layer() -> None:
    layout = ParameterLayout.of(normed())
    assert layout.head.nonzero()[:, 0].tolist() == list(range(15, 23))
    assert [slot.name for slot in layout.slots if slot.head] == ["2.weight", "2.bias"]
    named = ParameterLayout.of(mlp.build((3,), 4, hidden=5))
    assert [slot.name for slot in named.slots if slot.head] == ["head.weight", "head.bias"]


def test_a_head_can_be_named_and_takes_its_buffers_along() -> None:
    layers = OrderedDict(head=nn.BatchNorm1d(2), head2=nn.Linear(2, 2), tail=nn.Linear(2, 2))
    layout = ParameterLayout.of(nn.Sequential(layers), head="head")
    assert [slot.name for slot in layout.slots if slot.head] == [
        "head.weight", "head.bias",
        "head.running_mean", "head.running_var", "head.num_batches_tracked",
    ]  # fmt: skip
    assert not ParameterLayout.of(nn.Sequential(layers), head="he").head.any()


def test_a_network_without_linear_layers_is_all_body() -> None:
    layout = ParameterLayout.of(nn.Sequential(nn.Conv2d(1, 2, 3)))
    assert not layout.head.any()
    assert bool(layout.body.all())


@pytest.mark.parametrize("net", [normed(), mlp.build((3,), 4), lenet5.build((1, 16, 16), 3)])
def test_head_and_body_are_everything_and_disjoint(net: nn.Module) -> None:
    layout = ParameterLayout.of(net)
    assert torch.equal(layout.head | layout.body, layout.all_mask)
    assert torch.equal(layout.head & layout.body, layout.none_mask)
    assert bool(layout.head.any())
    assert bool(layout.body.any())
    assert layout.all_mask.shape == layout.none_mask.shape == (layout.width,)
    assert bool(layout.all_mask.all())
    assert not layout.none_mask.any()
    stops = [0, *(slot.stop for slot in layout.slots)]
    assert [slot.start for slot in layout.slots] == stops[:-1], "no gap, no overlap"
    assert stops[-1] == layout.width


def test_buffers_are_not_trainable_and_only_counters_are_counters() -> None:
    layout = ParameterLayout.of(normed())
    assert layout.trainable.nonzero()[:, 0].tolist() == list(range(23))
    assert layout.counters.nonzero()[:, 0].tolist() == [29]
    assert not ParameterLayout.of(mlp.build((3,), 4)).counters.any()


def test_shared_tensors_are_counted_once() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    layout = ParameterLayout.of(net)
    assert [slot.name for slot in layout.slots] == ["0.weight", "0.bias", "1.bias"]
    assert layout.width == 15


def test_layers_are_named_by_the_module_that_owns_the_tensor() -> None:
    layout = ParameterLayout.of(normed())
    assert [slot.layer for slot in layout.slots] == ["0", "0", "1", "1", "2", "2", "1", "1", "1"]
    deep = ParameterLayout.of(mlp.build((3,), 4))
    assert [slot.layer for slot in deep.slots] == ["body.1", "body.1", "head", "head"]


def test_flatten_lays_scalars_out_in_slot_order() -> None:
    row = ParameterLayout.of(normed()).flatten(normed())
    assert row.dtype == torch.float32
    assert row[:9].tolist() == [100, 101, 102, 103, 104, 105, 200, 201, 202]
    assert row[21:].tolist() == [600, 601, 700, 701, 702, 800, 801, 802, 900]


def test_flatten_copies() -> None:
    net = normed()
    row = ParameterLayout.of(net).flatten(net)
    assert not row.requires_grad
    row.zero_()
    assert net[0].weight[0, 0] == 100  # type: ignore[index]


def test_load_and_flatten_are_inverse_with_batch_norm_and_its_counter() -> None:
    source, target = normed(), nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    layout = ParameterLayout.of(source)
    row = layout.flatten(source)
    before = [tensor.data_ptr() for tensor in (*target.parameters(), *target.buffers())]
    layout.load(target, row)
    for name, tensor in source.state_dict().items():
        assert torch.equal(tensor, target.state_dict()[name])
    counter = target[1].num_batches_tracked
    assert counter.dtype == torch.int64
    assert int(counter) == 900
    after = [tensor.data_ptr() for tensor in (*target.parameters(), *target.buffers())]
    assert after == before, "in place"
    assert torch.equal(layout.flatten(target), row)
    assert all(parameter.requires_grad for parameter in target.parameters())


def test_unflatten_gives_views_and_a_counter_of_integers() -> None:
    net = normed()
    layout = ParameterLayout.of(net)
    row = layout.flatten(net)
    parts = layout.unflatten(row)
    assert set(parts) == set(net.state_dict())
    for name, tensor in net.state_dict().items():
        assert torch.equal(parts[name], tensor)
        assert parts[name].dtype == tensor.dtype
    parts["2.bias"].fill_(-1)
    assert row[21:23].tolist() == [-1, -1]
    parts["1.num_batches_tracked"].fill_(-1)
    assert row[29] == 900, "a counter is a copy"


def test_a_single_linear_layer_is_all_head() -> None:
    assert bool(ParameterLayout.of(nn.Linear(3, 2)).head.all())


def test_normalisation_layers_have_a_mask() -> None:
    """2 x 3 + 3 scalars, then BatchNorm's 6, 3 x 2 + 2, and 7 buffers of BatchNorm."""
    layout = ParameterLayout.of(normed())
    assert layout.norm.nonzero()[:, 0].tolist() == [*range(9, 15), *range(23, 30)]
    for layer in (nn.GroupNorm(1, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4, affine=True)):
        assert ParameterLayout.of(nn.Sequential(nn.Linear(2, 4), layer)).norm.sum() == 8
    assert not ParameterLayout.of(nn.Linear(2, 4)).norm.any()


def test_one_network_has_every_scalar() -> None:
    layout = ParameterLayout.of(normed())
    assert layout.of_networks.tolist() == [[True] * layout.width]
