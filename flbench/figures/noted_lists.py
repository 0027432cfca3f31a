"""Lists of numbers that a method noted in rounds, each note as the plot that fits its shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from flbench.figures.style import COLOURS, DASHES, MARKERS, caption, new_figure, sharp, to_svg
from flbench.metrics import Floats
from flbench.results.schema import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Plot = Literal["line", "bars", "heat map", "histogram"]
LINES = 2
"""Length of lists up to which a list is one or two quantities of its round, a line each."""
BINS = 20


@dataclass(frozen=True)
class NotedLists:
    """All lists of numbers of one note, by the round in which they were noted, ascending."""

    name: str
    rounds: list[int]
    values: list[Floats]
    whole: bool

    @property
    def plot(self) -> Plot:
        """How the note is drawn.

        Whole numbers count something whose place in the list says nothing, such as sizes of groups:
        a histogram, by round. Of other numbers each place is one thing, such as a client.
        """
        lengths = {len(one) for one in self.values}
        if max(lengths) <= LINES:
            return "line"
        if self.whole or len(lengths) > 1:
            return "histogram"
        return "bars" if len(self.values) == 1 else "heat map"


def noted_lists(result: Result) -> Iterator[NotedLists]:
    """The notes of a result that are lists of numbers, by name; empty lists are left out."""
    found: dict[str, list[tuple[int, list[float]]]] = {}
    for note in result.notes:
        value = note["value"]
        if isinstance(value, list) and value and all(map(_is_number, value)):
            found.setdefault(note["name"], []).append((note["round"], value))
    for name, noted in sorted(found.items()):
        whole = all(isinstance(one, int) for _, value in noted for one in value)
        values = [np.array(value, dtype=np.float64) for _, value in noted]
        yield NotedLists(name, [number for number, _ in noted], values, whole)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def notes(result: Result, title: str) -> Iterator[tuple[str, bytes]]:
    """Draw every note of a result that is a list of numbers: its name, and the SVG file."""
    draw = {"line": _line, "bars": _bars, "heat map": _heat_map, "histogram": _histogram}
    for noted in noted_lists(result):
        with new_figure(2.2) as figure:
            draw[noted.plot](figure.add_subplot(), noted)
            caption(figure, f"{noted.name}, seed {result.seed}")
            yield noted.name, to_svg(figure, title, description(noted))


def description(noted: NotedLists) -> str:
    """A figure in words, with its ends."""
    every = np.concatenate(noted.values)
    return (
        f"{noted.name} as {noted.plot}: {len(noted.values)} lists of rounds {noted.rounds[0]} to"
        f" {noted.rounds[-1]}, values {every.min():.4g} to {every.max():.4g}."
    )


def _line(axes: Axes, noted: NotedLists) -> None:
    """A line per place in the lists, against the round."""
    longest = max(map(len, noted.values))
    for place in range(longest):
        has = [
            (at, v[place])
            for at, v in zip(noted.rounds, noted.values, strict=True)
            if len(v) > place
        ]
        axes.plot(
            *zip(*has, strict=True), color=COLOURS[place], linestyle=DASHES[place],
            marker=MARKERS[place], markersize=2.4, label=f"entry {place}",
        )  # fmt: skip
    if longest > 1:
        axes.legend(frameon=False, labelcolor="linecolor")
    axes.set_xlabel("round")
    axes.set_ylabel("value")


def _bars(axes: Axes, noted: NotedLists) -> None:
    """The one list: a bar per entry, those below zero in another colour."""
    (values,) = noted.values
    colours = [COLOURS[0] if value >= 0 else COLOURS[1] for value in values]
    axes.bar(range(len(values)), values, color=colours)
    axes.set_xlabel(f"entry (round {noted.rounds[0]})")
    axes.set_ylabel("value")


def _heat_map(axes: Axes, noted: NotedLists) -> None:
    """A column per list, a row per entry; the stronger the colour, the larger the value."""
    table = np.array(noted.values).T
    low, high = float(table.min()), float(table.max())
    _image(axes, (table - low) / ((high - low) or 1.0), noted, (-0.5, len(table) - 0.5))
    axes.set_ylabel(f"entry; blank {low:.3g}, full {high:.3g}")


def _histogram(axes: Axes, noted: NotedLists) -> None:
    """Of one list how often each value is in it; of several, the share of it in every list."""
    every = np.concatenate(noted.values)
    low, high = float(every.min()), float(every.max())
    if noted.whole and high - low < BINS:
        edges = np.arange(low, high + 2) - 0.5
    else:
        edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    counts = np.array([np.histogram(one, edges)[0] for one in noted.values], dtype=np.float64)
    if len(counts) == 1:
        axes.stairs(counts[0], edges, fill=True, color=COLOURS[0])
        axes.set_xlabel(f"value (round {noted.rounds[0]})")
        axes.set_ylabel("entries")
        return
    shares = counts / counts.sum(axis=1, keepdims=True)
    _image(axes, shares.T, noted, (edges[0], edges[-1]))
    axes.set_ylabel("value; shade: share")


def _image(axes: Axes, shades: Floats, noted: NotedLists, ends: tuple[float, float]) -> None:
    """Shades from 0 to 1, shape (entries, lists), the first row at the bottom."""
    from matplotlib.colors import to_rgb
    from matplotlib.ticker import MaxNLocator

    image = np.empty((*shades.shape, 4))
    image[..., :3], image[..., 3] = to_rgb(COLOURS[0]), shades
    extent = (-0.5, shades.shape[1] - 0.5, *ends)
    axes.imshow(sharp(image), aspect="auto", origin="lower", extent=extent)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    if noted.whole or noted.plot == "heat map":
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    axes.xaxis.set_major_formatter(
        lambda at, _: str(noted.rounds[round(at)]) if 0 <= at < len(noted.rounds) else ""
    )
    axes.set_xlabel("round")
