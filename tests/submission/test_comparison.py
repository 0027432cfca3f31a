"""Comparing a result with its replay: nothing of it is left out, alike or computed elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from made_results import made
from made_tasks import as_numbers
from mentions import mentioning
from pydantic import BaseModel
from toy import player, toy_dataset

from flbench.metrics import METRICS, curve_kind, metrics_of
from flbench.results import schema
from flbench.results.difference import TOLERANCE, relative_distance
from flbench.results.marks import EQUAL, KINDS, How
from flbench.results.schema import YOUNGER, Change, Clients, Result
from flbench.submission.comparison import COMPARERS, Deviation, Part, compare, mark_of
from flbench.submission.consistency import ASKED_FOR, faults, recount
from flbench.submission.verification import COMPUTED_BY, computed_otherwise

NOT_COMPARED = {"digest", "schema_version", "status", "seconds", "energy", "environment"}
"""Keys of a file that differ between two runs, or say how it was kept."""
CODE = {"distribution", "version", "source", "package", "config"}
"""Fields that say which code ran: `computed_otherwise` reads them."""
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return player(tmp_path_factory.mktemp("toy"))("fedavg", target=0.3).result


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One that has all there is: newcomers, a clock, asked metrics, groups that move, scores."""
    played = player(tmp_path_factory.mktemp("toy"))(
        "cfl", settings={"start_round": 1}, rounds=5, clients=9, unseen=0.34, unseen_epochs=1,
        dataset=toy_dataset(samples=108), metrics=("auroc",), target=0.3,
        clock={"seconds_per_step": 0.5},
    )  # fmt: skip
    table = json.loads(played.result.canonical())
    table["notes"].append({"round": 5, "name": "epsilon", "value": {"spent": [1.5, "delta"]}})
    table["warnings"].append("slow")
    table["membership"].append({"round": 3, "clients": [0], "labels": [1]})
    consistent(table)
    return Result.model_validate(table)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result may contradict itself."""
    monkeypatch.setattr(schema, "contradictions", lambda result: iter(()))


def edited(result: Result, edit: Edit, **environment: str) -> Result:
    """A result after an edit, computed elsewhere where something is said of the environment."""
    table = json.loads(result.canonical())
    edit(table)
    table["environment"] |= environment
    return Result.model_validate(table)


def parts(one: Result, other: Result, rounds: int = 3) -> dict[str, Part]:
    return {part.name: part for part in compare(one, other, rounds)}


def wrong(one: Result, other: Result, rounds: int | None = None) -> dict[str, str]:
    """The parts that do not agree, with what is said of them."""
    found = compare(one, other, rounds or one.suite["rounds"])
    return {part.name: part.line(TOLERANCE) for part in found if not part.agrees(TOLERANCE)}


ELSEWHERE = {"torch": "1.0"}


# --- nothing is left out ------------------------------------------------------------------------


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A model, and those that its fields hold and that are compared field by field."""
    yield model
    for name, field in model.model_fields.items():
        if mark_of(model, name).how == "fields":
            todo = [field.annotation]
            while todo:
                one = todo.pop()
                todo += get_args(one)
                if isinstance(one, type) and issubclass(one, BaseModel):
                    yield from models(one)


def test_every_field_says_how_it_is_compared() -> None:
    found = [*models(Result)]
    assert {one.__name__ for one in found} >= {"Result", "Clients", "Unseen", "Plugin", "Method"}
    for model in found:
        for field in model.model_fields:
            mark = mark_of(model, field)
            assert mark.how in {*COMPARERS, "not", "fields", "sums"}
            assert mark.kind in {*KINDS, ""}
            assert (mark.kind != "") == (mark.how == "sums")
    assert {*COMPARERS, "not", "fields", "sums"} == {*get_args(How)}


def test_a_new_field_without_a_mark_is_an_error() -> None:
    class Newer(Clients):
        marked: Annotated[int, EQUAL] = 0
        age: int = 0

    assert mark_of(Newer, "marked") is EQUAL
    with pytest.raises(ValueError, match="not enough values"):
        mark_of(Newer, "age")


