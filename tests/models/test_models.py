"""Built-in networks: counted against their descriptions, fed, pretrained from files, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from mentions import mentioning, mentions
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import flbench as fl
from flbench.core.layout import ParameterLayout
from flbench.core.networks import head_of
from flbench.engine.dropout import replace_dropout
from flbench.errors import BadParameter, MissingData, UnknownName, UserError
from flbench.models import gpt2, resnet9_gn, resnet18
from flbench.plugin.registry import entries, summary_of
from flbench.run.networks import build_network
from flbench.suite import load_suite
from flbench_benchmarks.networks import dcpfl_fm, fedc2i_lenet, fedopt_cnn

# name, shape of a sample, classes, parameters of the network's builder, P, of the head, d
TABLE = [
    ("logistic-regression", (1, 8, 8), 10, {}, 650, 650, 64),
    ("lenet5", (3, 32, 32), 10, {}, 62_006, 850, 84),
    ("lenet5", (1, 28, 28), 10, {}, 44_426, 850, 84),
    ("resnet9-gn", (3, 32, 32), 100, {}, 6_621_540, 51_300, 512),
    ("resnet9-gn", (3, 64, 48), 100, {}, 6_621_540, 51_300, 512),
    ("resnet18", (3, 32, 32), 10, {}, 11_181_642, 5_130, 512),
    ("resnet18", (3, 224, 224), 100, {}, 11_227_812, 51_300, 512),
    ("resnet18", (1, 28, 28), 10, {"resize": 64}, 11_181_642, 5_130, 512),
    ("resnet18", (3, 32, 32), 10, {"stem": "cifar"}, 11_181_642 - 64 * 3 * (49 - 9), 5_130, 512),
    ("dcpfl-fm", (1, 28, 28), 10, {}, 212_542, 850, 84),
    ("fedc2i-lenet", (3, 64, 64), 10, {}, 4_336_906, 1_930, 192),
    ("fedc2i-lenet", (1, 28, 28), 10, {"size": 64}, 4_336_906, 1_930, 192),
    ("fedc2i-lenet", (3, 300, 200), 10, {"size": 64}, 4_336_906, 1_930, 192),
    ("fedc2i-lenet", (3, 32, 32), 10, {}, 797_962, 1_930, 192),
    ("fedopt-cnn", (1, 28, 28), 10, {}, 1_199_882, 1_290, 128),
    ("fedopt-cnn", (3, 32, 32), 10, {}, 1_626_442, 1_290, 128),
    ("normed-cnn", (1, 8, 8), 10, {}, 3_194, 650, 64),
]
NAMED = [f"{row[0]}-{'x'.join(map(str, row[1]))}-{row[3] or ''}" for row in TABLE]
# Small samples for the same networks, to be computed with.
SMALL: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("lenet5", (1, 16, 16), {}),
    ("resnet9-gn", (2, 8, 8), {}),
    ("resnet18", (1, 8, 8), {}),
    ("dcpfl-fm", (1, 4, 4), {}),
    ("fedc2i-lenet", (1, 8, 8), {"size": 20}),
    ("fedopt-cnn", (1, 8, 8), {}),
    ("gpt2", (6,), {"width": 8}),
    ("normed-cnn", (1, 4, 4), {"width": 2}),
]
SMALL_NAMED = [f"{row[0]}-{row[2] or ''}" for row in SMALL]


def made(name: str, shape: tuple[int, ...], classes: int, **given: Any) -> nn.Module:
    """A network as a suite makes it, seed 0."""
    suite = load_suite("noisy-noniid", overrides={"model": {"name": name, **given}})
    return build_network(suite, shape, classes, seed=0)


def samples(shape: tuple[int, ...], count: int = 3) -> Tensor:
    """Random images, or tokens of a vocabulary of five."""
    generator = torch.Generator().manual_seed(0)
    if len(shape) == 1:
        return torch.randint(5, (count, *shape), generator=generator)
    return torch.rand(count, *shape, generator=generator)


def weights(net: nn.Module) -> Tensor:
    return ParameterLayout.of(net).flatten(net)


# --- what they are ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "classes", "given", "size", "head", "d"), TABLE, ids=NAMED
)
def test_networks_have_the_parameters_head_and_features_they_say(
    name: str, shape: tuple[int, ...], classes: int, given: dict[str, Any],
    size: int, head: int, d: int,
) -> None:  # fmt: skip
    with torch.device("meta"):
        module = fl.ClientModule(made(name, shape, classes, **given), fl.LocalTraining())
        features, logits = module.features(torch.zeros(2, *shape))
    layout = ParameterLayout.of(module.net)
    assert layout.parameters == size
    assert sum(s.stop - s.start for s in layout.slots if s.head) == head == (d + 1) * classes
    assert (features.shape, logits.shape) == ((2, d), (2, classes))
    statistics = {"resnet18": 9_600 + 20, "normed-cnn": 64 + 2}  # means, variances, counters
    assert layout.buffers == statistics.get(name, 0)


def test_the_counts_in_the_listing_are_those_of_the_table() -> None:
    for name in ("lenet5", "resnet9-gn", "resnet18", "dcpfl-fm", "fedc2i-lenet", "fedopt-cnn"):
        said = summary_of(entries("models")[name])
        assert any(f"{row[4]:,}" in said for row in TABLE if row[0] == name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape", "given"), SMALL, ids=SMALL_NAMED)
def test_initial_weights_depend_on_the_seed_and_on_nothing_else(
    name: str, shape: tuple[int, ...], given: dict[str, Any]
) -> None:
    suite = load_suite("noisy-noniid", overrides={"model": {"name": name, **given}})
    torch.manual_seed(1)
    first, state = weights(build_network(suite, shape, 5, seed=0)), torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(weights(build_network(suite, shape, 5, seed=0)), first)
    assert not torch.equal(weights(build_network(suite, shape, 5, seed=1)), first)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state), "nobody's randomness is disturbed"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape", "given"), SMALL, ids=SMALL_NAMED)
def test_stacked_models_are_trained_as_a_batch_as_they_are_one_by_one(
    name: str, shape: tuple[int, ...], given: dict[str, Any]
) -> None:
    """What the vectorised executor does: vmap over rows, of the gradient of a functional call."""
    net = made(name, shape, 5, **given).double().train()
    for layer in net.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0  # whose random numbers are a matter of the executor
    replace_dropout(net)
    x = torch.stack([samples(shape), samples(shape).flip(-1)])
    x = x.double() if x.is_floating_point() else x
    stacked = {
        name: torch.stack([tensor.detach(), tensor.detach() * 1.1])
        for name, tensor in net.named_parameters()
    }

    kept = {name: torch.stack([tensor, tensor]) for name, tensor in net.named_buffers()}

    def loss(own: dict[str, Tensor], kept: dict[str, Tensor], x: Tensor) -> Tensor:
        statistics = {name: tensor.clone() for name, tensor in kept.items()}  # written to
        logits: Tensor = torch.func.functional_call(net, {**own, **statistics}, (x,))
        return logits.logsumexp(-1).sum()

    step = torch.func.grad_and_value(loss)
    gradients, losses = torch.func.vmap(step)(stacked, kept, x)
    for lane in range(2):
        one, own = ({n: both[lane] for n, both in held.items()} for held in (stacked, kept))
        gradient, value = step(one, own, x[lane])
        torch.testing.assert_close(losses[lane], value)
        assert any(bool(part.any()) for part in gradient.values())
        for name, part in gradient.items():
            torch.testing.assert_close(gradients[name][lane], part, rtol=1e-4, atol=1e-6)


# --- images -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "shape", "said"),
    [
        (resnet9_gn.build, (3, 7, 8), "resnet9-gn expects images of at least 8x8"),
        (resnet9_gn.build, (64,), "resnet9-gn expects images of at least 8x8"),
        (resnet18.build, (3, 8, 7), "resnet18 expects images of at least 8x8 with 1 or 3 channels"),
        (resnet18.build, (2, 32, 32), "resnet18 expects images of at least 8x8 with 1 or 3 chan"),
        (dcpfl_fm.build, (1, 28, 3), "dcpfl-fm expects images of at least 4x4"),
        (dcpfl_fm.build, (28, 28), "dcpfl-fm expects images of at least 4x4"),
        (fedopt_cnn.build, (1, 28, 5), "fedopt-cnn expects images of at least 6x6"),
        (fedc2i_lenet.build, (3, 15, 64), "fedc2i-lenet expects images of at least 16x16 with 1 "),
        (fedc2i_lenet.build, (4, 64, 64), "fedc2i-lenet expects images of at least 16x16 with 1 "),
    ],
)
def test_networks_refuse_what_they_cannot_see(
    build: Any, shape: tuple[int, ...], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        build(shape, 10)
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith(f", got samples of shape {shape}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "shape", "given"),
    [
        (resnet9_gn.build, (1, 8, 9), {}),
        (resnet18.build, (3, 8, 8), {}),
        (resnet18.build, (3, 2, 2), {"resize": 8}),
        (dcpfl_fm.build, (1, 4, 5), {}),
        (fedopt_cnn.build, (2, 6, 7), {}),
        (fedc2i_lenet.build, (3, 16, 17), {}),
        (fedc2i_lenet.build, (3, 2, 2), {"size": 16}),
    ],
)
def test_networks_take_the_smallest_images_they_promise(
    build: Any, shape: tuple[int, ...], given: dict[str, int]
) -> None:
    logits = build(shape, 3, **given)(samples(shape))
    assert logits.shape == (3, 3)
    assert bool(logits.isfinite().all())


@pytest.mark.slow
@pytest.mark.parametrize("build", [resnet18.build, fedc2i_lenet.build], ids=["resnet18", "lenet"])
def test_a_grey_image_is_the_same_as_three_equal_channels(build: Any) -> None:
    net = build((1, 20, 20), 10).eval()
    grey = samples((1, 20, 20))
    assert torch.equal(net(grey), net(grey.repeat(1, 3, 1, 1)))
    colours = samples((3, 20, 20))
    assert not torch.allclose(net(colours), net(colours[:, :1])), "colours are seen"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "name"), [(resnet18.build, "resize"), (fedc2i_lenet.build, "size")]
)
def test_images_are_resized_inside_the_network(build: Any, name: str) -> None:
    net = build((1, 10, 12), 10, **{name: 24}).eval()
    x = samples((1, 10, 12))
    by_hand = nn.functional.interpolate(x, (24, 24), mode="bilinear")  # to larger: the same
    torch.testing.assert_close(net(x), net(by_hand))
    flat = net(torch.full((1, 1, 90, 70), 0.5))
    torch.testing.assert_close(flat, net(torch.full((1, 1, 24, 24), 0.5)))


@pytest.mark.parametrize(
    ("name", "shape", "layers"),
    [
        ("dcpfl-fm", (1, 28, 28), "Crp Crp Lr Lr L"),
        ("fedc2i-lenet", (3, 64, 64), "Crp Crp Lr Lr L"),
        ("fedopt-cnn", (3, 32, 32), "Cr Cr pd Lr d L"),
        ("resnet9-gn", (3, 32, 32), "Cgr Cgrp Cgr Cgr Cgrp Cgrp Cgr Cgr p L"),
    ],
)
def test_layers_follow_each_other_as_described(
    name: str, shape: tuple[int, ...], layers: str
) -> None:
    with torch.device("meta"):
        net = made(name, shape, 10)
    letters = {
        nn.Conv2d: "C", nn.GroupNorm: "g", nn.ReLU: "r", nn.MaxPool2d: "p", nn.Linear: "L",
        nn.Dropout: "d",
    }  # fmt: skip
    assert "".join(letters.get(type(p), "") for p in net.modules()) == layers.replace(" ", "")


def test_resnet9_normalises_in_32_groups_and_adds_what_came_in() -> None:
    net = resnet9_gn.build((3, 32, 32), 10)
    norms = [part for part in net.modules() if isinstance(part, nn.GroupNorm)]
    assert [(part.num_groups, part.num_channels) for part in norms] == [
        (32, channels) for channels in (64, 128, 128, 128, 256, 512, 512, 512)
    ]
    residual = next(part for part in net.modules() if hasattr(part, "blocks"))
    x = samples((128, 4, 4))
    torch.testing.assert_close(residual(x) - residual.blocks(x), x)


@pytest.mark.slow
def test_the_stem_for_small_images_keeps_their_size() -> None:
    seen: dict[str, Any] = {}
    for stem in ("imagenet", "cifar"):
        net = resnet18.build((3, 32, 32), 10, stem=stem).get_submodule("net")  # type: ignore[arg-type]
        last = net.get_submodule("layer4")
        last.register_forward_hook(lambda _, x, y, stem=stem: seen.update({stem: y.shape[-2:]}))
        net.eval()(samples((3, 32, 32), 1))
    assert seen == {"imagenet": (1, 1), "cifar": (4, 4)}


# --- ResNet-18 from a file --------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> dict[str, Tensor]:
    """A state dict in torchvision's layout with a thousand classes, none of it as at the start."""
    from torchvision.models import resnet18 as original

    torch.manual_seed(3)
    state = original(weights=None).state_dict()
    for name, tensor in state.items():
        if name.endswith("num_batches_tracked"):
            tensor.fill_(17)
        elif tensor.ndim == 1:  # normalisation starts from ones and zeros
            tensor.uniform_(0.5, 1.5)
    return dict(state)


