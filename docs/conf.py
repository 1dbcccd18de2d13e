# SPDX-License-Identifier: Apache-2.0
"""Sphinx: the pages of docs/, the API from the docstrings, the help of every verb, the tutorials. No network is used.

Mathematics is set by a copy of MathJax that comes with the Python package ``sphinx-mathjax-offline``, so that a page
opened from disk shows it. The tutorials are copied from ``tutorials/`` and executed at build time, unless the
environment variable ``VMFSEG_DOCS_EXECUTE`` is ``0``.
"""

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.update(TERM="dumb", COLUMNS="80", NO_COLOR="1", OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"))

HERE = Path(__file__).parent
ROOT = HERE.parent

project = "vmfseg"
author = "the vmfseg developers"
copyright = "the vmfseg developers, Apache-2.0"  # noqa: A001 - Sphinx's name
release = importlib.metadata.version("vmfseg")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx.ext.mathjax",
    "myst_nb",
]
exclude_patterns = ["_build", "_static"]

autodoc_member_order = "groupwise"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Shape", "notes_style")]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3  # the anchors that links in Markdown files have on code hosts
nb_execution_mode = "off" if os.environ.get("VMFSEG_DOCS_EXECUTE") == "0" else "cache"
nb_execution_cache_path = str(HERE / "_build" / ".jupyter_cache")
nb_execution_timeout = 900
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

html_theme = "pydata_sphinx_theme"
html_title = f"vmfseg {release}"
html_theme_options = {
    "header_links_before_dropdown": 6,
    "navbar_end": ["theme-switcher"],
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {page: [] for page in ("index", "bundles", "command_line", "conventions")}
html_show_sourcelink = False
_mathjax = importlib.util.find_spec("sphinx-mathjax-offline")
if _mathjax is None or _mathjax.origin is None:
    raise ImportError("sphinx-mathjax-offline is missing: pip install 'vmfseg[docs]'")
html_static_path = ["_static", str(Path(_mathjax.origin).parent / "static" / "mathjax" / "tex-svg.js")]
html_css_files = ["vmfseg.css"]
mathjax_path = "tex-svg.js"


def copy_tutorials() -> None:
    """Copy the notebooks beside the pages: Sphinx reads nothing outside of its own folder."""
    target = HERE / "tutorials"
    target.mkdir(exist_ok=True)
    wanted = {path.name: path for path in sorted((ROOT / "tutorials").glob("*.ipynb"))}
    for stale in {path.name for path in target.glob("*.ipynb")} - set(wanted):
        (target / stale).unlink()
    for name, path in wanted.items():
        if not (target / name).is_file() or (target / name).read_bytes() != path.read_bytes():
            shutil.copyfile(path, target / name)


def verbs(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every verb, groups before their members."""
    yield path
    for name, member in sorted(getattr(command, "commands", {}).items()):
        yield from verbs(member, (*path, name))


def write_command_line() -> None:
    """Write the help of every verb, as a terminal of 80 columns shows it."""
    from typer.main import get_command
    from typer.testing import CliRunner

    from vmfseg.cli.main import app

    lines = ["# Command line", "", "The same texts as `vmfseg VERB --help`.", ""]
    for words in verbs(get_command(app)):
        shown = CliRunner().invoke(app, [*words, "--help"]).output.strip().splitlines()
        lines += [f"## {' '.join(('vmfseg', *words))}", "", "```text", *(line.rstrip() for line in shown), "```", ""]
    page = "\n".join(lines)
    target = HERE / "command_line.md"
    if not target.is_file() or target.read_text(encoding="utf-8") != page:
        target.write_text(page, encoding="utf-8")


copy_tutorials()
write_command_line()
