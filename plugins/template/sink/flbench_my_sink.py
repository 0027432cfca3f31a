"""my-sink: the accuracy of every round, as a text file beside the result."""

from __future__ import annotations

from pathlib import Path

import flbench as fl


class MySink:
    """A text file beside the result, `seed-<n>/my-sink.txt`: a line with the accuracy per round.

    Sinks may also answer `run_started(info)` and `round_finished(record, state)`.
    """

    @fl.hookimpl
    def run_finished(self, result: fl.Result, path: str) -> None:
        """Write the file; the result lies at `path`."""
        file = Path(path).with_suffix("") / "my-sink.txt"
        file.parent.mkdir(exist_ok=True)
        accuracies = result.curves["accuracy"]
        file.write_text("".join(f"{accuracy}\n" for accuracy in accuracies), encoding="utf-8")