def saved(state: object, path: Path) -> str:
    if path.suffix == ".safetensors":
        assert isinstance(state, dict)
        save_file(state, path)
    else:
        torch.save(state, path)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_resnet18_takes_everything_but_the_head_from_a_file(
    trained: dict[str, Tensor], tmp_path: Path, ending: str
) -> None:
    path = saved(trained, tmp_path / f"weights.{ending}")
    net = made("resnet18", (1, 8, 8), 10, weights=path).get_submodule("net")
    own = net.state_dict()
    assert own.keys() == trained.keys()
    body = [name for name in trained if not name.startswith("fc.")]
    assert all(torch.equal(own[name], trained[name]) for name in body), "statistics too"
    assert int(own["bn1.num_batches_tracked"]) == 17
    assert own["fc.weight"].shape == (10, 512)
    fresh = made("resnet18", (1, 8, 8), 10, weights=path).get_submodule("net").state_dict()
    assert torch.equal(fresh["fc.weight"], own["fc.weight"]), "the new head is the seed's"


@pytest.mark.slow
def test_the_stem_for_small_images_keeps_its_first_convolution(
    trained: dict[str, Tensor], tmp_path: Path
) -> None:
    path = saved(trained, tmp_path / "weights.pth")
    pretrained = made("resnet18", (3, 32, 32), 10, weights=path, stem="cifar")
    random = made("resnet18", (3, 32, 32), 10, stem="cifar")
    own, other = (net.get_submodule("net").state_dict() for net in (pretrained, random))
    fresh = {name for name in own if torch.equal(own[name], other[name])}
    assert fresh == {"conv1.weight", "fc.weight", "fc.bias"}
    assert all(torch.equal(own[name], trained[name]) for name in own.keys() - fresh)


