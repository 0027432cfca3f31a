"""The results that other versions of a method have of the same settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from flbench.results.files import misplaced, read_in_place, read_result
from flbench.results.schema import Result
from flbench.suite import fingerprint

if TYPE_CHECKING:
    from flbench.run.spec import RunSpec


def result_of_any_version(spec: RunSpec) -> Result | None:
    """The result of a run, or of the same settings by the newest other version that has one."""
    path = file_of_any_version(spec)
    return None if path is None else read_in_place(path)


def file_of_any_version(spec: RunSpec) -> Path | None:
    """The file of a run, or of the same settings by the newest other version that has one."""
    if spec.path.is_file():
        return spec.path
    return max(files_alike(spec), key=lambda pair: _in_order(pair[0]), default=((), None))[1]


def file_of_another_version(
    spec: RunSpec, read: Callable[[Path], Result] = read_result
) -> Path | None:
    """A result file of the same settings and precision by another version of the method."""
    own = tuple(one.version for one in spec.method.described.plugins)
    others = [
        path
        for versions, path in files_alike(spec, read)
        if versions != own
        and read(path).environment.get("precision", spec.engine.precision) == spec.engine.precision
    ]
    return next(iter(others), None)


def files_alike(
    spec: RunSpec, read: Callable[[Path], Result] = read_result
) -> list[tuple[tuple[str, ...], Path]]:
    """The files of runs with the settings of this one, each with the versions of its plugins.

    A parameter that a result does not have came later; it must have its default. Copies that lie in
    no run's place, such as a folder that was renamed, are left out.
    """
    suite, method = fingerprint(spec.suite.settings()), spec.method.described
    defaults = {one.name: one.default for _, layer in spec.method.layers for one in fields(layer)}
    alike = []
    for path in sorted(spec.path.parent.parent.glob(f"*/{spec.path.name}")):
        found = read(path)
        if misplaced(path, found):
            continue
        given = {**{name: defaults.get(name) for name in method.params}, **found.method.params}
        if found.fingerprint.suite == suite and found.tuning is None and given == method.params:
            alike.append((tuple(one.version for one in found.method.plugins), path))
    return alike


def _in_order(versions: tuple[str, ...]) -> Version:
    """What sorts results by the version of their first plugin; what is no version is the oldest."""
    try:
        return Version(versions[0])
    except InvalidVersion:
        return Version("0.dev0")
