"""What users see of types: signatures change on purpose, and type checkers accept a program."""

import dataclasses
import inspect
import os
import re
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path

import pytest

import caspar
from caspar import options
from caspar.options import SolveOptions, SolveOptionsDict
from caspar.pose_graph.start import InitializeName
from tests.pages import blocks

pytest.importorskip("plotly", reason="a public module draws with it")

ROOT = Path(__file__).parents[1]
PROGRAM = Path(__file__).parent / "typing/user_program.py"
PAGE = ROOT / "docs/guide/howto/typing.md"
START = ROOT / "docs/guide/getting_started.md"
CONTINUES = "The code continues the example of [getting started]"
MODULES = [name for name in caspar._MODULES if hasattr(getattr(caspar, name), "__all__")]


def _arguments(function: object) -> str:
    """Names, kinds and defaults; annotations look different in each version of Python."""
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except ValueError:  # a class of C, such as an exception's own __init__
        return "(...)"
    bare = [value.replace(annotation=value.empty) for value in signature.parameters.values()]
    return re.sub(r"<object object at \w+>", "...", str(inspect.Signature(bare)))


def _members(kind: type) -> Iterator[str]:
    if issubclass(kind, Enum):
        yield f"  {' '.join(member.name for member in kind)}"
        return
    fields: list[str] = []
    if dataclasses.is_dataclass(kind):
        fields = [field.name for field in dataclasses.fields(kind) if field.name[0] != "_"]
        yield f"  fields: {' '.join(fields)}"
    for name in sorted(vars(kind)):
        member = getattr(kind, name)
        if name[0] == "_" or name in fields:
            continue
        yield f"  {name}{_arguments(member) if callable(member) else ''}"


def _is_own(kind: type, name: str) -> bool:
    """Defined by caspar rather than by a class of another library."""
    owner = next(base for base in kind.__mro__ if name in vars(base))
    return owner.__module__.partition(".")[0] == "caspar"


def _signatures() -> Iterator[str]:
    public = {f"caspar.{name}": getattr(caspar, name) for name in sorted(caspar._NAMES)}
    for module in MODULES:
        names = sorted(getattr(caspar, module).__all__)
        public |= {
            f"caspar.{module}.{name}": getattr(getattr(caspar, module), name) for name in names
        }
    for name, value in public.items():
        if typing.get_origin(value) is not None:
            yield name  # an alias, which is a class or not in different versions of Python
        elif isinstance(value, type):
            has_own_init = "__init__" in vars(value) and not issubclass(value, Enum)
            yield f"class {name}{_arguments(value) if has_own_init else ''}"
            yield from _members(value)
        elif callable(value):
            yield f"{name}{_arguments(value)}"
        else:
            yield name


def test_signatures(golden: Callable[[str, str], None]) -> None:
    """A change here is a change for users: say it in CHANGELOG.md."""
    golden("\n".join(_signatures()) + "\n", "txt")


def test_every_public_name_has_a_docstring() -> None:
    missing = []
    for name in caspar._NAMES:
        value = getattr(caspar, name)
        if typing.get_origin(value) is not None:
            continue
        members = {name: value}
        if isinstance(value, type):
            members |= {
                f"{name}.{member}": getattr(value, member)
                for member in dir(value)
                if member[0] != "_" and _is_own(value, member) and not issubclass(value, Enum)
            }
        missing += [
            place
            for place, one in members.items()
            if (callable(one) or isinstance(one, property)) and not inspect.getdoc(one)
        ]
    assert missing == []


def test_options_of_solve_are_typed() -> None:
    """Editors complete what `SolveOptions` has."""
    assert SolveOptionsDict.__total__ is False
    assert typing.get_type_hints(SolveOptionsDict) == typing.get_type_hints(SolveOptions)
    annotation = inspect.signature(caspar.Solver.solve).parameters["options"].annotation
    assert typing.get_args(annotation) == (SolveOptionsDict,)


def test_names_of_choices_are_the_values_of_the_enums() -> None:
    for names, kind in (
        (options.LinearSolverName, options.LinearSolverChoice),
        (options.JacobianName, options.JacobianChoice),
        (options.BackendName, options.BackendChoice),
        (InitializeName, caspar.pose_graph.Initialize),
        (options.GncLossName, caspar.GncLoss),
    ):
        assert list(typing.get_args(names)) == [one.value for one in kind]
    precisions = {"auto", *(one.value for one in options.Precision)}
    assert set(typing.get_args(options.PrecisionName)) == precisions
    assert set(typing.get_args(options.BatchPrecisionName)) == precisions - {"mixed"}


