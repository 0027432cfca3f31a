"""The result that another version of a method has of the same settings."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from flbench.results.files import read_result
from flbench.results.schema import Result
from flbench.suite import fingerprint

if TYPE_CHECKING:
    from flbench.run.spec import RunSpec


def result_of_any_version(spec: RunSpec) -> Result | None:
    """The result of a run, or of the same settings by the newest other version that has one."""
    path = file_of_any_version(spec)
    return None if path is None else read_result(path)


def file_of_any_version(spec: RunSpec) -> Path | None:
    """The result file of a run, or of the same settings by the newest other version that has one.

    A parameter that a result does not have came later; it must have its default.
    """
    if spec.path.is_file():
        return spec.path
    suite, method = fingerprint(spec.suite.settings()), spec.method.described
    defaults = {one.name: one.default for _, layer in spec.method.layers for one in fields(layer)}
    alike = []
    for path in sorted(spec.path.parent.parent.glob(f"*/{spec.path.name}")):
        found = read_result(path)
        given = {**{name: defaults.get(name) for name in method.params}, **found.method.params}
        if found.fingerprint.suite == suite and found.tuning is None and given == method.params:
            alike.append((Version(found.method.plugins[0].version), path))
    return max(alike, key=lambda pair: pair[0], default=(None, None))[1]
