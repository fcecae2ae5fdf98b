"""Every kernel of two solvers in every precision: CPU backend = CUDA source = NumPy."""

import pytest

from caspar.options import Precision
from tests.harness import find_compiler
from tests.support_kernels import CompiledKernels, assert_close
from tests.support_problems import PROBLEMS, case_for

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

COUNT = 300
NUM_OBJECTS = 20
ROUNDINGS = 10.0
"""See `assert_close`; the most any column needs is 3."""


@pytest.mark.parametrize("precision", Precision, ids=lambda precision: precision.value)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_targets_agree_with_numpy(problem: str, precision: Precision) -> None:
    specs = PROBLEMS[problem]().specs(precision)
    compiled = CompiledKernels(specs)
    for spec in specs:
        for run in compiled.run(case_for(spec, COUNT, NUM_OBJECTS)):
            assert_close(run, ROUNDINGS)
