"""Sphinx extension: links from a page to files and folders of the repository that are no pages.

A linked file (`../plugins/oracle.py`) is copied to `files/` of the site, a linked folder
(`results/iid/digits/fedavg/c1c37fe4`) becomes a page that lists the files in it. So the site is
whole without a code-hosting site. A link that leads to nothing stays an error of MyST.
"""

from __future__ import annotations

import html
import posixpath
import shutil
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.matching import Matcher

Page = tuple[str, dict[str, str], str]


class RepositoryLinks(SphinxPostTransform):
    """Point links to files and folders at their copies; runs before MyST looks for pages."""

    default_priority = 8
    formats = ("html",)

    def run(self, **_: object) -> None:
        """Replace each link of the page whose target is in the repository and no page."""
        for node in list(self.document.findall(nodes.Element)):
            if not isinstance(node, (addnodes.pending_xref, addnodes.download_reference)):
                continue
            if node.get("reftype") != "myst":
                continue
            target = self.target(node)
            if target is not None:
                node.replace_self(self.link(target, node))

    def target(self, node: nodes.Element) -> Path | None:
        """What a link leads to, relative to the repository; None = a page, or nothing."""
        root = Path(self.app.srcdir).resolve()
        if node.get("refdomain") == "doc":  # MyST names a Markdown file by its document
            if node["reftarget"] in self.env.found_docs:
                return None
            path = root / f"{node['reftarget']}.md"
        else:
            path = root / posixpath.dirname(self.env.docname) / node["reftarget"].partition("#")[0]
        path = path.resolve()
        inside = path.is_relative_to(root) and path.exists() and path != root
        return path.relative_to(root) if inside else None

    def link(self, target: Path, node: nodes.Element) -> nodes.reference:
        """A link to the copy of `target`, with the text of `node`."""
        path = target.as_posix()
        listed = (Path(self.app.srcdir) / target).is_dir()
        if listed:
            folders(self.app).add(path)
        else:
            copy(self.app, target)
        here = self.app.builder.get_target_uri(self.env.docname)
        there = (
            self.app.builder.get_target_uri(f"files/{path}/index") if listed else f"files/{path}"
        )
        uri = posixpath.relpath(there, posixpath.dirname(here) or ".")
        return nodes.reference("", "", *node.children, refuri=uri, internal=True)


def folders(app: Sphinx) -> set[str]:
    """The folders that pages link, of this build and those before it."""
    found: set[str] = vars(app.env).setdefault("linked_folders", set())
    return found


def copy(app: Sphinx, path: Path) -> None:
    """Copy one file of the repository to `files/` of the site."""
    there = Path(app.outdir) / "files" / path
    there.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(app.srcdir) / path, there)


def pages(app: Sphinx) -> Iterator[Page]:
    """A page for each linked folder."""
    root = Path(app.srcdir)
    ignored = Matcher(["**/__pycache__/**", "**/build/**", "**/*.egg-info/**"])
    for folder in sorted(folders(app)):
        name, rows = f"files/{folder}/index", []
        for path in sorted(path for path in (root / folder).rglob("*") if path.is_file()):
            inside = path.relative_to(root)
            if ignored(inside.as_posix()):
                continue
            document = inside.with_suffix("").as_posix()
            if inside.suffix == ".md" and document in app.env.found_docs:
                uri = app.builder.get_relative_uri(name, document)
            else:
                copy(app, inside)
                uri = path.relative_to(root / folder).as_posix()
            text = html.escape(path.relative_to(root / folder).as_posix())
            rows.append(f'<li><a href="{html.escape(uri)}">{text}</a></li>')
        body = f"<h1>{html.escape(folder)}</h1><ul>{''.join(rows)}</ul>"
        yield name, {"title": folder, "body": body}, "page.html"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_post_transform(RepositoryLinks)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
