"""Text data sets for next-token prediction, one domain per language.

A sample is a block of `context` tokens and, as labels, the token that follows each of them. Blocks
do not overlap, so that no token of a test block is in training; a remainder shorter than a block is
not used.

Two vocabularies: GPT-2's 50,257 byte pairs, from `vocab.json` and `merges.txt`; or 2,000 byte
pairs learnt from the texts themselves, small enough for a network that two cores can train.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.columns import written_twice
from flbench.datasets.files import Found, absent, damaged, present, text_in
from flbench.datasets.parts import words_for_parts
from flbench.errors import MissingData, UserError, text_of
from flbench.results.files import user_path

if TYPE_CHECKING:
    from tokenizers import ByteLevelBPETokenizer

LANGUAGES = {"no": ("no.txt", "nb.txt"), "sv": ("sv.txt",), "da": ("da.txt",)}
PAIRS = 2000
LONGEST_WORD = 2000
"""Characters of a word that pairs are learnt from in one piece."""
LARGEST = 2**30
"""Bytes of a text."""
CONTEXT = 64
GPT2_FILES = ("gpt2_tokenizer/vocab.json", "gpt2_tokenizer/merges.txt")
ENTRIES, MERGES = 50_257, 50_000
"""Of GPT-2's vocabulary, and the pairs of it that are merged."""
UNDECODED = "\N{REPLACEMENT CHARACTER}"
"""What stands in a text for bytes that were read in another encoding than their own."""
MOST_UNDECODED = 0.01

TITLES = {
    "nordic": "Nordic text",
    "nordic-gpt2": "Nordic text in GPT-2's words",
    "oscar": "OSCAR",
    "text": "Text",
    "bigrams": "Generated languages",
}
MEDIUM = "text"
ABOUT = {
    "nordic": DatasetInfo(
        source="Norwegian, Swedish and Danish text, one UTF-8 file per language",
        licence="that of the files",
        files=("text/nb.txt", "text/sv.txt", "text/da.txt"),
        fetch="one sentence per line in text/no.txt (or nb.txt), text/sv.txt and text/da.txt",
    ),
    "nordic-gpt2": DatasetInfo(
        source="the same in GPT-2's vocabulary (Radford et al. 2019)",
        licence="that of the files; the vocabulary: modified MIT",
        files=("text/nb.txt", "text/sv.txt", "text/da.txt", *GPT2_FILES),
        fetch="the texts, and GPT-2's vocab.json and merges.txt in gpt2_tokenizer",
    ),
    "oscar": DatasetInfo(
        source="OSCAR, Norwegian, Swedish and Danish (Ortiz Suárez et al. 2019)",
        licence="CC0 for the packaging; the texts are their authors'",
        files=("oscar/no.txt", "oscar/sv.txt", "oscar/da.txt"),
        fetch="pip install flbench[text], then flbench data oscar --fetch",
    ),
    "text": DatasetInfo(source="yours", licence="yours", fetch="--dataset text:FOLDER"),
    "bigrams": DatasetInfo(
        source="generated: three random bigram languages", licence="none", samples=900
    ),
}


def nordic(root: Path) -> Dataset:
    """Norwegian, Swedish and Danish text from files, 2,000 byte pairs, blocks of 64 tokens."""
    return tokenised("nordic", read("nordic", root, "text"), CONTEXT)


def nordic_gpt2(root: Path) -> Dataset:
    """Norwegian, Swedish and Danish text from files, GPT-2's vocabulary, blocks of 256 tokens."""
    texts = read("nordic-gpt2", root, "text")
    if not present(root, GPT2_FILES):
        raise absent("nordic-gpt2", root, f"GPT-2's {' and '.join(GPT2_FILES)}")
    return tokenised("nordic-gpt2", texts, 256, gpt2_tokenizer(root))


