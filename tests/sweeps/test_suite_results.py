"""`flbench.SuiteResults`: table, columns, figures and differences of several results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from made_results import made_result
