"""What is promised (docs/stability.md), a line each: the snapshot that tests compare.

class Membership(home: Tensor, weights: Tensor | None = None, ...) < ancestors
def clustering.cut(merges: Floats, height: float) -> Labels
hook plan(state: State, ctx: Context) -> Sequence[Stage] | None
value Context.everybody: Tensor
type state.Scope = Literal["run", "model", "client"]
entry-points flbench.methods
command flbench show result FILE!
deprecated old since 0.2 and goes in 0.4; use new
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import flbench
from flbench.api import Item, hooks, public, types
from flbench.deprecations import DEPRECATED
from flbench.reference import read
from flbench.registry import KINDS


def snapshot(program: Any) -> list[str]:  # noqa: ANN401 - click's, wherever typer keeps it
    """What is promised, a line each, sorted, the version on top.

    Args:
        program: the command line as click sees it.
    """
    items = [item for top in (*public(), *hooks()) for item in top.walk()]
    lines = {f"{item.kind} {item.signature}" for item in items}
    lines |= {f"value {item.name}.{told}" for item in items for told in _attributes(item)}
    lines |= {f"type {name} = {told}" for item in items for name, told in types(item).items()}
    lines |= {f"entry-points flbench.{kind}" for kind in KINDS}
    lines |= {f"deprecated {name} {going}" for name, going in DEPRECATED.items()}
    return [f"flbench {flbench.__version__}", *sorted(lines | {*_commands("flbench", program)})]


def _attributes(item: Item) -> set[str]:
    """What an instance has beside its fields, as its class tells."""
    fields = {one.name for one in item.parameters}
    return set(read(item.doc).entries("Attributes")) - fields


def _commands(name: str, command: Any) -> Iterator[str]:  # noqa: ANN401 - see `snapshot`
    """A command's arguments in order, then its options by name; `!` = it must be given."""
    for one, other in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {one}", other)
    arguments, options = [], []
    for entry in command.params:
        must = "!" if entry.required else ""
        if entry.param_type_name == "argument":
            arguments.append(f"{entry.name.upper()}{must}")
        elif not entry.hidden:
            options.append("/".join([*entry.opts, *entry.secondary_opts]) + must)
    yield " ".join(["command", name, *arguments, *sorted(options)])
