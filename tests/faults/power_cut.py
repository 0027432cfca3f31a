"""A folder as it would be after a power cut: what was not synced is gone.

`Disk` listens to `os.fsync` and remembers what is on the disk for certain: the content of files
that were synced, and the names in folders that were synced. A strict cut keeps nothing else; a
lenient one keeps, by chance, names and parts of contents that nobody had synced, as file systems
do.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any


@dataclass
class File:
    """What is on the disk of a file; None = its content was never synced."""

    content: bytes | None = None


@dataclass
class Folder:
    """Names that are on the disk for certain."""

    names: dict[str, File | Folder]


class Disk:
    """What is on the disk of the folders below `root`; all that is there now is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[int, File] = {}
        self.folders: dict[int, Folder] = {}
        self.top = self._synced(root)

    def _synced(self, folder: Path) -> Folder:
        for path in folder.iterdir():
            if path.is_dir():
                self._synced(path)
            else:
                self.files[path.stat().st_ino] = File(path.read_bytes())
        return self._names(folder)

    def _names(self, folder: Path) -> Folder:
        found = self.folders.setdefault(folder.stat().st_ino, Folder({}))
        found.names = {path.name: self._entry(path) for path in folder.iterdir()}
        return found

    def _entry(self, path: Path) -> File | Folder:
        number = path.stat().st_ino
        if path.is_dir():
            return self.folders.setdefault(number, Folder({}))
        return self.files.setdefault(number, File())

    def listen(self) -> None:
        """Follow what this process syncs and makes."""
        fsync, open_, mkdir = os.fsync, os.open, os.mkdir

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path.is_dir() and path.is_relative_to(self.root):
                self._names(path)
            elif path.is_relative_to(self.root):
                self.files.setdefault(path.stat().st_ino, File()).content = path.read_bytes()

        def opened(path: Any, flags: int, *given: Any, **named: Any) -> int:
            descriptor = open_(path, flags, *given, **named)
            if flags & os.O_CREAT:
                self.files[os.fstat(descriptor).st_ino] = File()  # numbers are used again
            return descriptor

        def made_folder(path: Any, *given: Any, **named: Any) -> None:
            mkdir(path, *given, **named)
            self.folders[os.stat(path).st_ino] = Folder({})

        os.fsync, os.open, os.mkdir = synced, opened, made_folder

    def cut(self, chance: Random | None) -> None:
        """Leave what a power cut would; `chance` keeps some of what was not synced."""
        now = self._now(self.root)
        for path in list(self.root.iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._restore(self.root, self.top, now, chance)

    def _now(self, folder: Path) -> dict[str, Any]:
        """The folder as the running system sees it: name -> content or folder, with its number."""
        return {
            path.name: (self._entry(path), self._now(path) if path.is_dir() else path.read_bytes())
            for path in folder.iterdir()
        }

    def _restore(
        self, folder: Path, known: Folder, now: dict[str, Any], chance: Random | None
    ) -> None:
        names: dict[str, tuple[File | Folder, Any]] = {
            name: (entry, now[name][1] if name in now and now[name][0] is entry else None)
            for name, entry in known.names.items()
        }
        if chance is not None and chance.random() < 0.5:
            names = now
        for name, (entry, seen) in names.items():
            path = folder / name
            if isinstance(entry, Folder):
                path.mkdir()
                self._restore(path, entry, seen or {}, chance)
            else:
                path.write_bytes(_content(entry, seen, chance))


def _content(file: File, seen: bytes | None, chance: Random | None) -> bytes:
    if file.content is not None:
        return file.content
    if chance is None or not seen:
        return b""
    return chance.choice([b"", bytes(len(seen)), seen[: chance.randrange(len(seen))], seen])
