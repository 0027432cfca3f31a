"""Admission: find everything that forbids a result file in the leaderboard's folder.

A file's content, not its name, decides where it belongs. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from packaging.version import InvalidVersion, Version

from flbench.errors import UserError
from flbench.leaderboard.grouping import refuse_mixed
from flbench.leaderboard.suite_info import suite_of
from flbench.plugin.registry import entries
from flbench.results.audits import LOG, Audit, content_digest, read_audits, rounds_of
from flbench.results.difference import different_parts
from flbench.results.files import read_result, real_path, result_files, slug
from flbench.results.schema import Result
from flbench.run.core_digest import UNKNOWN
from flbench.submission.consistency import departures, faults, job_of, younger
from flbench.submission.identity import imitations, unreadable
from flbench.submission.verification import COMPUTED_BY
from flbench.suite import Suite
from flbench.sweeps.tuning import FIRST_SEED

LARGEST, LARGEST_PER_CLIENT, LARGEST_READ = 100_000, 200, 2_000_000
"""Largest size of a result file in bytes; that for each client, where it is more; and of all files.

Scores between 200 clients, the most that are kept, need 53,000; 100 rounds of 100 clients 50,000.
A client needs 80, and as much again for a note of one number for each of them in five rounds.
"""
FOLDER = re.compile(r"\w[\w.,+-]*", re.ASCII)
"""Names of suites and methods, which are names of folders."""
ENVIRONMENT_OF_A_ROW = ("torch", "lightning", "numpy", "device", "compile")
"""Parts of the environment that all seeds of a row share, beside the core (`other_core`)."""

NAMED_SINCE, NAMED_LATER = "0.3.0", ("core", "processor")
"""A release, and what of an environment older ones do not name."""


@dataclass(frozen=True)
class SubmittedFile:
    """A result file, and the path where it belongs (`place`)."""

    path: Path
    result: Result
    place: Path

    @property
    def arriving(self) -> bool:
        """Whether the file is still elsewhere."""
        return real_path(self.path) != real_path(self.place)


@dataclass(frozen=True)
class Folder:
    """The folder of the leaderboard's result files, with submitted files.

    Attributes:
        files: files in the folder, and submitted files, by the path where they belong.
        new_table: whether files may have settings that no table has yet.
    """

    root: Path
    files: Mapping[Path, SubmittedFile]
    new_table: bool

    @cached_property
    def tables(self) -> dict[str, list[SubmittedFile]]:
        """Files by the fingerprint of their suite's settings."""
        found: dict[str, list[SubmittedFile]] = {}
        for file in self.files.values():
            found.setdefault(file.result.fingerprint.suite, []).append(file)
        return found

    @cached_property
    def audits(self) -> list[Audit]:
        """The audits of the log beside the folder that say what one of its runs is worth."""
        rounds = rounds_of(file.result for file in self.files.values())
        found = read_audits(self.root.parent / LOG)
        return [one for one in found if one.settles(rounds.get(one.run))]

    @cached_property
    def replays(self) -> dict[str, dict[str, bool]]:
        """Digest of content (`content_digest`) -> core -> whether a whole replay by it agreed.

        One that agrees is enough: on another processor rounding may grow.
        """
        found: dict[str, dict[str, bool]] = {}
        for one in self.audits:
            if one.core:
                of_file = found.setdefault(one.digest, {})
                of_file[one.core] = of_file.get(one.core, False) or one.agrees
        return found

    @cached_property
    def replayed(self) -> set[str]:
        """Digests of contents of which all rounds were played again, and agreed."""
        return {one.digest for one in self.audits if one.agrees}

    @cached_property
    def mixed(self) -> set[str]:
        """Fingerprints of the suites whose files do not all agree."""
        return {mark for mark, table in self.tables.items() if any(_conflicts(table))}


def problems(path: Path, folder: Folder) -> list[str]:
    """Everything that forbids a file in a folder that was gathered with it; empty if accepted.

    Files in the folder are checked like submitted files. Only submitted files are also refused if
    their status is `reproduced`, if they would replace another file, if they would create a table
    by mistake, if they lack what younger files have, or if their names or sources are not those of
    what is installed.
    """
    try:
        file = read(path, folder.root)
    except UserError as error:
        return [str(error).removeprefix(f"{path}: ")]
    odd = list(unreadable(file.result))
    found = [*odd, *faults(file.result), *_plugins(file.result)]
    if path.read_bytes() != file.result.canonical(as_read=True).encode():
        text = "its bytes are not those that flbench writes; submit the file as the run left it"
        found.insert(0, text)
    found += [*_seeds(file, folder), *_place(file, folder)]
    found += [] if found else _table(file, folder)
    return [ascii(line)[1:-1] for line in found] if odd else found