def gpt2_tokenizer(root: Path) -> ByteLevelBPETokenizer:
    """GPT-2's byte pairs: 50,257 entries, and the 50,000 pairs that they are merged from.

    Raises:
        UserError: a file cannot be read, or has another number of them.
    """
    from tokenizers import ByteLevelBPETokenizer

    vocabulary, merges = (root / file for file in GPT2_FILES)
    try:
        tokenizer = ByteLevelBPETokenizer(str(vocabulary), str(merges))
    except Exception as error:  # the library raises no narrower type
        raise damaged(vocabulary.parent, error) from None
    pairs = sum(
        bool(line.strip()) and not line.startswith("#version")
        for line in text_in(merges, LARGEST).splitlines()
    )
    for path, expected, got in (
        (vocabulary, ENTRIES, tokenizer.get_vocab_size()), (merges, MERGES, pairs),
    ):  # fmt: skip
        if got != expected:
            raise damaged(path, f"GPT-2's has {expected:,} entries, got {got:,}")
    return tokenizer


def oscar(root: Path) -> Dataset:
    """Norwegian, Swedish and Danish web text of OSCAR, 20 MB a language (extra `text`)."""
    return tokenised("oscar", read("oscar", root, "oscar"), CONTEXT)


def folder(root: Path, argument: str) -> Dataset:
    """Your own texts: text:FOLDER with one UTF-8 text file per domain."""
    home = user_path(argument)
    files = [path for path in home.glob("*") if path.name[0] != "."]
    found = sorted(path for path in files if path.suffix.lower() == ".txt")
    if not found:
        got = "a file" if home.is_file() else "one without" if home.is_dir() else "none"
        raise MissingData(
            f"data set 'text:{argument}' expects a folder with one .txt per domain, got {got}"
        )
    left = sorted(path.name for path in files if path not in found)
    notes = (f"left out, as no .txt: {', '.join(left[:5])}",) if left else ()
    parts = [path.name for path in found if words_for_parts(re.split(r"[._-]", path.stem)[-1:])]
    if parts:
        raise UserError(
            f"{user_path(argument)} has {parts[0]}: expected one file per domain (an author, a"
            " language), not one per part; put the parts of each domain together"
        )
    stems = [path.stem for path in found]
    twice = next(((one, one) for at, one in enumerate(stems) if one in stems[:at]), None)
    if pair := twice or written_twice(stems):
        names = " and ".join(path.name for path in found if path.stem in pair)
        raise UserError(
            f"{home} has {names}, which are one name written in two ways: expected one file per"
            " domain; join or rename them"
        )
    made = tokenised(f"text:{argument}", {path.stem: _text(path) for path in found}, CONTEXT)
    return replace(made, domain_names=tuple(path.stem for path in found), notes=notes, gap=1)


def bigrams(root: Path) -> Dataset:
    """Three generated languages of 16 letters, 300 blocks of 16 letters each; no files needed.

    Each language is a random bigram model: every letter has three likely successors.
    """
    generator = np.random.default_rng(0)
    letters, length, blocks, languages = 16, 16, 300, 3
    x = np.empty((languages * blocks, length + 1), dtype=np.int64)
    for language in range(languages):
        likely = np.stack([generator.permutation(letters)[:3] for _ in range(letters)])
        rows = x[language * blocks : (language + 1) * blocks]
        rows[:, 0] = generator.integers(letters, size=blocks)
        for place in range(length):
            choice = likely[rows[:, place], generator.choice(3, size=blocks, p=(0.6, 0.3, 0.1))]
            stray = generator.random(blocks) < 0.05
            rows[:, place + 1] = np.where(stray, generator.integers(letters, size=blocks), choice)
    return _dataset("bigrams", torch.as_tensor(x), letters, [blocks] * languages)


def language_files(folder: Path) -> dict[str, Path | None]:
    """The file of each language in a folder, None where there is none."""
    return {
        language: next((folder / name for name in names if (folder / name).is_file()), None)
        for language, names in LANGUAGES.items()
    }


def read(name: str, root: Path, folder: str) -> dict[str, str]:
    """The texts of the three languages for a data set, language -> text."""
    texts = {}
    for language, path in language_files(root / folder).items():
        if path is None:
            files = " or ".join(f"{folder}/{file}" for file in LANGUAGES[language])
            raise absent(name, root, f"{files}, UTF-8, one sentence per line,")
        texts[language] = _text(path)
    return texts