@pytest.mark.slow
def test_a_file_without_counters_or_classifier_is_taken(
    trained: dict[str, Tensor], tmp_path: Path
) -> None:
    plain = {n: t for n, t in trained.items() if "num_batches" not in n and n[:3] != "fc."}
    path = saved(plain, tmp_path / "old.pth")
    own = made("resnet18", (3, 8, 8), 10, weights=path).get_submodule("net").state_dict()
    assert torch.equal(own["bn1.running_mean"], trained["bn1.running_mean"])
    assert int(own["bn1.num_batches_tracked"]) == 0


def refusal(kind: type[UserError], name: str, shape: tuple[int, ...], **given: Any) -> str:
    """The one line with which a network is refused."""
    with pytest.raises(kind) as caught:
        made(name, shape, 11, **given)
    said = str(caught.value)
    assert "\n" not in said
    assert caught.value.exit_code == 1
    return said


@pytest.mark.slow
def test_a_missing_file_of_weights_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.pth"
    said = refusal(MissingData, "resnet18", (3, 8, 8), weights=str(path))
    assert said == mentioning(
        "resnet18", "state dict", path, "got no such file", "--set", "model.weights=PATH", "none"
    )
    assert "no such file" in refusal(MissingData, "resnet18", (3, 8, 8), weights=str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["text.pth", "text.safetensors", "text of lines.pth", "cut.pth", "code.pth", "list.pth"]
)
def test_a_file_that_holds_something_else_is_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.startswith("text"):
        line = "root:x:0:0:root\n" if "lines" in name else "no weights, but a text, long enough"
        path.write_text(line * 20, encoding="utf-8")
    elif name.startswith("list"):
        torch.save([torch.zeros(2)], path)
    elif name.startswith("code"):
        torch.save(nn.Linear(1, 1), path)  # a class, whose code would have to run
    else:
        torch.save({"conv1.weight": torch.zeros(64, 3, 7, 7)}, path)
        path.write_bytes(path.read_bytes()[:500])
    said = refusal(UserError, "resnet18", (3, 8, 8), weights=str(path))
    came = "a list" if name.startswith("list") else "a file that cannot be read ("
    assert f"in {path}, got {came}" in said
    assert "--set model.weights=PATH" in said


