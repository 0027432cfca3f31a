"""How scales differ from a paper's protocol: computed by hand, and complete for every paper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from flbench.papers.paper import (
    Paper,
    PaperTable,
    PublishedValue,
    Scale,
    Stated,
    load_paper,
    numbers,
)
from flbench.papers.protocol import (
    DERIVED,
    SPLIT,
    Departure,
    cells,
    departures,
    field_value,
    same,
    text,
    train_share,
)
from flbench.papers.reproduction import ReproducedValue
from flbench.plugin.registry import entries
from flbench.suite import load_suite, suite_field

PAPERS = sorted(entries("papers"))
SUITE = """
version = 1
summary = "two groups"
dataset = "digits"
clients = 8
rounds = 2
partition = "iid"
model = { name = "mlp", hidden = 4 }
local = { lr = 0.1, optimizer = "adam" }
"""
ABOUT = {"name": "mine", "summary": "s", "title": "t", "authors": "a", "venue": "v", "link": "l"}


@pytest.fixture
def suite(tmp_path: Any) -> str:
    path = tmp_path / "two.toml"
    path.write_text(SUITE)
    return str(path)


def paper_of(*stated: Stated) -> Paper:
    return Paper(protocol=list(stated), **ABOUT)  # type: ignore[arg-type]


def table_of(suite: str, *methods: str) -> PaperTable:
    return PaperTable(caption="T", suites=[suite], datasets=["digits"], methods=list(methods))


def row(suite: str, method: str = "fedavg", *results: Any, data: str = "digits") -> ReproducedValue:
    return ReproducedValue(
        PublishedValue(suite, data, method, 0.5, None), results, (0.5,) * len(results), "equal"
    )


def result(
    train: list[int], validation: list[int], test: list[int], method: str = "fedavg", seed: int = 0
) -> Any:
    clients = SimpleNamespace(train=train, validation=validation, test=test)
    return SimpleNamespace(clients=clients, method=SimpleNamespace(name=method), seed=seed)


def said(found: list[Departure]) -> dict[str, tuple[Any, list[str]]]:
    return {one.stated.what: (one.stated.value, list(one.here)) for one in found}


def stated(what: str, value: Any, **more: Any) -> Stated:
    return Stated(what=what, value=value, source="paper", **more)


def test_only_what_differs_is_listed(suite: str) -> None:
    protocol = paper_of(
        stated("rounds", 200), stated("clients", 8), stated("model", "lenet5"),
        stated("model.hidden", 4), stated("model.weights", "random"), stated("local.lr", 0.1),
        stated("local.optimizer", "sgd"), stated("seeds", 4), stated("train_share", 0.75),
    )  # fmt: skip
    scale = Scale(seeds=2, on={"digits": {"rounds": 12, "lr": 0.1}})
    found = said(departures(protocol, table_of(suite, "fedavg"), scale, [row(suite)]))
    assert found == {
        "rounds": (200, ["12"]),
        "model": ("lenet5", ["mlp"]),
        "local.optimizer": ("sgd", ["adam"]),
        "seeds": (4, ["2"]),
        "train_share": (0.75, ["0.6"]),  # a quarter tests, a fifth of the rest validates
    }
    as_it = Scale(seeds=4, on={"digits": {"rounds": 200, "optimizer": "sgd", "model": "lenet5"}})
    names = set(said(departures(protocol, table_of(suite, "fedavg"), as_it, [row(suite)])))
    assert names == {"train_share"}, "a network without such a parameter has no other value of it"


def test_what_the_paper_does_not_give_is_listed_with_our_choice(suite: str) -> None:
    """A silence of the protocol, and a setting of the scale that the protocol forgot."""
    protocol = paper_of(Stated(what="rounds", where="until convergence"))
    scale = Scale(on={"digits": {"local.drop_last": True}})
    found = said(departures(protocol, table_of(suite, "fedavg"), scale, [row(suite)]))
    assert found == {"rounds": (None, ["2"]), "local.drop_last": (None, ["true"])}


def test_what_only_the_person_can_give_is_taken_to_be_as_stated(suite: str) -> None:
    protocol, needs = paper_of(stated("model.weights", "pretrained")), {"model.weights": "a file"}
    table, rows = table_of(suite, "fedavg"), [row(suite)]
    on: dict[str, dict[str, Any]] = {"digits": {}}
    assert departures(protocol, table, Scale(on=on, needs=needs), rows) == []
    assert said(departures(protocol, table, Scale(on=on), rows)) == {
        "model.weights": ("pretrained", ["random"])
    }


def test_samples_are_counted_in_results(suite: str) -> None:
    """8 clients of (6 + 2 + 2) samples; the paper's: 100 x .75 / 8 = 9.375 to train on."""
    protocol = paper_of(stated("images", 100), stated("train_share", 0.75), stated("clients", 8))
    table, scale = table_of(suite, "fedavg"), Scale(on={"digits": {}})
    ran = row(suite, "fedavg", result([6] * 8, [2] * 8, [2] * 8))
    found = departures(protocol, table, scale, [ran])
    assert said(found) == {
        "images": (100, ["80"]), "train_share": (0.75, ["0.6"]), "samples": (9.375, ["6"]),
    }  # fmt: skip
    assert [one.stated.what for one in found] == ["images", "train_share", "samples"]
    assert "samples" not in said(departures(protocol, table, scale, [row(suite)])), "not run"
    pool = Scale(on={"digits": {"test_set": "labels", "validation_fraction": 0}})
    kept = row(suite, "fedavg", result([75] * 8, [0] * 8, [200] * 8))
    ours = said(departures(protocol, table, pool, [kept]))
    assert ours["images"] == (100, ["600"]), "test samples of a pool are no client's"
    assert ours["train_share"] == (0.75, ["1"])
    assert not set(ours) & set(SPLIT), "the share says it"
    shared = Scale(on={"digits": {"validation_fraction": 0, "test_fraction": 0.25}})
    leaking = row(suite, "fedavg", result([75] * 8, [25] * 8, [25] * 8))
    ours = said(departures(protocol, table, shared, [leaking]))
    assert ours["images"] == (100, ["800"]), "who decides on test samples has no others"


