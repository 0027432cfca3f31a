"""Which code of flbench computed a run: a digest of the parts that can change a number.

A digest is one of what the code says, not of its bytes: comments, docstrings, blank lines, and the
modules from which names of flbench are imported are left out. So it stays when a module moves, and
changes with every operator; that a name is imported from another module is not seen. Imports no
torch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

PARTS: Mapping[str, str] = {
    "aggregation": "toolbox",
    "checkpoints": "run.checkpoint run.checkpoint_file",
    "clock": "core.clock_settings engine.clock",
    "data": "core.dataset datasets federation.loading",
    "evaluation": "engine.cross_evaluation engine.lanes.evaluation engine.model_evaluation"
    " run.evaluation run.newcomers run.own_models",
    "hooks": "core.context core.hookspecs core.per_client core.state core.types plugin.arguments"
    " plugin.fedavg_defaults plugin.hooks plugin.isolation plugin.validation run.composition"
    " run.context",
    "instructions": "core.torchvision_compat engine.machine.allocator engine.machine.deterministic"
    " engine.machine.instructions engine.machine.portable engine.options engine.processes.fabric",
    "lanes": "engine.lanes.automatic engine.lanes.convolution engine.lanes.group"
    " engine.lanes.hooks engine.lanes.lanes engine.lanes.optimizer engine.lanes.phase"
    " engine.lanes.step engine.lanes.training engine.lanes.vectorised"
    " engine.recording.cuda_graphs engine.recording.functions engine.recording.in_place"
    " engine.recording.program engine.recording.simplify",
    "metrics": "client_metrics engine.client_metrics metrics results.score_encoding run.history"
    " run.result tasks",
    "models in memory": "core.bank_budget core.client_memory core.file_memory core.layout"
    " core.model_bank engine.reusable_table engine.workspace",
    "networks": "core.networks models run.networks",
    "partitions": "core.period_settings federation.build federation.feature_scale"
    " federation.federation"
    " federation.fixed_parts federation.periods federation.pooled federation.remembered"
    " federation.row_lists federation.shared_test_sets federation.target_scale partitions",
    "processes": "engine.distributed engine.processes.process_group"
    " engine.processes.shared_samples",
    "random numbers": "core.seeding",
    "rounds": "run.idle_clients run.rounds run.runner run.setup",
    "suites": "suite",
    "traffic": "engine.encoding engine.ledger engine.split_training",
    "training": "core.client_module core.lightning_hooks core.local_training core.targets"
    " engine.batches"
    " engine.batchnorm engine.dropout engine.local_trainer engine.optimizer_step"
    " engine.optimizers engine.sequential",
}
"""Part of the core -> its modules, and packages with all they hold; below `flbench`.

The names of parts are in checkpoints; where modules move, the right side alone changes.
"""
ASIDE = (
    "__init__ __main__ artifact cli figures leaderboard papers sinks submission sweeps terminal"
    " testing errors locks core.conformance core.deferred_dynamo core.deferred_torchmetrics"
    " core.deferring core.effect core.free_memory core.knowledge core.parameters core.setting_text"
    " engine.machine.processor federation.holdings"
    " engine.processes.fork_server engine.processes.own_process engine.processes.workers"
    " plugin.dataset_words plugin.field_types plugin.method_info plugin.own_objects plugin.registry"
    " plugin.source_inspection"
    " results.audits results.difference results.events results.export results.files"
    " results.hashed_fields results.kept_files results.marks results.plain_rows results.schema"
    " run.continued run.core_digest run.demand run.energy run.import_probe run.other_versions"
    " run.run_folder run.same_data run.saved_files run.saved_models run.saved_predictions"
    " run.saving run.spec"
)
"""Modules and packages that can change no number; every other one is in a part."""
UNKNOWN = "unknown"
"""The digest where sources are missing; it equals none, not even itself."""
TOKEN = re.compile(
    "|".join(
        (
            r"\#.*",
            r'"""[^"\\]*(?:(?:\\[\s\S]|"(?!""))[^"\\]*)*"""',
            r"'''[^'\\]*(?:(?:\\[\s\S]|'(?!''))[^'\\]*)*'''",
            r'"[^"\\\n]*(?:\\[\s\S][^"\\\n]*)*"',
            r"'[^'\\\n]*(?:\\[\s\S][^'\\\n]*)*'",
        )
    )
)
"""A comment or a string."""
OWN_IMPORT = re.compile(r"from flbench(?:\.\w+)* import (?:\(([^)]*)\)|(.*))")
NEXT = re.compile(r"(?:\s|#.*)*(.?)")
"""Blanks and comments, and the character after them."""


