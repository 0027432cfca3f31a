"""Papers as TOML files, found like suites: attribute `dc_pfl` is the path of `dc-pfl.toml`."""

from pathlib import Path

from .. import toml_files

__getattr__ = toml_files(__name__, Path(__file__).parent)
