"""Several figures as one file, one below the other."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
GAP = 12.0
"""Points between two figures."""
ID_USED = re.compile(r"url\(#([^)]+)\)")


def stacked(parts: Sequence[bytes]) -> bytes | None:
    """Figures of this package as one SVG file, in their order; None if there are none.

    Every part keeps its title and description. Their ids get the part's number, so that no two
    parts share one.
    """
    if not parts:
        return None
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    whole = ElementTree.Element(f"{{{SVG}}}svg", {"role": "img", "version": "1.1"})
    height = width = 0.0
    for number, part in enumerate(parts, start=1):
        root = ElementTree.fromstring(part)
        _, _, across, down = map(float, root.attrib["viewBox"].split())
        for metadata in root.findall(f"{{{SVG}}}metadata"):
            root.remove(metadata)
        for element in root.iter():
            element.attrib.update(_own_ids(element.attrib, f"part{number}-"))
        height += GAP if number > 1 else 0.0
        root.attrib.update(y=f"{height:g}", width=f"{across:g}", height=f"{down:g}")
        height, width = height + down, max(width, across)
        whole.append(root)
    whole.attrib.update(width=f"{width:g}pt", height=f"{height:g}pt")
    whole.attrib["viewBox"] = f"0 0 {width:g} {height:g}"
    text: bytes = ElementTree.tostring(whole, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _own_ids(attributes: dict[str, str], prefix: str) -> Iterator[tuple[str, str]]:
    """The attributes that hold an id or refer to one, with the prefix before the id."""
    for name, value in attributes.items():
        if name == "id":
            yield name, prefix + value
        elif name == f"{{{XLINK}}}href" and value.startswith("#"):
            yield name, f"#{prefix}{value[1:]}"
        elif "url(#" in value:
            yield name, ID_USED.sub(rf"url(#{prefix}\1)", value)
