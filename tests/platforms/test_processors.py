"""Solves end alike on unlike processors: with other instructions in NumPy, LAPACK and kernels.

OpenBLAS and NumPy choose their loops by the processor, LLVM the instructions of kernels. Each can
be told to do as an older processor would. So sums differ in their last bits.
"""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from numpy._core._multiarray_umath import (  # type: ignore[import-not-found]
    __cpu_dispatch__ as dispatched,
)
from numpy._core._multiarray_umath import __cpu_features__ as features  # ditto

from caspar.errors import OptionError
from caspar.runtime.cpu.machine_code import PROCESSOR_VARIABLE, chosen_processor
from tests.platforms.ends import ends

ROOT = Path(__file__).parents[2]

FEW = ("BoxBOD", "MGH09", "Rat43", "Watson 6", "Powell singular", "Meyer")

MAX_DIFFERENCE = 2
"""Of the numbers of iterations."""

FAR = "x10"
"""Of starts ten times as far, only the costs are compared: they take up to a thousand iterations,
some of them steps that rounding decides."""

FAR_RTOL = 1e-6

NOISY, NOISY_RTOL = "Trigonometric 10", 1e-9
"""Its cost is rounded to 1e-12 of itself, which is more than the tolerance, because sums of ten
cosines cancel. From iteration 33 on, where ten digits are final, each decision is one of rounding:
its statuses and costs are compared, not how many steps are tried in vain."""

CHAOTIC = "Chebyquad"
"""Polynomials of degree 7 to 10 far outside the interval that they are bounded in: from FAR starts
even the minimum that is reached depends on the last bits."""

ZERO = 1e-12
"""Costs of exact data are below."""

End = tuple[str, int, float]


def _environment(level: str) -> dict[str, str]:
    """What makes LLVM, NumPy and OpenBLAS take this level of x86-64 at most."""
    kernel, missing = {
        "x86-64-v2": ("Nehalem", "."),
        "x86-64-v3": ("Haswell", "V4|AVX512"),
        "x86-64-v3,-fma": ("Sandybridge", "V4|AVX512|V3|FMA3"),
        "x86-64-v4": ("SkylakeX", "NONE"),
    }[level]
    disabled = [name for name in dispatched if features[name] and re.search(missing, name)]
    return {
        PROCESSOR_VARIABLE: level,
        "OPENBLAS_CORETYPE": kernel,
        "NPY_DISABLE_CPU_FEATURES": " ".join(disabled),
    }


@cache
def _usual_ends(names: tuple[str, ...]) -> dict[str, End]:
    return ends(names)


def _other_ends(names: tuple[str, ...], level: str) -> dict[str, End]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.platforms.ends", *names],
        cwd=ROOT,
        env={**os.environ, **_environment(level)},
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    found: dict[str, End] = json.loads(done.stdout)
    return found


def _compare(names: tuple[str, ...], level: str) -> None:
    if level == "x86-64-v4" and not features["AVX512F"]:
        pytest.skip("this processor has no AVX-512")
    if not features["AVX2"]:
        pytest.skip("this processor has no levels of x86-64 to choose from")
    usual, other = _usual_ends(names), _other_ends(names, level)
    assert usual.keys() == other.keys()
    unlike = {
        name: (end, other[name])
        for name, end in usual.items()
        if not _alike(name, end, other[name])
    }
    assert unlike == {}


def _alike(name: str, end: End, other: End) -> bool:
    if not name.endswith(FAR):
        is_same = end[0] == other[0]
        if name.startswith(NOISY):
            return is_same and end[2] == pytest.approx(other[2], rel=NOISY_RTOL)
        return is_same and abs(end[1] - other[1]) <= MAX_DIFFERENCE
    return name.startswith(CHAOTIC) or end[2] == pytest.approx(other[2], rel=FAR_RTOL, abs=ZERO)


@pytest.mark.parametrize(
    "level", ["x86-64-v2", pytest.param("x86-64-v3,-fma", marks=pytest.mark.reliability)]
)
def test_few_problems_end_alike(level: str) -> None:
    _compare(FEW, level)


@pytest.mark.reliability
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v3,-fma", "x86-64-v4"])
def test_the_regression_set_ends_alike(level: str) -> None:
    _compare((), level)


def test_a_processor_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROCESSOR_VARIABLE, "x87")
    with pytest.raises(OptionError, match=r"CASPAR_CPU='x87'.*x86-64-v2"):
        chosen_processor()
