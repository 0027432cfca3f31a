"""Sphinx extension: notebooks are executed anew for the site, and shown with what they print.

A notebook is committed without output. The build runs it from top to bottom in a kernel of its own
and an empty folder; a cell that fails ends the build. What the page shows is Markdown:

    python docs/tools/notebooks.py docs/notebooks/own-table.ipynb > own-table.md
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

Cell = Mapping[str, Any]
SUFFIX = ".ipynb"
SECONDS = 600
"""The longest that a cell may take."""
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
QUIET = {"PYTHONWARNINGS": "ignore:IProgress not found"}
"""Without ipywidgets, tqdm says so when a library imports it."""
CURSOR = re.compile(r"\x1b\[[0-9;?]*[A-HJKSTfhl]")
"""Codes of terminals that move or hide the cursor, which a notebook shows as signs."""


def executed(source: str, folder: Path) -> dict[str, Any]:
    """A notebook with the output of all its cells.

    Args:
        source: the notebook, as its file has it.
        folder: where it runs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
        ValueError: one printed what only a terminal understands.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.reads(source, as_version=4)
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=SECONDS, resources=where)
    found: dict[str, Any] = client.execute(env=os.environ | QUIET)
    if codes := [text for text in printed(found) if CURSOR.search(text)]:
        raise ValueError(f"a notebook shows no codes that move a cursor, got {codes[0]!r:.200}")
    return found


def printed(notebook: Mapping[str, Any]) -> Iterator[str]:
    """What each cell prints."""
    for cell in notebook["cells"]:
        for one in cell.get("outputs", ()):
            if one["output_type"] == "stream":
                yield joined(one["text"])


def as_markdown(notebook: Mapping[str, Any]) -> str:
    """A notebook as Markdown: its texts, its code, and under each piece of code its output."""
    return "\n".join(part for cell in notebook["cells"] for part in parts(cell))


def parts(cell: Cell) -> Iterator[str]:
    """The blocks of a cell."""
    text = joined(cell["source"])
    if cell["cell_type"] == "markdown":
        yield f"{text}\n"
        return
    yield block("python", text)
    for is_stream, some in groupby(cell["outputs"], key=lambda one: one["output_type"] == "stream"):
        if is_stream:
            yield block("text", "".join(joined(one["text"]) for one in some))
        else:
            yield from (shown(one["data"]) for one in some if "data" in one)


def shown(data: Mapping[str, Any]) -> str:
    """What a cell displays: a figure, or its text."""
    if "image/svg+xml" in data:
        svg = base64.b64encode(joined(data["image/svg+xml"]).encode()).decode()
        return f'<img alt="figure" src="data:image/svg+xml;base64,{svg}">\n'
    return block("text", joined(data["text/plain"]))


def block(language: str, text: str) -> str:
    """A fenced block of Markdown, whatever fences are in the text."""
    plain = ANSI.sub("", text).rstrip("\n")
    fence = "`" * max([3, *(len(one) + 1 for one in re.findall("`{3,}", plain))])
    return f"{fence}{language}\n{plain}\n{fence}\n"


def joined(text: str | Iterable[str]) -> str:
    """A text of a notebook, which may be a list of lines."""
    return text if isinstance(text, str) else "".join(text)


def page(source: str) -> str:
    """A notebook, executed in an empty folder, as Markdown."""
    with tempfile.TemporaryDirectory(prefix="flbench-") as folder:
        return as_markdown(executed(source, Path(folder)))


def execute(app: Any, docname: str, source: list[str]) -> None:  # noqa: ANN401 - of Sphinx
    """Put an executed notebook in the place of its file, with a link to that file."""
    from repository_links import copy

    path = Path(app.env.doc2path(docname))
    if path.suffix != SUFFIX:
        return
    inside = path.relative_to(app.srcdir)
    copy(app, inside)
    up = "../" * docname.count("/")
    link = f'<a href="{up}files/{inside.as_posix()}">{inside.name}</a>'
    title, _, rest = page(source[0]).partition("\n")
    source[0] = f"{title}\n\nTo run it yourself: {link}. The output is that of this build.\n{rest}"


def setup(app: Any) -> dict[str, bool]:  # noqa: ANN401 - of Sphinx
    """Register with Sphinx."""
    app.add_source_suffix(SUFFIX, "markdown")
    app.connect("source-read", execute)
    return {"parallel_read_safe": True}


def bare(notebook: Mapping[str, Any]) -> str:
    """A notebook as it is committed: without output and without what an editor adds."""
    cells = [
        {
            "cell_type": one["cell_type"],
            **({"execution_count": None, "outputs": []} if one["cell_type"] == "code" else {}),
            "id": f"cell-{number}",
            "metadata": {},
            "source": joined(one["source"]).rstrip("\n").splitlines(keepends=True),
        }
        for number, one in enumerate(notebook["cells"], start=1)
    ]
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def main(words: list[str]) -> int:
    """Print notebooks as Markdown with their output; `--clean` takes the output off the files."""
    clean = "--clean" in words
    for path in (Path(word) for word in words if word != "--clean"):
        source = path.read_text(encoding="utf-8")
        if clean:
            path.write_text(bare(json.loads(source)), encoding="utf-8")
        else:
            print(page(source))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