def test_the_server_has_a_tenth_of_the_samples_at_most(suite: str) -> None:
    """Of 90 samples 9 are the server's where 30 or 2,500 are asked for, and 5 where 5 are."""
    protocol, table = paper_of(stated("server_samples", 1)), table_of(suite, "fedavg")
    ran = row(suite, "fedavg", result([6] * 7 + [7], [2] * 8, [2] * 8))
    for asked, found in ((2500, "9"), (30, "9"), (5, "5")):
        scale = Scale(on={"digits": {"server_samples": asked}})
        ours = said(departures(protocol, table, scale, [ran]))
        assert ours["server_samples"] == (1, [found])
        planned = said(departures(protocol, table, scale, [row(suite)]))
        assert planned["server_samples"] == (1, [f"{asked:,}"])


def test_newcomers_hold_as_much_as_others(suite: str) -> None:
    """Six of eight clients train on (6 + 2 + 2) samples."""
    protocol, table = paper_of(stated("images", 100)), table_of(suite, "fedavg")
    scale = Scale(on={"digits": {"unseen": 0.25}})
    ran = row(suite, "fedavg", result([6] * 6, [2] * 6, [2] * 6))
    assert said(departures(protocol, table, scale, [ran]))["images"] == (100, ["80"])


def test_runs_are_those_that_there_are(suite: str) -> None:
    protocol, scale = paper_of(stated("seeds", 4)), Scale(seeds=4, on={"digits": {}})
    assert departures(protocol, table_of(suite, "fedavg"), scale, [row(suite)]) == [], "planned"
    ran = row(suite, "fedavg", result([6], [2], [2]))
    assert said(departures(protocol, table_of(suite, "fedavg"), scale, [ran])) == {
        "seeds": (4, ["1"])
    }
    whole = [result([6], [2], [2], seed=seed) for seed in range(4)]
    rows = [row(suite, "fedavg", *whole)]
    assert departures(protocol, table_of(suite, "fedavg"), scale, rows) == []
    rows.append(row(suite, "fedprox", result([6], [2], [2], "fedprox", 3)))
    found = departures(protocol, table_of(suite, "fedavg"), scale, rows)
    assert said(found) == {"seeds": (4, ["1"])}, "of the method with the fewest"


