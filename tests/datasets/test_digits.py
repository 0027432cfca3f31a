"""Data sets and networks: counted against their descriptions, and what is said when files lack."""

from __future__ import annotations

import os
import struct
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from mentions import mention
from torch import nn

from flbench.datasets import data_root
from flbench.datasets.digits import digits, digits_shift, pixels_and_labels
from flbench.datasets.torchvision_sets import fashion_mnist
from flbench.errors import BadParameter, MissingData, UnknownName, UserError
from flbench.federation.loading import load_dataset
from flbench.models import lenet5, mlp
from flbench.run.networks import build_network
from flbench.suite import Component, Suite, load_suite

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


# --- digits -----------------------------------------------------------------------------------


def test_digits_are_1797_images_of_8x8_between_0_and_1(tmp_path: Path) -> None:
    data = digits(tmp_path)
    assert (data.name, data.classes, data.domains) == ("digits", 10, None)
    assert (data.x.shape, data.x.dtype) == ((1797, 1, 8, 8), torch.float32)
    assert (data.y.shape, data.y.dtype) == ((1797,), torch.int64)
    assert (float(data.x.min()), float(data.x.max())) == (0.0, 1.0)
    assert bool((data.x * 16 == (data.x * 16).round()).all()), "16 grey levels"
    counted = torch.bincount(data.y).tolist()
    assert counted == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert list(tmp_path.iterdir()) == [], "nothing is downloaded or cached"


@pytest.mark.slow
def test_digits_are_those_that_scikit_learn_loads() -> None:
    for ours, theirs in zip(pixels_and_labels(), pixels_and_labels("elsewhere"), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_digits_are_the_same_each_time_and_found_by_name(tmp_path: Path) -> None:
    one, other = digits(tmp_path), load_dataset("digits", tmp_path / "elsewhere")
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)


def test_an_unknown_dataset_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=mention("digit", "digits")):
        load_dataset("digit", tmp_path)


def test_the_shifted_digits_are_the_digits_in_five_domains(tmp_path: Path) -> None:
    plain, shifted = digits(tmp_path), digits_shift(tmp_path)
    assert shifted.domains is not None
    assert torch.bincount(shifted.domains).tolist() == [360, 360, 359, 359, 359]
    assert torch.equal(plain.y, shifted.y), "no label changes"
    assert (float(shifted.x.min()), float(shifted.x.max())) == (0.0, 1.0)
    seen = [shifted.x[shifted.domains == number] for number in range(5)]
    real = [plain.x[shifted.domains == number] for number in range(5)]
    assert torch.equal(seen[0], real[0]), "plain"
    assert torch.equal(seen[1][..., 1:], real[1][..., :-1]), "shifted by a pixel"
    torch.testing.assert_close(seen[2][:, :, 1, 1], real[2][:, :, :3, :3].mean(dim=(2, 3)))
    assert not torch.equal(seen[3], real[3]), "textured"
    torch.testing.assert_close(seen[4], 0.35 + 0.3 * real[4])
    again = digits_shift(tmp_path)
    assert torch.equal(again.x, shifted.x)
    assert torch.equal(again.domains, shifted.domains)