def test_every_number_of_a_summary_and_every_curve_has_a_kind(rich: Result) -> None:
    for metric in (*METRICS, *metrics_of("f1", None)):
        assert metric.kind in KINDS, metric.name
    assert {curve_kind(name) for name in rich.curves} <= {*KINDS}
    assert curve_kind("loss") == curve_kind("train_loss") == "loss"
    assert curve_kind("bytes_up") == curve_kind("slowest_down") == "bytes"
    assert curve_kind("trained_epochs") == curve_kind("simulated_seconds") == "other"
    assert curve_kind("auroc") == "metric"


def leaves(value: object, *path: object) -> Iterator[tuple[object, ...]]:
    """Where the numbers and texts of a file are; of a list its last entry stands for all."""
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from leaves(one, *path, key)
    elif isinstance(value, list) and value:
        yield from leaves(value[-1], *path, -1)
    else:
        yield path


def at(table: Any, path: tuple[object, ...]) -> Any:
    for part in path:
        table = table[part]
    return table


def changed(value: object) -> object:
    """Another value of the same kind."""
    if isinstance(value, bool) or value is None:
        return not value if isinstance(value, bool) else 1
    if isinstance(value, (int, float)):
        return value + 1
    return f"{value}x" if isinstance(value, str) else {"more": 1} if value == {} else [1]


def changes(table: dict[str, Any]) -> Iterator[tuple[str, Edit]]:
    """Every way to change or to leave out one thing of a file."""
    for path in leaves({key: table[key] for key in table.keys() - NOT_COMPARED}):
        name = ".".join(map(str, path))
        *above, last = path
        if {*path} & CODE or name.startswith(("scores", "membership", "source_changes")):
            continue  # scores and groups are kept in another form, see below
        yield (
            name,
            lambda table, a=tuple(above), b=last: (
                at(table, a).update({b: changed(at(table, a)[b])})
                if isinstance(b, str)
                else at(table, a).__setitem__(b, changed(at(table, a)[b]))
            ),
        )
        if isinstance(at(table, tuple(above)), dict) and above not in (["method"], ["fingerprint"]):
            yield f"without {name}", lambda table, a=tuple(above), b=last: at(table, a).pop(b)


@pytest.mark.slow
def test_what_is_changed_or_left_out_differs_where_both_were_computed_alike(
    rich: Result, free: None
) -> None:
    """Every number, text and array of a file, one at a time; the replay is as the file was."""
    whole = json.loads(rich.canonical())
    assert whole["scores"]
    assert len(whole["membership"]) > 1
    tried, missed = 0, []
    for name, edit in changes(whole):
        if name in ("without suite.rounds", "without notes.-1.name", "without notes.-1.round"):
            continue
        try:
            other = edited(rich, edit)
        except ValueError:
            continue  # the schema refuses it
        if other == rich:
            continue  # the field has its default
        tried += 1
        may_lack = name.removeprefix("without ") in YOUNGER[3]
        if not wrong(other, rich) and not may_lack:
            missed.append(name)
    assert missed == []
    assert tried > 150


@pytest.mark.slow
def test_so_do_groups_and_scores(rich: Result, free: None) -> None:
    edits: dict[str, list[Edit]] = {
        "groups": [
            lambda table: table["membership"].pop(),
            lambda table: table["membership"][-1].update(
                round=table["membership"][-1]["round"] - 1
            ),
            lambda table: table["membership"][0].update(
                labels=[7 - label for label in table["membership"][0]["labels"]]
            ),
        ],
        "scores": [
            lambda table: table.update(scores=None),
            lambda table: table["scores"].update(high=table["scores"]["high"] + 1e-9),
            lambda table: table["scores"].update(row_ids=table["scores"]["row_ids"][::-1]),
        ],
    }
    for part, some in edits.items():
        for edit in some:
            assert [*wrong(edited(rich, edit), rich)] == [part]


def test_a_result_is_the_same_as_itself(rich: Result) -> None:
    rounds = rich.suite["rounds"]
    found = compare(rich, rich, rounds)
    assert all(part.same and part.alike and part.agrees(0) for part in found)
    first = {part.name for part in compare(rich, rich, rounds - 1)}
    late = {
        "summary", "metrics of clients", "unseen clients", "what was sent", "scores", "warnings",
    }  # fmt: skip
    assert {part.name for part in found} - first == late
    assert {"settings", "clients", "groups", "notes", "accuracy by round"} <= first


