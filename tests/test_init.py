"""The public names: what they are, where they come from, what loading the package loads."""

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import caspar
from caspar.version import __version__

SOURCE = Path(caspar.__file__)


def run_python(program: str) -> str:
    """Return what a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=SOURCE.parents[1],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("name", caspar.__all__)
def test_public_names_resolve(name: str) -> None:
    value = getattr(caspar, name)
    assert name in dir(caspar)
    assert getattr(caspar, name) is value


@pytest.mark.parametrize("name", ["plot", "report", "Solver", "bundle_adjustment", "SolveResult"])
def test_names_need_no_other_first(name: str) -> None:
    assert run_python(f"import caspar; caspar.{name}; print('loaded')") == "loaded"


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
    modules = {name: path.rpartition(".")[0] for name, path in caspar._MODULES.items()}
    assert checked == {**caspar._NAMES, **modules}
    assert sorted([*checked, "__version__"]) == caspar.__all__


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'caspar' has no attribute 'Solvr'"):
        _ = caspar.Solvr


def test_star_import() -> None:
    assert run_python("from caspar import *; print(Solver.__name__, factor.__name__)") == (
        "Solver factor"
    )


def test_import_loads_the_version_only() -> None:
    loaded = run_python(
        "import sys, caspar; print(*sorted(n for n in sys.modules if n.startswith('caspar')))"
    )
    assert loaded == "caspar caspar.version"


@pytest.mark.parametrize("name", ["SolveResult", "SolveOptions", "errors", "TunableShared", "io"])
def test_light_names_stay_light(name: str) -> None:
    loaded = run_python(f"import sys, caspar; caspar.{name}; print(*sys.modules)").split()
    assert not {"cupy", "matplotlib", "numba", "rich", "symforce", "sympy"} & set(loaded)


def test_version() -> None:
    assert caspar.__version__ == __version__
    try:
        installed = metadata.version("caspar")
    except metadata.PackageNotFoundError:
        pytest.skip("caspar is not installed")
    assert installed == __version__