def read(path: Path, root: Path) -> SubmittedFile:
    """Read a file and find where it belongs.

    Raises:
        UserError: it is not a result file, or a name in it cannot be the name of a folder.
    """
    if path.is_symlink() or not path.is_file():
        what = "no link" if path.exists() else f"nothing is there, seen from {Path.cwd()}"
        raise UserError(f"{path}: expected a file seed-<n>.json, or a folder with some; {what}")
    size = path.stat().st_size
    result = read_result(path) if size <= LARGEST_READ else None
    clients = len(result.clients.train) if result else 0
    most = max(LARGEST, LARGEST_PER_CLIENT * clients) if result else LARGEST_READ
    if result is None or size > most:
        said = f"{size:,} bytes, expected at most {most:,}"
        raise UserError(f"{path}: {said}; let the method note less (ctx.note)")
    for field, name in (("suite.name", result.suite["name"]), ("method.name", result.method.name)):
        if not FOLDER.fullmatch(name) or name.endswith(".toml"):
            raise UserError(f"{path}: '{field}': expected letters, digits and .,+- , got {name!a}")
    if not slug(result.dataset):
        raise UserError(f"{path}: 'dataset': expected letters or digits, got {result.dataset!r}")
    return SubmittedFile(path, result, job_of(result, root).path)


def _plugins(result: Result) -> Iterator[str]:
    """Plugins and versions that other users cannot install."""
    for own in result.unpublished:
        yield f"{own} came from no package, so nobody else can run it: publish it, and run it anew"
    known = entries("methods")
    versions = [(plugin.name, plugin.version) for plugin in result.plugins]
    for name, version in [*versions, ("flbench", result.environment.get("flbench", "0"))]:
        if not _released(version):
            yield f"version {version} of {name} is no release: install one, and run again"
    for plugin in result.plugins:
        entry = known.get(plugin.name)
        if entry is None or entry.distribution != plugin.distribution:
            continue
        both = _released(plugin.version) and _released(entry.version)
        if both and Version(plugin.version) > Version(entry.version):
            there = f"{plugin.distribution} {entry.version}"
            yield f"{plugin.name} is of version {plugin.version}, here is {there}: upgrade it"


