"""Same data: whether the result in the place of a run is its own, and of the data there now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flbench.core.dataset import Dataset
from flbench.errors import MissingData, UserError
from flbench.federation.federation import data_hash
from flbench.federation.loading import load_dataset, opens_argument
from flbench.results.files import read_result, refuse_misplaced
from flbench.results.schema import Result
from flbench.run.spec import RunSpec


def data_digests(
    name: str, root: Path, load: Callable[[str, Path], Dataset] = load_dataset
) -> tuple[str, ...]:
    """The digest of a data set as results have it, and as older ones have it.

    There is none where its files are not there.

    Raises:
        UserError: its files cannot be read.
    """
    try:
        dataset = load(name, root)
    except MissingData:
        return ()
    older = [data_hash(dataset, samples_alone=True)] if opens_argument(dataset.name) else []
    return data_hash(dataset), *older


def refuse_other_result(
    spec: RunSpec,
    result: Result,
    digests: Callable[[str, Path], tuple[str, ...]] = data_digests,
) -> None:
    """Refuse what lies in the place of a run's result if it is of another run, or of other data.

    Where the files of the data set are not there, nobody can tell, and the result stands.

    Args:
        digests: of a data set by its name and the folder that holds it.

    Raises:
        UserError: they differ, or cannot be read.
    """
    refuse_misplaced(spec.path, result)
    name = spec.suite.dataset
    now = digests(name, spec.data_root)
    if now and result.fingerprint.data not in now:
        raise UserError(
            f"{spec.path} is of other data than '{name}' has now (digest"
            f" {result.fingerprint.data}, now {now[0]}): --force computes it again, another --out"
            " keeps both"
        )


def refuse_other_seeds(spec: RunSpec, digest: str) -> None:
    """Refuse to compute a seed beside complete seeds of other data or target: of one row.

    Where they are computed again, nothing is refused; the leaderboard refuses what is left.

    Args:
        digest: of the data of this run.

    Raises:
        UserError: the result of another seed is of other data, or has another target.
    """
    if spec.force:
        return
    for path in sorted(spec.path.parent.glob("seed-*.json")):
        try:
            other = read_result(path)
        except UserError:  # what is wrong with another seed is its own matter
            continue
        if (target := other.summary.get("target")) != spec.suite.target:
            raise UserError(
                f"{path} is a seed of this row with target={target}, this run has"
                f" target={spec.suite.target}: compute it again with --force, or keep both with"
                " another --out"
            )
        if (found := other.fingerprint.data) != digest:
            raise UserError(
                f"{path} is a seed of this row and of other data than '{spec.suite.dataset}' has"
                f" now (digest {found}, now {digest}): compute it again with --force, or keep both"
                " with another --out"
            )