def test_runs_that_are_planned_are_not_listed_beside_those_that_there_are(suite: str) -> None:
    protocol, scale = paper_of(stated("seeds", 4)), Scale(seeds=2, on={"digits": {}, "mnist": {}})
    ran, planned = row(suite, "fedavg", result([9], [0], [3])), row(suite, data="mnist")
    (found,) = departures(protocol, table_of(suite, "fedavg"), scale, [ran, planned])
    assert found.here == {"1": [(suite, "digits")]}, "nothing says of mnist"
    (found,) = departures(protocol, table_of(suite, "fedavg"), scale, [planned])
    assert found.here == {"2": [(suite, "mnist")]}, "nothing was run"


def test_remainders_of_splits_are_no_difference() -> None:
    assert same(stated("samples", 480), 479.92)
    assert not same(stated("samples", 480), 470.0)
    assert not same(stated("rounds", 1000), 999)
    assert not same(Stated(what="rounds"), 12), "nothing is the same as what is not given"


def test_parameters_of_methods_are_compared_where_the_table_has_them(suite: str) -> None:
    protocol = paper_of(stated("pfedlia.warmup", 20), stated("pfedlia.probe_epochs", 10))
    scale = Scale(on={"digits": {"pfedlia.warmup": 5, "oracle.warmup": 5}})
    table = table_of(suite, "fedavg", "pfedlia")
    found = said(departures(protocol, table, scale, [row(suite)]))
    assert found == {"pfedlia.warmup": (20, ["5"]), "pfedlia.probe_epochs": (10, ["20"])}
    assert departures(protocol, table_of(suite, "fedavg"), scale, [row(suite)]) == []


def test_a_preset_is_what_the_method_runs_with(suite: str) -> None:
    protocol, table = paper_of(stated("ifca.k", 2)), table_of(suite, "ifca")
    on: dict[str, dict[str, Any]] = {"digits": {}}
    assert departures(protocol, table, Scale(on=on, preset="flis"), [row(suite)]) == []
    assert "ifca.k" in said(departures(protocol, table, Scale(on=on, preset="ifca"), [row(suite)]))


def test_a_data_sets_own_preset_goes_before_the_others(suite: str) -> None:
    protocol = paper_of(stated("flis-dc.beta", 0.3), stated("ifca.k", 2))
    scale = Scale(on={"digits": {}}, preset="flis", presets={"digits": "flis-cifar10"})
    assert departures(protocol, table_of(suite, "flis-dc", "ifca"), scale, [row(suite)]) == []
    other = scale.model_copy(update={"presets": {"cifar10": "flis-cifar10"}})
    found = said(departures(protocol, table_of(suite, "flis-dc", "ifca"), other, [row(suite)]))
    assert found == {"flis-dc.beta": (0.3, ["0.4"])}


def test_values_name_the_data_they_are_of() -> None:
    places = [("a", "x"), ("b", "x"), ("a", "y"), ("b", "y")]
    one = Departure(stated("rounds", 200, where="IV"), {"12": places})
    assert cells(one, places) == ("rounds", "200", "paper, IV", "12")
    one = Departure(Stated(what="images"), {"12": places[:2], "13": [places[3]]})
    assert cells(one, places) == (DERIVED["images"], "not given", "", "12 (x); 13 (b on y)")


