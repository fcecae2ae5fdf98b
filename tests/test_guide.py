"""The guide is true: its code runs, and its tables and commands are those of the code."""

import ast
import dataclasses
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from enum import Enum
from functools import cache
from pathlib import Path

import pytest
import symforce.symbolic as sf
from symforce.ops import LieGroupOps, StorageOps

import caspar
from caspar.cli.app import main
from caspar.frontend import markers
from caspar.memory import patterns
from caspar.options import SOLVER_CHOICES, SolveOptions
from caspar.runtime.select import select_backend
from tests.pages import blocks, table

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
GUIDE = sorted((ROOT / "docs/guide").rglob("*.md"))
START = ROOT / "docs/guide/getting_started.md"
IN_ORDER = [START, *(page for page in GUIDE if page != START)]
PAGES = [README, *GUIDE]

STORAGE_NAMES = {
    "Rot2": {"re": "cos", "im": "sin"},
    "Rot3": {"x": "qx", "y": "qy", "z": "qz", "w": "qw"},
    "Pose2": {"R_re": "cos", "R_im": "sin", "t[0]": "x", "t[1]": "y"},
    "Pose3": {
        **{f"R_{part}": f"q{part}" for part in "xyzw"},
        **{f"t[{number}]": f"t{axis}" for number, axis in enumerate("xyz")},
    },
    "Unit3": {"[0]": "x", "[1]": "y", "[2]": "z"},
}
"""How SymForce names the storage of a symbolic value, and how the guide does."""

RUN_PAGES = """
import sys
from pathlib import Path
from tests.pages import blocks, run

CONTINUES = "The code continues the example of [getting started]"
start, *pages = map(Path, sys.argv[1:])
example = {"__name__": "__main__"}
for block in blocks(start, "python"):
    run(start, block, example)
for page in pages:
    is_continued = CONTINUES in page.read_text(encoding="utf-8")
    names = dict(example) if is_continued else {"__name__": "__main__"}
    for block in blocks(page, "python"):
        run(page, block, names)
"""
"""The code of a page continues the example of the first one if it says so, else it stands alone."""


def _blocks(language: str) -> list[str]:
    return [block.text for page in PAGES for block in blocks(page, language)]


def _choices(head: str) -> list[str]:
    """The strings in the first column of a table."""
    return [ast.literal_eval(row[0]) for row in table(GUIDE, head)]


def _values(choices: Iterable[Enum]) -> set[str]:
    return {choice.value for choice in choices}


@cache
def _commands() -> list[list[str]]:
    return [shlex.split(line) for block in _blocks("sh") for line in block.splitlines()]


