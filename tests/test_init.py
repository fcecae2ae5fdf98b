"""The public names: what they are, where they come from, what loading the package loads."""

import ast
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

import caspar
from caspar import version
from caspar.version import DISTRIBUTION, __version__
from tests.forks import run_in_forks

SOURCE = Path(caspar.__file__)
NEEDS_FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks on this system")


def run_python(program: str) -> str:
    """Return what a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=SOURCE.parents[1],
        check=True,
        capture_output=True,
        text=True,
        timeout=500,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("name", caspar.__all__)
def test_public_names_resolve(name: str) -> None:
    value = getattr(caspar, name)
    assert name in dir(caspar)
    assert getattr(caspar, name) is value


def test_tables_agree() -> None:
    """What a type checker reads is what is loaded."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    checked = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules = (*caspar._MODULES, *caspar._OPTIONAL_MODULES)
    assert checked == {**caspar._NAMES, **dict.fromkeys(modules, "caspar")}
    public = checked.keys() - set(caspar._OPTIONAL_MODULES)
    assert sorted([*public, "__version__"]) == caspar.__all__


STAND_INS = """
import sys
from types import ModuleType

class StandIn(type):
    def __getattr__(cls, name):
        return cls

    def __or__(cls, other):
        raise TypeError("a stand-in has no unions")

class Library(ModuleType):
    def __getattr__(self, name):
        return StandIn(name, (), {})

for name in ("torch", "jax", "jax.numpy"):
    sys.modules[name] = Library(name)
import caspar
print(caspar.torch.solve.__name__, caspar.jax.solve.__name__)
"""
"""Stand-ins of libraries: whatever they are asked for is a class, as when the site is built."""


def printed_in_forks(programs: Sequence[str]) -> list[str]:
    """What each program prints, in one line, in an interpreter that has no caspar."""
    others = "import matplotlib.pyplot, rich.console, rich.table, symforce.symbolic, symforce.ops"
    done = run_in_forks(programs, "-W", "error", before=others)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@NEEDS_FORKS
def test_names_need_no_other_first() -> None:
    """Nor do a star import, `help` and `dir`."""
    names = ["plot", "report", "Solver", "bundle_adjustment", "SolveResult"]
    programs = [f"import caspar; caspar.{name}; print('loaded')" for name in names]
    programs.append("from caspar import *; print(Solver.__name__, factor.__name__)")
    programs.append("import caspar; print(dir(caspar) == sorted(caspar.__all__))")
    programs.append(
        "import caspar; caspar.Solver; caspar.io; print(dir(caspar) == sorted(caspar.__all__))"
    )
    programs.append(
        "import caspar, pydoc; text = pydoc.plain(pydoc.render_doc(caspar)); "
        "print('Nonlinear least squares on the GPU' in text, 'class Solver' in text)"
    )
    programs.append(f"exec({STAND_INS!r})")
    found = printed_in_forks(programs)
    assert found == ["loaded"] * 5 + ["Solver factor", "True", "True", "True True", "solve solve"]


@NEEDS_FORKS
def test_public_modules_can_be_imported() -> None:
    """By each kind of import statement and as an attribute, and all give one module."""
    programs = [
        f"import caspar.{name} as one; from caspar import {name} as two; import caspar, sys; "
        f"del caspar.{name}; "
        f"print(one is two is caspar.{name} is sys.modules['caspar.{name}'])"
        for name in caspar._MODULES
    ]
    assert printed_in_forks(programs) == ["True"] * len(programs)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'caspar' has no attribute 'Solvr'"):
        getattr(caspar, "Solvr")  # noqa: B009


def test_import_loads_the_version_only() -> None:
    loaded = run_python(
        "import sys, caspar; print(*sorted(n for n in sys.modules if n.startswith('caspar')))"
    )
    assert loaded == "caspar caspar.version"
    foreign = run_python(
        "import sys; before = set(sys.modules); import caspar; "
        "roots = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(*(roots - set(sys.stdlib_module_names)))"
    )
    assert foreign == "caspar"


@pytest.mark.parametrize("name", ["SolveResult", "SolveOptions", "errors", "TunableShared", "io"])
def test_light_names_stay_light(name: str) -> None:
    loaded = run_python(f"import sys, caspar; caspar.{name}; print(*sys.modules)").split()
    assert not {"cupy", "matplotlib", "llvmlite", "rich", "symforce", "sympy"} & set(loaded)


def test_version() -> None:
    assert caspar.__version__ == __version__
    try:
        installed = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        pytest.skip("caspar is not installed")
    assert installed == __version__


def test_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A clone is installed from its folder, a release from the index."""
    assert (
        version.install_command("view")
        == f"pip install --editable '{Path(__file__).parents[1]}[view]'"
    )
    monkeypatch.setattr(version, "__file__", str(tmp_path / "caspar" / "version.py"))
    assert version.install_command("view") == "pip install 'caspar-solver[view]'"
    assert version.install_command() == "pip install 'caspar-solver'"
