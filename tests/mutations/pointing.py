"""Point to a piece of code by its file, its symbol and the piece itself, wherever its lines are.

A symbol is a function, a method or a class by its qualified name, or "" for what stands at the top
of a module. Its statements are compared in the form of `ast.unparse`: line breaks, parentheses,
quotes and comments do not matter. A piece is a part of one statement, or of the head of one that
has a body (`if`, `for`, `with`, `def`); `nth` chooses among several places.
"""

from __future__ import annotations

import ast
import copy
import difflib
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Statement:
    """A statement, or the head of one that has a body."""

    symbol: str
    """The innermost function or class that it stands in; its own, if it is the head of one."""
    first: int
    last: int
    """Its lines in the file, from 1."""
    node: ast.stmt | ast.ExceptHandler

    @cached_property
    def text(self) -> str:
        """As `ast.unparse` writes it."""
        return head(self.node)


@cache
def statements_of(source: str) -> tuple[Statement, ...]:
    """All statements of a module."""
    return tuple(statements(ast.parse(source)))


def statements(tree: ast.AST, symbol: str = "") -> Iterator[Statement]:
    """All statements below a node of a syntax tree, in order."""
    for node in ast.iter_child_nodes(tree):
        inner = symbol
        if isinstance(node, Scope):
            inner = f"{symbol}.{node.name}".removeprefix(".")
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            first = min(one.lineno for one in (node, *getattr(node, "decorator_list", ())))
            body = getattr(node, "body", ())
            last = body[0].lineno - 1 if body else int(node.end_lineno or first)
            if last >= first:
                yield Statement(inner, first, last, node)
        yield from statements(node, inner)


def head(node: ast.AST) -> str:
    """A statement without its body."""
    if not getattr(node, "body", ()):
        return ast.unparse(node)
    alone = copy.copy(node)
    for name in ("orelse", "finalbody", "handlers"):
        setattr(alone, name, [])
    setattr(alone, "body", [ast.Pass()])  # noqa: B010 - of any kind of statement
    return ast.unparse(alone).rpartition("\n")[0]


def mutated(
    source: str, symbol: str, before: str, after: str, nth: int | None = None
) -> tuple[str, int]:
    """A module with one piece replaced, and the line of it; all other lines stay where they are.

    Raises:
        LookupError: No such place, or several and no `nth`; it names the nearest ones.
        SyntaxError: The new statement is none.
    """
    everywhere = statements_of(source)
    found = [
        (one, place)
        for one in everywhere
        if one.symbol == symbol
        for place in places(one.text, before)
    ]
    if nth is None and len(found) > 1:
        there = "; ".join(f"{n}: {one.text}" for n, (one, _) in enumerate(found, 1))
        raise LookupError(f"{before!r} stands {len(found)} times in {symbol!r}: set nth ({there})")
    if not 1 <= (nth or 1) <= len(found):
        raise LookupError(f"{symbol!r} has no {before!r}: {nearest(everywhere, symbol, before)}")
    one, place = found[(nth or 1) - 1]
    text = one.text[:place] + after + one.text[place + len(before) :]
    check(text)
    lines = source.splitlines()
    text = "el" * lines[one.first - 1].lstrip().startswith("elif ") + text
    new = textwrap.indent(text, " " * one.node.col_offset).splitlines()
    new += [""] * (one.last - one.first + 1 - len(new))
    lines[one.first - 1 : one.last] = new
    return "\n".join(lines) + "\n", one.first


def check(text: str) -> None:
    """Parse a statement; of one with a body, the head."""
    before = "try: pass\n" if text.startswith("except") else ""
    ast.parse(before + text + (" pass" if text.endswith(":") else ""))


def places(text: str, piece: str) -> list[int]:
    """Where a piece begins in a text, as whole words."""
    start = r"(?<!\w)" if re.match(r"\w", piece) else ""
    end = r"(?!\w)" if re.search(r"\w$", piece) else ""
    return [found.start() for found in re.finditer(start + re.escape(piece) + end, text)]


def nearest(everywhere: Sequence[Statement], symbol: str, piece: str) -> str:
    """What most likely is meant: where else the piece stands, or what is like it."""
    elsewhere = dict.fromkeys(one.symbol for one in everywhere if places(one.text, piece))
    if elsewhere:
        return f"it stands in {', '.join(map(repr, elsewhere))}"
    near = [one.text for one in everywhere if one.symbol == symbol]
    if not near:
        symbols = list(dict.fromkeys(one.symbol for one in everywhere))
        like = difflib.get_close_matches(symbol, symbols, 3, 0)
        return f"no such symbol; the nearest are {', '.join(map(repr, like))}"
    return f"the nearest is {difflib.get_close_matches(piece, near, 1, 0)[0]!r}"
