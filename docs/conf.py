"""The documentation as a site: `make docs` builds it into out/site, offline, with warnings as errors.

The source is the repository itself, so a link between its files is the same on the site and where the files are read.
A page enters the site by its line in docs/index.md.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

from coterie import __version__
from reference_pages import generated

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Coterie"
version = release = __version__
copyright = "The Coterie maintainers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "benchmarks/RESULTS.md", "examples/**.md", "tests/mutants/README.md"]
exclude_patterns = [".*", "out", "dist", "build", "src"]

myst_heading_anchors = 4
highlight_language = "none"  # of blocks that name no language
default_role = "code"
smartquotes = False  # quotation marks of TOML stay as they are
napoleon_google_docstring = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
"""The docstrings say the types, in words."""

html_theme = "furo"
html_title = f"Coterie {__version__}"
html_copy_source = False
html_show_sphinx = False
html_extra_path = ["site"]


INDEX = (Path(__file__).parent / "index.md").read_text(encoding="utf-8")


def linked(text: str) -> list[tuple[str, str]]:
    """The names and pages, without their suffix, that the lists of the index link to."""
    return re.findall(r"^- \[(.*?)\]\((.*?)\.md\)", text, flags=re.MULTILINE)


TITLES = {f"docs/{page}": name for name, page in linked(INDEX)}


def navigation() -> str:
    """The index with a hidden table of contents for each of its sections: the pages that its list links to."""
    trees = []
    for section in INDEX.split("\n## ")[1:]:
        caption, _, body = section.partition("\n")
        entries = "\n".join(f"{name} <{page}>" for name, page in linked(body))
        trees.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n")
    return "\n".join([INDEX, *trees])


def read(app: Sphinx, name: str, content: list[str]) -> None:
    """Complete a page as it is read: the index, what is generated, and the title of a report that has none."""
    text = generated(navigation() if name == root_doc else content[0])
    content[0] = text if re.search(r"^# ", text, flags=re.MULTILINE) else f"# {TITLES[name]}\n\n{text}"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", read)