def test_the_curves_of_a_headline_are_a_part_of_their_own() -> None:
    one = as_numbers(made(0.5))
    curves = {"rmse": [0.9, 0.5], "rmse_validation": [0.8, 0.6], "loss": [2.0, 1.0], "f1": [0, 0]}
    one = one.model_copy(update={"curves": curves})
    changed = {"rmse": [0.9, 0.4], "rmse_validation": [0.8, 0.5], "loss": [2.0, 3.0], "f1": [0, 1]}
    names = {
        name: [part.name for part in compare(one, other, 2) if not part.same]
        for name, values in changed.items()
        for other in [one.model_copy(update={"curves": {**curves, name: values}})]
    }
    assert names == {
        "rmse": ["RMSE by round"], "rmse_validation": ["RMSE by round"],
        "loss": ["loss by round"], "f1": ["other numbers by round"],
    }  # fmt: skip


def test_the_first_rounds_have_the_samples_and_settings_of_the_whole_run(result: Result) -> None:
    def edit(table: dict[str, Any]) -> None:
        table["clients"]["train"][0] += 1

    assert [*wrong(edited(result, edit), result, rounds=1)] == ["clients"]


# --- where both were computed alike -------------------------------------------------------------


@pytest.mark.parametrize("key", COMPUTED_BY)
def test_another_environment_or_one_that_is_not_known_is_not_alike(
    key: str, result: Result
) -> None:
    assert computed_otherwise(result, result) == []
    here = {**result.environment, key: "here"}
    again = result.model_copy(update={"environment": here})
    for there in ({**here, key: "there"}, {k: v for k, v in here.items() if k != key}):
        told, *_ = computed_otherwise(result.model_copy(update={"environment": there}), again)
        assert told.startswith(key)
        assert told.endswith("here here")


def test_nor_are_several_processes_but_for_one_client_after_the_other(result: Result) -> None:
    def told(executor: str, ranks: str) -> list[str]:
        here = {**result.environment, "executor": executor, "ranks": "1"}
        files = [{**here, "ranks": ranks}, here]
        pair = [result.model_copy(update={"environment": one}) for one in files]
        return computed_otherwise(*pair)

    assert told("vectorised", "1") == told("sequential", "2") == []
    assert told("vectorised", "2") == ["processes 2, here 1"]


def test_nor_is_a_gpu_whose_host_is_not_known(result: Result) -> None:
    there = {**result.environment, "device": "cuda:0", "processor": "NVIDIA H100"}
    one = result.model_copy(update={"environment": there})
    assert computed_otherwise(one, one) == [mentioning("processor", "known")]


@pytest.mark.parametrize("about", [{"source": "0" * 12}, {"source": ""}, {"version": "0.0.1"}])
def test_nor_is_other_code(about: dict[str, str], result: Result) -> None:
    other = edited(result, lambda table: table["method"]["plugins"][0].update(about))
    assert len(computed_otherwise(other, result)) == 1
    assert not any(part.alike for part in compare(other, result, 3))


def test_a_last_bit_counts_where_both_were_computed_alike(result: Result) -> None:
    def edit(table: dict[str, Any]) -> None:
        table["summary"]["ece"] += 1e-15

    assert wrong(edited(result, edit), result) == {
        "summary": mentioning("summary", "1e-15", "summary.ece")
    }
    assert wrong(edited(result, edit, **ELSEWHERE), result) == {}


# --- attacks, of files that say that they were computed elsewhere ---------------------------------


def consistent(table: dict[str, Any]) -> None:
    """Let the summary follow from the arrays, as a forger would."""
    made = Result.model_validate(table)
    table["summary"] |= {k: v for k, v in recount(made).items() if k in table["summary"]}


def true_groups(table: dict[str, Any]) -> None:
    """Say that the groups that were found are the true ones."""
    labels = Result.model_validate(table).memberships()[-1][1]
    table["clients"]["group"] = [label for label in labels]


def small_loss(table: dict[str, Any]) -> None:
    table["clients"]["loss"] = [loss / 100 for loss in table["clients"]["loss"]]
    mean = [
        loss / n for loss, n in zip(table["clients"]["loss"], table["clients"]["test"], strict=True)
    ]
    table["summary"]["loss_mean"] = sum(mean) / len(mean)
    del table["curves"]["loss"]