@pytest.mark.slow
def test_weights_of_another_network_are_named_with_the_first_that_differs(
    trained: dict[str, Tensor], tmp_path: Path
) -> None:
    def said(change: dict[str, Tensor | None], **given: Any) -> str:
        state = {n: t for n, t in {**trained, **change}.items() if t is not None}
        path = saved(state, tmp_path / "other.pth")
        return refusal(UserError, "resnet18", (3, 8, 8), weights=path, **given)

    lacks = said({"layer1.0.conv1.weight": None})
    assert mentions(lacks, "layer1.0.conv1.weight", "nothing", "where", "64, 64, 3, 3")
    assert mentions(said({"bn1.running_mean": None}), "bn1.running_mean", "where", "64")
    extra = said({"layer1.0.conv3.weight": torch.zeros(2), "layer1.0.bn3.bias": torch.zeros(2)})
    assert mentions(extra, "layer1.0.conv3.weight", "shape", "2", "1 more")
    other = said({"layer2.0.conv1.weight": torch.zeros(128, 64, 1, 1)}, stem="cifar")
    assert mentions(
        other, "layer2.0.conv1.weight", "shape", "128, 64, 1, 1", "where", "128, 64, 3, 3"
    )
    small = said({"conv1.weight": torch.zeros(64, 3, 3, 3)})
    assert mentions(small, "conv1.weight", "shape", "64, 3, 3, 3", "where", "64, 3, 7, 7")


