"""Objects of a person's own: a method, data set or network that no package offers.

Each gets an entry as installed ones have, under a name that ends with the hash of its code or
samples. So fingerprints and names of files change with it, and a result file shows by the name that
nobody else has what it is of. What is hashed is the code as it was compiled, which notebooks have
too: of the object, and of all own code that it reaches by names.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from flbench.core.dataset import Dataset
from flbench.core.hookspecs import implemented_hooks
from flbench.errors import UserError
from flbench.plugin.registry import Entry, entries
from flbench.plugin.source_inspection import OWN

PACKAGE = "(unpublished)"
"""What stands for the package in result files: no package can be called so."""
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


def own_method(method: object) -> tuple[Entry, type]:
    """The entry of a method that is given as an object or class, and its class.

    Raises:
        UserError: it is no frozen dataclass with hooks.
    """
    kind = method if isinstance(method, type) else type(method)
    frozen = dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    if not frozen or not implemented_hooks(kind):
        raise UserError(
            f"method: expected a name, or an object of a frozen dataclass with hooks"
            f" (@dataclass(frozen=True), @fl.hookimpl), got {_called(method)}"
        )
    place = f"{kind.__module__}:{kind.__qualname__}"
    for entry in entries("methods").values():
        if entry.value == place:
            return entry, kind
    return own_entry("methods", kind.__name__, code_hash(kind)), kind


def own_dataset(dataset: Dataset) -> tuple[Entry, Callable[[object], Dataset]]:
    """The entry of a data set that is given as an object, and what gives it under that name.

    Raises:
        UserError: it is no `Dataset`.
    """
    if not isinstance(dataset, Dataset):
        table = "; of a data frame: frame.to_csv('FILE.csv', index=False), 'csv:FILE.csv?client=A'"
        raise UserError(
            "data set: expected a name, or flbench.Dataset(name, x, y, classes) with tensors, got"
            f" {_called(dataset)}{table if hasattr(dataset, 'to_csv') else ''}"
        )
    entry = own_entry("datasets", dataset.name, _hash(_texts(dataset, set())))
    named = dataclasses.replace(dataset, name=entry.name)

    def load(root: object) -> Dataset:
        return named

    return entry, load


def own_model(model: object) -> tuple[Entry, object]:
    """The entry of a network that is given as a function or class.

    Raises:
        UserError: it is no function of a sample's shape and the number of classes.
    """
    if not callable(model) or isinstance(model, torch.nn.Module):
        raise UserError(
            "model: expected a name, or a function or class that makes a network, called with the"
            f" shape of a sample and the number of classes; got {_called(model)}"
        )
    return own_entry("models", getattr(model, "__name__", "network"), code_hash(model)), model


def own_entry(kind: str, name: str, digest: str) -> Entry:
    """The entry of an object under a name that can be typed."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "mine"
    return Entry(kind, f"{plain}-own-{digest}", f"{OWN}{digest}:own", PACKAGE, "?")


def _called(thing: object) -> str:
    """What an object is called in a message."""
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    return f"an object of {type(thing).__name__}"


# --- the hash -----------------------------------------------------------------------------------


def code_hash(thing: object) -> str:
    """A hash of an object's code, and of the own code that it reaches, 12 hex digits.

    Comments do not count. Another version of Python compiles other code.

    Raises:
        UserError: a function holds a value of a scope around it that cannot be hashed.
    """
    return _hash(_texts(thing, set()))


def _hash(texts: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.hexdigest()[:12]


def _texts(thing: Any, seen: set[int]) -> Iterator[bytes]:  # noqa: ANN401 - any kind
    """What an object consists of, in a fixed order."""
    if isinstance(thing, PLAIN):
        yield f"{type(thing).__name__} {thing!r}".encode()
        return
    if isinstance(thing, torch.Tensor):
        kept = thing.detach().cpu().contiguous()
        yield f"{kept.dtype} {tuple(kept.shape)}".encode()
        yield kept.view(torch.uint8).numpy().tobytes() if kept.ndim else str(kept.item()).encode()
        return
    if id(thing) in seen:
        return
    seen.add(id(thing))
    yield type(thing).__name__.encode()
    for part in _parts(thing):
        yield from _texts(part, seen)


def _parts(thing: Any) -> Iterator[Any]:  # noqa: ANN401 - any kind
    """The parts of an object that decide what it does; none where nothing is known of it."""
    if isinstance(thing, (list, tuple)):
        yield from thing
    elif isinstance(thing, (set, frozenset)):
        yield from sorted(map(repr, thing))
    elif isinstance(thing, dict):
        yield from (part for pair in thing.items() for part in pair)
    elif isinstance(thing, CodeType):
        yield from (thing.co_code, thing.co_names, thing.co_varnames)
        yield from thing.co_consts
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, FunctionType):
        yield from _parts_of_function(thing)
    elif isinstance(thing, type):
        yield f"{thing.__name__}"
        yield from _parts_of_class(thing) if is_own(thing.__module__) else ()
    elif isinstance(thing, (staticmethod, classmethod)):
        yield thing.__func__
    elif isinstance(thing, property):
        yield from (thing.fget, thing.fset)
    elif dataclasses.is_dataclass(thing) or is_own(type(thing).__module__):
        yield from (type(thing), getattr(thing, "__dict__", None))
    elif hasattr(thing, "__wrapped__"):
        yield thing.__wrapped__


def _parts_of_function(function: FunctionType) -> Iterator[Any]:
    """Code, defaults, and the values of names: of the scopes around it, and own ones of modules."""
    yield function.__name__
    if not is_own(function.__module__):
        return
    code = function.__code__
    yield from (code, function.__defaults__, function.__kwdefaults__)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield _hashable(function.__name__, name, cell.cell_contents)
    names = list(dict.fromkeys(_names(code)))
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    modules = [one for one in found if isinstance(one, ModuleType) and is_own(one.__name__)]
    yield from (one for one in found if not isinstance(one, ModuleType))
    yield from (vars(one)[name] for one in modules for name in names if name in vars(one))


def _names(code: CodeType) -> Iterator[str]:
    """Names that code uses, with those of the functions within it."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _names(one)


def _hashable(function: str, name: str, value: object) -> object:
    """A value that a function holds of a scope around it, if its parts say what it is.

    Raises:
        UserError: they do not.
    """
    if isinstance(value, (*PLAIN, torch.Tensor, ModuleType)) or any(True for _ in _parts(value)):
        return value
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return value  # it is empty
    raise UserError(
        f"{function}: '{name}' is {_called(value)}, of which no hash can be taken: make it a field"
        " of the method, or a number or text"
    )


def _parts_of_class(kind: type) -> Iterator[Any]:
    """Bases and members; what `dataclass` writes follows from the fields."""
    yield from (one for one in kind.__bases__ if is_own(one.__module__))
    for name, member in sorted(vars(kind).items()):
        is_code = isinstance(member, (FunctionType, staticmethod, classmethod, property))
        if isinstance(member, FunctionType) and member.__code__.co_filename == "<string>":
            continue
        if is_code or not name.startswith("__"):
            yield from (name, member)
    for field in vars(kind).get("__dataclass_fields__", {}).values():
        yield from (field.name, str(field.type))
        yield None if field.default_factory is dataclasses.MISSING else field.default_factory


def is_own(module: str | None) -> bool:
    """Whether a module is a person's own: not of Python, of flbench or of an installed package."""
    root = (module or "builtins").partition(".")[0]
    if root == "__main__":
        return True
    if root == "flbench" or root in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(root), "__file__", None)
    return file is None or not {"site-packages", "dist-packages"} & {*Path(file).parts}