def test_values_are_written_as_people_read_them() -> None:
    values = (60000, 479.92, 0.75, 1, 1e-3, True, "sgd", None)
    assert [text(value) for value in values] == [
        "60,000", "480", "0.75", "1", "0.001", "true", "sgd", "none",
    ]  # fmt: skip


def test_whether_something_is_so_is_stated_as_it_is() -> None:
    one = stated("pfedlia.paper_leak", True)
    assert (one.value, text(one.value)) == (True, "true")
    assert same(one, True) and not same(one, False)


def test_a_parameter_that_came_later_is_compared_at_its_default(suite: str) -> None:
    """`paper_leak` of fedfomo is in no result where it is off, and the paper has it on."""
    scale, protocol = Scale(on={"digits": {}}), paper_of(stated("fedfomo.paper_leak", True))
    found = departures(protocol, table_of(suite, "fedfomo"), scale, [row(suite)])
    assert said(found) == {"fedfomo.paper_leak": (True, ["false"])}


def test_a_table_may_have_a_protocol_of_its_own(suite: str) -> None:
    table = table_of(suite, "fedavg").model_copy(update={"protocol": [stated("unseen", 0.2)]})
    scale, protocol = Scale(on={"digits": {}}), paper_of(stated("rounds", 3))
    found = departures(protocol, table, scale, [row(suite)])
    assert said(found) == {"rounds": (3, ["2"]), "unseen": (0.2, ["0"])}
    assert "unseen" not in said(
        departures(protocol, table_of(suite, "fedavg"), scale, [row(suite)])
    )


def test_a_number_has_a_source_and_a_silence_has_none() -> None:
    for wrong in ({"value": 3}, {"source": "paper"}, {"value": 3, "source": "hearsay"}):
        with pytest.raises(ValidationError):
            Stated(what="rounds", **wrong)  # type: ignore[arg-type]


NEEDED = {
    "images", "train_share", "clients", "participation", "server_samples", "model",
    "model.weights", "rounds", "local.epochs", "local.batch_size", "local.lr", "local.optimizer",
    "seeds",
}  # fmt: skip


@pytest.mark.parametrize("name", PAPERS)
def test_every_paper_says_all_of_its_protocol_and_whence(name: str) -> None:
    """Of each suite and data set once, what is not given too; and of every setting at its scale."""
    card = load_paper(name)
    for table in card.tables.values():
        for suite, dataset in {(one.suite, one.dataset) for one in numbers(table)}:
            every = (*card.protocol, *table.protocol)
            about = [one.what for one in every if one.about(suite, dataset)]
            assert set(about) >= NEEDED, (suite, dataset)
            assert len(about) == len(set(about)), "each once"
            at_paper = table.scale.get("paper")
            given = {} if at_paper is None else at_paper.on.get(dataset, {}) | at_paper.settings
            for key in given:
                named = suite_field(key) or key
                assert named in {*about, *SPLIT}, "where the number stands"


@pytest.mark.parametrize("name", PAPERS)
def test_what_a_paper_states_is_a_setting_that_there_is(name: str) -> None:
    card = load_paper(name)
    methods = {one.partition(" ")[0] for table in card.tables.values() for one in table.methods}
    places = {(n.suite, n.dataset) for table in card.tables.values() for n in numbers(table)}
    for one in card.protocol:
        owner = one.what.partition(".")[0]
        assert one.what in DERIVED or suite_field(one.what) or owner in methods, one.what
        assert any(one.about(*place) for place in places), "it is about something"


def test_the_share_that_is_trained_on_and_fields_of_a_suite(suite: str) -> None:
    built = load_suite(suite)
    assert train_share(built) == pytest.approx(0.6)
    pool = built.model_copy(update={"test_set": "labels"})
    assert train_share(pool) == pytest.approx(0.8)
    assert field_value(built, "model") == "mlp"
    assert field_value(built, "model.hidden") == 4
    assert field_value(built, "model.weights") == "random"
    assert field_value(built, "partition") == "iid"
    assert field_value(built, "local.lr") == 0.1