# --- Fashion-MNIST ----------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    """The idx format: two zeros, 8 = unsigned byte, dimensions, each length, big-endian."""
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with 12 training and 5 test images in the real layout."""
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for part, count in (("train", 12), ("t10k", 5)):
        images = generator.integers(0, 256, (count, 28, 28))
        images[0] = 0
        images[1] = 255
        labels = np.arange(count) % 10 if part == "train" else 9 - np.arange(count)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    return tmp_path


def test_fashion_mnist_pools_both_parts_and_scales_them(root: Path) -> None:
    data = fashion_mnist(root)
    assert (data.name, data.classes, data.domains) == ("fashion-mnist", 10, None)
    assert (data.x.shape, data.x.dtype) == ((17, 1, 28, 28), torch.float32)
    assert data.y.dtype == torch.int64
    assert data.y.tolist() == [*(i % 10 for i in range(12)), 9, 8, 7, 6, 5]
    black, white = (0 - 0.2860) / 0.3530, (1 - 0.2860) / 0.3530
    for at in (0, 12):
        torch.testing.assert_close(data.x[at], torch.full((1, 28, 28), black))
        torch.testing.assert_close(data.x[at + 1], torch.full((1, 28, 28), white))
    raw = root / "FashionMNIST" / "raw" / FILES[0]
    pixels = np.frombuffer(raw.read_bytes()[16:], dtype=np.uint8).reshape(12, 28, 28)
    by_hand = torch.as_tensor((pixels[7] / 255 - 0.2860) / 0.3530, dtype=torch.float32)
    torch.testing.assert_close(data.x[7, 0], by_hand)


def test_fashion_mnist_is_found_by_name(root: Path) -> None:
    assert torch.equal(load_dataset("fashion-mnist", root).x, fashion_mnist(root).x)


@pytest.mark.parametrize("gone", [FILES, FILES[:1], FILES[3:]], ids=["all", "first", "last"])
def test_missing_files_are_named_with_their_folder_and_what_to_type(
    root: Path, gone: tuple[str, ...]
) -> None:
    raw = root / "FashionMNIST" / "raw"
    for name in gone:
        (raw / name).unlink()
    with pytest.raises(MissingData) as caught:
        fashion_mnist(root)
    said = str(caught.value)
    assert all(name in said for name in FILES)
    assert str(raw) in said
    assert "--data-root" in said
    assert "FLBENCH_DATA" in said
    assert "flbench data fashion-mnist --fetch" in said
    assert "\n" not in said
    assert caught.value.exit_code == 1


def test_a_data_root_that_is_not_there_is_missing_data_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(MissingData):
        load_dataset("fashion-mnist", tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_file_that_is_cut_short_is_one_line_that_names_the_folder(root: Path) -> None:
    raw = root / "FashionMNIST" / "raw"
    whole = (raw / FILES[0]).read_bytes()
    (raw / FILES[0]).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError) as caught:
        fashion_mnist(root)
    assert str(raw) in str(caught.value)


@pytest.mark.slow
def test_the_real_fashion_mnist_is_what_its_authors_say() -> None:
    given = os.environ.get("FLBENCH_DATA")
    raw = Path(given or ".").expanduser() / "FashionMNIST" / "raw"
    if not given or not all((raw / name).is_file() for name in FILES):
        pytest.skip("FLBENCH_DATA names no folder with FashionMNIST/raw")
    data = load_dataset("fashion-mnist", data_root())
    assert data.x.shape == (70_000, 1, 28, 28)
    assert torch.bincount(data.y).tolist() == [7_000] * 10
    assert abs(float(data.x[:60_000].mean())) < 1e-3, "scaled by the training part's mean"
    assert abs(float(data.x[:60_000].std()) - 1) < 1e-3
    assert abs(float(data.x.mean())) < 0.01
    assert torch.bincount(data.y[60_000:]).tolist() == [1_000] * 10, "test part last"


# --- where data sets are looked for -----------------------------------------------------------


def test_the_data_root_is_the_argument_then_the_variable_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLBENCH_DATA", str(tmp_path / "variable"))
    assert data_root(tmp_path / "argument") == tmp_path / "argument"
    assert data_root() == data_root(None) == tmp_path / "variable"
    monkeypatch.setenv("FLBENCH_DATA", "")
    assert data_root() == tmp_path / "home" / ".cache" / "flbench"
    monkeypatch.delenv("FLBENCH_DATA")
    assert data_root() == tmp_path / "home" / ".cache" / "flbench"


def test_a_tilde_means_home_wherever_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FLBENCH_DATA", "~/sets")
    assert data_root() == tmp_path / "sets"
    assert data_root(Path("~/mine")) == tmp_path / "mine"


# --- networks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "count"), [((1, 28, 28), 44_426), ((3, 32, 32), 62_006)])
def test_lenet5_has_the_parameters_it_says(shape: tuple[int, ...], count: int) -> None:
    net = lenet5.build(shape, 10)
    assert parameters(net) == count
    assert net(torch.zeros(2, *shape)).shape == (2, 10)
    head = list(net.get_submodule("head").parameters())
    assert [tuple(tensor.shape) for tensor in head] == [(10, 84), (10,)]


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 15, 28), (784,)])
def test_lenet5_refuses_what_it_cannot_see(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError) as caught:
        lenet5.build(shape, 10)
    said = f"lenet5 expects images of at least 16x16, got samples of shape {shape}"
    assert str(caught.value) == said


def test_lenet5_takes_the_smallest_image_it_promises() -> None:
    assert lenet5.build((1, 16, 16), 3)(torch.zeros(2, 1, 16, 16)).shape == (2, 3)


def test_lenet5_on_digits_is_refused_in_a_suite_too() -> None:
    suite = load_suite("noisy-noniid", overrides={"model": "lenet5"})
    with pytest.raises(UserError, match="at least 16x16"):
        build_network(suite, (1, 8, 8), 10, seed=0)


@pytest.mark.parametrize("hidden", [1, 64])
def test_mlp_has_one_hidden_layer(hidden: int) -> None:
    shape = (1, 8, 8)
    net = mlp.build(shape, 10, hidden)
    assert parameters(net) == (prod(shape) + 1) * hidden + (hidden + 1) * 10
    assert net(torch.zeros(2, *shape)).shape == (2, 10)
    assert [type(child).__name__ for child in net.get_submodule("body")] == [
        "Flatten",
        "Linear",
        "ReLU",
    ]


def test_a_network_depends_on_its_seed_and_on_nothing_else() -> None:
    suite = load_suite("noisy-noniid")

    def weights(seed: int) -> torch.Tensor:
        net = build_network(suite, (1, 8, 8), 10, seed)
        return torch.cat([tensor.flatten() for tensor in net.parameters()])

    torch.manual_seed(1)
    first, state = weights(0), torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(weights(0), first)
    assert not torch.equal(weights(1), first)
    torch.manual_seed(1)
    weights(0)
    assert torch.equal(torch.get_rng_state(), state), "nobody's randomness is disturbed"


def test_a_networks_parameters_are_checked() -> None:
    def suite(**params: int) -> Suite:
        model = Component.model_validate({"name": "mlp", **params})
        return load_suite("noisy-noniid").model_copy(update={"model": model})

    with pytest.raises(BadParameter, match="'hidden' expects int"):
        build_network(suite(hidden=0), (1, 8, 8), 10, seed=0)
    with pytest.raises(UnknownName, match="parameter of model 'mlp' 'width'"):
        build_network(suite(width=3), (1, 8, 8), 10, seed=0)
