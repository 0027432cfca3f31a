"""The round loop: bytes, checkpoints, buffers, personal models, results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from mentions import mention
from torch import nn
from toy import CLIENTS, Play, Played, composition, toy_dataset, toy_suite, watching

from flbench import Context, Memory, Models, Personal, Setup, Stage, State, hookimpl
from flbench.core.seeding import rng
from flbench.core.state import Dispatched
from flbench.core.types import STAGE_KINDS, Kind, StageKind
from flbench.engine.options import EngineOptions
from flbench.errors import Diverged, UserError
from flbench.metrics import METRICS
from flbench.results.files import read_result, save_result
from flbench.results.schema import VOLATILE
from flbench.run import rounds, runner
from flbench.run.composition import MethodStack, compose
from flbench.run.history import History
from flbench.run.rounds import cohort, run_rounds
from flbench.run.runner import execute
from flbench.run.setup import prepare
from flbench.run.spec import RunSpec
from flbench.testing.small_run import run_small, small_suite

BATCH = 5

METHODS = {
    "fedavg": {},
    "local-only": {},
    "oracle": {"warmup": 1},
    "pfedlia": {"warmup": 1, "probe_epochs": 2},
    "pfedlia peer": {"warmup": 1, "probe_epochs": 2, "mode": "peer"},
}


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))


# --- kinds of stages ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Sketches:
    """Every round is one stage of a kind that flbench does not have."""

    asked: list[str] = field(default_factory=list)

    @hookimpl
    def plan(self, ctx: Context) -> list[Stage]:
        return [Stage("sketch", ctx.cohort, 1)]  # type: ignore[arg-type]

    @hookimpl
    def local_term(self, stage: Stage) -> None:
        self.asked.append(stage.kind)


@pytest.mark.parametrize("aggregates", [True, False])
@pytest.mark.parametrize("terms", [True, False])
def test_a_new_kind_of_stage_is_an_entry_in_one_table(
    aggregates: bool, terms: bool, play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STAGE_KINDS, "sketch", StageKind(aggregates, terms, "a test's"))
    method = Sketches()
    played = play_toy(composition(("sketches", method)), rounds=2)
    moved = not torch.equal(played.state.models[0], played.run.context.initial)
    assert moved is aggregates
    assert method.asked == (["sketch"] * 2 if terms else [])


def test_every_kind_of_stage_is_in_the_table() -> None:
    assert tuple(STAGE_KINDS) == get_args(Kind)
    aggregated = [kind for kind, what in STAGE_KINDS.items() if what.aggregates]
    assert aggregated == ["train", "trial"]


# --- bytes -------------------------------------------------------------------------------------


def moved(played: Played) -> dict[str, dict[str, int]]:
    return played.run.ledger.totals


def test_fedavg_moves_p_both_ways(play_toy: Play) -> None:  # T24
    played = play_toy("fedavg")
    each = 3 * 3 * 4 * played.run.context.layout.width
    assert moved(played) == {"down": {"model": each}, "up": {"model": each}, "peer": {}}


@pytest.mark.slow
def test_pfedlia_counts_its_probe(play_toy: Play) -> None:  # T24
    played = play_toy("pfedlia", settings=METHODS["pfedlia"])
    n, w = CLIENTS, 4 * played.run.context.layout.width
    normal = 3 * 3 * w
    assert moved(played)["down"] == {"model": normal + n * w, "partial models": n * (n - 1) * w}
    assert moved(played)["up"] == {"model": normal + n * w, "influence": 4 * n * n}
    assert moved(played)["peer"] == {}


def test_pfedlia_over_direct_links_counts_each_link_once(play_toy: Play) -> None:
    settings = {**METHODS["pfedlia peer"], "topology": "p2p"}
    played = play_toy("pfedlia", settings=settings)
    n, w, chosen = CLIENTS, 4 * played.run.context.layout.width, played.state.membership.weights
    links = 0
    for round_ in (2, 3):
        ids = torch.tensor(cohort_ids(played, round_))
        links += int(sum((chosen[:, j] > 0).sum() - 1 for j in ids))
    selections = 4 * int(chosen.sum())
    assert moved(played)["peer"] == {
        "partial models": n * (n - 1) * w, "selection": selections, "model": links * w
    }  # fmt: skip
    assert moved(played)["down"] == {"model": 3 * w + n * w}, "warm-up and theta_0 only"
    assert moved(played)["up"] == {"model": 3 * w}


@pytest.mark.slow
def test_a_model_a_client_holds_is_not_sent_twice(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class SendsTheBankFirst:
        @hookimpl
        def plan(self, state: State, ctx: Context) -> None:
            ctx.send_models(ctx.cohort, state.models)

    played = play_toy(composition(("sends", SendsTheBankFirst())))
    assert moved(played) == moved(play_toy("fedavg"))


@pytest.mark.slow
def test_per_receiver_training_counts_every_model_trained(play_toy: Play) -> None:
    settings = {**METHODS["pfedlia peer"], "p2p_train": "per_receiver"}
    played = play_toy("pfedlia", settings=settings)
    chosen, w = played.state.membership.weights, 4 * played.run.context.layout.width
    trained = sum(int(chosen[:, cohort_ids(played, r)].sum()) for r in (2, 3))
    up = moved(played)["up"]
    assert up["model"] == (3 + CLIENTS + trained) * w
    assert trained > 6, "somebody chose somebody else"


def cohort_ids(played: Played, round_: int) -> list[int]:
    from flbench.run.rounds import cohort

    return cohort(played.job.suite, played.job.seed, round_).tolist()


# --- work ----------------------------------------------------------------------------------------


def test_epochs_are_passes_over_a_clients_own_samples(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Works:
        @hookimpl
        def plan(self, ctx: Context) -> tuple[Stage, ...]:
            everybody, one = ctx.everybody, ctx.everybody[:1]
            return {
                1: (Stage("train", ctx.cohort, 2),),  # 3 of 6 clients
                2: (Stage("train", everybody, 1), Stage("probe", everybody, 3, "p")),
                3: (Stage("train", everybody, 1, steps=1),),  # of two batches
                4: (Stage("train", everybody, 0),),
                5: (Stage("train", one, 1, samples=BATCH),),  # the first of two batches
            }[ctx.round]

    played = play_toy(composition(("works", Works())), rounds=5, **{"local.batch_size": BATCH})
    sizes = set(played.run.executor.samples.sizes("train").tolist())
    assert sizes <= set(range(BATCH + 1, 2 * BATCH + 1)), "two batches each"
    found = played.result.curves["trained_epochs"]
    assert found == pytest.approx([1, 5, 5.5, 5.5, 5.5 + 0.5 / 6], abs=1e-6)
    assert played.result.summary["trained_epochs"] == found[-1]


def test_a_checkpoint_from_before_epochs_were_counted_gives_no_count(play_toy: Play) -> None:
    run = play_toy("fedavg", rounds=1).run
    older = {key: value for key, value in run.history.copy().plain().items() if key != "trained"}
    assert History.of(older).trained is None


@pytest.mark.slow
def test_every_probe_and_what_is_pooled_counts(play_toy: Play) -> None:
    plain = play_toy("fedavg").result.curves["trained_epochs"]
    epochs = play_toy("fedavg").job.suite.local.epochs
    assert plain == [epochs / 2, epochs, 3 * epochs / 2]
    every = play_toy("pfedlia", settings=METHODS["pfedlia"])
    probe = METHODS["pfedlia"]["probe_epochs"]
    assert every.result.summary["trained_epochs"] == plain[-1] + probe
    pooled = play_toy("centralised").result.summary["trained_epochs"]
    assert pooled == pytest.approx(3, abs=0.5), "all samples once per round, of six clients"


# --- resume ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("checkpoint_every_round")
@pytest.mark.parametrize("name", METHODS)
def test_resuming_after_a_round_ends_in_the_same_bits(
    name: str, play_toy: Play, tmp_path: Path
) -> None:  # T25
    whole = play_toy(name.split()[0], settings=METHODS[name], rounds=4)
    job = replace(whole.job, out=tmp_path / "again")
    stopped, state = prepare(job, toy_dataset())
    stopped.suite = stopped.suite.model_copy(update={"rounds": 2})
    run_rounds(stopped, state)
    assert job.checkpoint.is_file()
    resumed, state = prepare(replace(job, resume=True), toy_dataset())
    assert state.round == 2
    end = run_rounds(resumed, state)
    assert torch.equal(end.models, whole.state.models)
    again = Played(resumed, end, job)
    assert again.state.memory.keys() == whole.state.memory.keys()
    for name, value in again.state.memory.items():
        assert torch.equal(value, whole.state.memory[name])
    text, expected = stable(again.result.canonical()), stable(whole.result.canonical())
    assert text == expected


def stable(text: str) -> dict[str, Any]:
    table = json.loads(text)
    return {key: value for key, value in table.items() if key not in VOLATILE}


def test_a_checkpoint_of_other_data_is_refused(play_toy: Play) -> None:
    job = play_toy("fedavg").job
    assert job.checkpoint.is_file()
    with pytest.raises(UserError, match=mention("checkpoint", "delete")):
        prepare(replace(job, resume=True), toy_dataset(seed=5))


@pytest.mark.slow
def test_a_complete_result_is_not_computed_again_unless_asked(play_toy: Play) -> None:
    job = play_toy("fedavg").job
    loaded: list[str] = []

    def load(name: str, root: Path) -> Any:
        loaded.append(name)
        return toy_dataset()

    first = execute(job, load)
    assert not job.checkpoint.exists(), "a complete run leaves no checkpoint"
    assert read_result(job.path) == first
    again = execute(job, load)
    assert again == first
    assert len(loaded) == 2, "to see whether the data are the same"
    forced = execute(replace(job, force=True), load)
    assert len(loaded) == 3
    assert stable(forced.canonical()) == stable(first.canonical()), "same run, same bytes"


def test_what_another_process_has_just_completed_is_not_computed_again(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended after this process had looked for the result, and before it held the run."""
    job = play_toy("fedavg").job
    first = execute(job, lambda name, root: toy_dataset())
    job.path.unlink()

    @contextmanager
    def held_at_last(path: Path) -> Iterator[None]:
        save_result(path, first)
        yield

    monkeypatch.setattr(runner, "held", held_at_last)
    assert execute(job, lambda name, root: pytest.fail("it is computed again")) == first


