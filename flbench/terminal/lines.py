"""Lines of text in the terminal, whatever is in a path, a name or a message."""

from __future__ import annotations

import sys

from flbench.errors import escaped


def tell(*lines: object, errors: bool = False) -> None:
    """Print lines at once; a line feed within one of them begins no other (`errors.escaped`).

    Args:
        errors: on standard error.
    """
    for line in lines:
        print(escaped(str(line)), file=sys.stderr if errors else sys.stdout, flush=True)
