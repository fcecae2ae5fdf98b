"""Every kernel of two solvers in every precision: CPU backend = CUDA source = NumPy."""

import numpy as np
import pytest

from caspar.options import Precision
from tests.harness import find_compiler
from tests.support_kernels import CompiledKernels, assert_close
from tests.support_problems import PROBLEMS, case_for

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

COUNT = 300
NUM_OBJECTS = 20
ROUNDINGS = 3000
"""Rounding errors a column may have, measured at its largest entry: the worst columns here
(blocks of J^T J of cameras, whose terms cancel) have a few hundred."""


@pytest.mark.parametrize("precision", Precision, ids=lambda precision: precision.value)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_targets_agree_with_numpy(problem: str, precision: Precision) -> None:
    specs = PROBLEMS[problem]().specs(precision)
    compiled = CompiledKernels(specs)
    for spec in specs:
        coarsest = max(np.finfo(arg.dtype.value).eps for arg in spec.args)
        eps = max(coarsest, np.finfo(spec.graph.dtype.value).eps)
        for run in compiled.run(case_for(spec, COUNT, NUM_OBJECTS)):
            assert_close(run, ROUNDINGS * float(eps))