# --- buffers ------------------------------------------------------------------


def test_buffers_are_averaged_by_default(play_toy: Play) -> None:
    uploads: list[Any] = []

    played = play_toy(composition(("watch", watching(uploads))), net=batchnorm, rounds=1)
    layout, upload = played.run.context.layout, uploads[0]
    assert (layout.parameters, layout.buffers) == (44, 9)
    shares = (upload.samples / upload.samples.sum()).double()
    statistics = ~layout.trainable & ~layout.counters
    mean = (shares[:, None] * upload.selected()[:, statistics].double()).sum(dim=0).float()
    torch.testing.assert_close(played.state.models[0][statistics], mean)
    assert not torch.equal(played.state.models[0], played.run.context.initial)
    assert played.run.ledger.totals["up"]["model"] == 4 * 3 * 53


def test_local_buffers_stay_with_their_client(play_toy: Play) -> None:
    uploads: list[Any] = []
    watched = composition(("watch", watching(uploads)))
    played = play_toy(watched, net=batchnorm, buffers="local", rounds=2)
    layout, initial = played.run.context.layout, played.run.context.initial
    for models in (played.state.models, *(upload.params for upload in uploads)):
        assert models[..., layout.parameters :].eq(initial[layout.parameters :]).all()
    own = played.state.memory["buffers.own"]
    trained = {i for r in (1, 2) for i in cohort_ids(played, r)}
    for client in range(CLIENTS):
        untouched = torch.equal(own[client], initial[layout.parameters :])
        assert untouched is (client not in trained)
    assert played.run.ledger.totals["up"]["model"] == 4 * 6 * layout.parameters
    assert played.run.ledger.totals["down"]["model"] == 4 * 6 * layout.parameters
    first, second = (sorted(cohort_ids(played, r)) for r in (1, 2))
    assert first != second, "else the law is empty"


