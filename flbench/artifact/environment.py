"""Environment of an artifact: exact versions of all packages, and the source of flbench."""

from __future__ import annotations

import gzip
import importlib.metadata
import platform
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import flbench
from flbench.errors import UserError
from flbench.run.core_digest import PARTS as CORE
from flbench.run.core_digest import core_parts, digests

PARTS = (
    "flbench", "benchmarks", "plugins", "pyproject.toml", "constraints.txt", "README.md",
    "LICENSE", "CITATION.cff",
)  # fmt: skip
"""What a clone needs to be installed."""


def pinned(distributions: tuple[str, ...]) -> str:
    """Exact versions of all that distributions need and that is installed, as constraints of pip.

    Their extras count as well. What only one machine offers is left out of a version (`+cpu`).

    Args:
        distributions: names; flbench itself is no constraint, as its source is in the artifact.
    """
    found: dict[str, str] = {}
    queue = list(distributions)
    while queue:
        name = canonicalize_name(queue.pop())
        if name in found:
            continue
        try:
            one = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[name] = one.version
        queue += _needed(tuple(one.requires or ()), every=name == "flbench")
    found.pop("flbench", None)
    lines = [f"{name}=={Version(version).public}\n" for name, version in sorted(found.items())]
    head = f"# Python {platform.python_version()}: pip install -c constraints.txt ...\n"
    return "".join([head, *lines])


@cache
def _needed(requires: tuple[str, ...], every: bool) -> tuple[str, ...]:
    """Names of what is needed here; with `every` those of all extras too."""
    return tuple(_names(requires, every))


def _names(requires: tuple[str, ...], every: bool) -> Iterator[str]:
    for text in requires:
        one = Requirement(text)
        extra = one.marker is not None and "extra" in str(one.marker)
        if one.marker is None or one.marker.evaluate({"extra": ""}) or (every and extra):
            yield one.name


def source_root(near: Path) -> Path | None:
    """The clone whose core is the one that runs here; None = a release is installed.

    Args:
        near: a folder that may lie in it, if flbench is not imported from a clone.
    """
    places = (Path(flbench.__file__).resolve().parents[1], near.resolve(), *near.resolve().parents)
    clones = (root for root in places if (root / ".git").exists())
    same = (root for root in clones if digests(root / "flbench", CORE) == core_parts() != {})
    return next(same, None)


def commit(root: Path) -> str:
    """The commit of a clone, in hex.

    Raises:
        UserError: git does not say.
    """
    return _git(root, "rev-parse", "HEAD").decode().strip()


def uncommitted(root: Path) -> list[str]:
    """Source files that differ from the commit, which an archive of it would lack."""
    lines = _git(root, "status", "--porcelain", "--", *PARTS).decode().splitlines()
    return [line[3:] for line in lines]


def archive(root: Path) -> bytes:
    """The committed source of a clone as a `.tar.gz` that pip installs; the same bytes each time.

    Raises:
        UserError: git cannot make it.
    """
    prefix = f"flbench-{flbench.__version__}/"
    tar = _git(root, "archive", "--format=tar", f"--prefix={prefix}", "HEAD", "--", *PARTS)
    return gzip.compress(tar, mtime=0)


def _git(root: Path, *words: str) -> bytes:
    try:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"").decode(errors="replace").strip() or str(error)
        raise UserError(
            f"the source of flbench: expected a clone that git can read: {said.splitlines()[0]}"
        ) from None
