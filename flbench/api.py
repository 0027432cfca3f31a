"""The public names as their source tells them: signatures and docstrings, nothing imported.

A name is followed from `flbench/__init__.py` to where it is defined, and read there, as the
catalogue reads methods. The reference (docs/api.md) and what is promised (docs/stability.md) are
made of this.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import flbench

ROOT = Path(__file__).parent
BESIDE = ("testing",)
"""Public packages that are imported by their own name."""
FIELDS = ("dataclass", "BaseModel", "NamedTuple")
"""What turns the annotated names of a class into its parameters."""

Defined = ast.Module | ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


class Parameter(NamedTuple):
    """A parameter or field as written; without a default it must be given."""

    name: str
    kind: Literal["positional", "plain", "rest", "named", "options"]
    type: str = ""
    default: str | None = None

    def __str__(self) -> str:
        stars = {"rest": "*", "options": "**"}.get(self.kind, "")
        told = f"{stars}{self.name}{self.type and f': {self.type}'}"
        return told if self.default is None else f"{told} = {self.default}"


@dataclass(frozen=True)
class Item:
    """One public thing.

    Attributes:
        kind: "value" is a constant, an attribute or a property.
        name: how it is reached from flbench: `Membership.shares`, `clustering.cut`.
        home: the module it is defined in.
        node: where it is defined.
        doc: its docstring; "" = it has none.
        parameters: of a function or hook; of a class what makes one, of a dataclass its fields.
        result: the type it returns or has; of a class what it inherits from.
        members: public things in a class or module.
    """

    kind: Literal["module", "class", "def", "hook", "value"]
    name: str
    home: str
    node: Defined
    doc: str
    parameters: tuple[Parameter, ...] = ()
    result: str = ""
    members: tuple[Item, ...] = ()

    @cached_property
    def signature(self) -> str:
        """On one line: `clustering.cut(merges: Floats, height: float) -> Labels`."""
        if self.kind in ("module", "value"):
            value = self.node.value if isinstance(self.node, (ast.Assign, ast.AnnAssign)) else None
            told = f"{self.name}: {self.result}" if self.result else self.name
            plain = not self.result or isinstance(value, ast.Constant)  # else its type tells enough
            return f"{told} = {written(value)}" if value and plain else told
        arrow = "<" if self.kind == "class" else "->"
        result = f" {arrow} {self.result}" if self.result else ""
        return f"{self.name}({', '.join(listed(self.parameters))}){result}"

    def walk(self) -> Iterator[Item]:
        """Itself, then everything in it."""
        yield self
        for member in self.members:
            yield from member.walk()


def public() -> list[Item]:
    """What `import flbench` leads to, by name. Hooks are apart."""
    served = [name for name in flbench.__all__ if not name.startswith("_")]
    beside = [name for name in BESIDE if name not in served and _path(f"flbench.{name}").is_file()]
    return [_item(name, *find("flbench", name)) for name in (*served, *beside)]


def hooks() -> list[Item]:
    """The hooks, in the order in which they stand in `hookspecs`."""
    home = "flbench.hookspecs"
    found = [node for node in _tree(home).body if isinstance(node, ast.FunctionDef)]
    return [
        _function("hook", node.name, home, node)
        for node in found
        if any("hookspec" in written(mark) for mark in node.decorator_list)
    ]


def introduction(part: str) -> str:
    """What a part of flbench says of itself, its module's docstring."""
    return _doc(_tree(f"flbench.{part}"))


def types(item: Item) -> dict[str, str]:
    """Short names of types in its signature, not public themselves, and what they stand for.

    Example:
        >>> (memory,) = [item for item in public() if item.name == "Memory"]
        >>> types(memory)
        {'state.Scope': 'Literal["run", "model", "client"]'}
    """
    todo, told = [(item.home, item.signature)], dict[str, str]()
    while todo:
        home, text = todo.pop()
        for word in re.findall(r"\b[A-Z]\w*[a-z]\w*", re.sub(r'"[^"]*"', "", text)):
            try:
                where, node = find(home, word)
            except LookupError:
                continue
            name = f"{where.removeprefix('flbench.')}.{word}"
            if isinstance(node, ast.Assign) and word not in flbench.__all__ and name not in told:
                told[name] = written(node.value)
                todo.append((where, told[name]))
    return dict(sorted(told.items()))