def better_groups(table: dict[str, Any]) -> None:
    """Change the groups of the last round only: in most rounds they are as they were."""
    rounds = table["suite"]["rounds"]
    table["membership"].append(
        {"round": rounds, "labels": table["clients"]["group"], "clients": None}
    )


def no_group(table: dict[str, Any]) -> None:
    """Say that one of the groups is none, so that its clients count nowhere."""
    for change in table["membership"]:
        change["labels"] = [-1 if label == 0 else label for label in change["labels"]]


def one_good_round(table: dict[str, Any]) -> None:
    """A single round of a hundred, which is the best one, and reaches the target."""
    table["curves"]["accuracy"][1] = 1.0


def one_good_client(table: dict[str, Any]) -> None:
    clients = table["clients"]
    worst = min(range(len(clients["test"])), key=lambda at: clients["correct"][at])
    clients["correct"][worst] = clients["test"][worst]


def fewer_bytes(table: dict[str, Any]) -> None:
    """Move bytes from one client to another."""
    some = table["clients"]["bytes"]
    some[0], some[1] = some[0] + some[1], 0


def fewer_labels(table: dict[str, Any]) -> None:
    counts = table["clients"]["labels"][0]
    counts[next(iter(counts))] += 1


def fewer_samples(table: dict[str, Any]) -> None:
    table["clients"]["train"][0] -= 1


def private(table: dict[str, Any]) -> None:
    table["notes"][-1]["value"]["spent"] = [0.1, "delta"]


def without(field: str) -> Edit:
    part, _, name = field.partition(".")
    return lambda table: table[part].pop(name)


def nothing(table: dict[str, Any]) -> None:
    """Leave it as it is."""


ATTACKS: dict[str, tuple[Edit, str]] = {
    "nothing": (nothing, ""),
    "true groups": (true_groups, "clients"),
    "loss": (small_loss, "clients"),
    "groups at the end": (better_groups, "groups"),
    "no group": (no_group, "groups"),
    "one round": (one_good_round, "accuracy by round"),
    "one client": (one_good_client, "clients"),
    "bytes of clients": (fewer_bytes, "clients"),
    "labels": (fewer_labels, "clients"),
    "train": (fewer_samples, "clients"),
    "epsilon": (private, "notes"),
    **{
        field: (without(field), part)
        for field, part in {
            "curves.accuracy_validation": "accuracy by round",
            "curves.loss": "loss by round",
            "curves.ari": "other numbers by round",
            "curves.slowest_down": "bytes by round",
            "summary.ari": "summary",
            "summary.loss_mean": "summary",
            "client_metrics.auroc": "metrics of clients",
            "bytes.peer": "what was sent",
        }.items()
    },
}


@pytest.fixture(scope="module")
def long(rich: Result) -> Result:
    """The same of a hundred rounds and clients enough for a share of each to be small.

    So a mean over rounds or clients hides what happens to one of them.
    """

    def edit(table: dict[str, Any]) -> None:
        table["suite"]["rounds"] = 100
        for name, curve in table["curves"].items():
            table["curves"][name] = [*curve[:-1], *[curve[-1]] * (100 - len(curve) + 1)]
        table["summary"]["round"] = 100
        consistent(table)

    return edited(rich, edit)


@pytest.mark.parametrize(("edit", "part"), ATTACKS.values(), ids=ATTACKS)
def test_what_is_forged_is_found_elsewhere_too(
    edit: Edit, part: str, long: Result, free: None
) -> None:
    forged = edited(long, lambda table: (edit(table), consistent(table)), **ELSEWHERE)
    assert computed_otherwise(forged, long)
    found = wrong(forged, long)
    assert part in found if part else found == {}, "it is called reproduced where nothing differs"


def test_perplexity_is_judged(result: Result) -> None:
    """The mean of losses, and their exponential where samples are text."""

    def text(table: dict[str, Any]) -> None:
        table["summary"]["perplexity"] = 2.0

    lied = edited(result, lambda t: (text(t), t["summary"].update(perplexity=1.1)), **ELSEWHERE)
    assert [*wrong(lied, edited(result, text))] == ["summary"]
    assert [*wrong(result, edited(result, text))] == ["summary"], "it may not be left out"