def _released(version: str) -> bool:
    """Whether a version can be the release of a package."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return False
    return not (parsed.is_devrelease or parsed.local)


def _seeds(file: SubmittedFile, folder: Folder) -> Iterator[str]:
    """A seed for tuning, a missing seed of the row, or seeds from different environments."""
    result = file.result
    searched = result.tuning.seeds if result.tuning else []
    if result.seed >= FIRST_SEED or result.seed in searched:
        yield f"seed {result.seed} is for tuning; rows are scored on seeds 0, 1, ... (--seeds N)"
        return
    table = folder.tables.get(result.fingerprint.suite, [])
    row = {one.result.seed: one for one in table if one.place.parent == file.place.parent}
    if lacking := _numbers(set(range(result.seed)) - row.keys()):
        yield f"its row lacks {lacking}: run all with --seeds {result.seed + 1}"
    if (before := row.get(result.seed - 1)) is not None:
        yield from other_environment(result, before.result)
    yield from other_core(
        result,
        [row[seed].result for seed in sorted(row) if seed < result.seed],
        folder.replays,
        arrives=file.arriving,
    )


def _numbers(seeds: Iterable[int]) -> str:
    """Seeds in words: "seed 0", "seeds 0, 2"; "" = none."""
    listed = ", ".join(map(str, sorted(seeds)))
    return f"seed{'s' if ',' in listed else ''} {listed}" if listed else ""


def outlook(paths: Iterable[Path], folder: Folder) -> Iterator[str]:
    """One line for each row of accepted files: its seeds, those it lacks, whether its table is new.

    A row lacks the seeds that other rows of its table have.
    """
    rows: dict[Path, SubmittedFile] = {}
    for path in paths:
        file = read(path, folder.root)
        rows.setdefault(file.place.parent, file)
    for place, file in sorted(rows.items()):
        result = file.result
        table = folder.tables[result.fingerprint.suite]
        own = {one.result.seed for one in table if one.place.parent == place}
        line = f"{result.method.name} on {result.suite['name']} ({result.dataset}): {_numbers(own)}"
        others = [one for one in table if one.place.parent != place and not one.arriving]
        if not folder.root.is_dir():
            yield f"{line}; compared with no table: there is no '{folder.root}'"
        elif not any(not one.arriving for one in table):
            yield f"{line}; opens a new table"
        elif lacking := _numbers({one.result.seed for one in others} - own):
            yield f"{line}; lacks {lacking}, which other rows of its table have"
        else:
            yield f"{line}; lacks no seed of its table"


def other_environment(result: Result, before: Result) -> Iterator[str]:
    """Differences of environment or code from the seed before; missing entries are ignored."""
    for name in ENVIRONMENT_OF_A_ROW:
        mine, theirs = (one.environment.get(name) for one in (result, before))
        if mine and theirs and mine != theirs:
            yield _not_of_one(name, theirs, mine, before.seed)
    sources = {(one.name, one.distribution, one.version): one.source for one in before.plugins}
    for plugin in result.plugins:
        source = sources.get((plugin.name, plugin.distribution, plugin.version))
        if source and plugin.source and source != plugin.source:
            yield (
                f"{plugin.name} of {plugin.distribution} {plugin.version} is not the same code in"
                f" seeds {before.seed} and {result.seed} ({source}, {plugin.source}): give changed"
                " code another version, and run both again"
            )


def other_core(
    result: Result,
    before: Sequence[Result],
    replays: Mapping[str, Mapping[str, bool]],
    *,
    arrives: bool,
) -> Iterator[str]:
    """That the seeds before were computed by another core than this one.

    It goes with them if one of them is of its core, or if whole replays agree: of one of them by
    its core, of it by one of theirs, or of both by a third. Files without a digest go with each
    other if their version of flbench is the same.

    Args:
        before: the smaller seeds of the row.
        replays: see `Folder.replays`.
        arrives: whether a replay that differs forbids it; what is there already stays.
    """

    def judged(core: str, other: Result) -> bool | None:
        """What a replay of a file by a core says; None = nothing."""
        return replays.get(content_digest(other), {}).get(core)

    def agreeing(other: Result) -> set[str]:
        """The cores whose replays of a file agree."""
        known = replays.get(content_digest(other), {})
        return {core for core, agrees in known.items() if agrees}

    own = core_of(result)
    cores = {core for one in before if (core := core_of(one))}
    if not own and not cores:
        versions = [one.environment.get("flbench") for one in (result, *before[-1:])]
        if all(versions) and len({*versions}) > 1:
            yield _not_of_one("flbench", versions[1], versions[0], before[-1].seed)
        return
    found: list[bool | None] = [True for one in before if own and core_of(one) == own]
    found += [judged(own, one) for one in before if own and core_of(one) != own]
    found += [judged(core, result) for core in cores - {own}]
    found += [True for one in before if agreeing(one) & agreeing(result)]
    if before and (True not in found or (arrives and False in found)):
        there = ", ".join(sorted(cores - {own})) or "none"
        yield (
            f"{_not_of_one('core', there, own or 'none', before[-1].seed)}, or show that a replay"
            f" of a whole run agrees: flbench verify FILE --log leaderboard/{LOG}"
        )


def core_of(result: Result) -> str:
    """The digest of the core that computed a file; "" = it does not say, or there were several."""
    found = result.environment.get("core", UNKNOWN)
    changed = any(one.plugin == "core" for one in result.source_changes or ())
    return "" if changed or found == UNKNOWN else found


def _not_of_one(key: str, expected: str | None, came: str | None, seed: int) -> str:
    return (
        f"'environment.{key}': {expected} expected as of seed {seed}, got {came}: run all seeds of"
        " a row in one environment"
    )


def _place(file: SubmittedFile, folder: Folder) -> Iterator[str]:
    """Conflicts with the path where the file belongs, and a wrong path or status of the file."""
    root, place = real_path(folder.root), file.place
    name = place.relative_to(folder.root)
    if not real_path(place).is_relative_to(root):
        yield f"its place {name} is behind a link that leads out of {folder.root}"
    elif not file.arriving:
        yield from _called(file, folder)
        return
    elif real_path(file.path).is_relative_to(root):
        yield f"its content belongs to {name}"
    elif file.path.name != place.name:
        yield f"the name {place.name} expected, of its seed"
    else:
        other = place if place.exists() else folder.files.get(place, file).path
        yield from _existing_file(file, other)
    if file.result.status != "self-reported":
        yield f"'status': self-reported expected of what arrives, got {file.result.status}"
    if not file.result.is_digested:
        yield "it has no digest, as an older flbench wrote it: run it again (--force)"
    if lacking := list(_not_said(file.result)):
        yield f"'environment': {', '.join(lacking)} required of what arrives, as runs write them"
    for field in younger(file.result):
        yield f"'{field}': field required of what arrives: run it again (--force)"
    yield from imitations(file.result)


def _not_said(result: Result) -> Iterator[str]:
    """What computed a result and is not in its environment, though its version writes it."""
    version = result.environment.get("flbench", "")
    is_older = _released(version) and Version(version) < Version(NAMED_SINCE)
    for name in COMPUTED_BY:
        if name not in result.environment and not (is_older and name in NAMED_LATER):
            yield name


def _called(file: SubmittedFile, folder: Folder) -> Iterator[str]:
    """That a file of the folder is called reproduced, and the log beside it does not say why."""
    called = file.result.status == "reproduced" and (folder.root.parent / LOG).is_file()
    if called and content_digest(file.result) not in folder.replayed:
        yield (
            f"'status': self-reported expected, as no audit in {folder.root.parent / LOG} says that"
            " all of this content agreed: flbench verify FILE --log writes one"
        )


def _existing_file(file: SubmittedFile, other: Path) -> Iterator[str]:
    """Conflicts with another file in the same place; equal bytes are no conflict."""
    if other.is_file() and other.read_bytes() == file.path.read_bytes():
        return
    try:
        there = read_result(other)
    except UserError:
        yield f"{other} is in its place, and is no result file"
        return
    if different := different_parts(there, file.result):
        text = f"with other {', '.join(different)}: flbench verify says which one can be had again"
    else:
        text = "with the same numbers: there is nothing to submit"
    yield f"{other} is the same run {text}"


def _table(file: SubmittedFile, folder: Folder) -> Iterator[str]:
    """Conflicts with the other files of its table, or with the installed suite."""
    result = file.result
    mark, place = result.fingerprint.suite, file.place
    table = [one for one in folder.tables.get(mark, []) if one.place != place]
    if mark in folder.mixed:
        yield from islice((text for other in table for text in _conflicts([other, file])), 1)
    if not file.arriving:
        return
    name, version = result.suite["name"], result.suite["version"]
    suite = _installed(name, result.dataset)
    if suite and suite.version != version:
        older = "run it again" if version < suite.version else "upgrade flbench"
        yield f"suite {name} version {version}, here is version {suite.version}: {older}"
    elif any(not one.arriving for one in table) or folder.new_table:
        return
    elif suite is None:
        yield f"suite {name} is not installed here: install it, or add --new-table"
    elif suite.hash() != result.fingerprint.suite:
        text = departures(job_of(result, Path()).suite.settings(), suite.settings())
        yield (
            f"its settings are not those of suite {name} ({text}), so it opens a table of its own:"
            " run it without --set and --rounds, or add --new-table"
        )


def _conflicts(files: Sequence[SubmittedFile]) -> Iterator[str]:
    """Why one table cannot hold some files, if it cannot."""
    try:
        refuse_mixed((one.path, one.result) for one in files)
    except UserError as error:
        yield str(error)


def _installed(name: str, dataset: str) -> Suite | None:
    """The installed suite with a name; None if there is none."""
    try:
        return suite_of(name, dataset)
    except UserError:
        return None


def gathered(root: Path, paths: Sequence[Path], new_table: bool = False) -> Folder:
    """The folder with its files and the submitted ones; unreadable files are left out."""
    files: dict[Path, SubmittedFile] = {}
    for path in result_files([root, *paths]):
        try:
            file = read(path, root)
        except UserError:
            continue
        files.setdefault(file.place, file)
    return Folder(root, files, new_table)
