"""Isolation: restore process-wide settings after third-party code ran.

All plugins run in one process. What one of them changes of the process would change the numbers of
the others, so it is restored and named in one line. `docs/third-party-code.md` says what is
promised, and what is not. Nothing heavy is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stdout

from flbench.plugin.process_state import Snapshot, restore, snapshot


def warn_on_stderr(line: str) -> None:
    """Warn before there is a run that collects warnings."""
    print(f"flbench: {line}", file=sys.stderr)


class IsolatedPlugin:
    """Runs a plugin's code and restores the settings that it changed.

    Args:
        name: the plugin's name.
        warn: called once for each setting that the plugin changed.
    """

    def __init__(self, name: str, warn: Callable[[str], None] = warn_on_stderr) -> None:
        self.name = name
        self._warn = warn
        self._warned: set[str] = set()

    @contextmanager
    def acting(self, what: str, quiet: Collection[str] = ()) -> Iterator[None]:
        """Run its code in the block; what it prints goes to standard error.

        Args:
            what: the part of it that runs, as in "x.setup".
            quiet: names of settings that are restored without a warning.
        """
        before = snapshot()
        try:
            with redirect_stdout(sys.stderr):  # standard output is for tables
                yield
        finally:
            self.restore(before, what, quiet)

    def restore(self, before: Snapshot, what: str, quiet: Collection[str] = ()) -> None:
        """Restore the settings; warn of each change that was not warned of before."""
        for name, change in restore(before):
            if name not in quiet and name not in self._warned:
                self._warned.add(name)
                self._warn(f"{what} {change}")