# --- what a file lacks ---------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["curves.loss", "curves.groups", "summary.nmi", "summary.kld"])
def test_what_every_file_of_its_version_has_is_needed(field: str, result: Result) -> None:
    """Before anything is played."""
    assert list(faults(edited(result, without(field)))) == [f"'{field}': field required"]


def test_what_its_version_did_not_have_yet_is_said_not_to_be_judged(result: Result) -> None:
    def older(table: dict[str, Any]) -> None:
        table["schema_version"] = 2
        for field in YOUNGER[2] - {"scores", "clients.labels", "reads"} - ASKED_FOR.keys():
            part, _, name = field.partition(".")
            if name in table[part]:  # its method has no lists of candidates, its suite no target
                without(field)(table)
        table["clients"]["labels"] = None
        del table["scores"], table["reads"]

    old = edited(result, older)
    assert list(faults(old)) == []
    found = parts(old, result)
    assert all(part.same and part.agrees(0) for part in found.values())
    lines = [part.line(TOLERANCE) for part in found.values()]
    told = " ".join(line for line in lines if "not judged, as the file lacks it: " in line)
    assert all(
        field in told for field in ("clients.labels", "curves.slowest_down", "reads", "summary.ece")
    )
    newer = edited(old, lambda table: table.update(schema_version=3))
    assert {*wrong(newer, result)} == {"bytes by round", "clients", "summary"}


# --- how far apart ------------------------------------------------------------------------------


def test_the_distance_of_two_numbers() -> None:
    assert relative_distance(0.5, 0.25) == 0.25
    assert relative_distance(90, 100) == relative_distance(100, 90) == 0.1
    assert relative_distance(-200, 0) == 1.0
    assert relative_distance(None, None) == 0
    assert relative_distance(None, 0) == relative_distance(0.5, None) == inf


@pytest.mark.parametrize(
    ("curve", "part", "change", "agrees"),
    [
        ("accuracy", "accuracy by round", [0.0, 0.03, 0.0], True),
        ("accuracy", "accuracy by round", [0.0, 0.031, 0.0], False),  # .03 in one round
        ("accuracy", "accuracy by round", [0.011, -0.011, 0.011], False),  # .01 on average
        ("bytes_down", "bytes by round", [0, 0, 10**9], False),
        ("loss", "loss by round", [0.0, 0.0, None], False),
    ],
)
def test_curves_are_compared_round_by_round(
    curve: str, part: str, change: list[Any], agrees: bool, result: Result
) -> None:
    old = result.curves[curve]
    new = [None if d is None else (v or 0) + d for v, d in zip(old, change, strict=True)]
    other = result.model_copy(
        update={
            "curves": {**result.curves, curve: new},
            "environment": {**result.environment, **ELSEWHERE},
        }
    )
    found = parts(other, result)
    assert not found[part].same
    assert found[part].agrees(TOLERANCE) == agrees
    assert all(one.same for name, one in found.items() if name != part)
    if change[0] == 0:
        assert parts(other, result, 1)[part].same, "of round 1 nothing is known to differ"


def grouped(result: Result, *changes: tuple[int, list[int]]) -> Result:
    """The result with these groups, computed elsewhere."""
    made = [Change(round=at, labels=labels) for at, labels in changes]
    environment = {**result.environment, **ELSEWHERE}
    return result.model_copy(update={"membership": made, "environment": environment})


def test_groups_are_compared_under_the_best_matching(result: Result) -> None:
    one = grouped(result, (1, [0, 0, 0, 1, 1, 1]))

    def moved(other: Result, rounds: int = 3) -> tuple[float, ...]:
        found = parts(one, other.model_copy(update={"environment": {}}), rounds)["groups"]
        return tuple(entry.mean for entry in found.entries)

    assert moved(one) == ()
    assert moved(grouped(result, (1, [1, 1, 1, 0, 0, 0]))) == (0, 0), "other names"
    late = grouped(result, (1, [0, 0, 0, 1, 1, 1]), (2, [0, 0, 1, 1, 1, 1]))
    assert moved(late) == (pytest.approx(2 / 3 / 6), pytest.approx(1 / 6)), "rounds 2 and 3 of 3"
    assert moved(late, 1) == ()
    assert moved(grouped(result, (3, [0, 0, 0, 1, 1, 1]))) == (inf, 0), "two rounds had none"
    assert moved(grouped(result, (1, [0, 0, 0, -1, -1, -1]))) == (0.5, 0.5), "none is no group"


