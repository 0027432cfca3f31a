"""Which table shows what clustering gives: by its rows, whatever it is called."""

from __future__ import annotations

from pathlib import Path

from made_results import made, write

from flbench.leaderboard.table import Table, tables
from flbench.leaderboard.table_figures import SHOWCASE, showcase

KNOWS = {"uses_true_groups": True}


def table(folder: Path, name: str, oracle: float, methods: int) -> list[Table]:
    """A table with an oracle of this accuracy, two baselines of 0.5 and 0.6, and more rows."""
    results = [
        made(accuracy, method=method, mark=name, suite={"name": name}, plugin=plugin, seed=seed)
        for seed in range(2)
        for method, accuracy, plugin in [
            ("oracle", oracle, KNOWS),
            ("fedavg", 0.5, {"baseline": True}),
            ("local-only", 0.6, {"baseline": True}),
            *[(f"method-{number}", 0.55, {}) for number in range(methods)],
        ]
    ]
    write(folder / name, *results)
    return tables(folder / name)


def test_the_table_with_most_rows_of_those_where_true_groups_help(tmp_path: Path) -> None:
    none = table(tmp_path, "no-help", oracle=0.6, methods=5)
    few = table(tmp_path, "few", oracle=0.9, methods=1)
    many = table(tmp_path, "many", oracle=0.7, methods=3)
    assert showcase(none) == showcase([]) == []
    (drawing,) = showcase([*none, *few, *many])
    assert drawing.name == SHOWCASE and drawing.alt.startswith("many on toy: ")
    (drawing,) = showcase([*none, *few])
    assert drawing.alt.startswith("few on toy: ")