MISTAKES = """
import caspar

def wrong(solver: caspar.Solver, factor: caspar.Factor, arrays: caspar.Arrays) -> None:
    result = solver.solve(arrays)
    graph = caspar.io.read_pose_graph("graph.g2o")

    caspar.Solver(factor, linear_solver="sparce")
    caspar.Solver(factor, backend="gpu")
    caspar.Solver(factor, precision="double")
    caspar.Solver(factor, jacobian="kept")
    caspar.BatchSolver(factor, precision="mixed")
    caspar.solve_gnc(solver, arrays, loss="gm")
    caspar.pose_graph.solve(graph, initialize="cordal")
    solver.covariance(arrays, {"Pose": "all"}, gauge="min_norm")
    solver.gradient(result, {}, hessian="exakt")
    solver.solve(arrays, max_iteration=3)
    solver.solve(arrays, max_iterations="many")
    solver.solve()
    factor.with_loss("huber")
    caspar.TunableSharde
    result.statu
    assert result.status != "CONVERGED_COST"
"""
"""Sixteen mistakes that users make, one a line, after the empty line."""


def _unseen_mistakes(told: str) -> list[str]:
    """The mistakes about which a type checker says nothing."""
    seen = {int(number) for number in re.findall(r"mistakes\.py:(\d+):.*error", told)}
    before, _, mistakes = MISTAKES.rpartition("\n\n")
    lines = enumerate(mistakes.splitlines(), before.count("\n") + 3)
    return [line.strip() for number, line in lines if number not in seen]


NOT_STRICT = '# mypy: disable-error-code="no-untyped-def, no-untyped-call, no-any-return"\n'


@pytest.fixture(scope="module")
def strict_mypy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy says, strictly, of a program that has all of the interface, and of mistakes.

    And of all programs of the manual, which may have functions without types.
    """
    folder = tmp_path_factory.mktemp("strict")
    _write_programs(folder, NOT_STRICT)
    shutil.copy(PROGRAM, folder / "program.py")
    (folder / "mistakes.py").write_text(MISTAKES, encoding="utf-8")
    return _mypy(folder).stdout


def test_mypy_accepts_a_program_and_the_manual(strict_mypy: str) -> None:
    *told, summary = strict_mypy.splitlines()
    assert [line for line in told if not line.startswith("mistakes.py:")] == []
    assert re.search(r"errors in 1 file \(checked \d+ source files\)", summary)


def test_mypy_sees_mistakes(strict_mypy: str) -> None:
    assert _unseen_mistakes(strict_mypy) == []


def test_pyright_sees_mistakes(tmp_path: Path) -> None:
    """All but a comparison that is always true, of which it tells in its strict mode alone."""
    (tmp_path / "mistakes.py").write_text(MISTAKES, encoding="utf-8")
    unseen = _unseen_mistakes(_pyright(tmp_path).stdout)
    assert unseen == ['assert result.status != "CONVERGED_COST"']


def _mypy(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check all programs of a folder with the settings of the page on types."""
    pytest.importorskip("mypy")
    (settings,) = blocks(PAGE, "toml")
    (folder / "pyproject.toml").write_text(settings.text, encoding="utf-8")
    command = ["-m", "mypy", "--follow-imports=silent", "--cache-dir", os.devnull]
    # SciPy has its types in a package of its own
    command += ["--scripts-are-modules", "--ignore-missing-imports"]
    return subprocess.run(
        [sys.executable, *command, *sorted(one.name for one in folder.glob("*.py"))],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
    )


def _pyright(folder: Path) -> subprocess.CompletedProcess[str]:
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed")
    (folder / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{ROOT.as_posix()}"]}}')
    return subprocess.run(
        [pyright, "--pythonpath", sys.executable],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )


def _write_programs(folder: Path, first: str = "") -> None:
    """Write the programs of the manual, each with the line that its page on types asks for."""
    line, *_ = (block.text for block in blocks(PAGE, "python"))
    start = "".join(block.text for block in blocks(START, "python"))
    for page in sorted(START.parent.rglob("*.md")):
        own = "".join(block.text for block in blocks(page, "python"))
        before = start if CONTINUES in page.read_text(encoding="utf-8") else ""
        program = folder / f"{page.parent.name}_{page.stem}.py"
        program.write_text(f"{first}{line}{before}{own}", encoding="utf-8")


def test_pyright_accepts_the_manual(tmp_path: Path) -> None:
    """And a program that has all of the interface."""
    shutil.copy(PROGRAM, tmp_path / "program.py")
    _write_programs(tmp_path)
    done = _pyright(tmp_path)
    assert done.returncode == 0, done.stdout
