"""Imported first, this makes the process flbench's own: tests type commands in it."""

from __future__ import annotations

from flbench.engine.processes.own_process import defer_imports

defer_imports()
