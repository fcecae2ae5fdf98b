"""README.md is true: its code runs and prints what it says, its tables are those of the code."""

import ast
import dataclasses
import math
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import symforce.symbolic as sf
from symforce.ops import LieGroupOps, StorageOps

import caspar
from caspar.cli.app import main
from caspar.frontend import markers
from caspar.memory import patterns
from caspar.options import SolveOptions
from caspar.runtime.select import select_backend
from tests.pages import blocks

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")

# What every machine prints; times, iterations and the device differ.
COMMON_FACTS = ("status", "cost", "RMS residual", "unknowns", "residuals")

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
"""How SymForce names the storage of a symbolic value, and how the README does."""


def _blocks(language: str) -> list[str]:
    return [block.text for block in blocks(PAGE, language)]


def _table(head: str) -> list[list[str]]:
    """Cells of the table whose first column is called `head`, without backticks."""
    lines = TEXT.splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    return rows


def _facts(report: str) -> dict[str, str]:
    """Lines of a report by the fact they begin with, wrapped lines joined."""
    found: dict[str, str] = {}
    name = ""
    for line in report.splitlines():
        match = re.match(r"(\S.*?)  +(.+)", line)
        if match is not None and match[1] != "iteration":
            name = match[1]
            found[name] = match[2]
        elif line.startswith("  ") and name == "status":
            found[name] += f" {line.strip()}"
        else:
            name = ""
    return found


@cache
def _commands() -> list[list[str]]:
    return [shlex.split(line) for block in _blocks("sh") for line in block.splitlines()]


def test_code_prints_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(ROOT / "data")
    program = tmp_path / "readme.py"
    program.write_text("\n".join(_blocks("python")), encoding="utf-8")
    # without a visible device the solver takes the processor
    settings = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, program.name],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (shown,) = _blocks("text")
    said, printed = _facts(shown), _facts(done.stdout)
    assert list(said) == list(printed)
    assert printed["ran on"].startswith("cpu")
    for name in COMMON_FACTS:
        assert said[name] == printed[name]
    assert (tmp_path / "convergence.png").stat().st_size > 0


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
    said = {name: ast.literal_eval(default) for name, default, _ in _table("option")}
    assert said == {field.name: field.default for field in dataclasses.fields(SolveOptions)}


def test_accesses() -> None:
    said = {
        re.sub(r"\(.*\)", "", name) for names, *_ in _table("access") for name in names.split(", ")
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
    said = [row[0] for row in _table("marker")]
    assert sorted(said) == sorted(kinds)
    assert set(said) <= set(caspar.__all__)


def test_statuses() -> None:
    assert [row[0] for row in _table("status")] == [status.name for status in caspar.SolveStatus]


def test_backends_and_precisions() -> None:
    said = {ast.literal_eval(row[0]) for row in _table("backend")}
    assert said == {choice.value for choice in caspar.BackendChoice}
    said = {ast.literal_eval(row[0]) for row in _table("precision")}
    assert said == {precision.value for precision in caspar.Precision}
    assert select_backend(caspar.BackendChoice.CPU).name == "cpu"


def test_storage_orders() -> None:
    rows = [
        (kind.removeprefix("sf."), order, freedom) for kind, order, freedom, _ in _table("type")
    ]
    assert rows[0] == ("V1 ... sf.V9", "elements", "1 ... 9")
    for kind, order, freedom in rows[1:]:
        python_type = getattr(sf, kind)
        symbols = StorageOps.to_storage(StorageOps.symbolic(python_type, "value"))
        names = [re.sub(r"^value[._]?", "", str(symbol)) for symbol in symbols]
        assert [STORAGE_NAMES[kind][name] for name in names] == order.split()
        assert LieGroupOps.tangent_dim(python_type) == int(freedom)


def test_results() -> None:
    names = {field.name for field in dataclasses.fields(caspar.SolveResult)} | {"plot"}
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
    """Environment variables that the README names are read somewhere."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("caspar/**/*.py"))
    for name in re.findall(r"`([A-Z]+_[A-Z_]*DIR)`", TEXT):
        assert f'"{name}"' in sources


def test_best_known_cost() -> None:
    """The number beside the printed one is that of the data's own page."""
    (said,) = re.findall(r"best known cost of this problem is ([\d,.]*\d)", TEXT)
    assert said in (ROOT / "data/README.md").read_text(encoding="utf-8")
    printed = _facts(_blocks("text")[0])["cost"].split("->")[1].split()[0]
    assert math.isclose(float(printed.replace(",", "")), float(said.replace(",", "")), rel_tol=1e-5)
