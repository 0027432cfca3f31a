"""The folder of an artifact: what is in it, and how it is written and written again."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import flbench
from flbench.artifact import environment, reproduce
from flbench.artifact.metadata import ANONYMOUS, ArtifactCard, files_of
from flbench.artifact.readme import Facts, readme
from flbench.artifact.selection import ClaimedRun, ClaimedWork, TableClaim
from flbench.errors import UserError, naming
from flbench.results.audits import LOG, Audit, content_digest
from flbench.results.files import write_atomically

SUMS = "SHA256SUMS"


@dataclass(frozen=True)
class WrittenFrom:
    """What an artifact is written from, beside its claims.

    Attributes:
        results: the folder of result files that the claims are from.
        audits: digest of a content -> the lines of the log that are about it.
        authors: as in `ArtifactCard`.
        title: "" = that of the claims.
        typed: the command.
    """

    results: Path
    audits: Mapping[str, bytes]
    authors: tuple[str, ...]
    title: str
    typed: str


def write(folder: Path, work: ClaimedWork, source: WrittenFrom) -> list[str]:
    """Write an artifact, or write it again: what a person or a rerun put there stays.

    The claims are written first, so that a folder that was begun is known; sums of all files last.

    Returns:
        What a person should know, in lines.

    Raises:
        UserError: the folder holds something else, or another artifact.
    """
    claims = [plain(claim, source.results) for claim in work.claims]
    about = {"title": work.title, "flbench": flbench.__version__, "claims": claims}
    refuse_other(folder, work.title)
    write_atomically(folder / reproduce.CLAIMS, _json(about))
    root = environment.source_root(source.results)
    facts = _facts(folder, work, source, root)
    files = {**_copied(work, source), **_made(work, facts, root)}
    metadata = _metadata(work, source, facts)
    kept = [name for name in metadata if (folder / name).exists()]
    files |= {name: data for name, data in metadata.items() if name not in kept}
    _remove_former(folder, files)
    for name, data in files.items():
        write_atomically(folder / name, data)
    reproduce.write_expected(folder, claims)
    write_atomically(folder / SUMS, _sums(folder))
    said = [
        f"the source of flbench has changes that are not committed, which {facts.source} lacks:"
        f" {', '.join(facts.edited)}"
    ]
    again = [f"{folder / name} is kept: delete it to have it written again" for name in kept]
    return [*(said if facts.edited else []), *(again if source.authors or source.title else [])]


def _facts(folder: Path, work: ClaimedWork, source: WrittenFrom, root: Path | None) -> Facts:
    """What the README says beside the claims; `root` is the clone that flbench runs from."""
    return Facts(
        typed=source.typed,
        measured=reproduce.measured(folder),
        reproduced=_reproduced(work, source.audits),
        files=len(work.files),
        commit="" if root is None else environment.commit(root),
        edited=tuple([] if root is None else environment.uncommitted(root)),
        packages=_packages(work),
        is_named=_is_named(folder / "CITATION.cff", source.authors),
    )


def _made(work: ClaimedWork, facts: Facts, root: Path | None) -> dict[str, bytes]:
    """Files that are made: the README, the script, the environment and the source."""
    distributions = ("flbench", *(name.partition("==")[0] for name in facts.packages))
    return {
        "README.md": readme(work, facts).encode(),
        "reproduce.py": Path(reproduce.__file__).read_bytes(),
        "constraints.txt": environment.pinned(distributions).encode(),
        **({} if root is None else {facts.source: environment.archive(root)}),
    }


def _metadata(work: ClaimedWork, source: WrittenFrom, facts: Facts) -> dict[str, bytes]:
    """Files that their author may edit, and that are written once."""
    title = source.title or f"Artifact of {work.title}"
    summary = f"Results, and how to run them again: {work.title}."
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    card = ArtifactCard(title, summary, source.authors, day, work.paper, facts.packages)
    return files_of(card)


def plain(claim: TableClaim, results: Path) -> dict[str, Any]:
    """A claim as `claims.json` has it."""
    return {
        "key": claim.key,
        "name": claim.name,
        "place": claim.place,
        "table": claim.table,
        "columns": list(claim.columns),
        "published": claim.published,
        "verdict": claim.verdict,
        "why": claim.why or ("" if claim.results else "no result yet"),
        "seconds": round(claim.seconds, 1),
        "runs": [_plain_run(run, claim.columns, results) for run in claim.runs],
    }


def _plain_run(run: ClaimedRun, columns: tuple[str, ...], results: Path) -> dict[str, Any]:
    result = run.result
    return {
        "seed": run.seed,
        "command": run.command,
        "writes": run.writes,
        "result": None if run.file is None else _place(run.file, results),
        "expected": {} if result is None else {c: reproduce.number(result, c) for c in columns},
        "limit": {}
        if result is None
        else {c: _finite(reproduce.limit(result, c)) for c in columns},
        "environment": {} if result is None else result.environment,
    }


def _finite(limit: float) -> float | None:
    """A limit as JSON has it; None = any number agrees."""
    return None if limit == float("inf") else limit


def _place(file: Path, results: Path) -> str:
    """Where a result file lies in an artifact."""
    return (Path("results") / file.relative_to(results)).as_posix()


def _is_named(citation: Path, authors: tuple[str, ...]) -> bool:
    """Whether the authors are named; a citation that is there is kept as it is."""
    if not citation.is_file():
        return bool(authors)
    return f'"{ANONYMOUS}"' not in citation.read_text(encoding="utf-8")


def _copied(work: ClaimedWork, source: WrittenFrom) -> dict[str, bytes]:
    """Files that are copies: results, suites, lines of the log, the licence."""
    found = dict[str, bytes]()
    with naming():
        for file in work.files:
            found[_place(file, source.results)] = file.read_bytes()
        for suite in work.suites:
            found[f"suites/{suite.name}"] = suite.read_bytes()
    digests = {content_digest(result) for result in work.files.values()}
    found[LOG] = b"".join(lines for digest, lines in source.audits.items() if digest in digests)
    for one in importlib.metadata.files("flbench") or []:
        if one.name == "LICENSE":
            found["LICENSE"] = one.read_binary()
    return found


def _reproduced(work: ClaimedWork, audits: Mapping[str, bytes]) -> int:
    """How many results were run again as a whole, and the last time agreed."""
    count = 0
    for result in work.files.values():
        lines = audits.get(content_digest(result), b"").splitlines()
        whole = [one for one in map(Audit.model_validate_json, lines) if one.whole]
        count += bool(whole) and whole[-1].agrees
    return count


def _packages(work: ClaimedWork) -> tuple[str, ...]:
    """Packages beside flbench that methods come from, as `NAME==VERSION`."""
    plugins = (plugin for result in work.files.values() for plugin in result.plugins)
    found = {f"{one.distribution}=={one.version}" for one in plugins if one.distribution}
    return tuple(sorted(one for one in found if not one.startswith("flbench==")))


def refuse_other(folder: Path, title: str) -> None:
    """Refuse a folder that holds something else than this artifact.

    Raises:
        UserError: says what it holds.
    """
    with naming(folder):
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return
    if not folder.is_dir() or not (folder / reproduce.CLAIMS).is_file():
        raise UserError(
            f"--out: expected an artifact, or a folder that is empty or not there, got '{folder}'"
        )
    try:
        there = json.loads((folder / reproduce.CLAIMS).read_text(encoding="utf-8"))["title"]
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(
            f"{folder / reproduce.CLAIMS}: expected the claims of an artifact"
        ) from None
    if there != title:
        raise UserError(f"--out: '{folder}' has the artifact of '{there}': name another folder")


def _remove_former(folder: Path, files: Mapping[str, bytes]) -> None:
    """Remove copies that an earlier artifact had and this one has not, if nobody edited them."""
    sums = folder / SUMS
    lines = sums.read_text(encoding="utf-8").splitlines() if sums.is_file() else []
    for line in lines:
        digest, _, name = line.partition("  ")
        path = folder / name
        former = name.startswith(("results/", "suites/")) and name not in files and path.is_file()
        if former and hashlib.sha256(path.read_bytes()).hexdigest() == digest:
            path.unlink()


def _sums(folder: Path) -> bytes:
    """Digests of all files but what was run again, as `sha256sum -c` reads them."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in paths]
    left_out = (SUMS, reproduce.LOG, "rerun/")
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n"
        for path, name in zip(paths, names, strict=True)
        if not name.startswith(left_out)
    ]
    return "".join(lines).encode()


def _json(table: object) -> bytes:
    return f"{json.dumps(table, indent=1, sort_keys=True)}\n".encode()
