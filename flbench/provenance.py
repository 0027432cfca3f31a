"""Provenance: whether results that call themselves the same were made by the same code."""

from __future__ import annotations

from collections.abc import Iterable

from flbench.results.schema import Result


def same_code(results: Iterable[Result]) -> str | None:
    """Say where two results of one row were computed by different code under one version.

    A row is method, parameters and the version of each plugin. Results from before the hash of a
    plugin's files was kept say nothing, and are left out.

    Returns:
        One line on the first such plugin; None where there is none.
    """
    first: dict[tuple[str, ...], tuple[str, int]] = {}
    for result in results:
        for plugin in result.method.plugins:
            row = (result.fingerprint.config, plugin.name, plugin.distribution, plugin.version)
            source, seed = first.setdefault(row, (plugin.source, result.seed))
            if not source:
                first[row] = (plugin.source, result.seed)
            elif plugin.source and plugin.source != source:
                return (
                    f"{plugin.name} of {plugin.distribution} {plugin.version} is not the same code"
                    f" in seeds {seed} and {result.seed} ({source}, {plugin.source}): give changed"
                    " code another version, and run both again"
                )
    return None