def tokenised(
    name: str,
    texts: Mapping[str, str],
    context: int,
    tokenizer: ByteLevelBPETokenizer | None = None,
) -> Dataset:
    """Tokenise the text of each domain and cut it into blocks: x and y, shape (m, context).

    Without a tokeniser, 2,000 byte pairs are learnt from the texts.

    Raises:
        UserError: a text is no text, too short, or there twice.
    """
    refuse_no_text(name, texts)
    tokenizer = tokenizer or train_tokenizer(texts.values())
    blocks, sizes = [], []
    for domain, text in texts.items():
        ids = torch.tensor(tokenizer.encode(text).ids)
        whole = len(ids) // (context + 1)
        if whole < 1:
            raise UserError(f"text '{domain}' of '{name}' has {len(ids)} tokens, expected more"
                            f" than {context}")  # fmt: skip
        blocks.append(ids[: whole * (context + 1)].view(whole, context + 1))
        sizes.append(whole)
    return _dataset(name, torch.cat(blocks), tokenizer.get_vocab_size(), sizes)


def refuse_no_text(name: str, texts: Mapping[str, str]) -> None:
    """Refuse texts of spaces alone or of what could not be decoded, and one that is there twice.

    Raises:
        UserError: there is one.
    """
    first: dict[str, str] = {}
    for domain, text in texts.items():
        wrong = text.count(UNDECODED)
        if text and not text.strip():
            raise UserError(f"text '{domain}' of '{name}' has spaces and line ends only")
        if wrong > MOST_UNDECODED * len(text):
            raise UserError(
                f"text '{domain}' of '{name}' has {wrong:,} times {UNDECODED!r}: it was made from"
                " bytes in another encoding; write it anew as UTF-8"
            )
        if (other := first.setdefault(text, domain)) != domain:
            raise UserError(
                f"texts '{other}' and '{domain}' of '{name}' are the same: expected one domain each"
            )


def train_tokenizer(texts: Iterable[str]) -> ByteLevelBPETokenizer:
    """A byte-level byte-pair tokeniser with at most 2,000 entries, learnt from the texts."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    lines = (piece for text in texts for line in text.splitlines() for piece in cut(line))
    tokenizer.train_from_iterator(lines, vocab_size=PAIRS, show_progress=False)
    return tokenizer


def cut(line: str) -> list[str]:
    """A line, in pieces where a word (or a gap) of it is very long.

    Pairs are learnt in a time that grows with the square of a word's length.

    Example:
        >>> [len(piece) for piece in cut("a" * 5000)], cut("two words")
        ([2000, 2000, 1000], ['two words'])
    """
    longest = max((len(run[0]) for run in re.finditer(r"\S+|\s+", line)), default=0)
    size = LONGEST_WORD if longest > LONGEST_WORD else max(len(line), 1)
    return [line[start : start + size] for start in range(0, len(line), size)]


def fetch(root: Path) -> None:
    """Stream 20 MB a language of OSCAR through the `datasets` library into `oscar/`.

    OSCAR is read by a script of its own; the library asks before it runs it.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingData("OSCAR comes through `datasets`: pip install flbench[text]") from None
    (root / "oscar").mkdir(parents=True, exist_ok=True)
    for language in LANGUAGES:
        name = f"unshuffled_deduplicated_{language}"
        try:
            stream = load_dataset("oscar", name, split="train", streaming=True)
        except ValueError as error:
            raise UserError(f"OSCAR could not be fetched: {text_of(error)}") from None
        part = root / "oscar" / f"{language}.part"
        with part.open("w", encoding="utf-8") as file:
            for row in stream:
                file.write(" ".join(row["text"].split()) + "\n")
                if file.tell() > 20_000_000:
                    break
        part.rename(part.with_suffix(".txt"))


FETCH = {"oscar": fetch}


def found(where: str, others: tuple[str, ...], root: Path) -> Found | None:
    """The three languages in a folder under the root, if other files are there too."""
    whole = all(language_files(root / where).values()) and present(root, others)
    return Found(where, 0, True) if whole else None


FOUND = {
    "nordic": partial(found, "text", ()),
    "nordic-gpt2": partial(found, "text", GPT2_FILES),
    "oscar": partial(found, "oscar", ()),
}


def _text(path: Path) -> str:
    return text_in(path, LARGEST)


def _dataset(name: str, rows: torch.Tensor, vocabulary: int, sizes: list[int]) -> Dataset:
    """Blocks of context + 1 tokens as samples; domain k has sizes[k] of them."""
    domains = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return Dataset(name, rows[:, :-1].contiguous(), rows[:, 1:].contiguous(), vocabulary, domains)
