"""NVRTC compiles the kernels of batches without warnings, within the registers of a thread."""

from typing import Any

import numpy as np
import pytest

import caspar
from caspar.options import BatchPrecisionName
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.batch.batch_cases import CASES
from tests.covering import usual
from tests.harness_backend import HarnessBackend


class _Sources(HarnessBackend):
    """A backend of which only texts are asked for."""


@pytest.mark.parametrize(
    ("name", "precision", "arch"),
    usual(
        [
            *[("cameras", "float32", "sm_90"), ("curves", "float32", "sm_75")],
            ("triangles", "float64", "sm_90"),
        ],
        CASES,
        ["float32", "float64"],
        ["sm_75", "sm_90"],
    ),
)
def test_kernels_compile(name: str, precision: BatchPrecisionName, arch: str) -> None:
    case = CASES[name]()
    solver: Any = caspar.BatchSolver(case.factors, backend=_Sources(), precision=precision)
    compiled = compile_text(solver.source(case.arrays, fixed=case.fixed), arch)
    (resources,) = compiled.resources.values()
    assert resources.registers <= 255
    assert compiled.warnings == ()
    # of a node that is shared the places of sums are known at run time only
    if precision == "float32" and name in ("curves", "cameras"):
        assert resources.spill_store_bytes == 0


def test_kernels_with_bounds_compile() -> None:
    case = CASES["curves"]()
    solver: Any = caspar.BatchSolver(case.factors, backend=_Sources())
    bounds = {"Curve": (np.zeros((40, 3)), None)}
    arrays = {**case.arrays, "Curve": np.ones((40, 3))}
    compiled = compile_text(solver.source(arrays, bounds=bounds), "sm_90")
    assert compiled.warnings == ()