def test_models_are_scored_with_the_buffers_of_each_client(play_toy: Play) -> None:
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Looks:
        @hookimpl
        def score(self, state: State, stage: Stage, ctx: Context) -> None:
            own = state.models.expand(ctx.clients, -1).clone()
            own[:, ctx.layout.parameters :] = state.memory["buffers.own"][ctx.everybody]
            scored = ctx.evaluate(state.models, ctx.everybody)[:, 0]
            each = [ctx.forward(own[[i]], ctx.client_data(i, "validation")[0]) for i in range(6)]
            losses = [
                nn.functional.cross_entropy(logits[0], ctx.client_data(i, "validation")[1])
                for i, logits in enumerate(each)
            ]
            pairs.append((scored, torch.stack(losses).double()))

    play_toy(composition(("looks", Looks())), net=batchnorm, buffers="local", rounds=2)
    assert len(pairs) > 2
    for scored, expected in pairs:
        torch.testing.assert_close(scored.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("cut", [2, 4])
def test_a_run_that_is_resumed_scores_with_the_same_buffers(cut: int) -> None:
    model = {"name": "mlp", "hidden": 6, "norm": True}
    local = {"epochs": 3, "batch_size": 4, "lr": 0.3, "momentum": 0.5}
    suite = small_suite(
        rounds=cut + 2, buffers="local", participation=0.34, model=model, local=local
    )

    def chosen() -> MethodStack:  # it asks for losses before the first stage of a round
        return compose("power-of-choice", {"d": 6})

    half = run_small(chosen(), suite, last=cut)
    resumed = run_small(chosen(), suite, checkpoint=half.checkpoint)
    assert resumed.stable == run_small(chosen(), suite).stable


@pytest.mark.parametrize("policy", ["local", "reset"])
def test_models_that_are_sent_to_be_scored_have_no_buffers_that_stay(
    play_toy: Play, policy: str
) -> None:
    down = [
        play_toy(method, net=batchnorm, buffers=policy, rounds=2).run.ledger.totals["down"]
        for method in (compose("ifca", {"k": 1}), "fedavg")
    ]
    assert down[0]["model"] == down[1]["model"], "a client has the model that it starts from"


def test_reset_buffers_start_every_round_anew(play_toy: Play) -> None:
    starts: list[torch.Tensor] = []

    @dataclass(frozen=True)
    class Watch:
        @hookimpl
        def local_term(self) -> Any:
            def term(module: Any) -> torch.Tensor:
                starts.append(module.start.clone())
                return torch.zeros(())

            return term

    played = play_toy(composition(("watch", Watch())), net=batchnorm, buffers="reset", rounds=2)
    p, initial = played.run.context.layout.parameters, played.run.context.initial
    assert all(torch.equal(start[p:], initial[p:]) for start in starts)
    assert not all(torch.equal(start[:p], initial[:p]) for start in starts)


# --- memory, personal models -------------------------------------------------------------------


def test_memory_per_model_follows_the_groups(play_toy: Play) -> None:
    """A counter per row, declared before the split, is copied to both groups and lives on."""

    @dataclass(frozen=True)
    class Counts:
        @hookimpl
        def setup(self, ctx: Context) -> Setup:
            return Setup(memory={"counts.rounds": Memory(torch.zeros(1), "model")})

        @hookimpl
        def score(self, state: State, stage: Stage, phase: str) -> None:
            assert len(state.memory["counts.rounds"]) == len(state.models)

        @hookimpl
        def aggregate(self, state: State, upload: Any, membership: Any, ctx: Context) -> Models:
            from flbench.plugin import fedavg_defaults

            models = fedavg_defaults.aggregate(state, upload, membership, ctx)
            shares = membership.shares(upload.ids, len(state.models)).sum(dim=1)
            counted = state.memory["counts.rounds"] + (shares > 0).float()
            return Models(models.rows, {"counts.rounds": counted})

    both = compose("oracle", {"warmup": 1})
    both = replace(both, layers=(*both.layers, ("counts", Counts())))
    played = play_toy(both, participation=1.0)
    assert played.state.memory["counts.rounds"].tolist() == [3.0, 3.0]


@pytest.mark.slow
def test_personal_models_can_be_adapted_without_touching_the_state(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Adapts:
        epochs: int

        @hookimpl
        def personalise(self, state: State, clients: torch.Tensor) -> Personal:
            stage = Stage("train", clients, self.epochs, name="adapt")
            return Personal(row=state.membership.home[clients], adaptation=stage)

    plain = play_toy("fedavg")
    none, some = (play_toy(composition(("adapts", Adapts(e)))) for e in (0, 5))
    assert torch.equal(plain.state.models, some.state.models)
    assert none.run.history.last.correct == plain.run.history.last.correct
    assert some.run.history.last.loss != plain.run.history.last.loss
    assert some.run.ledger.totals == plain.run.ledger.totals
    assert some.run.history.last.headline() > plain.run.history.last.headline()


def test_a_predictor_sees_what_its_client_keeps(play_toy: Play) -> None:
    """Everybody's prediction is the label that their own context names."""

    @dataclass(frozen=True)
    class Fixed:
        @hookimpl
        def personalise(self, state: State, clients: torch.Tensor) -> Personal:
            def predictor(module: Any, x: torch.Tensor) -> torch.Tensor:
                logits = torch.zeros(len(x), 4)
                logits[:, int(module.received["label"])] = 1
                return logits

            home = state.membership.home[clients]
            return Personal(row=home, predictor=predictor, extras={"label": clients % 4})

    run = play_toy(composition(("fixed", Fixed()))).run
    for client, rows in enumerate(run.held_out.splits["test"]):
        expected = int((run.held_out.y[rows] == client % 4).sum())
        assert run.history.last.correct[client] == expected


@pytest.mark.slow
def test_paper_leak_scores_on_the_test_split_and_says_so(play_toy: Play) -> None:
    honest = play_toy("pfedlia", settings=METHODS["pfedlia"])
    leaky = play_toy("pfedlia", settings={**METHODS["pfedlia"], "paper_leak": True})
    influence = [p.state.memory["pfedlia.influence"] for p in (honest, leaky)]
    assert not torch.equal(*influence)
    samples, held_out = leaky.run.executor.samples, leaky.run.held_out
    for client in range(CLIENTS):
        shown = samples.x[samples.splits["validation"][client]]
        assert torch.equal(shown, held_out.x[held_out.splits["test"][client]])
    assert leaky.result.method.plugins[0].paper_leak
    assert not honest.result.method.plugins[0].paper_leak


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedfomo", "flis-dc", "pfedlia"])
def test_with_paper_leak_nobody_needs_a_part_to_validate_on(method: str, play_toy: Play) -> None:
    """The paper's split is training and one other part: decisions and accuracy are on that one."""
    suite: dict[str, Any] = {"validation_fraction": 0, "server_samples": 8, "rounds": 3}
    settings = METHODS.get(method, {})
    leaky = play_toy(method, settings={**settings, "paper_leak": True}, **suite)
    assert leaky.result.method.plugins[0].paper_leak
    clients = leaky.result.clients
    assert clients.validation == clients.test, "so it says in the result"
    owned_by_server = 4
    assert sum(clients.train + clients.test) == len(toy_dataset().y) - owned_by_server
    with pytest.raises(UserError, match=mention("validation_fraction", "validation samples")):
        play_toy(method, settings=settings, **suite)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("flis-hc", {"server_samples": 6}),
        ("fedavg", {"unseen": 0.25, "target": 0.1, "ft_epochs": 1}),
    ],
)
def test_every_number_of_a_summary_is_in_the_table(
    method: str, changes: dict[str, Any], play_toy: Play
) -> None:
    result = play_toy(method, **changes).result
    assert result.summary.keys() <= {metric.name for metric in METRICS}
    assert result.metrics() == result.summary
    young = "accuracy_worst_decile"
    old = {name: value for name, value in result.summary.items() if name != young}
    assert result.model_copy(update={"summary": old}).metrics()[young] == result.summary[young]


