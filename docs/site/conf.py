"""Sphinx settings of the documentation site; `make docs` builds it into out/site.

The source folder is the root of the repository, so that links between pages are the same on the
site as in a clone. The first page is README.md.
"""

import logging
import shutil
import sys
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

SITE = Path(__file__).parent
ROOT = SITE.parents[1]
sys.path[:0] = [str(SITE), str(ROOT)]

from jupyter_client.manager import KernelManager  # noqa: E402
from words import WORDS  # noqa: E402  (found by the line above)

from caspar.version import __version__  # noqa: E402

project = "caspar"
author = "The caspar authors"
project_copyright = "2026, the caspar authors. Apache-2.0"
version = release = __version__

root_doc = "README"
include_patterns = [
    "*.md",
    "benchmarks/README.md",
    "benchmarks/results/*.md",
    "data/README.md",
    "docs/*.md",
    "docs/**/*.md",
    "docs/api/*.rst",
    "examples/notebooks/*",
]
exclude_patterns = [".*", "**/.*", "build", "caspar", "dist", "out", "tests"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "docstrings",
    "gallery",
    "names",
    "reference",
    "scene",
    "sources",
]

# Pages: Markdown as GitHub reads it, with its anchors for headings.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "dollarmath", "linkify"]
myst_linkify_fuzzy_links = False
myst_links_external_new_tab = False
highlight_language = "text"

# Notebooks are executed if they have changed since the last build; `make clean` forgets that, which
# is right after a change of caspar itself. Lines of progress, on standard error, are left out.
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "out" / "notebooks")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_output_stderr = "remove"
logging.getLogger("traitlets").setLevel(logging.WARNING)  # "Executing notebook ..."
if hasattr(KernelManager, "transport_encryption"):  # kernels warn of what others could read
    KernelManager.transport_encryption.default_value = "auto"

# The reference: a name in single backticks is a link if it is a public name.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["jax", "torch"]
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"caspar {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_domain_indices = False
html_favicon = "static/icon.svg"
html_show_sphinx = False

TREE = {
    "Start": (
        "docs/guide/getting_started",
        "docs/guide/README",
        "docs/guide/which",
        "docs/guide/cookbook",
        "docs/guide/faq",
    ),
    "For your problem": (
        "docs/guide/colmap",
        "docs/guide/pose_graphs",
        "docs/guide/calibration",
        "docs/guide/curve_fitting",
        "docs/guide/batches",
        "docs/guide/live",
        "docs/guide/kernels",
        "docs/guide/interoperability",
    ),
    "Guide": (
        "docs/guide/factors",
        "docs/guide/lookups",
        "docs/guide/factor_library",
        "docs/guide/arrays",
        "docs/guide/solving",
        "docs/guide/losses",
        "docs/guide/fixed",
        "docs/guide/bounds",
        "docs/guide/constraints",
        "docs/guide/covariance",
        "docs/guide/gradients",
        "docs/guide/*",
    ),
    "How to": ("docs/guide/howto/*",),
    "Coming from": ("docs/guide/migration/*",),
    "Reference": ("docs/api/README", "examples/notebooks/README"),
    "How it works": (
        "docs/walkthrough/README",
        "docs/ARCHITECTURE",
        "docs/NUMERICS",
        "docs/RELIABILITY",
        "docs/GLOSSARY",
        "docs/design/README",
    ),
    "Project": ("CHANGELOG", "CONTRIBUTING", "benchmarks/README"),
}
"""Sections of the sidebar, each with the patterns of its pages; a page belongs to the first one."""

LINKED = (
    "docs/api/*",
    "docs/design/*",
    "benchmarks/results/*",
    "examples/notebooks/*",
    "SECURITY",
    "data/README",
)
"""Pages that are not in the sidebar: another page, which is, has links to them."""

UNSEARCHED = (
    "docs/design/*",
    "docs/ARCHITECTURE",
    "docs/NUMERICS",
    "docs/RELIABILITY",
    "docs/walkthrough/*",
    "benchmarks/*",
    "CHANGELOG",
    "CONTRIBUTING",
    "SECURITY",
    "data/README",
)
"""Pages that the search leaves out: they have twice as many words as the manual, and say all of its
words."""


def _contents(patterns: Iterable[str], listed: set[str]) -> str:
    """Lines of a toctree: the pages of patterns that are not listed yet."""
    names = [
        path.relative_to(ROOT).with_suffix("").as_posix()
        for pattern in patterns
        for path in sorted(ROOT.glob(f"{pattern}.*"))
        if path.suffix in (".md", ".ipynb", ".rst")
    ]
    new = [name for name in dict.fromkeys(names) if name not in listed]
    listed.update(new)
    return "".join(f"{name if name == root_doc else '/' + name}\n" for name in new)


def _add_tree(app: Any, docname: str, source: list[str]) -> None:
    """Give pages what GitHub would show as it is: the tables of contents, entries of the index."""
    listed: set[str] = set()
    if docname == root_doc:
        named = {name for patterns in TREE.values() for name in patterns if name[-1] != "*"}
        for caption, patterns in TREE.items():
            others = named - set(patterns)
            contents = _contents(patterns, listed | others)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{contents}```\n"
    if docname in WORDS:
        entries = ", ".join(f"! {word}" for word in WORDS[docname])
        source[0] = f"```{{index}} {entries}\n```\n\n{source[0]}"


def _mark_page(app: Any, doctree: Any) -> None:
    """Leave a page out of the search or of the sidebar."""
    page, metadata = app.env.docname, app.env.metadata[app.env.docname]
    if any(fnmatch(page, pattern) for pattern in LINKED):
        metadata.setdefault("orphan", "")
    if any(fnmatch(page, pattern) for pattern in UNSEARCHED):
        metadata["nosearch"] = ""


def _add_index(app: Any, error: Exception | None) -> None:
    """The first page under the name that servers and readers look for."""
    if error is None and app.builder.name == "html":
        shutil.copyfile(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app: Any) -> None:
    """Connect the functions above."""
    app.connect("source-read", _add_tree)
    app.connect("doctree-read", _mark_page)
    app.connect("build-finished", _add_index)
