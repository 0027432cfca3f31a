"""FedDF: which methods it can distil the models of."""

from __future__ import annotations

import pytest
from toy import Play, refused

SERVER = {"server_samples": 8, "rounds": 1}


@pytest.mark.parametrize("name", ["local-only", "fedper", "ditto"])
def test_what_clients_keep_is_not_distilled(name: str, play_toy: Play) -> None:
    said = refused(play_toy, f"{name}+feddf", **SERVER)
    assert "feddf: it needs whole models" in said
    play_toy(f"{name}+feddf", settings={"steps": 0}, **SERVER)


def test_what_clients_do_not_have_is_not_missing(play_toy: Play) -> None:
    """The server gets all that clients of heterofl train."""
    play_toy("heterofl+feddf", settings={"steps": 1}, **SERVER)