@pytest.mark.parametrize(
    ("name", "given", "kind", "said"),
    [
        ("resnet18", {"stem": "tiny"}, BadParameter, "'imagenet' | 'cifar'"),
        ("resnet18", {"resize": 4}, BadParameter, "'resize' expects int | None"),
        ("fedc2i-lenet", {"size": 15}, BadParameter, "'size' expects int | None"),
        ("gpt2", {"layers": 0}, BadParameter, "'layers' expects int"),
        ("gpt2", {"dropout": 1.0}, BadParameter, "'dropout' expects float | None"),
        ("dcpfl-fm", {"width": 3}, UnknownName, "parameter of model 'dcpfl-fm' 'width'"),
    ],
)
def test_parameters_of_networks_are_checked(
    name: str, given: dict[str, Any], kind: type[UserError], said: str
) -> None:
    assert said in refusal(kind, name, (3, 32, 32), **given)


# --- GPT-2 ------------------------------------------------------------------------------------


def tiny(**given: Any) -> nn.Module:
    return gpt2.build((6,), 11, **{"layers": 2, "width": 8, "heads": 2, **given}).eval()


@pytest.mark.slow
def test_gpt2_of_full_size_has_124_million_parameters() -> None:
    sizes = {"layers": 12, "width": 768, "heads": 12, "context": 1024}
    with torch.device("meta"):
        net = made("gpt2", (256,), 50_257, **sizes)
        logits = net(torch.zeros(2, 256, dtype=torch.int64))
    layout = ParameterLayout.of(net)
    assert (layout.parameters, layout.buffers) == (124_439_808, 0)
    assert logits.shape == (2, 256, 50_257)


