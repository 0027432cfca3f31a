"""Compare the public API with the last release: `griffe check flbench --against TAG`.

    python docs/tools/check_api.py

The last release is the last tag `v*` before the commit that is checked out. Without one, as in a
shallow clone or before the first release, there is nothing to compare with: it says so and passes.
A breaking change is allowed once the minor version is higher than that of the release; it is
printed all the same, for CHANGELOG.md.

An extension tells griffe what is public (docs/stability.md): the names that `flbench/__init__.py`
imports, `flbench.testing`, and the hooks. Other modules are not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import griffe
import griffecli

ROOT = Path(__file__).parents[2]


class PublicNames(griffe.Extension):
    """Tell griffe which names of flbench are public."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:  # noqa: ANN401 - griffe's own
        """Mark modules as private and the imports of `flbench/__init__.py` as public."""
        modules = [pkg]
        while modules:
            found = modules.pop().members.values()
            inner = [member for member in found if isinstance(member, griffe.Module)]
            for module in inner:
                module.public = False
            modules += inner
        for name, path in pkg.imports.items():
            if name in pkg.members:
                pkg.members[name].public = path.startswith("flbench.")
        pkg["testing"].public = True
        hooks = pkg.imports["hookimpl"].removeprefix("flbench.").rpartition(".")[0]
        if hooks not in pkg.members:  # found where it is, whatever folder it is moved to
            pkg.set_member("hookspecs", griffe.Alias("hookspecs", pkg[hooks], parent=pkg))
        pkg["hookspecs"].public = True


def last_release() -> str | None:
    """The last tag `v*`; None = there is none in this clone."""
    command = ["git", "describe", "--tags", "--abbrev=0", "--match", "v*"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return said.stdout.strip() or None


def minor(version: str) -> tuple[int, int]:
    """(0, 2) of "v0.2.0"."""
    major, second = re.findall(r"\d+", version)[:2]
    return int(major), int(second)


def main() -> int:
    """Exit status: 1 = a breaking change without a higher minor version."""
    os.chdir(ROOT)  # griffe looks for the package here, and in its checkout of the tag
    tag = last_release()
    if tag is None:
        print("no tag v* in this clone (git fetch --tags --unshallow): no release to compare with")
        return 0
    print(f"public API against {tag}:", flush=True)
    broken = griffecli.check("flbench", against=tag, extensions=[PublicNames])
    if not broken:
        print("no breaking change")
        return 0
    source = (ROOT / "flbench" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "(.+)"', source, re.MULTILINE)
    if broken == 1 and version and minor(version[1]) > minor(tag):
        print(f"allowed: {version[1]} has a higher minor version; write them in CHANGELOG.md")
        return 0
    print("keep these names working with a DeprecationWarning, or raise the minor version")
    return broken


if __name__ == "__main__":
    sys.exit(main())
