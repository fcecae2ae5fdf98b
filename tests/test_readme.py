"""README.md is short and true: its code prints what it says, its figures are those measured."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.pages import blocks, table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")

MAX_LINES = 200

# What every machine prints; times, iterations and the device differ.
COMMON_FACTS = ("status", "cost", "RMS residual", "unknowns", "residuals")


def _blocks(language: str) -> list[str]:
    return [block.text for block in blocks(PAGE, language)]


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


def test_is_short() -> None:
    assert len(TEXT.splitlines()) <= MAX_LINES


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


def test_best_known_cost() -> None:
    """The number beside the printed one is that of the data's own page."""
    (said,) = re.findall(r"best known cost of this problem is ([\d,.]*\d)", TEXT)
    assert said in (ROOT / "data/README.md").read_text(encoding="utf-8")
    printed = _facts(_blocks("text")[0])["cost"].split("->")[1].split()[0]
    assert math.isclose(_number(printed), _number(said), rel_tol=1e-5)


def test_figures_are_those_measured() -> None:
    """Each row of the README is a row of the benchmark page, rounded."""
    page = (ROOT / "benchmarks/results/bundle_adjustment_cuda.md").read_text(encoding="utf-8")
    summary = page.split("## Beside the reference")[1].split("\n## ")[0]
    measured = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in summary.splitlines()
        if re.match(r"\| [^|]+ \| [\d,]+ \|", line)
    ]
    said = table([PAGE], "problem (observations)")
    assert len(said) == len(measured)
    for (problem, *figures), row in zip(said, measured, strict=True):
        assert f"({row[1]})" in problem
        expected = [row[number] for number in (3, 2, 7, 6)]  # caspar before the reference
        for figure, number in zip(figures, expected, strict=True):
            assert math.isclose(_number(figure), _number(number), rel_tol=0.05)