@pytest.mark.slow
def test_gpt2_makes_logits_of_every_token() -> None:
    net = tiny()
    logits = net(torch.randint(11, (3, 6)))
    assert (logits.shape, logits.dtype) == ((3, 6, 11), torch.float32)
    assert net(torch.randint(11, (3, 4))).shape == (3, 4, 11), "shorter texts are read too"


def test_gpt2_does_not_look_ahead() -> None:
    net = tiny()
    x = torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[:, 4] = (x[:, 4] + 1) % 11
    before, after = net(x), net(other)
    assert torch.equal(before[:, :4], after[:, :4])
    assert bool((before[:, 4:] - after[:, 4:]).abs().sum(dim=2).gt(1e-6).all())


def test_the_weights_gpt2_shares_are_counted_once_and_no_head() -> None:
    net = tiny()
    width, context, vocabulary = 8, 6, 11
    block = 12 * width**2 + 13 * width
    once = (vocabulary + context) * width + 2 * block + 2 * width
    layout = ParameterLayout.of(net)
    assert (layout.parameters, layout.width) == (once, once)
    embedding = net.get_parameter("transformer.wte.weight")
    assert sum(tensor is embedding for tensor in net.parameters()) == 1
    assert head_of(net) is None
    assert not bool(layout.head.any())
    module = fl.ClientModule(net, fl.LocalTraining())
    with pytest.raises(fl.Undefined, match="no head"):
        module.features(torch.zeros(1, 6, dtype=torch.int64))
    row = layout.flatten(net)
    row[: vocabulary * width] = 0  # the embedding comes first
    layout.load(net, row)
    assert not bool(net(torch.zeros(1, 6, dtype=torch.int64)).any()), "it is the output layer too"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pretrained GPT-2 of eleven tokens, eight positions, three blocks, saved by transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

    torch.manual_seed(5)
    settings = {"vocab_size": 11, "n_positions": 8, "n_embd": 4, "n_layer": 3, "n_head": 2}
    config = GPT2Config(**settings, bos_token_id=None, eos_token_id=None)
    logging.disable_progress_bar()
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def in_transformers(folder: Path, x: Tensor) -> Tensor:
    from transformers import GPT2LMHeadModel

    net = GPT2LMHeadModel.from_pretrained(folder, local_files_only=True).eval()
    logits: Tensor = net(x).logits
    return logits


def test_gpt2_answers_like_the_folder_it_is_loaded_from(folder: Path) -> None:
    net = made("gpt2", (6,), 11, pretrained=str(folder)).eval()
    x = torch.randint(11, (3, 6))
    torch.testing.assert_close(net(x), in_transformers(folder, x))
    model = {"name": "gpt2", "pretrained": str(folder)}
    again = build_network(load_suite("noisy-noniid", overrides={"model": model}), (6,), 11, seed=9)
    assert torch.equal(weights(again), weights(net)), "the seed decides nothing"


def test_older_files_of_gpt2_are_read_too(folder: Path) -> None:
    """Names without a beginning, the mask among the weights, the output layer a second time."""
    net = made("gpt2", (6,), 11, pretrained=str(folder))
    path = folder / "model.safetensors"
    state = {name.removeprefix("transformer."): t for name, t in load_file(path).items()}
    state |= {
        "h.0.attn.bias": torch.ones(1, 1, 8, 8),
        "lm_head.weight": state["wte.weight"].clone(),
    }
    path.unlink()
    torch.save(state, folder / "pytorch_model.bin")
    assert torch.equal(weights(made("gpt2", (6,), 11, pretrained=str(folder))), weights(net))
    torch.save({**state, "lm_head.weight": torch.ones(11, 4)}, folder / "pytorch_model.bin")
    said = refusal(UserError, "gpt2", (6,), pretrained=str(folder))
    assert mentions(said, "got an output layer", "--set", "model.pretrained=PATH")


