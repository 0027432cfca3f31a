"""Families of methods that no built-in method stands for: written by the documents, they pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from families import FAMILIES, Unlearns, matched
from toy import Play, composition, install

from flbench.plugin.registry import entries
from flbench.run.rounds import round_context
from flbench.testing import CHECKS, check_results

ROOT = Path(__file__).parents[2]

CHECKED = (
    "usual-run", "every-hook-answers", "relabelled-clients", "vectorised-clients", "bytes-add-up",
    "missing-clients", "newcomers-served", "one-client",
)  # fmt: skip


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("families")
    points = [f"family-{kind.__name__} = families:{kind.__name__}" for kind in FAMILIES]
    install(folder, "families-of-tests", "\n".join(["[flbench.methods]", *points]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


def test_what_there_is_to_read_is_there() -> None:
    """Each row names methods, examples of the docs, plugins of tests, or files."""
    page = (ROOT / "plugins" / "README.md").read_text(encoding="utf-8")
    _, _, table = page.partition("\n## Methods to read\n")
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    shown = [re.findall(r"`([^`]+)`", row[1]) for row in rows]
    assert all(shown) and len(shown) > 30
    own = {kind.__name__ for kind in FAMILIES}
    known = {*entries("methods"), *entries("suites"), *CHECKS, *own, "AddsAnExtra"}
    for name in ("hooks.md", "client-module.md"):
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        known |= {*re.findall(r"^class (\w+)", text, re.MULTILINE)}
    names = {name for some in shown for name in some}
    assert [name for name in names - known if not (ROOT / name).is_file()] == []
    assert own <= names


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", FAMILIES, ids=lambda kind: kind.__name__)
@pytest.mark.usefixtures("families")
def test_a_family_passes(kind: type) -> None:
    found = list(check_results(f"family-{kind.__name__}", CHECKED))
    assert [str(one) for one in found if not one.ok] == []
    assert {one.check for one in found if one.state == "passed"} >= {"usual-run", "bytes-add-up"}


def test_units_in_another_order_are_put_back(play_toy: Play) -> None:
    ctx = round_context(play_toy("fedavg", rounds=1).run, 1)
    shuffled = ctx.initial.clone()
    first, bias, second = ctx.layout.slots[:3]
    order = torch.randperm(first.shape[0], generator=torch.Generator().manual_seed(1))
    for slot, dim in ((first, 0), (bias, 0), (second, 1)):
        part = slice(slot.start, slot.stop)
        shuffled[part] = ctx.initial[part].view(slot.shape).index_select(dim, order).flatten()
    assert not torch.equal(shuffled, ctx.initial)
    assert torch.equal(matched(shuffled, ctx.initial, ctx), ctx.initial)


def test_a_client_that_is_unlearnt_has_added_nothing(play_toy: Play) -> None:
    """In the first round what is left is the sum of the others' shares."""
    plain = play_toy("fedavg", rounds=1, participation=1.0)
    seen = play_toy(
        composition(("unlearns", Unlearns(client=2, round=1))), rounds=1, participation=1.0
    )
    kept = play_toy(
        composition(("unlearns", Unlearns(client=2, round=9))), rounds=1, participation=1.0
    )
    added = kept.state.memory["unlearns.added"]
    assert torch.equal(kept.state.models, plain.state.models)
    assert added.abs().sum() > 0
    assert torch.equal(seen.state.models, plain.state.models - added)
