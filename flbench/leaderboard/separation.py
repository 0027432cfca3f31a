"""How many seeds would separate two rows of a table: a power calculation from their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flbench.errors import UnknownName, UserError
from flbench.leaderboard.markdown import number
from flbench.leaderboard.statistics import FEW_SEEDS, POWER, compare, difference, seeds_needed
from flbench.leaderboard.table import Table, TableRow, client_headlines, same_clients
from flbench.tasks import Task


@dataclass(frozen=True)
class Separation:
    """What is known of the difference of two rows, and how many seeds would show it.

    Attributes:
        table: title of the table.
        task: of the table.
        rows: names of the two rows.
        difference: mean headline of the first less that of the second, over common seeds.
        interval: 95 % interval of the difference, of this pair alone; NaN for one client.
        seeds: common seeds.
        pairs: pairs of the rows that are ranked together; 0 = the two are not ranked together.
        separated: whether the table separates them.
        alone: seeds at which the difference of this pair alone is seen with a probability of 80 %,
            if it and its deviation over seeds are as they are found here; None = more than 10,000.
        together: the same if the pair is the first of all pairs to be separated; None also where
            the two are not ranked together.
    """

    table: str
    task: Task
    rows: tuple[str, str]
    difference: float
    interval: tuple[float, float]
    seeds: int
    pairs: int
    separated: bool
    alone: int | None
    together: int | None

    def lines(self) -> list[str]:
        """The same in words."""
        low, high = (number(end) for end in self.interval)
        first, second = self.rows
        lower = "" if self.task.higher_is_better else f" ({self.task.heading}, lower is better)"
        of = " of clients within seeds" if self.seeds <= FEW_SEEDS else ""
        found = [
            f"{self.table}: {first} less {second} is {self.difference:+.4f}{lower},"
            f" 95 % interval {low} to {high}{of}, {self.seeds} common seeds"
        ]
        if not self.difference:
            return [*found, "  no difference was seen, so no number of seeds can be given"]
        if self.seeds < 2:
            return [*found, "  one common seed says nothing about others: run two or more"]
        chance = f"with a probability of {100 * POWER:g} %"
        found.append(f"  this pair alone: {_seeds(self.alone)} separate it {chance}")
        if self.pairs:
            state = "separated now" if self.separated else "not separated now"
            found.append(
                f"  among {self.pairs} pairs of the table: {state};"
                f" {_seeds(self.together)} separate it {chance}"
            )
        else:
            found.append("  the table does not compare them: they are not ranked together")
        return found


def _seeds(count: int | None) -> str:
    return "no number of seeds up to 10,000 would" if count is None else f"{count} seeds would"


def separations(found: Sequence[Table], names: tuple[str, str]) -> list[Separation]:
    """What every table that has both rows says of them.

    `names` are as in the column *method*, or of methods: their rows at defaults.

    Raises:
        UserError: no table has both rows with a common seed, or the names are equal.
    """
    if names[0] == names[1]:
        raise UserError(f"--separate: expected two rows, got '{names[0]}' twice")
    answers = []
    known: dict[str, None] = {}
    for table in found:
        fresh = [row for row in table.rows if not row.outdated]
        rows = {row.method: row for row in fresh if row.default}
        rows |= {row.name: row for row in fresh}
        known.update(dict.fromkeys(rows))
        if names[0] in rows and names[1] in rows:
            first, second = rows[names[0]], rows[names[1]]
            if first is not second and {*first.seeds} & {*second.seeds}:
                answers.append(_separation(table, first, second))
    for name in names:
        if name not in known:
            raise UnknownName("row", name, known, "in these tables")
    if not answers:
        raise UserError(f"--separate: no table has {' and '.join(names)} with a common seed")
    return answers


def _separation(table: Table, first: TableRow, second: TableRow) -> Separation:
    peers = [
        row for row in table.rows if row.ties and row.search == first.search and not row.outdated
    ]
    who = same_clients([first, second, *peers])
    paired = difference(client_headlines(first), client_headlines(second), who)
    separated, pairs = False, 0
    if first in peers and second in peers:
        one, other = peers.index(first), peers.index(second)
        compared = compare([client_headlines(row) for row in peers], table.task.gain, who)
        better = compared.better(range(len(peers)))
        separated, pairs = bool(better[one, other] or better[other, one]), compared.pairs
    low, high = paired.shown.tolist()
    return Separation(
        table.title,
        table.task,
        (first.name, second.name),
        float(paired.mean),
        (low, high),
        paired.seeds,
        pairs,
        separated,
        seeds_needed(paired),
        seeds_needed(paired, pairs) if pairs else None,
    )
