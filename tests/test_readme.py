"""README.md is short; it and the first pages of the guide say what is printed and measured."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import blocks, table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "README.md"
START = ROOT / "docs/guide/getting_started.md"
PERFORMANCE = ROOT / "docs/guide/performance.md"
RESULTS = ROOT / "benchmarks/results"

MAX_LINES = 150

# What every machine prints; times, iterations and the device differ.
COMMON_FACTS = ("status", "cost", "RMS residual", "unknowns", "residuals")


def _program(page: Path) -> str:
    """The blocks that come before the first text, which they print."""
    (shown,) = blocks(page, "text")
    return "\n".join(block.text for block in blocks(page, "python") if block.line < shown.line)


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


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _rows(page: Path, first: str) -> list[list[str]]:
    """Rows of the tables of a page whose first cell is this."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| {first} |")
    ]


def test_is_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("page", [PAGE, START], ids=lambda page: page.stem)
def test_code_prints_what_it_says(page: Path, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(ROOT / "data")
    program = tmp_path / "program.py"
    program.write_text(_program(page), encoding="utf-8")
    # without a visible device the solver takes the processor
    settings = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, program.name],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    (shown,) = blocks(page, "text")
    said, printed = _facts(shown.text), _facts(done.stdout)
    assert [name for name in printed if name in said] == list(said)
    assert printed["ran on"].startswith("cpu")
    for name in COMMON_FACTS:
        assert said[name] == printed[name]


def test_best_known_cost() -> None:
    """The number beside the printed one is that of the data's own page."""
    text = START.read_text(encoding="utf-8")
    (said,) = re.findall(r"best known cost of this problem is ([\d,.]*\d)", text)
    assert said in (ROOT / "data/README.md").read_text(encoding="utf-8")
    printed = _facts(blocks(START, "text")[0].text)["cost"].split("->")[1].split()[0]
    assert math.isclose(_number(printed), _number(said), rel_tol=1e-5)


def _measured_on_cuda() -> list[list[str]]:
    page = (RESULTS / "bundle_adjustment_cuda.md").read_text(encoding="utf-8")
    summary = page.split("## Beside the reference")[1].split("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in summary.splitlines()
        if re.match(r"\| [^|]+ \| [\d,]+ \|", line)
    ]


def test_figures_on_cuda_are_those_measured() -> None:
    """Each row of the page on performance is a row of the benchmark page, rounded."""
    measured = _measured_on_cuda()
    said = table([PERFORMANCE], "problem (observations)")
    assert len(said) == len(measured)
    for (problem, *figures), row in zip(said, measured, strict=True):
        assert f"({row[1]})" in problem
        expected = [row[number] for number in (3, 2, 7, 6)]  # caspar before the reference
        for figure, number in zip(figures, expected, strict=True):
            assert math.isclose(_number(figure), _number(number), rel_tol=0.05)


TO_0_01_PERCENT = 5
"""Column of the pages of results: milliseconds to 0.01 % of the best known cost."""

NAMES = {
    "caspar": "caspar cpu auto",
    "Ceres, sparse Schur": "Ceres SPARSE_SCHUR",
    "Ceres, dense Schur": "Ceres DENSE_SCHUR",
    "Ceres, iterative Schur": "Ceres ITERATIVE_SCHUR",
    "GTSAM": "GTSAM LevenbergMarquardt",
    "jaxls": "jaxls dense_cholesky float64 1e-2",
}


def _measured_on_cpu(solver: str) -> float:
    """Of the first problem of the page."""
    return _number(_rows(RESULTS / "bundle_adjustment_cpu.md", NAMES[solver])[0][TO_0_01_PERCENT])


def test_figures_on_a_processor_are_those_measured() -> None:
    said = table([PERFORMANCE], "solver")
    assert [name for name, _ in said] == list(NAMES)
    for name, figure in said:
        assert math.isclose(_number(figure), _measured_on_cpu(name), abs_tol=1.0)


def test_three_figures() -> None:
    largest, cores, first = table([PAGE], "measured")
    row = _measured_on_cuda()[-1]
    assert row[1] in largest[0]
    said = [_number(text) for text in re.findall(r"([\d,.]+) ms", " ".join(largest[1:]))]
    assert said == pytest.approx([_number(row[7]), _number(row[6])], rel=0.02)
    said = [_number(text) for text in re.findall(r"([\d,.]+) ms", " ".join(cores[1:]))]
    expected = [_measured_on_cpu(name) for name in ("caspar", "Ceres, dense Schur", "GTSAM")]
    assert said == pytest.approx(expected, rel=0.02)
    rows = _rows(RESULTS / "startup_cpu.md", "bundle adjustment, auto")
    (seconds,) = [row[2] for row in rows if row[1] == "cold first solve, imports included"]
    assert _number(first[1].removesuffix(" s")) == pytest.approx(_number(seconds), rel=0.05)
