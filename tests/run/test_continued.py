"""More rounds for a finished run: it ends with the bytes of the longer run, or starts over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kept_runs import LAST, Rounds, kept_spec, played_to_disk
from mentions import mentions
from toy import bad, toy_suite

from flbench import ClientModule, Context
from flbench.results.files import read_result
from flbench.results.kept_files import last_checkpoint_path
from flbench.results.schema import VOLATILE, Result
from flbench.run.continued import round_to_keep
from flbench.run.run_folder import tidy
from flbench.run.spec import RunSpec

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "learning rate": {"local.lr_decay": 0.9},
    "other evaluations": {"eval_every": 2},
    "fine-tuned": {"ft_epochs": 1},
    "validation": {"headline": "validation"},
    "own models": {"own_models": True},
    "newcomers": {"unseen": 0.34, "unseen_epochs": 1, "clients": 6},
    "clock": {"clock": {"seconds_per_step": 1.0, "up": 1000.0, "dropout": 0.2}},
    "periods": {
        "periods": [
            {"start": 3, "change": "exchange"},
            {"start": 5, "change": "swap-labels", "labels": [[0, 1], [2, 3]], "clients": [0]},
            {"start": 2, "change": "leave", "clients": [1], "until": 5},
            {"start": 6, "change": "come", "clients": [4]},
        ]
    },
}


def stable(result: Result) -> dict[str, Any]:
    return result.model_dump(exclude=set(VOLATILE))


def three_then_six(folder: Path, **changes: Any) -> tuple[RunSpec, Result, list[int], list[str]]:
    """A run of 3 rounds that goes on to 6: its spec, the result, its rounds, what it said."""
    short = kept_spec(folder, keep=LAST, rounds=3, **changes)
    first = played_to_disk(short)
    said, seen = list[str](), Rounds()
    long = replace(short.of_rounds(6), resume=True, say=said.append, sinks=(("rounds", seen),))
    result = played_to_disk(long)
    assert read_result(short.path) == first, "it stays"
    return long, result, seen.heard, said


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_a_continued_run_ends_with_the_bytes_of_the_longer_run(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    long, result, heard, said = three_then_six(tmp_path / "short", **changes)
    kept = round_to_keep(long.of_rounds(3).suite)
    assert heard == list(range(kept + 1, 7))
    assert mentions(said, f"round {kept + 1}", "3 rounds")
    whole = played_to_disk(kept_spec(tmp_path / "whole", rounds=6, **changes))
    assert stable(result) == stable(whole)


def test_which_round_a_longer_run_has_too() -> None:
    kept = {
        (3, 1, 0): 3,
        (3, 3, 0): 3,
        (3, 2, 0): 2,
        (1, 5, 0): 0,
        (3, 1, 2): 2,
    }
    for (rounds, every, tune), round_ in kept.items():
        suite = toy_suite(rounds=rounds, eval_every=every, ft_epochs=tune)
        assert round_to_keep(suite) == round_


@pytest.mark.parametrize("name", ["pfedlia", "oracle"])
def test_a_method_that_looks_at_the_number_of_rounds_starts_over_and_says_so(
    name: str, tmp_path: Path
) -> None:
    more: dict[str, Any] = {"method": name, "settings": {"warmup": 4}}
    _, result, heard, said = three_then_six(tmp_path / "short", **more)
    assert heard == [1, 2, 3, 4, 5, 6]
    assert mentions(said, name, "number of rounds", "round 1")
    whole = played_to_disk(kept_spec(tmp_path / "whole", rounds=6, **more))
    assert stable(result) == stable(whole)


def test_a_function_that_a_hook_gave_is_noticed_too(tmp_path: Path) -> None:
    def local_term(self: Any, ctx: Context) -> Any:
        def term(module: ClientModule) -> torch.Tensor:
            return module.flat().square().sum() * (0.1 / ctx.rounds)

        return term

    *_, heard, said = three_then_six(tmp_path, method=bad(local_term=local_term))
    assert heard == [1, 2, 3, 4, 5, 6]
    assert mentions(said, "bad", "number of rounds")


def test_what_a_method_needs_is_no_look_at_the_rounds(tmp_path: Path) -> None:
    *_, heard, _ = three_then_six(tmp_path, method="fedamp")
    assert heard == [4, 5, 6]


def test_the_longest_of_several_is_taken(tmp_path: Path) -> None:
    for rounds in (1, 3, 2):
        played_to_disk(kept_spec(tmp_path, keep=LAST, rounds=rounds))
    seen = Rounds()
    spec = kept_spec(tmp_path, rounds=5)
    played_to_disk(replace(spec, resume=True, sinks=(("rounds", seen),)))
    assert seen.heard == [4, 5]


def test_a_run_that_keeps_nothing_says_how_it_would(tmp_path: Path) -> None:
    said, seen = list[str](), Rounds()
    ended = kept_spec(tmp_path, rounds=3)
    played_to_disk(ended)
    more = {"resume": True, "say": said.append, "sinks": (("rounds", seen),)}
    played_to_disk(replace(ended.of_rounds(6), **more))
    assert seen.heard == [1, 2, 3, 4, 5, 6]
    assert mentions(said, "--resume", 3, "--keep-checkpoint", str(ended.path))
    played_to_disk(replace(ended.of_rounds(2), **more))
    assert mentions(said, "--resume", "6 rounds", "longer")


def test_another_setting_is_another_run(tmp_path: Path) -> None:
    played_to_disk(kept_spec(tmp_path, keep=LAST, rounds=2, **{"local.lr": 0.2}))
    said, seen = list[str](), Rounds()
    spec = kept_spec(tmp_path, rounds=3)
    played_to_disk(replace(spec, resume=True, say=said.append, sinks=(("rounds", seen),)))
    assert (seen.heard, said) == ([1, 2, 3], [])


def test_a_kept_checkpoint_outlives_what_frees_the_folder(tmp_path: Path) -> None:
    spec = kept_spec(tmp_path, keep=LAST, rounds=2)
    played_to_disk(spec)
    played_to_disk(replace(spec, force=True))  # takes the place of the first one
    tidy(spec.path.parent)
    names = sorted(path.name for path in spec.path.parent.iterdir())
    assert names == ["seed-0.json", last_checkpoint_path(spec.path).name]