def test_only_a_folder_is_told_that_its_settings_fit_no_gpt2(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(config: object) -> None:
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr("transformers.GPT2Model", no_memory)
    with pytest.raises(UserError, match="settings of no GPT-2"):
        gpt2.build((6,), 11, pretrained=str(folder))
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        gpt2.build((6,), 11)


def test_dropout_is_the_folders_unless_it_is_asked_for(folder: Path) -> None:
    def rates(**given: Any) -> list[float]:
        net = made("gpt2", (6,), 11, **given)
        rates = {part.p for part in net.modules() if isinstance(part, nn.Dropout)}
        return sorted(rate for rate in rates if rate)

    assert rates(pretrained=str(folder)) == [0.1]
    assert rates(pretrained=str(folder), dropout=0.0) == []
    assert rates(pretrained=str(folder), dropout=0.25) == [0.25]
    assert rates() == []
    assert rates(dropout=0.2) == [0.2]
    torch.manual_seed(0)
    net, x = tiny(dropout=0.5), torch.zeros(1, 6, dtype=torch.int64)
    assert torch.equal(net(x), net(x))
    net.train()
    assert not torch.equal(net(x), net(x))


def test_a_folder_that_lacks_something_is_one_line(folder: Path) -> None:
    nowhere = folder / "nowhere"
    assert refusal(MissingData, "gpt2", (6,), pretrained=str(nowhere)) == mentioning(
        "gpt2",
        "pretrained GPT-2",
        nowhere,
        "got no config.json there",
        "--set",
        "model.pretrained=PATH",
        "none",
    )
    (folder / "model.safetensors").unlink()
    said = refusal(MissingData, "gpt2", (6,), pretrained=str(folder))
    assert mentions(said, folder, "got neither model.safetensors nor", "pytorch_model.bin")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "bert"}, "got a bert;"),
        ({"tie_word_embeddings": False}, "got an output layer of its own;"),
        ({"vocab_size": 12}, "got a vocabulary of 12 for data of 11 tokens;"),
        ({"vocab_size": None}, "got a vocabulary of None for data of 11 tokens;"),
        ({"n_layer": "two"}, "got settings of no GPT-2 ("),
        ({"n_head": 3}, "got settings of no GPT-2 (ValueError)"),
        ({"n_layer": 4}, "got 'h.3.ln_1.weight' of shape nothing where (4,) belongs and 11 more"),
        ({"n_layer": 2}, "got 'h.2.attn.c_attn.bias' of shape (12,) where nothing belongs and 11"),
        ({"n_positions": 9}, "got 'wpe.weight' of shape (8, 4) where (9, 4) belongs;"),
        ({"n_positions": 5}, "gpt2 expects samples of at most 5 tokens, its context, got"),
        ([], "got a config.json that is not a model's;"),
        ("{", "got a config.json that is not a model's;"),
    ],
)
def test_a_folder_of_another_network_is_one_line(folder: Path, change: Any, said: str) -> None:
    path = folder / "config.json"
    held = json.loads(path.read_text(encoding="utf-8"))
    text = json.dumps({**held, **change} if isinstance(change, dict) else change)
    path.write_text(change if isinstance(change, str) else text, encoding="utf-8")
    assert said in refusal(UserError, "gpt2", (6,), pretrained=str(folder))


@pytest.mark.parametrize(
    ("shape", "given", "said"),
    [
        ((1, 8, 8), {}, "gpt2 expects samples of tokens, (length,), got samples of shape (1,"),
        ((0,), {}, "gpt2 expects samples of tokens, (length,), got samples of shape (0,)"),
        ((6,), {"width": 9}, "gpt2 expects heads that divide the width 9, got heads=2"),
        ((6,), {"context": 5}, "gpt2 expects samples of at most 5 tokens, its context, got"),
    ],
)  # fmt: skip
def test_gpt2_refuses_what_it_cannot_read(
    shape: tuple[int, ...], given: dict[str, int], said: str
) -> None:
    assert refusal(UserError, "gpt2", shape, **given).startswith(said)
