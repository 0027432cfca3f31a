"""Text: blocks of tokens, where they come from, and that the core counts tokens, not samples."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from mentions import mention, mentioning, mentions
from toy import Play, Played

from flbench.core.client_module import ClientModule, cross_entropy
from flbench.core.dataset import Dataset
from flbench.core.local_training import LocalTraining
from flbench.datasets import status
from flbench.datasets import text as texts
from flbench.engine import model_evaluation
from flbench.errors import BadParameter, MissingData, UserError
from flbench.federation import shared_test_sets
from flbench.federation.federation import Samples, label_counts
from flbench.federation.loading import load_dataset
from flbench.federation.row_lists import RowLists
from flbench.suite import load_suite

WORDS = {
    "no": "jeg vet ikke hva det er for noe som ikke finnes i hele Norge",
    "sv": "jag vet inte vad det är för något som inte finns i hela Sverige",
    "da": "jeg ved ikke hvad det er for noget som ikke findes i hele Danmark",
}
REAL = Path(os.environ.get("FLBENCH_DATA") or "nowhere")
real = pytest.mark.skipif(
    not (REAL / "text").is_dir() or not (REAL / "gpt2_tokenizer").is_dir(),
    reason="text/ and gpt2_tokenizer/ do not lie in FLBENCH_DATA",
)


def sentences(language: str, lines: int = 60, seed: int = 0) -> str:
    """Lines of twelve random words of a language; no two files are the same."""
    rng = np.random.default_rng((seed, *language.encode()))
    words = WORDS[language].split()
    return "".join(" ".join(rng.choice(words, 12)) + ".\n" for _ in range(lines))


def written(folder: Path, lines: int = 60) -> Path:
    """A folder with one file per language."""
    folder.mkdir(parents=True, exist_ok=True)
    for language in WORDS:
        (folder / f"{language}.txt").write_text(sentences(language, lines), encoding="utf-8")
    return folder


def said(load: Callable[[], object], kind: type[UserError] = UserError) -> str:
    """The one line of what refuses."""
    with pytest.raises(kind) as caught:
        load()
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Letters:
    """A tokenizer of 26 letters, each a token; anything else is none."""

    def encode(self, text: str) -> Any:
        class Encoded:
            ids = [ord(letter) - 97 for letter in text if letter.isalpha()]  # noqa: RUF012

        return Encoded

    def get_vocab_size(self) -> int:
        return 26


def lettered(**domains: str) -> Dataset:
    return texts.tokenised("letters", domains, 3, Letters())  # type: ignore[arg-type]


# --- blocks -------------------------------------------------------------------------------------


def test_blocks_follow_each_other_without_overlap_and_the_rest_is_left_out() -> None:
    data = lettered(one="abcdefghijk", two="zyxwv")
    assert data.x.tolist() == [[0, 1, 2], [4, 5, 6], [25, 24, 23]]
    assert data.y.tolist() == [[1, 2, 3], [5, 6, 7], [24, 23, 22]]
    assert data.domains is not None
    assert data.domains.tolist() == [0, 0, 1]
    assert (data.name, data.classes, data.test) == ("letters", 26, None)
    assert data.x.is_contiguous()
    assert data.y.is_contiguous()
    assert {data.x.dtype, data.y.dtype, data.domains.dtype} == {torch.int64}


def test_a_text_shorter_than_a_block_is_one_line() -> None:
    assert lettered(one="abcd").x.tolist() == [[0, 1, 2]]
    told = said(lambda: lettered(one="abcd", two="abc"))
    assert told == mentioning("two", "letters", "3 tokens", "more than 3")
    assert mentions(said(lambda: lettered(one="")), "one", "letters", "0 tokens")


def test_text_is_cut_into_byte_pairs_of_its_own(tmp_path: Path) -> None:
    written(tmp_path / "text")
    data = load_dataset("nordic", tmp_path)
    assert (data.name, data.x.shape[1]) == ("nordic", 64)
    assert torch.equal(data.x[:, 1:], data.y[:, :-1]), "y is x one token later"
    tokenizer = texts.train_tokenizer([sentences(language) for language in ("no", "sv", "da")])
    assert data.classes == tokenizer.get_vocab_size()
    assert 256 < data.classes < texts.PAIRS, "few words make few pairs"
    assert int(data.x.max()) < data.classes
    assert data.domains is not None
    for domain, language in enumerate(("no", "sv", "da")):
        rows = data.domains == domain
        tokens = torch.cat([data.x[rows], data.y[rows, -1:]], dim=1).flatten().tolist()
        text = sentences(language)
        assert tokenizer.decode(tokens) == text[: len(tokenizer.decode(tokens))]
        assert len(tokenizer.encode(text).ids) - len(tokens) < 65, "only a remainder is left out"
    assert torch.equal(data.labels, data.domains), "text is dealt by language"


def test_the_vocabulary_has_at_most_2000_entries() -> None:
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, 8))) for _ in range(900)]
    assert texts.train_tokenizer([" ".join([*words, *words])]).get_vocab_size() == 2000


@pytest.mark.slow
@pytest.mark.long
def test_the_same_files_give_the_same_tokens_in_another_process(tmp_path: Path) -> None:
    written(tmp_path / "text")
    code = (
        "import sys, hashlib; from pathlib import Path; from flbench.datasets.text import nordic\n"
        "data = nordic(Path(sys.argv[1]))\n"
        "print(data.classes, hashlib.sha256(data.x.numpy().tobytes()).hexdigest())"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    one = subprocess.run(command, capture_output=True, text=True, check=True)
    data = load_dataset("nordic", tmp_path)
    assert one.stdout.split()[1] == hashlib.sha256(data.x.numpy().tobytes()).hexdigest()
    again = load_dataset("nordic", tmp_path)
    assert torch.equal(data.x, again.x)
    assert torch.equal(data.y, again.y)
    assert one.stdout.startswith(f"{data.classes} ")


@pytest.mark.slow
@pytest.mark.long
def test_tokenizers_and_transformers_are_imported_without_a_warning() -> None:
    code = "import tokenizers; from transformers import GPT2Config, GPT2Model"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import torch, flbench.models.gpt2; {code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- files --------------------------------------------------------------------------------------


def test_no_txt_is_read_before_nb_txt(tmp_path: Path) -> None:
    folder = written(tmp_path / "text")
    (folder / "nb.txt").write_text("annet", encoding="utf-8")
    assert texts.read("nordic", tmp_path, "text")["no"] == sentences("no")
    (folder / "no.txt").unlink()
    assert texts.read("nordic", tmp_path, "text")["no"] == "annet"
    assert list(texts.read("nordic", tmp_path, "text")) == ["no", "sv", "da"]


@pytest.mark.parametrize("name", ["nordic", "nordic-gpt2"])
def test_a_missing_language_names_the_file_and_what_to_type(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path / "text")
    for file, named in (("sv.txt", "text/sv.txt"), ("no.txt", "text/no.txt or text/nb.txt")):
        (folder / file).unlink()
        assert said(lambda: load_dataset(name, tmp_path), MissingData) == mentioning(
            name,
            named,
            "UTF-8",
            tmp_path,
            "--data-root",
            "FLBENCH_DATA",
            f"flbench data {name}",
        )


def test_missing_oscar_names_the_command_that_fetches_it(tmp_path: Path) -> None:
    told = said(lambda: load_dataset("oscar", tmp_path), MissingData)
    assert mentions(told, "oscar", "oscar/no.txt or oscar/nb.txt", "UTF-8")
    assert "flbench data oscar shows where to get them" in told


def test_missing_vocabulary_is_one_line(tmp_path: Path) -> None:
    written(tmp_path / "text")
    told = said(lambda: load_dataset("nordic-gpt2", tmp_path), MissingData)
    assert mentions(told, "nordic-gpt2", "GPT-2's gpt2_tokenizer/vocab.json")
    assert "--data-root" in told


def test_gpt2_s_files_are_the_vocabulary_where_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "text", 400)
    folder = tmp_path / "gpt2_tokenizer"
    folder.mkdir()
    texts.train_tokenizer(WORDS.values()).save_model(str(folder))
    merges = (folder / "merges.txt").read_text(encoding="utf-8")
    with pytest.raises(UserError, match=mention("vocab.json", "50,257 entries", "got 291")):
        load_dataset("nordic-gpt2", tmp_path)
    whole = (folder / "vocab.json").read_text(encoding="utf-8")
    (folder / "vocab.json").write_text(whole[:99], encoding="utf-8")
    with pytest.raises(UserError, match=mention(str(folder), "cannot be used")):
        load_dataset("nordic-gpt2", tmp_path)
    (folder / "vocab.json").write_text(whole, encoding="utf-8")
    monkeypatch.setattr(texts, "ENTRIES", 291)
    with pytest.raises(UserError, match=mention("merges.txt", "50,000 entries")):
        load_dataset("nordic-gpt2", tmp_path)
    monkeypatch.setattr(texts, "MERGES", len(merges.splitlines()) - 1)
    data = load_dataset("nordic-gpt2", tmp_path)
    assert data.x.shape[1] == 256
    assert data.classes == texts.train_tokenizer(WORDS.values()).get_vocab_size()
    assert torch.equal(data.x[:, 1:], data.y[:, :-1])


def test_other_bytes_than_utf8_are_one_line(tmp_path: Path) -> None:
    folder = written(tmp_path / "text")
    (folder / "da.txt").write_bytes("smørrebrød".encode("latin-1"))
    told = said(lambda: load_dataset("nordic", tmp_path))
    assert mentions(told, f"{folder / 'da.txt'}", "UTF-8", "iconv")
    assert said(lambda: load_dataset(f"text:{folder}", tmp_path)) == told


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (" \n\t\n" * 900, "spaces and line ends only"),
        ("sm\ufffdrrebr\ufffdd " * 400, "another encoding"),
        (None, "'a' and 'da' .* are the same"),
    ],
)
def test_what_says_nothing_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    written(tmp_path)
    other = (tmp_path / "da.txt").read_text(encoding="utf-8") if text is None else text
    (tmp_path / "a.txt").write_text(other, encoding="utf-8")
    with pytest.raises(UserError, match=why):
        load_dataset(f"text:{tmp_path}", Path("nowhere"))


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "da.txt").rename(tmp_path / "da.TXT")
    (tmp_path / "fi.md").write_text(sentences("sv"), encoding="utf-8")
    found = load_dataset(f"text:{tmp_path}", Path("nowhere"))
    assert found.domain_names == ("da", "no", "sv")
    assert mentions(found.notes, "fi.md")


@pytest.mark.parametrize("other", ["da.TXT", "DA.txt", "da..txt"])
def test_two_texts_of_one_name_are_refused(tmp_path: Path, other: str) -> None:
    written(tmp_path)
    (tmp_path / other).write_text(sentences("sv"), encoding="utf-8")
    told = said(lambda: load_dataset(f"text:{tmp_path}", tmp_path))
    assert told == mentioning("da.txt", other, "one file per domain")


def test_a_text_is_no_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    told = said(lambda: load_dataset(f"text:{tmp_path}", tmp_path))
    assert told == mentioning(tmp_path / "a.txt", "file", "got a pipe")


def test_a_text_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "da.txt").write_text("ja nej " * 9)
    monkeypatch.setattr(texts, "LARGEST", 8)
    assert "expected at most 8 bytes" in said(lambda: load_dataset(f"text:{tmp_path}", tmp_path))


@pytest.mark.parametrize("letters", ["a", "abc", " ", "7"])
def test_a_long_word_is_learnt_in_pieces(letters: str) -> None:
    line = letters * (10_000 // len(letters))
    assert "".join(texts.cut(line)) == line
    assert max(map(len, texts.cut(line))) == texts.LONGEST_WORD
    assert texts.cut("") == []
    whole = "a word " * 2000
    assert texts.cut(whole) == [whole], "what has gaps is learnt as before"


def test_a_word_of_200_kb_is_learnt_at_once() -> None:
    """The cost is counted, not timed: it grows with the square of the longest word."""
    learnt: list[int] = []

    class Counting:
        def train_from_iterator(self, lines: Any, **options: Any) -> None:
            learnt.extend(len(line) ** 2 for line in lines)

    with patch("tokenizers.ByteLevelBPETokenizer", Counting):
        texts.train_tokenizer(["x" * 200_000])
    assert sum(learnt) == 200_000 * texts.LONGEST_WORD


def test_any_folder_of_texts_is_a_data_set_with_a_domain_per_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "mine")
    (folder / "notes.md").write_text("no text of the data set", encoding="utf-8")
    data = load_dataset(f"text:{folder}", Path("nowhere"))
    assert data.name == f"text:{folder}"
    assert data.domains is not None
    assert data.domains.unique().tolist() == [0, 1, 2]
    monkeypatch.chdir(tmp_path)
    near = load_dataset("text:mine", Path("nowhere"))
    assert (near.name, torch.equal(near.x, data.x)) == ("text:mine", True)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert torch.equal(load_dataset("text:~/mine", Path("nowhere")).x, data.x)
    first = data.domains == 0
    alone = texts.train_tokenizer([sentences(language) for language in ("da", "no", "sv")])
    start = alone.encode(sentences("da")).ids[:64]
    assert data.x[first][0].tolist() == start, "files are taken by name"


def test_a_folder_without_texts_is_one_line(tmp_path: Path) -> None:
    for argument in (tmp_path, tmp_path / "none"):
        told = said(lambda name=argument: load_dataset(f"text:{name}", tmp_path), MissingData)
        assert told == mentioning(f"text:{argument}", "folder")
    assert "needs an argument" in said(lambda: load_dataset("text", tmp_path), BadParameter)


# --- bigrams ------------------------------------------------------------------------------------


def test_bigrams_are_three_languages_of_their_own_likely_pairs(tmp_path: Path) -> None:
    data = load_dataset("bigrams", tmp_path)
    assert (data.x.shape, data.classes) == ((900, 16), 16)
    assert torch.equal(data.x[:, 1:], data.y[:, :-1])
    assert data.domains is not None
    assert data.domains.bincount().tolist() == [300] * 3
    assert (int(data.x.min()), int(data.x.max())) == (0, 15)
    likely = []
    for domain in range(3):
        rows = data.domains == domain
        table = np.zeros((16, 16))
        np.add.at(table, (data.x[rows].flatten(), data.y[rows].flatten()), 1)
        likely.append(np.argsort(-table, axis=1)[:, :3])
        shares = np.sort(table / table.sum(axis=1, keepdims=True), axis=1)[:, ::-1]
        assert shares[:, :3].sum(axis=1).min() > 0.9, "three likely successors"
        np.testing.assert_allclose(shares.mean(axis=0)[:3], (0.57, 0.29, 0.1), atol=0.03)
    assert (likely[0][:, 0] != likely[1][:, 0]).mean() > 0.5, "languages differ"
    again = load_dataset("bigrams", tmp_path)
    assert torch.equal(again.x, data.x)


# --- OSCAR --------------------------------------------------------------------------------------


class Stream:
    """Rows of one text, without end; counts how many were taken."""

    def __init__(self, text: str, failing_after: int | None = None) -> None:
        self.text, self.failing_after, self.taken = text, failing_after, 0

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> dict[str, str]:
        if self.taken == self.failing_after:
            raise OSError("the line\nis cut")
        self.taken += 1
        return {"text": self.text}


def offer(monkeypatch: pytest.MonkeyPatch, load: Callable[..., object]) -> None:
    """Put a library `datasets` in the place of the one that may be installed."""
    module = ModuleType("datasets")
    module.load_dataset = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


@pytest.mark.slow
def test_oscar_is_streamed_up_to_twenty_megabytes_a_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, str, bool]] = []
    streams: list[Stream] = []

    def load(name: str, part: str, *, split: str, streaming: bool) -> Stream:
        asked.append((name, part, split, streaming))
        streams.append(Stream("ø" * 999_998 + "\n\t z"))
        return streams[-1]

    offer(monkeypatch, load)
    status.download("oscar", tmp_path)
    assert asked == [
        ("oscar", f"unshuffled_deduplicated_{language}", "train", True)
        for language in ("no", "sv", "da")
    ]
    assert [stream.taken for stream in streams] == [11] * 3, "2,000,000 bytes a line"
    assert sorted(path.name for path in (tmp_path / "oscar").iterdir()) == [
        "da.txt", "no.txt", "sv.txt",
    ]  # fmt: skip
    lines = (tmp_path / "oscar" / "sv.txt").read_text(encoding="utf-8").splitlines()
    assert lines == ["ø" * 999_998 + " z"] * 11, "a row is a line"


def test_a_language_that_does_not_come_whole_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"no": ["en", "to"], "da": ["en"]}

    def load(_: str, part: str, **__: object) -> object:
        language = part[-2:]
        if language == "sv":
            return Stream("ett", failing_after=2)
        return [{"text": text} for text in rows[language]]

    offer(monkeypatch, load)
    told = said(lambda: status.download("oscar", tmp_path))
    assert told == mentioning("oscar", tmp_path, "the line is cut")
    assert (tmp_path / "oscar" / "no.txt").read_text() == "en\nto\n"
    assert not (tmp_path / "oscar" / "sv.txt").exists()
    assert "sv.txt" in said(lambda: load_dataset("oscar", tmp_path), MissingData)


def test_a_library_that_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> object:
        raise ValueError("pass\ntrust_remote_code=True")

    offer(monkeypatch, load)
    told = said(lambda: status.download("oscar", tmp_path))
    assert told == mentioning("OSCAR", "trust_remote_code=True")
    monkeypatch.setitem(sys.modules, "datasets", None)
    told = said(lambda: status.download("oscar", tmp_path), MissingData)
    assert told == mentioning("OSCAR", "datasets", "pip install flbench[text]")


# --- what `flbench data` says -------------------------------------------------------------------


def test_data_says_which_texts_are_there(tmp_path: Path) -> None:
    assert status.surveyed("nordic", tmp_path).state == "absent"
    told = status.report(tmp_path, "nordic")
    assert told[0] == "nordic"
    assert any(line.split() == ["state", "absent"] for line in told)
    assert any("to get it" in line and mentions(line, "text/no.txt", "sentence")
               for line in told)  # fmt: skip
    folder = written(tmp_path / "text")
    assert status.surveyed("nordic", tmp_path).state == "present", "no.txt stands for nb.txt"
    (folder / "no.txt").rename(folder / "nb.txt")
    row = status.surveyed("nordic", tmp_path)
    assert (row.state, row.where, row.samples) == ("present", "text", "-")
    assert status.surveyed("nordic-gpt2", tmp_path).state == "absent"
    (tmp_path / "gpt2_tokenizer").mkdir()
    for file in ("vocab.json", "merges.txt"):
        (tmp_path / "gpt2_tokenizer" / file).touch()
    assert status.surveyed("nordic-gpt2", tmp_path).state == "present"
    assert status.surveyed("oscar", tmp_path).state == "absent"
    written(tmp_path / "oscar")
    assert status.surveyed("oscar", tmp_path).state == "present"
    row = status.surveyed("bigrams", tmp_path)
    assert (row.state, row.where, row.samples) == ("present", "built in", "900")
    assert status.surveyed("text", tmp_path).state == "argument"
    assert "--dataset text:FOLDER" in "\n".join(status.report(tmp_path, "text"))
    assert "flbench data oscar --fetch" in "\n".join(status.report(tmp_path, "oscar"))


def test_data_check_counts_blocks_tokens_and_languages(tmp_path: Path) -> None:
    written(tmp_path / "text")
    line = status.checked("nordic", tmp_path)[0]
    assert mentions(line, "nordic", "64", "3 domains"), line
    assert status.checked("bigrams", tmp_path)[0] == (
        "bigrams: 900 samples of 16, 16 labels, 3 domains"
    )
    assert status.checked(f"text:{tmp_path / 'text'}", tmp_path)[0].endswith("3 domains")


# --- tokens in the core -------------------------------------------------------------------------


def tokens(b: int = 5, t: int = 7, v: int = 11) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(b, t, v, generator=generator), torch.randint(v, (b, t), generator=generator)


def test_the_loss_of_text_is_the_mean_over_tokens() -> None:
    logits, y = tokens()
    flat = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
    torch.testing.assert_close(cross_entropy(logits, y), flat)
    plain = torch.nn.functional.cross_entropy(logits[:, 0], y[:, 0])
    torch.testing.assert_close(cross_entropy(logits[:, 0], y[:, 0]), plain)


def test_a_sample_of_text_is_judged_by_the_sums_over_its_tokens() -> None:
    logits, y = tokens()
    module = ClientModule(torch.nn.Identity(), LocalTraining())
    found = module.measure(logits, y)
    each = module.measure(logits.flatten(0, 1), y.flatten()).reshape(5, 7, 3)
    assert found.shape == (5, 3)
    torch.testing.assert_close(found, each.sum(dim=1))
    assert found[:, 2].tolist() == [7] * 5
    assert found[:, 1].tolist() == (logits.argmax(dim=2) == y).sum(dim=1).tolist()


def test_a_chunk_holds_as_many_tokens_as_it_would_samples() -> None:
    assert model_evaluation.chunk(torch.zeros(9, dtype=torch.int64)) == 256
    assert model_evaluation.chunk(torch.zeros(9, 16, dtype=torch.int64)) == 16
    assert model_evaluation.chunk(torch.zeros(9, 100, dtype=torch.int64)) == 2
    assert model_evaluation.chunk(torch.zeros(9, 600, dtype=torch.int64)) == 1
    assert model_evaluation.chunk(torch.zeros(0, 16, dtype=torch.int64)) == 256


def test_confidences_count_tokens() -> None:
    logits, y = tokens()
    weight = torch.arange(5)
    flat = model_evaluation.confidences(
        logits.flatten(0, 1), y.flatten(), weight.repeat_interleave(7), 15
    )
    found = model_evaluation.confidences(logits, y, weight, 15)
    torch.testing.assert_close(found, flat)
    assert float(found[:, 0].sum()) == 70


def test_text_is_dealt_by_language_and_without_any_as_one() -> None:
    y = torch.arange(12).reshape(4, 3)
    domains = torch.tensor([1, 0, 1, 0])
    assert torch.equal(Dataset("t", y, y, 12, domains).labels, domains)
    assert Dataset("t", y, y, 12).labels.tolist() == [0] * 4
    assert Dataset("t", y, domains, 2).labels is domains
    assert len(np.unique(shared_test_sets.kinds(Dataset("t", y, y, 12, domains)))) == 2


def test_label_counts_are_of_tokens() -> None:
    y = torch.tensor([[0, 1, 1], [2, 2, 2], [3, 0, 0]])
    pool = Samples(y, y, {"train": RowLists.of([torch.tensor([0, 2]), torch.tensor([1])])})
    assert label_counts(pool, 5).tolist() == [[3, 2, 0, 1, 0], [0, 0, 3, 0, 0]]


# --- whole runs ---------------------------------------------------------------------------------

SMALL = {"clients": 6, "rounds": 3, "local.epochs": 1}
SETTINGS = {"pfedlia": {"warmup": 1, "probe_epochs": 1}, "oracle": {"warmup": 1}}


def run_of(
    play_toy: Play, folder: Path, method: str, executor: str = "auto", **more: object
) -> Played:
    suite = load_suite("nordic-text", "bigrams", {**SMALL, **more})
    data = load_dataset("bigrams", folder)
    told = SETTINGS.get(method)
    return play_toy(method, settings=told, suite=suite, dataset=data, executor=executor)


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param("fedavg", marks=pytest.mark.long), "pfedlia"])
def test_a_run_on_text_counts_tokens_and_reports_perplexity(
    play_toy: Play, tmp_path: Path, method: str
) -> None:
    played = run_of(play_toy, tmp_path, method)
    result = played.result
    blocks = [len(rows) for rows in played.run.held_out.splits["test"]]
    assert result.clients.test == [16 * count for count in blocks]
    assert sum(result.clients.train) < 900, "of samples, blocks are counted"
    mean = np.mean(np.divide(result.clients.correct, result.clients.test))
    assert result.summary["accuracy_mean"] == pytest.approx(mean)
    loss = result.summary["loss_mean"]
    assert loss is not None
    assert loss == pytest.approx(np.mean(np.divide(result.clients.loss, result.clients.test)))
    assert result.summary["perplexity"] == pytest.approx(math.exp(loss))
    assert 1 < math.exp(loss) < 16, "better than any letter alike"
    counts = played.run.context.label_counts
    assert counts.sum(dim=1).tolist() == [16 * count for count in result.clients.train]
    assert result.clients.group == [0, 0, 1, 1, 2, 2]
    assert played.run.context.samples.tolist() == result.clients.train
    again = run_of(play_toy, tmp_path, method, "sequential")
    assert torch.equal(again.personal, played.personal), "the same bits each time"
    assert again.result.summary == result.summary


@pytest.mark.slow
def test_perplexity_is_for_text_alone_and_none_where_it_is_no_number(
    play_toy: Play, tmp_path: Path
) -> None:
    assert "perplexity" not in play_toy("fedavg").result.summary
    lost = run_of(play_toy, tmp_path, "fedavg", rounds=1)
    assert lost.run.history.last is not None
    lost.run.history.last.loss = [1e6 * n for n in lost.run.history.last.tested]
    summary = lost.result.summary
    assert (summary["loss_mean"], summary["perplexity"]) == (1e6, None)
    lost.result.canonical()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("method", ["fedavg", "pfedlia"])
def test_the_vectorised_executor_agrees_on_text(
    play_toy: Play, tmp_path: Path, method: str
) -> None:
    pair = [run_of(play_toy, tmp_path, method, name) for name in ("sequential", "vectorised")]
    torch.testing.assert_close(pair[0].personal, pair[1].personal, rtol=0, atol=1e-3)
    assert pair[0].run.ledger.totals == pair[1].run.ledger.totals


@pytest.mark.slow
@pytest.mark.long
def test_a_model_per_language_reads_better_than_one_for_all(play_toy: Play, tmp_path: Path) -> None:
    more = {"rounds": 12, "clients": 9}
    alike = run_of(play_toy, tmp_path, "fedavg", **more).result.summary
    apart = run_of(play_toy, tmp_path, "oracle", **more).result.summary
    assert apart["ari"] == 1.0
    assert apart["perplexity"] is not None
    assert alike["perplexity"] is not None
    assert apart["perplexity"] < alike["perplexity"]


# --- real texts ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
@real
def test_real_text_has_thousands_of_blocks_a_language() -> None:
    data = load_dataset("nordic", REAL)
    assert data.domains is not None
    assert min(data.domains.bincount().tolist()) > 2000
    assert data.classes == 2000
    assert torch.equal(data.x[:, 1:], data.y[:, :-1])
    assert status.surveyed("nordic", REAL).state == "present"


@pytest.mark.slow
@pytest.mark.long
@real
def test_real_text_in_gpt2_s_vocabulary() -> None:
    data = load_dataset("nordic-gpt2", REAL)
    assert (data.classes, data.x.shape[1]) == (50_257, 256)
    assert int(data.x.max()) < 50_257
    assert data.domains is not None
    assert min(data.domains.bincount().tolist()) > 500
    assert status.surveyed("nordic-gpt2", REAL).state == "present"


@pytest.mark.parametrize(
    "names", [("train", "test"), ("wiki.valid", "wiki.train"), ("Training", "a")]
)
def test_files_named_by_parts_are_no_domains(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / f"{name}.txt").write_text("a b c " * 500)
    with pytest.raises(UserError, match="expected one file per domain"):
        load_dataset(f"text:{tmp_path}", tmp_path)
