"""Sphinx configuration. Build the site with `tox -e docs`; it is written to `build/site`.

The source directory is the root of the repository, so that a relative link means the same thing
on the site and on a code-hosting site, and nothing has to be copied:

    sphinx-build -c docs . build/site
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tools"))

import flbench

project = "flbench"
author = "The flbench developers"
project_copyright = author
release = version = flbench.__version__

extensions = [
    "myst_parser",
    "navigation",
    "notebooks",
    "repository_links",
    "web_board",
]

# Pages: everything here is a page of the site; all other files may only be linked.
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**.md",
    "docs/notebooks/*.ipynb",
    "leaderboard/*.md",
    "plugins/README.md",
]
exclude_patterns = [
    ".*",
    "*.egg-info",
    "**/__pycache__",
    "build",
    "docs/changelog",  # fragments of CHANGELOG.md
    "docs/tutorial-package",
    "leaderboard/findings.md",  # a part of leaderboard/README.md
    "leaderboard/results",  # linked folder by folder, see docs/tools/repository_links.py
]

# Markdown
myst_heading_anchors = 4  # links to headings: the same anchors as on a code-hosting site
suppress_warnings = ["myst.header"]  # generated tables of one page may skip a level of headings

# HTML
html_theme = "furo"
html_title = f"flbench {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
templates_path = ["_templates"]
html_additional_pages = {"index": "redirect.html"}  # the site's address leads to docs/index.html
