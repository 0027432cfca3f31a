"""What clients send: coders are applied in turn, row by row; the ledger counts the coded bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from toy import WIDTH, Play, composition, watching

import flbench as fl
from flbench.core.hookspecs import hookimpl
from flbench.core.state import Dispatched, Message, State, Upload
from flbench.core.types import Extras
from flbench.engine.encoding import encoded
from flbench.engine.ledger import CommunicationLedger
from flbench.errors import PluginError

Coder = Callable[[Message], Message]


def start(mask: list[bool], clients: int = 2, candidates: int = 1) -> Dispatched:
    """All clients start from (1, 1, 1)."""
    flags = torch.tensor(mask).expand(clients, -1)
    return Dispatched(
        params=torch.ones(clients, candidates, 3),
        active=torch.ones(clients, candidates, dtype=torch.bool),
        rows=None,
        sent_mask=flags,
        returned_mask=flags,
    )


def upload(rows: list[list[list[float]]]) -> Upload:
    """What clients 0, 1, ... have trained, shape (n, c, 3)."""
    params = torch.tensor(rows)
    clients, candidates, _ = params.shape
    nothing = torch.zeros(clients, candidates, dtype=torch.float64)
    return Upload(
        ids=torch.arange(clients),
        params=params,
        active=torch.ones(clients, candidates, dtype=torch.bool),
        samples=torch.ones(clients, dtype=torch.int64),
        steps=torch.ones(clients, dtype=torch.int64),
        loss=torch.zeros(clients, dtype=torch.float64),
        loss_start=nothing,
        loss_end=nothing,
        chosen=torch.zeros(clients, dtype=torch.int64),
    )


def state(**memory: torch.Tensor) -> State:
    """A state with memories of scope "client"."""
    home = fl.Membership(torch.zeros(2, dtype=torch.int64))
    scopes = dict.fromkeys(memory, "client")
    return State(0, torch.ones(1, 3), home, memory, scopes)  # type: ignore[arg-type]


def largest(message: Message) -> Message:
    """Keep the largest entry of the update; its place takes two bits."""
    update = message.update
    keep = torch.zeros(3, dtype=torch.bool)
    keep[update.abs().argmax()] = True
    return message.sending(update, mask=keep, overhead=message.overhead + 2)


def sign(message: Message) -> Message:
    """One bit for each entry that is sent."""
    return message.sending(message.update.sign(), bits=1)


def test_coders_are_applied_in_turn_and_their_bits_counted_by_hand() -> None:
    made = upload([[[1.5, 4.0, 1.0]], [[-2.0, 1.0, 1.0]]])
    sent, _ = encoded(made, start([True] * 3), [largest, sign], state(), 3)
    # updates (.5, 3, 0) and (-3, 0, 0): the largest entry, then its sign, added to the start
    assert sent.params.tolist() == [[[1.0, 2.0, 1.0]], [[0.0, 1.0, 1.0]]]
    assert sent.bits is not None
    assert sent.bits.tolist() == [[3], [3]]  # one entry of one bit, and two bits of its place
    assert made.params.tolist() == [[[1.5, 4.0, 1.0]], [[-2.0, 1.0, 1.0]]], "it is a copy"


def test_without_coders_nothing_changes() -> None:
    made = upload([[[1.5, 4.0, 1.0]]])
    before = state()
    sent, after = encoded(made, start([True] * 3, 1), [], before, 3)
    assert sent is made
    assert after is before


def test_what_is_not_returned_stays_with_the_client() -> None:
    """The second scalar stays at home: no coder sees or changes it."""
    seen: list[Message] = []

    def double(message: Message) -> Message:
        seen.append(message)
        return message.sending(torch.full((3,), 10.0))

    first = start([True, False, True], 1)
    sent, _ = encoded(upload([[[1.5, 4.0, 1.0]]]), first, [double], state(), 3)
    assert seen[0].update.tolist() == [0.5, 0.0, 0.0]
    assert sent.params.tolist() == [[[11.0, 4.0, 11.0]]]
    assert sent.bits is not None
    assert sent.bits.tolist() == [[64]]


def test_what_a_client_keeps_is_remembered_for_it_alone() -> None:
    """Error feedback: what is not sent is added the next time."""

    def feedback(message: Message) -> Message:
        update = message.update + message.memory["x.rest"]
        keep = update.abs() >= 1
        rest = torch.where(keep, 0.0, update)
        return message.sending(update, mask=keep, memory={"x.rest": rest})

    before = state(**{"x.rest": torch.zeros(2, 3)})
    made = upload([[[1.6, 4.0, 1.0]], [[1.0, 1.0, 1.0]]])
    sent, after = encoded(made, start([True] * 3), [feedback], before, 3)
    assert sent.params[0, 0].tolist() == [1.0, 4.0, 1.0]
    assert after.memory["x.rest"].tolist() == [[pytest.approx(0.6), 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert before.memory["x.rest"].abs().sum() == 0, "states are never changed"
    sent, _ = encoded(made, start([True] * 3), [feedback], after, 3)
    assert sent.params[0, 0].tolist() == [pytest.approx(2.2), 4.0, 1.0]


def test_buffers_are_sent_as_they_are() -> None:
    """The third scalar is a buffer of 32 bits."""
    sent, _ = encoded(upload([[[1.5, 4.0, 7.0]]]), start([True] * 3, 1), [sign], state(), 2)
    assert sent.params.tolist() == [[[2.0, 2.0, 7.0]]]
    assert sent.bits is not None
    assert sent.bits.tolist() == [[2 + 32]]


def test_extras_are_coded_too() -> None:
    made = replace(upload([[[1.0, 1.0, 1.0]]]), extras={"mean": torch.tensor([[2.0, 4.0]])})

    def halve(message: Message) -> Message:
        return replace(message, extras={n: v / 2 for n, v in message.extras.items()})

    sent, _ = encoded(made, start([True] * 3, 1), [halve], state(), 3)
    assert sent.extras["mean"].tolist() == [[1.0, 2.0]]


def test_the_ledger_rounds_a_clients_bits_up_to_bytes() -> None:
    ledger = CommunicationLedger(2)
    ledger.open_round()
    made = replace(upload([[[1.0] * 3], [[1.0] * 3]]), bits=torch.tensor([[3], [13]]))
    ledger.upload(made, start([True] * 3))
    assert ledger.bits["up"]["model"] == 16
    assert ledger.totals["up"]["model"] == 2
    assert ledger.per_client["up"].tolist() == [1, 2]
    ledger.send("up", torch.tensor([0]), "flags", 5, bits=1)
    assert ledger.bits["up"]["flags"] == 5


# --- in runs ----------------------------------------------------------------------------------


def plugin(name: str, coder: Any, memory: Extras | None = None) -> tuple[str, object]:
    """A plugin that codes what clients send."""

    @dataclass(frozen=True)
    class Coding:
        @hookimpl
        def setup(self, ctx: Any) -> fl.Setup:
            kept = {key: fl.Memory(value, "client") for key, value in (memory or {}).items()}
            return fl.Setup(memory=kept)

        @hookimpl
        def encode(self) -> Any:
            return coder

    return name, Coding()


def test_the_plugin_named_first_codes_first(play_toy: Play) -> None:
    order: list[str] = []

    def noted(name: str) -> Any:
        return plugin(name, lambda message: order.append(name) or message)

    play_toy(composition(noted("a"), noted("b")), rounds=1)
    assert order[:4] == ["a", "b", "a", "b"]


@pytest.mark.slow
def test_a_coder_that_changes_nothing_changes_nothing(play_toy: Play) -> None:
    coded = play_toy(composition(plugin("same", lambda message: message)), rounds=3)
    plain = play_toy("fedavg", rounds=3)
    assert coded.state.models.equal(plain.state.models)
    assert coded.run.ledger.totals == plain.run.ledger.totals


def test_the_server_averages_what_was_sent(play_toy: Play) -> None:
    uploads: list[Upload] = []
    flipped = plugin("flip", lambda message: message.sending(-message.update))
    play_toy(composition(flipped, ("watch", watching(uploads))), rounds=1)
    honest: list[Upload] = []
    play_toy(composition(("watch", watching(honest))), rounds=1)
    middle = (uploads[0].params + honest[0].params) / 2  # the start, in the middle of both
    torch.testing.assert_close(middle, middle[:1].expand_as(middle))


def test_bits_stand_on_the_ledger(play_toy: Play) -> None:
    played = play_toy(composition(plugin("sign", sign)), rounds=2)
    assert played.run.ledger.bits["up"]["model"] == 2 * 3 * WIDTH
    assert played.run.ledger.totals["up"]["model"] == -(-2 * 3 * WIDTH // 8)


WRONG: dict[str, tuple[Callable[[Message], Any], str]] = {
    "nothing": (lambda m: None, "returned NoneType, expected Message"),
    "narrow": (lambda m: replace(m, params=m.params[1:]), "expected (28,)"),
    "not finite": (lambda m: m.sending(m.update / 0), "not finite"),
    "double": (lambda m: replace(m, params=m.params.double()), "expected float32"),
    "mask": (lambda m: replace(m, mask=m.mask.long()), "expected bool"),
    "bits": (lambda m: replace(m, bits=0), "expected 1 bit or more"),
    "overhead": (lambda m: replace(m, overhead=-1), "expected 0 bits or more"),
    "samples": (lambda m: replace(m, samples=0), "expected 1 or more"),
    "memory": (lambda m: replace(m, memory={"x.y": m.params}), "memory 'x.y' was not declared"),
    "raises": (lambda m: 1 / 0, "raised ZeroDivisionError"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_message_is_one_line(play_toy: Play, name: str) -> None:
    coder, text = WRONG[name]
    with pytest.raises(PluginError) as caught:
        play_toy(composition(plugin("bad", coder)), rounds=1)
    assert str(caught.value).startswith("round 1: bad.encode")
    assert text in str(caught.value)


def test_the_server_is_told_a_number_of_samples() -> None:
    """Three and five; the next coder, and the server, hear one more."""
    made = replace(upload([[[1.0] * 3], [[2.0] * 3]]), samples=torch.tensor([3, 5]))
    more = [lambda message: replace(message, samples=message.samples + 1)] * 2
    coded, _ = encoded(made, start([True] * 3, 2), more, state(), 3)
    assert coded.samples.tolist() == [5, 7]
    assert made.samples.tolist() == [3, 5]
    assert torch.equal(coded.params, made.params)


def test_memory_and_several_candidates_do_not_go_together() -> None:
    def keep(message: Message) -> Message:
        return replace(message, memory={"x.rest": message.memory["x.rest"] + 1})

    before = state(**{"x.rest": torch.zeros(2, 3)})
    made = upload([[[1.0] * 3, [2.0] * 3]])
    with pytest.raises(PluginError, match="several candidates"):
        encoded(made, start([True] * 3, 1, 2), [keep], before, 3)


# --- what coders add to the extras ---------------------------------------------------------------


def adding(**of_client: Any) -> Coder:
    """Adds an extra "norm" to the messages of clients that are named `c0`, `c1`."""

    def coder(message: Message) -> Message:
        value = of_client.get(f"c{message.client}")
        extras = message.extras if value is None else {**message.extras, "norm": value}
        return replace(message, extras=extras)

    return coder


def test_an_extra_that_a_coder_adds_arrives_and_is_counted() -> None:
    given = replace(upload([[[1, 2, 3]], [[4, 5, 6]]]), extras={"n": torch.tensor([[1.0], [2.0]])})
    coder = adding(c0=torch.tensor([7.0, 8.0]), c1=torch.tensor([9.0, torch.nan]))
    coded, _ = encoded(given, start([True] * 3), [coder], state(), 3)
    assert coded.extras["n"].tolist() == [[1.0], [2.0]]
    assert coded.extras["norm"][0].tolist() == [7.0, 8.0]
    ledger = CommunicationLedger(2)
    ledger.upload(coded, start([True] * 3))
    assert ledger.bits["up"] == {"model": 2 * 96, "n": 64, "norm": 3 * 32}


def test_who_adds_no_extra_sends_none() -> None:
    given = upload([[[1, 2, 3]], [[4, 5, 6]]])
    coded, _ = encoded(given, start([True] * 3), [adding(c1=torch.tensor([9.0]))], state(), 3)
    assert coded.extras["norm"].isnan().tolist() == [[True], [False]]
    ledger = CommunicationLedger(2)
    ledger.upload(coded, start([True] * 3))
    assert ledger.bits["up"]["norm"] == 32


@pytest.mark.parametrize(
    ("of_client", "said"),
    [
        (
            {"c0": torch.zeros(2), "c1": torch.zeros(3)},
            r"extra 'norm': expected one shape for all clients, got \(2,\) and \(3,\): fill up",
        ),
        (
            {"c1": torch.tensor([1])},
            "extra 'norm': expected of all clients, client 0 does not send it: .* got torch.int64",
        ),
    ],
)
def test_extras_that_make_no_table_are_refused(of_client: dict[str, Any], said: str) -> None:
    given = upload([[[1, 2, 3]], [[4, 5, 6]]])
    with pytest.raises(PluginError, match=said):
        encoded(given, start([True] * 3), [adding(**of_client)], state(), 3)
