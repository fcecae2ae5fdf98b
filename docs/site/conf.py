"""Sphinx settings of the documentation site; `make docs` builds it into out/site.

The source folder is the root of the repository, so that links between pages are the same on the
site as in a clone. The first page is README.md.
"""

import logging
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SITE = Path(__file__).parent
ROOT = SITE.parents[1]
sys.path[:0] = [str(SITE), str(ROOT)]

from jupyter_client.manager import KernelManager  # noqa: E402

from caspar.version import __version__  # noqa: E402  (found by the line above)

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
    "docstrings",
    "gallery",
    "names",
    "reference",
    "sources",
]

# Pages: Markdown as GitHub reads it, with its anchors for headings.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "linkify"]
myst_linkify_fuzzy_links = False
myst_links_external_new_tab = False
highlight_language = "text"

# Notebooks are executed at each build. Lines of progress, on standard error, are left out.
nb_execution_mode = "force"
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
    "Start": ("docs/guide/getting_started", "docs/guide/README", "docs/guide/faq"),
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
    "Reference": ("docs/api/README",),
    "Examples": ("examples/notebooks/README", "examples/notebooks/*"),
    "How it works": (
        "docs/walkthrough/README",
        "docs/ARCHITECTURE",
        "docs/NUMERICS",
        "docs/RELIABILITY",
        "docs/GLOSSARY",
        "docs/design/README",
    ),
    "Project": ("CHANGELOG", "CONTRIBUTING", "SECURITY", "data/README", "benchmarks/README"),
}
"""Sections of the sidebar, each with the patterns of its pages; a page belongs to the first one."""

BELOW = {"docs/design/README": ("docs/design/0*",), "benchmarks/README": ("benchmarks/results/*",)}
"""Pages that are listed below another one."""


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
    """Give pages the tables of contents of the site, which GitHub would show as they are."""
    listed: set[str] = set()
    if docname == root_doc:
        named = {name for patterns in TREE.values() for name in patterns if name[-1] != "*"}
        for caption, patterns in TREE.items():
            others = named - set(patterns)
            contents = _contents(patterns, listed | others)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{contents}```\n"
    elif docname in BELOW:
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{_contents(BELOW[docname], listed)}```\n"


def _add_index(app: Any, error: Exception | None) -> None:
    """The first page under the name that servers and readers look for."""
    if error is None and app.builder.name == "html":
        shutil.copyfile(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app: Any) -> None:
    """Connect the functions above."""
    app.connect("source-read", _add_tree)
    app.connect("build-finished", _add_index)
