"""Words for data sets: read from their modules, which are not imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flbench.plugin import dataset_words as module
from flbench.plugin.dataset_words import DatasetWords, dataset_words
from flbench.plugin.registry import Entry


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fashion-mnist", DatasetWords("Fashion-MNIST", "pictures")),
        ("digits", DatasetWords("Digits", "digits")),
        ("rotated:digits", DatasetWords("Digits, rotated", "digits")),
        ("rotated:label-swap:mnist", DatasetWords("MNIST, labels swapped, rotated", "pictures")),
        ("digit-5[mnist,usps]", DatasetWords("Digit-5 (mnist, usps)", "pictures")),
        ("travellers", DatasetWords("Train journeys", "tables", True)),
        ("shakespeare", DatasetWords("Shakespeare", "text", True)),
        ("schools-score", DatasetWords("Schools as a number", "tables", True)),
        ("csv:mine.csv", DatasetWords("csv:mine.csv", "tables", True)),
        ("writers:csv:mine.csv", DatasetWords("csv:mine.csv by made-up writers", "tables")),
        ("of-nobody", DatasetWords("of-nobody")),
        ("rotated:" * 50 + "digits", DatasetWords("rotated:" * 42 + "digits" + ", rotated" * 8)),
    ],
)
def test_a_data_set_is_called_what_its_module_says(name: str, words: DatasetWords) -> None:
    assert dataset_words(name) == words


def test_a_module_of_somebody_else_may_say_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Entry("datasets", "own", "mine:own", "acme", "1.0")
    monkeypatch.setattr(module, "entries", lambda kind: {"own": entry})
    file = tmp_path / "mine.py"
    monkeypatch.setattr(module, "source_file", lambda entry: file)
    for text, words in (
        ("TITLES = {'own': 'Own'}\nMEDIUM = 'tables'\nNATURAL = True", ("Own", "tables", True)),
        ("TITLES = ['own']\nMEDIUM = 3\nNATURAL = 'yes'", ("own", "", False)),
        ("TITLES = dict(own=raise_())\nMEDIUM = f()", ("own", "", False)),
        ("this is no Python", ("own", "", False)),
    ):
        file.write_text(text)
        assert dataset_words("own") == DatasetWords(*words), text
    file.unlink()
    assert dataset_words("own") == DatasetWords("own")


@pytest.mark.slow
def test_nothing_is_imported_for_them() -> None:
    code = (
        "import sys; from flbench.plugin.dataset_words import dataset_words as words;"
        "print(words('cifar10').title, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "CIFAR-10 False\n"
