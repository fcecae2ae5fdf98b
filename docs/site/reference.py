"""Sphinx extension: the pages of the reference, one for each group of public names.

In: the tables of `caspar/__init__.py`. Out: files in docs/api, which git ignores: a new public
name is on the site without another line. Runs once in a build, before pages are read.
"""

import ast
import importlib
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

from docstrings import marked_up
from sphinx.ext.autodoc.mock import mock

import caspar

GROUPS = {
    "caspar.frontend": ("factors", "Factors and markers"),
    "caspar.solver": ("solver", "Solvers and results"),
    "caspar.batch": ("batches", "Batches of problems"),
    "caspar.options": ("options", "Options and choices"),
    "caspar.kernels": ("kernels", "Kernels"),
    "caspar.arrays": ("arrays", "Shared arrays"),
    "caspar.memory": ("accesses", "Accesses of kernels"),
}
"""File and title of the names that modules of a package define."""

FIRST = ("Solver", "SolveResult", "SolveStatus", "factor", "kernel", "Kernel")
"""Names that come before the others of their page."""

OTHERS = ("others", "Other names")

INTRODUCTION = """\
Reference
=========

Every public name, from the docstrings of the source. The guide explains how they are used together.
"""


def pages(names: Mapping[str, str], modules: tuple[str, ...]) -> dict[str, str]:
    """Texts by file name.

    Args:
        names: Modules in which the public names of caspar are defined.
        modules: Public modules of caspar.
    """
    groups: dict[tuple[str, str], list[str]] = {group: [] for group in GROUPS.values()}
    for name, module in names.items():
        prefix = ".".join(module.split(".")[:2])
        groups.setdefault(GROUPS.get(prefix, OTHERS), []).append(name)
    texts, lines = {}, []
    for (file, title), members in groups.items():
        texts[file] = _heading(title) + "".join(map(_entry, _in_order(members)))
        names_in_it = ", ".join(f":py:obj:`{name} <caspar.{name}>`" for name in _in_order(members))
        lines.append(f"* :doc:`{title} <{file}>`: {names_in_it}\n")
    for module in (*modules, *caspar._OPTIONAL_MODULES):
        texts[f"module_{module}"] = _heading(f"caspar.{module}") + (
            f".. automodule:: caspar.{module}\n   :members:\n   :exclude-members: set\n"
            f"{_constants(getattr(caspar, module))}"
        )
        about = (getattr(caspar, module).__doc__ or "").partition("\n")[0]
        (about,) = marked_up([about])
        lines.append(f"* :doc:`caspar.{module} <module_{module}>`: {about}\n")
    texts["README"] = f"{INTRODUCTION}\n{''.join(lines)}"
    return texts


def constants(module: ModuleType) -> dict[str, str]:
    """Docstrings of the public names of a module that are neither classes nor functions.

    The name may come from another module: the docstring is below its assignment there.
    """
    found = {}
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)):
            found[name] = _docstring_of_constant(module, name)
    return found


def _docstring_of_constant(module: ModuleType, name: str) -> str:
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return _docstring_of_constant(importlib.import_module(node.module or ""), name)
    for line, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
        if name not in [getattr(target, "id", None) for target in targets]:
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            return inspect.cleandoc(str(following.value.value))
    raise ValueError(f"{module.__name__}.{name} has no docstring")


def _constants(module: ModuleType) -> str:
    entries = []
    for name, text in constants(module).items():
        entries.append(_data(name, text))
    return "".join(entries)


def _data(name: str, text: str) -> str:
    lines = "\n".join(f"   {line}" for line in marked_up(text.splitlines()))
    return f"\n.. py:data:: {name}\n\n{lines}\n\n"


def _in_order(names: Iterable[str]) -> list[str]:
    rank = {name: number for number, name in enumerate(FIRST)}
    return sorted(names, key=lambda name: (rank.get(name, len(FIRST)), name))


def _heading(title: str) -> str:
    return f"{title}\n{'=' * len(title)}\n\n"


def _entry(name: str) -> str:
    value = getattr(caspar, name)
    if get_origin(value) is not None:
        text = _docstring_of_constant(importlib.import_module(caspar._NAMES[name]), name)
        return _data(f"caspar.{name}", text)
    kind = "class" if isinstance(value, type) else "function"
    members = "   :members:\n" if kind == "class" else ""
    return f".. auto{kind}:: caspar.{name}\n{members}\n"


def _write(app: Any) -> None:
    folder = Path(app.srcdir) / "docs/api"
    folder.mkdir(exist_ok=True)
    with mock(app.config.autodoc_mock_imports):
        wanted = pages(caspar._NAMES, caspar._MODULES)
    for file in folder.glob("*.rst"):
        if file.stem not in wanted:
            file.unlink()
    for name, text in wanted.items():
        file = folder / f"{name}.rst"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, Any]:
    """Write the pages when a build begins."""
    app.connect("builder-inited", _write)
    return {"version": "1", "parallel_read_safe": True}
