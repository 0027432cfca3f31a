"""Studies: grids of runs as TOML files, found like suites; and measurements as functions.

The attribute `flis_beta` of this package is the path of `flis-beta.toml`.
"""

from pathlib import Path

from .. import toml_files

__getattr__ = toml_files(__name__, Path(__file__).parent)
