"""What came of every fault: one line of JSON each, so that a harness that was stopped goes on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """A fault and what came of it.

    Attributes:
        name: says what it is, so that it can be injected again.
        kind: what the report counts it under.
        outcome: what the program did: "refused", "previous used", "resumed", ...
        wrong: what should not have happened: "" or such as "traceback".
        lost: bytes of results that differ from those of an undisturbed run.
        rounds: rounds that were computed again.
        message: the line that a person reads.
        seconds: how long it took.
        megabytes: the most memory that the process had.
        drawn: random numbers that an input is made of.
        reached: lines of flbench that no input before had reached.
    """

    name: str
    kind: str
    outcome: str
    wrong: str = ""
    lost: int = 0
    rounds: int = 0
    message: str = ""
    seconds: float = 0.0
    megabytes: int = 0
    drawn: int = 0
    reached: int = 0


def recorded(file: Path) -> dict[str, Fault]:
    """The faults that a file holds, by name."""
    if not file.is_file():
        return {}
    rows = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    return {row["name"]: Fault(**row) for row in rows}


def append(fault: Fault, file: Path) -> None:
    """Add a fault to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as opened:
        opened.write(json.dumps(asdict(fault)) + "\n")


def injected(names: list[str], inject: Callable[[str], Fault], file: Path) -> Iterator[Fault]:
    """Inject the faults that the file does not hold yet, or that went wrong; each is appended."""
    known = recorded(file)
    for name in names:
        if name not in known or known[name].wrong:
            known[name] = inject(name)
            append(known[name], file)
        yield known[name]


def report(title: str, faults: list[Fault]) -> str:
    """Faults injected, survived and bytes lost, by kind; and everything that went wrong."""
    kinds = sorted({fault.kind for fault in faults})
    outcomes = sorted({fault.outcome for fault in faults})
    lines = [f"# {title}", ""]
    lines += [" | ".join(["| fault", "injected", "survived", *outcomes, "bytes lost |"])]
    lines += ["|---|" + "---:|" * (len(outcomes) + 3)]
    for kind in [*kinds, "all"]:
        some = [fault for fault in faults if kind in (fault.kind, "all")]
        counts = Counter(fault.outcome for fault in some)
        survived = sum(not fault.wrong for fault in some)
        cells = [kind, len(some), survived, *(counts[one] for one in outcomes)]
        lines.append("| " + " | ".join(map(str, [*cells, sum(one.lost for one in some)])) + " |")
    again = sum(fault.rounds for fault in faults)
    if again:
        lines += ["", f"Rounds computed again: {again}."]
    if longest := max((fault.seconds for fault in faults), default=0):
        most = max(fault.megabytes for fault in faults)
        lines += ["", f"The longest took {longest:.1f} s; the most memory was {most:,} MB."]
    if reached := sum(fault.reached for fault in faults):
        lines += ["", f"They reached {reached:,} lines of flbench."]
    wrong = [fault for fault in faults if fault.wrong]
    lines += [f"- {fault.name}: {fault.wrong}: {fault.message}" for fault in wrong]
    return "\n".join(lines) + "\n"