def test_code_runs(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(ROOT / "data")
    # without a visible device the solver takes the processor
    settings = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", RUN_PAGES, *map(str, IN_ORDER)],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    for name in ("convergence.png", "scene.ply"):
        assert (tmp_path / name).stat().st_size > 0


def test_inspect_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Exactly with the same compiler; with another, kernels and predicted peaks."""
    (shown,) = _blocks("console")
    assert main(["inspect", "caspar.bundle_adjustment:snavely"]) == 0
    printed = capsys.readouterr().out
    if printed.splitlines()[0] == shown.splitlines()[0]:
        assert printed == shown
    said, found = (
        [line.split()[:2] for line in text.splitlines()[2:]] for text in (shown, printed)
    )
    assert said == found


def test_options_and_defaults() -> None:
    said = {name: ast.literal_eval(default) for name, default, _ in table(GUIDE, "option")}
    assert said == {field.name: field.default for field in dataclasses.fields(SolveOptions)}


def test_arguments_of_solver() -> None:
    said = {
        name: ast.literal_eval(default) for name, default, _ in table(GUIDE, "argument of `Solver`")
    }
    arguments = inspect.signature(caspar.Solver).parameters
    assert said == {name: arguments[name].default for name in said}
    assert {"backend", "precision", *said} == set(SOLVER_CHOICES)


def test_accesses() -> None:
    said = {
        re.sub(r"\(.*\)", "", name)
        for names, *_ in table(GUIDE, "access")
        for name in names.split(", ")
    }
    public = {name for name in patterns.__all__ if hasattr(caspar, name)}
    assert said == public


def test_markers() -> None:
    bases = (markers.Marker, markers.Tunable, markers.Const)
    kinds = {
        name
        for name, thing in vars(markers).items()
        if isinstance(thing, type) and issubclass(thing, markers.Marker) and thing not in bases
    }
    said = [row[0] for row in table(GUIDE, "marker")]
    assert sorted(said) == sorted(kinds)
    assert set(said) <= set(caspar.__all__)


def test_statuses() -> None:
    said = [row[0] for row in table(GUIDE, "status")]
    assert said == [status.name for status in caspar.SolveStatus]
    assert said == [row[0] for row in table(GUIDE, "a solve ended with")]


def test_errors() -> None:
    said = [row[0] for row in table(GUIDE, "error")]
    kinds = [one for one in vars(caspar.errors).values() if inspect.isclass(one)]
    raised = {one.__name__ for one in kinds if issubclass(one, caspar.errors.CasparError)}
    assert sorted(said) == sorted(raised - {"CasparError"})


def test_backends_and_precisions() -> None:
    assert set(_choices("backend")) == _values(caspar.BackendChoice)
    assert set(_choices("precision")) == _values(caspar.Precision)
    assert select_backend(caspar.BackendChoice.CPU).name == "cpu"


def test_choices_of_linear_solver() -> None:
    assert {"auto", *_choices("linear solver")} == _values(caspar.LinearSolverChoice)
    assert set(_choices("jacobian")) == _values(caspar.JacobianChoice)


def test_storage_orders() -> None:
    rows = [
        (kind.removeprefix("sf."), order, freedom)
        for kind, order, freedom, _ in table(GUIDE, "type")
    ]
    assert rows[0] == ("V1 ... sf.V9", "elements", "1 ... 9")
    for kind, order, freedom in rows[1:]:
        python_type = getattr(sf, kind)
        symbols = StorageOps.to_storage(StorageOps.symbolic(python_type, "value"))
        names = [re.sub(r"^value[._]?", "", str(symbol)) for symbol in symbols]
        assert [STORAGE_NAMES[kind][name] for name in names] == order.split()
        assert LieGroupOps.tangent_dim(python_type) == int(freedom)


def test_results() -> None:
    names = {field.name for field in dataclasses.fields(caspar.SolveResult)}
    names |= {"plot", "residuals", "to_html", "weights"}
    assert set(re.findall(r"\bresult\.(\w+)", "\n".join(_blocks("python")))) <= names


@pytest.mark.parametrize("command", _commands(), ids=" ".join)
def test_commands_exist(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, *arguments = command
    if program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "pip":
        extra = re.search(r"\[(\w+)\]", arguments[-1])
        if extra is not None:
            assert f"\n{extra[1]} = [" in (ROOT / "pyproject.toml").read_text()
    else:
        assert program == "caspar"
        for argument in arguments:
            assert not argument.startswith("data/") or (ROOT / argument).is_file()
        options = [argument for argument in arguments if argument.startswith("-")]
        words = [word for word in arguments if re.fullmatch("[a-z]+", word)]
        monkeypatch.setenv("COLUMNS", "100")
        with pytest.raises(SystemExit) as stopped:
            main([*words, "--help"])
        assert stopped.value.code == 0
        shown = capsys.readouterr().out
        assert [option for option in options if option not in shown] == []


def test_settings_exist() -> None:
    """Environment variables that the guide names are read somewhere."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("caspar/**/*.py"))
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    settings = set(re.findall(r"`([A-Z]+_CACHE_[A-Z]+)`", text))
    assert settings >= {"CASPAR_CACHE_DIR", "CUPY_CACHE_DIR"}
    for name in settings:
        assert f'"{name}"' in sources


def test_gains_of_several_devices_are_those_measured() -> None:
    text = (ROOT / "benchmarks/results/devices_cuda.md").read_text(encoding="utf-8")
    gain = r"^(\d) cuda against 1 cuda: PCG iterations (\S+) times as fast, to 0.1 % (\S+) times"
    measured = [
        [section.partition(" observations")[0], *found]
        for section in text.split("\n## ")[1:]
        for found in re.findall(gain, section, re.MULTILINE)
    ]
    assert table([ROOT / "docs/guide/devices.md"], "observations") == measured