@cache
def core() -> str:
    """The digest of the core that this process runs, 12 hex digits; see `UNKNOWN`."""
    return whole(core_parts())


@cache
def core_parts() -> Mapping[str, str]:
    """Part -> its digest, as it was when this process first asked; none where sources lack."""
    return digests(Path(__file__).parents[1], PARTS)


def whole(parts: Mapping[str, str]) -> str:
    """The digest of a core by those of its parts."""
    return _hash(f"{name} {digest}" for name, digest in parts.items()) if parts else UNKNOWN


def digests(root: Path, parts: Mapping[str, str]) -> dict[str, str]:
    """Part -> its digest; none where a source file lacks.

    That of a part is the hash of the sorted hashes of its modules: names of files are not in it.
    Modules that only hold a docstring, as of packages, do not count.

    Args:
        root: the folder of flbench.
        parts: as `PARTS`.
    """
    try:
        return {name: _part(root, modules.split()) for name, modules in parts.items()}
    except (OSError, UnicodeDecodeError):
        return {}


def same(one: str, other: str) -> bool:
    """Whether two digests are of one core: both are known, and they are equal."""
    return one == other and one not in ("", UNKNOWN)


def sources(root: Path, module: str) -> list[Path]:
    """The file of a module below a folder, or all files of a package.

    Raises:
        FileNotFoundError: there are none.
    """
    place = root.joinpath(*module.split("."))
    found = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    if not found or not all(file.is_file() for file in found):
        raise FileNotFoundError(f"{place}: no source files")
    return found


def _part(root: Path, modules: Iterable[str]) -> str:
    files = [file for module in modules for file in sources(root, module)]
    texts = [essence(file.read_text(encoding="utf-8")) for file in files]
    return _hash(sorted(_hash([text]) for text in texts if text))


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12]


def essence(source: str) -> str:
    r"""The lines of a module that say what it computes.

    Left out are comments, string statements in triple quotes, blank lines and blanks at the end of
    a line. Imports from flbench come first, as the sorted names without their modules.

    Example:
        >>> essence("from flbench.core import b, a\n\ndef f(x):\n    return x  # 1")
        'import a\nimport b\ndef f(x):\n    return x'
    """
    kept, end, last = list[str](), 0, ""
    for found in TOKEN.finditer(source):
        start = found.start() if found[0][0] == "#" else _statement(source, found, end, last)
        if start is None:
            continue
        kept.append(source[end:start])
        last, end = kept[-1].rstrip()[-1:] or last, found.end()
    text = "".join([*kept, source[end:], "\n"])
    names = set[str]()

    def kept_names(found: re.Match[str]) -> str:
        names.update(name.strip() for name in (found[1] or found[2]).split(","))
        return ""

    lines = filter(None, map(str.rstrip, OWN_IMPORT.sub(kept_names, text).split("\n")))
    return "\n".join([*(f"import {name}" for name in sorted(names - {""})), *lines])


def _statement(source: str, found: re.Match[str], end: int, last: str) -> int | None:
    """Where a string begins that is a statement, as docstrings are; None = it is in an expression.

    Args:
        end: where the text begins of which nothing is left out so far.
        last: the last character before it that was kept.
    """
    if found[0][:3] not in ('"""', "'''"):
        return None
    start = found.start() - source.startswith("r", found.start() - 1)
    before = source[max(end, source.rfind("\n", 0, start)) : start]
    follows = NEXT.match(source, found.end())
    assert follows is not None, "it matches nothing at least"
    alone = not before.strip() and ("\n" in follows[0] or not follows[1])
    last = source[end:start].rstrip()[-1:] or last
    inside = last in tuple("([{,=+-*/%|&^<>\\") or follows[1] in tuple(")]},.+/%|&^<>=")
    return start if alone and not inside else None
