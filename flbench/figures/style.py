"""Style of all figures, and their reproducible conversion to SVG.

The background is transparent and all colours have medium brightness, so that a figure is readable
on white and on black. A figure is as wide as a column of a paper, and its letters are as large as
they are printed there; a page shows it larger. Matplotlib is imported when something is drawn.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flbench.results.schema import Result
from flbench.tasks import TASKS, Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#7a7a7a"
COLUMN = 3.3
"""Width of every figure in inches: a column of a two-column paper."""
ON_PAGE = 1.6
"""How much larger a page shows a figure than it is in print."""
PIXELS = 400
"""Pixels of an image in each direction, at least."""
SMALLEST = 6.0
"""Size of the smallest letters in print, in points."""
COLOURS = (
    "#3d85c6",  # blue
    "#d55e00",  # vermilion
    "#129a76",  # green
    "#b0569a",  # purple
    "#a07d00",  # ochre
    "#d2557b",  # rose
    "#2b93a8",  # teal
    "#8c6bd1",  # violet
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (5, 1.5, 1.5, 1.5)), (0, (9, 2)))
RC_PARAMS: dict[Any, Any] = {
    "svg.hashsalt": "flbench",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 7,
    "figure.titlesize": 8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.1,
    "legend.fontsize": 6.5,
    "hatch.linewidth": 0.5,
    "image.interpolation": "none",
}
MAX_NAME_LENGTH = 84  # characters of a name; a longer one is cut
NOT_IN_XML = re.compile("[^\\t -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
TAG = re.compile(r"<[^>]*>")
SIZE = re.compile(r'\b(width|height)="([\d.]+)pt"')
BREAKS = re.compile(r"[^ +,]*[ +,]?")
LONG_DECIMALS = re.compile(r"(\d\.\d\d)\d+")
HASHED_ID = re.compile(r'(\bid="|href="#|url\(#)([a-z]+)([0-9a-f]{10})\b')
"""An id that matplotlib makes of what an element holds, or a reference to it."""


@contextmanager
def new_figure(height: float) -> Iterator[Figure]:
    """An empty figure of a height in inches, whatever the user's matplotlib settings are."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a browser may have it
        mpl.rcdefaults()
        mpl.rcParams.update(RC_PARAMS)
        figure = Figure(figsize=(COLUMN, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure


def to_svg(figure: Figure, title: str, description: str) -> bytes:
    """The SVG file of a `new_figure`, with a title on top and `description` as alternative text."""
    title = one_line(title, 200)
    if title:
        lines = wrapped(title, 50, 200)
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.14 * lines.count("\n"))
        figure.suptitle(lines)
    file = io.BytesIO()
    about = {"Title": title, "Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(file, format="svg", transparent=True, metadata=about)
    numbers: dict[str, int] = {}
    text = TAG.sub(lambda tag: _compact_tag(_numbered(tag[0], numbers)), file.getvalue().decode())
    text = SIZE.sub(lambda size: f'{size[1]}="{ON_PAGE * float(size[2]):.6g}pt"', text, count=2)
    words = escape(one_line(description, 4000))
    return text.replace("</title>", f"</title>\n <desc>{words}</desc>", 1).encode()


def _numbered(tag: str, numbers: dict[str, int]) -> str:
    """A tag whose hashed ids are numbers, by `numbers`, in the order in which they appear.

    What matplotlib hashes has all digits, of which the last ones depend on the processor.
    """

    def number(found: re.Match[str]) -> str:
        before, kind, hashed = found.groups()
        return f"{before}{kind}{numbers.setdefault(hashed, len(numbers) + 1)}"

    return HASHED_ID.sub(number, tag)


def _compact_tag(tag: str) -> str:
    """A tag with fallback fonts, and with straight lines in hundredths of a point."""
    if tag.startswith("<svg "):
        return tag.replace("<svg ", '<svg role="img" ', 1)
    if tag.startswith(("<text", "<g", "<image", "<!")):  # keep rotations and sizes exact
        return tag.replace("'DejaVu Sans'", "'DejaVu Sans', Arial, sans-serif")
    if "\nC" in tag or "\nQ" in tag:
        return tag
    # Without a letter, the next point continues the line.
    return LONG_DECIMALS.sub(r"\1", tag.replace(" \nL ", " "))


def one_line(text: str, longest: int = MAX_NAME_LENGTH) -> str:
    r"""A text on one line, without characters that XML forbids, cut to a length.

    Example:
        >>> one_line("a\n<b>", 4)
        'a <…'
    """
    line = NOT_IN_XML.sub("\ufffd", " ".join(text.split()))
    return line if len(line) <= longest else line[: longest - 1] + "…"


def wrapped(name: str, width: int, longest: int = MAX_NAME_LENGTH) -> str:
    r"""A name on as many lines as it needs, broken after spaces, "+" and ",".

    Example:
        >>> wrapped("pfedlia+top-k (fraction=0.1)", 16)
        'pfedlia+top-k\n(fraction=0.1)'
    """
    lines = [""]
    whole = BREAKS.findall(one_line(name, longest))
    for piece in (one[at : at + width] for one in whole for at in range(0, len(one), width)):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def caption(figure: Figure, text: str) -> None:
    """Write small lines below the figure that explain its marks."""
    figure.supxlabel(wrapped(text, 74, 400), fontsize=SMALLEST, color=INK)


def sharp(image: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """An image of shape (n, m, 4) with each entry repeated, so that it has 400 pixels or more.

    Converters to PDF smooth images between pixels, as if entries were no squares.
    """
    for axis in (0, 1):
        image = np.repeat(image, -(-PIXELS // image.shape[axis]), axis=axis)
    return image


def task_of(rows: Sequence[tuple[str, Sequence[Result]]]) -> Task:
    """The task of the results that are drawn, which all have the same; classes if there is none."""
    found = (one.headline for _, results in rows for one in results)
    return next(found, TASKS["classes"])


def headline_axis(axes: Axes, task: Task, text: str, which: str = "y") -> None:
    """Label an axis of a task's headline: in per cent, or standard deviations (SD) of targets.

    Args:
        axes: the axes.
        task: what its results predict.
        text: of the label, where "{}" stands for the headline and its unit.
        which: "x" or "y".
    """
    axis = axes.yaxis if which == "y" else axes.xaxis
    unit = "(%)" if task.is_share else "(SD; lower is better)"
    head, _, rest = text.partition("{}")
    label = f"{head}{task.heading}{rest} {unit}"
    axis.set_label_text(label)
    if task.is_share:
        axis.set_major_formatter(lambda value, _: f"{100 * value:.10g}")


def shown(task: Task, value: float, unit: str = " %") -> str:
    """A headline as figures show it; `unit` is that of shares.

    Example:
        >>> shown(TASKS["classes"], 0.5), shown(TASKS["numbers"], 0.5)
        ('50.0 %', '0.500')
    """
    return f"{100 * value:.1f}{unit}" if task.is_share else f"{value:.3f}"
