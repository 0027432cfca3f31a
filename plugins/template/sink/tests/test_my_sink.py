"""The sink is found by its name, and writes what it says."""

from pathlib import Path

from flbench.testing import try_out


def test_it_writes_the_accuracy_of_every_round(tmp_path: Path) -> None:
    result = try_out(sinks=["my-sink"], rounds=3, out=tmp_path)
    (file,) = tmp_path.rglob("my-sink.txt")
    written = [float(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert written == result.curves["accuracy"]
    assert len(written) == 3