@pytest.mark.slow
def test_partial_means_can_start_the_groups(play_toy: Play) -> None:  # B6
    theta0 = play_toy("pfedlia", settings=METHODS["pfedlia"], rounds=2)
    settings = {**METHODS["pfedlia"], "start": "lia_mean"}
    mean = play_toy("pfedlia", settings=settings, rounds=2)
    same = theta0.run.history.membership[-1] == mean.run.history.membership[-1]
    assert same, "the same influences group the same"
    assert not torch.equal(theta0.personal, mean.personal)


@pytest.mark.slow
def test_a_probe_can_use_a_subset_of_the_samples(play_toy: Play) -> None:  # B1
    few = play_toy("pfedlia", settings={**METHODS["pfedlia"], "lia_samples": 2})
    every = play_toy("pfedlia", settings=METHODS["pfedlia"])
    many = play_toy("pfedlia", settings={**METHODS["pfedlia"], "lia_samples": 999})
    influence = [p.state.memory["pfedlia.influence"] for p in (few, every, many)]
    assert not torch.equal(influence[0], influence[1])
    assert torch.equal(influence[1], influence[2])


# --- results -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_result_holds_what_a_table_needs(play_toy: Play) -> None:
    played = play_toy("pfedlia", settings=METHODS["pfedlia"])
    result = played.result
    needed = {"accuracy_mean", "accuracy_std_clients", "accuracy_worst_decile", "ari"}
    assert needed <= set(result.summary)
    assert result.method.name == "pfedlia"
    assert result.method.params["warmup"] == 1
    correct, test = result.clients.correct, result.clients.test
    mean = sum(c / t for c, t in zip(correct, test, strict=True)) / CLIENTS
    assert result.summary["accuracy_mean"] == pytest.approx(mean)
    assert len(result.curves["accuracy"]) == 3
    assert [change.round for change in result.membership] == [1]
    assert [note["name"] for note in result.notes] == ["pfedlia.influence_0", "pfedlia.optics"]
    assert len(result.notes[0]["value"]) == CLIENTS
    assert sum(result.clients.bytes) == sum(sum(d.values()) for d in result.bytes.values())
    assert set(result.seconds) >= {"train", "evaluate", "total"}