def test_of_a_hundred_clients_one_may_be_elsewhere(result: Result) -> None:
    def entries(ones: int) -> Deviation:
        one = grouped(result, (1, [0] * 50 + [1] * 50))
        other = grouped(result, (1, [0] * (50 + ones) + [1] * (50 - ones)))
        return parts(one, other.model_copy(update={"environment": {}}), 1)["groups"].entries[0]

    assert entries(1).agrees(0.01), "1 of 100 is .01, however it is rounded"
    assert not entries(2).agrees(0.01)


def test_clients_are_compared_by_their_shares(result: Result) -> None:
    def having(**arrays: list[Any]) -> Result:
        clients = result.clients.model_copy(update=arrays)
        return result.model_copy(update={"clients": clients})

    test = [10, 10, 20, 20, 10, 10]
    one = having(test=test, correct=[5, 5, 5, 5, 5, 5])
    other = having(test=test, correct=[6, 4, 5, 5, 5, 5])
    (entry,) = parts(one, other)["clients"].entries
    assert entry.mean == pytest.approx(0.2 / 6), "they do not cancel"
    assert entry.most == pytest.approx(0.1)
    (where, *_) = (entry.where for entry in parts(one, having(test=[10] * 6))["clients"].entries)
    assert where == "clients.test"


def test_a_part_says_what_it_is() -> None:
    def line(*entries: Deviation, alike: bool = False) -> str:
        return Part("x", entries, alike).line(0.02)

    near, far = Deviation("y", "share", 0.01, 0.05), Deviation("z", "share", 0.03, 0.03)
    assert line() == "x: same bytes"
    assert line(near) == "x: within tolerance, 0.0100 (y)"
    assert line(near, far) == mentioning("x", "0.0300", "0.02 (z)")
    spike = Deviation("y", "share", 0.01, 0.5)
    assert line(near, spike) == mentioning("x", "0.5000", "are 0.06", "place", "y")
    assert line(near, alike=True) == mentioning("x", "0.0500", "same bytes", "y")
    gone = Deviation("y", "exact", inf, inf)
    assert line(gone) == "x: differs, allowed are 0 (y)"
    assert line(Deviation("y", "reported", inf, inf)) == mentioning("x", "not judged", "y")
    lacking = Deviation("y", "exact", inf, inf, lacking=True)
    assert line(lacking) == mentioning("x", "same bytes", "not judged", "y")
    assert Part("x", [lacking], alike=True).agrees(0)


def test_the_limits_hold_what_was_measured() -> None:
    root = Path(__file__).resolve().parents[2]
    study = json.loads((root / "leaderboard/studies/tolerances.json").read_text(encoding="utf-8"))
    text = " ".join((root / "docs" / "submitting.md").read_text(encoding="utf-8").split())
    files, differ = ([len(one[key]) for one in study.values()] for key in ("files", "differ"))
    assert f"{files[0]} committed files" in text
    assert f"{files[1]} of them with the instructions" in text
    assert f" {sum(files) - sum(differ)} agree;" in text
    largest = [one["largest"] for one in study.values()]
    assert all({*one}.isdisjoint(("groups", "bytes", "exact")) for one in largest)
    for one in largest:
        for name, (mean, most) in one.items():
            kind = KINDS[name]
            assert mean <= max(kind.mean, kind.most) * TOLERANCE, "a number by itself has one limit"
            assert most <= kind.most * TOLERANCE
    for kind, told in (("share", 0.008), ("clients", 0.012), ("loss", 0.045)):
        assert max(one[kind][1] for one in largest) <= told
        assert f"more than {told}" in text


def test_the_docs_state_every_kind_and_part(rich: Result) -> None:
    root = Path(__file__).resolve().parents[2]
    text = (root / "docs" / "submitting.md").read_text(encoding="utf-8")
    for part in compare(rich, rich, rich.suite["rounds"]):
        assert part.name in text
    for kind in KINDS.values():
        limits = ("any" if one == inf else f"{one * TOLERANCE:g}" for one in (kind.mean, kind.most))
        assert f"| {kind.name} | {' | '.join(limits)} |" in text, kind.name