def find(module: str, name: str) -> tuple[str, Defined]:
    """Where a name of a module is defined, followed through imports within flbench.

    Raises:
        LookupError: it comes from elsewhere, or is not there.
    """
    for node in _statements(_tree(module)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name and _ours(node.module, module):
                    return find(str(node.module), alias.name)
        elif isinstance(node, Defined) and name in _names(node):
            return module, node
    inside = f"{module}.{name}"
    if _path(module).name == "__init__.py" and _path(inside).is_file():
        return inside, _tree(inside)
    raise LookupError(f"{module} defines no {name}")


def parameters(given: ast.arguments) -> list[Parameter]:
    """The parameters of a function, in order."""
    entries = [*given.posonlyargs, *given.args]
    missing = [None] * (len(entries) - len(given.defaults))
    found = [
        _parameter(entry, "positional" if at < len(given.posonlyargs) else "plain", default)
        for at, (entry, default) in enumerate(
            zip(entries, [*missing, *given.defaults], strict=True)
        )
    ]
    found += [_parameter(given.vararg, "rest")] if given.vararg else []
    for entry, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append(_parameter(entry, "named", default))
    return found + ([_parameter(given.kwarg, "options")] if given.kwarg else [])


def listed(found: Sequence[Parameter]) -> list[str]:
    """Parameters as they stand between brackets, with a bare `*` or `/` where Python needs one."""
    words, kinds = [str(one) for one in found], [one.kind for one in found]
    if "named" in kinds and "rest" not in kinds:
        words.insert(kinds.index("named"), "*")
    if "positional" in kinds:
        words.insert(kinds.count("positional"), "/")
    return words


def written(node: ast.AST | None) -> str:
    """Code on one line, with the quotes this project writes."""
    text = ast.unparse(node) if node else ""
    return text if '"' in text else text.replace("'", '"')


def _item(name: str, home: str, node: Defined, note: str | None = None) -> Item:
    """What a definition tells; `note` is the text that follows a constant."""
    if isinstance(node, ast.Module):
        inside = [_item(f"{name}.{one}", *find(home, one)) for one in _exported(node)]
        return Item("module", name, home, node, _doc(node), members=tuple(inside))
    if isinstance(node, ast.FunctionDef):
        return _function("def", name, home, node)
    if isinstance(node, ast.ClassDef):
        return _class(name, home, node)
    kind = written(node.annotation) if isinstance(node, ast.AnnAssign) else ""
    note = _note(_tree(home).body, node) if note is None else note
    return Item("value", name, home, node, note, result=kind)


def _function(kind: Literal["def", "hook"], name: str, home: str, node: ast.FunctionDef) -> Item:
    told = tuple(parameters(node.args))
    return Item(kind, name, home, node, _doc(node), told, written(node.returns))


def _class(name: str, home: str, node: ast.ClassDef) -> Item:
    fields, members = [], []
    marks = " ".join(map(written, [*node.decorator_list, *node.bases]))
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and not _names(part)[0].startswith("_"):
            kind = written(part.annotation)
            if kind.startswith("ClassVar") or not any(mark in marks for mark in FIELDS):
                one = f"{name}.{_names(part)[0]}"
                members.append(_item(one, home, part, _note(node.body, part)))
            else:
                way: Literal["named", "plain"] = "named" if "BaseModel" in marks else "plain"
                fields.append(Parameter(_names(part)[0], way, kind, _default(part.value)))
        elif isinstance(part, ast.FunctionDef) and part.name == "__init__":
            fields = parameters(part.args)[1:]
        elif isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
            members.append(_method(f"{name}.{part.name}", home, part))
    bases = ", ".join(map(written, node.bases))
    return Item("class", name, home, node, _doc(node), tuple(fields), bases, tuple(members))


def _method(name: str, home: str, node: ast.FunctionDef) -> Item:
    marks = [written(mark).rpartition(".")[2] for mark in node.decorator_list]
    if {"property", "cached_property"} & {*marks}:
        return Item("value", name, home, node, _doc(node), result=written(node.returns))
    told = parameters(node.args)[0 if "staticmethod" in marks else 1 :]
    return Item("def", name, home, node, _doc(node), tuple(told), written(node.returns))


def _exported(tree: ast.Module) -> list[str]:
    """Public names of a module: its `__all__`, or the functions and classes it defines."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and "__all__" in _names(node):
            return sorted(ast.literal_eval(node.value))
    found = [n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    return [name for name in found if not name.startswith("_")]


def _names(node: Defined) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _doc(node: ast.Module | ast.FunctionDef | ast.ClassDef) -> str:
    return ast.get_docstring(node) or ""


def _note(body: Sequence[ast.stmt], node: ast.stmt) -> str:
    """The text that stands below a constant and explains it."""
    after = body[body.index(node) + 1 : body.index(node) + 2]
    text = ast.unparse(after[0]) if after and isinstance(after[0], ast.Expr) else "''"
    value = ast.literal_eval(text) if text[0] in "'\"" else ""
    return str(value)


def _default(node: ast.expr | None) -> str | None:
    """A field's default; of `field(...)` and `Field(...)` what they say it is."""
    if isinstance(node, ast.Call) and written(node.func) in ("field", "Field"):
        said = {option.arg: written(option.value) for option in node.keywords}
        made = said.get("default_factory")
        return said.get("default", f"{made}()" if made else None)
    return written(node) if node else None


def _parameter(
    entry: ast.arg, kind: Literal["positional", "plain", "rest", "named", "options"],
    default: ast.expr | None = None,
) -> Parameter:  # fmt: skip
    told = written(default) if default else None
    return Parameter(entry.arg, kind, written(entry.annotation), told)


def _ours(source: str | None, module: str) -> bool:
    """Whether an import leads on within flbench."""
    return str(source).partition(".")[0] == "flbench" and source != module


def _path(module: str) -> Path:
    place = ROOT.joinpath(*module.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_name(f"{place.name}.py")


@lru_cache(maxsize=64)
def _tree(module: str) -> ast.Module:
    return ast.parse(_path(module).read_text(encoding="utf-8"))


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Top-level statements, those for type checkers among them."""
    for node in tree.body:
        yield from node.body if isinstance(node, ast.If) else [node]