@pytest.mark.slow
def test_ari_is_null_without_true_groups(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Ungrouped:
        @hookimpl
        def partition(self, labels: Any, clients: int, rng: Any) -> Any:
            from flbench.partitions.iid import iid

            return replace(iid(labels, None, clients, rng), groups=None)

    played = play_toy(composition(("ungrouped", Ungrouped())))
    assert played.result.summary["ari"] is None
    assert '"ari":null' in played.result.canonical()
    told = compose("oracle", {"warmup": 1})
    told = replace(told, layers=(("ungrouped", Ungrouped()), *told.layers))
    with pytest.raises(UserError, match=mention("partition", "groups")):
        play_toy(told)


@pytest.mark.slow
def test_the_headline_is_the_last_round_or_the_one_validation_chose(play_toy: Play) -> None:
    last = play_toy("fedavg", rounds=6)
    chosen = play_toy("fedavg", rounds=6, headline="validation")
    curve = last.run.history.curves
    best = curve["accuracy_validation"].index(max(curve["accuracy_validation"])) + 1
    assert chosen.result.summary["round"] == best
    assert last.result.summary["round"] == 6
    assert chosen.result.summary["accuracy_mean"] == last.result.summary["accuracy_chosen"]
    assert last.result.summary["accuracy_best_test"] == pytest.approx(
        max(curve["accuracy"]), abs=1e-6
    )


def test_evaluation_can_be_sparse_and_always_includes_the_last_round(play_toy: Play) -> None:
    curves = play_toy("fedavg", rounds=5, eval_every=2).run.history.curves
    assert [value is not None for value in curves["accuracy"]] == [False, True, False, True, True]
    assert all(value is not None for value in curves["train_loss"])


def test_server_samples_belong_to_nobody_else(play_toy: Play) -> None:
    answers: list[torch.Tensor] = []

    @dataclass(frozen=True)
    class Server:
        @hookimpl
        def score(self, state: State, phase: str, ctx: Context) -> None:
            if phase == "after":
                answers.append(ctx.logits(state.models, ctx.server_data()[0]))

    played = play_toy(composition(("server", Server())), server_samples=50, rounds=1)
    assert answers[0].shape == (1, 4, 4), "a tenth of 72, balanced over 4 labels"
    samples = played.run.executor.samples
    owned = sum(len(rows) for split in ("train", "validation") for rows in samples.splits[split])
    assert owned + sum(played.run.history.last.tested) == 72 - 4
    with pytest.raises(UserError, match=mention("server_samples", "samples")):
        play_toy(composition(("server", Server())), rounds=1)


def test_executors_and_devices_that_are_not_there_are_refused(play_toy: Play) -> None:
    job: RunSpec = play_toy("fedavg").job
    with pytest.raises(UserError, match=mention("auto, sequential or vectorised", "expected")):
        prepare(replace(job, engine=EngineOptions("warp")), toy_dataset())
    with pytest.raises(UserError, match=mention("--precision 64-true", "32-true or bf16-mixed")):
        prepare(replace(job, engine=EngineOptions(precision="64-true")), toy_dataset())
    with pytest.raises(UserError, match="--accelerator abacus"):
        prepare(replace(job, engine=EngineOptions(accelerator="abacus")), toy_dataset())


def test_a_toy_suite_is_what_the_docstring_says() -> None:
    assert toy_suite().cohort_size == 3
    assert Dispatched.__dataclass_params__.frozen


@pytest.mark.slow
def test_a_validation_split_that_is_missing_is_one_line(play_toy: Play) -> None:
    with pytest.raises(UserError, match=mention("validation_fraction", "validation samples")):
        play_toy("pfedlia", settings=METHODS["pfedlia"], validation_fraction=0)
    assert play_toy("fedavg", validation_fraction=0).result.summary["accuracy_mean"] > 0


def test_cohorts_of_many_clients_are_drawn_without_shuffling_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suite = toy_suite(clients=40, participation=0.25)
    few = cohort(suite, 1, 3)
    shuffled = rng(1, "cohort", 3).permutation(40)[:10]
    assert few.tolist() == sorted(shuffled.tolist())
    monkeypatch.setattr(rounds, "FEW", 39)
    drawn = [cohort(suite, 1, number).tolist() for number in range(1, 200)]
    assert all(ids == sorted(set(ids)) and len(ids) == 10 for ids in drawn)
    times = torch.bincount(torch.tensor(drawn).flatten(), minlength=40)
    assert times.min() > 25, "each is expected 50 times"
    assert times.max() < 80
    assert drawn[0] == cohort(suite, 1, 1).tolist() != cohort(suite, 2, 1).tolist()


def test_training_losses_that_are_not_finite_are_left_out_of_the_curve(play_toy: Play) -> None:
    played = play_toy("fedavg", rounds=1)
    losses = [1.0, torch.inf, torch.nan, 2.0]
    record = rounds.evaluate_round(played.run, played.state, losses)
    assert record.metrics["train_loss"] == 1.5


def test_the_training_loss_is_that_of_all_stages(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Twice:
        @hookimpl
        def plan(self, ctx: Context) -> list[Stage]:
            return [Stage("train", ctx.cohort, 1), Stage("train", ctx.cohort, 3, name="again")]

    uploads: list[Any] = []
    method = composition(("twice", Twice()), ("watch", watching(uploads)))
    curve = play_toy(method, rounds=1).run.history.curves["train_loss"]
    losses = [loss for upload in uploads for loss in upload.loss.tolist()]
    assert len(losses) == 6
    assert curve == [pytest.approx(sum(losses) / 6, abs=1e-6)]


def test_models_are_fine_tuned_in_the_last_round_only(play_toy: Play) -> None:
    history = play_toy("fedavg", rounds=3, ft_epochs=1).run.history
    tuned = history.curves["accuracy_fine_tuned"]
    assert tuned[:-1] == [None, None]
    assert tuned[-1] is not None


def test_clients_whose_models_are_not_finite_are_named(play_toy: Play) -> None:
    uploads: list[Any] = []
    ctx = play_toy(composition(("watch", watching(uploads))), rounds=1).run.context
    upload, stage = uploads[0], Stage("train", uploads[0].ids, 1)
    params = upload.params.clone()
    params[1:] = torch.inf
    lost = int(upload.ids[1])
    with pytest.raises(Diverged, match=rf"client {lost} are not finite .*\(2 of 3 clients\)"):
        rounds.refuse_divergence(replace(upload, params=params), stage, ctx)
