"""Every kernel of two solvers in every precision and way: CPU backend = CUDA source = NumPy."""

import pytest

from caspar.options import Precision
from tests.harness import find_compiler
from tests.support_kernels import CompiledKernels, assert_close
from tests.support_problems import PROBLEMS, Way, case_for, distinct_specs

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

COUNT = 300
FULL_COUNT = 512
"""Whole tiles: races in kernels that update in place are looked for only here."""

NUM_OBJECTS = 20
ROUNDINGS = 20.0
"""See `assert_close`; the most any column needs is 12: a float32 sum of 300 equal values."""


@pytest.mark.parametrize("precision", Precision, ids=lambda precision: precision.value)
@pytest.mark.parametrize("way", Way, ids=lambda way: way.value)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_targets_agree_with_numpy(problem: str, way: Way, precision: Precision) -> None:
    specs = distinct_specs(precision)[problem, way]
    on_both = way is not Way.CUDA
    compiled = CompiledKernels(specs, cpu=on_both)
    for spec in specs:
        in_place = any(arg.read and arg.write for arg in spec.args)
        for count in (COUNT, FULL_COUNT) if in_place else (COUNT,):
            case = case_for(spec, count, NUM_OBJECTS)
            for run in compiled.run(case) if on_both else (compiled.run_cuda(case),):
                assert_close(run, ROUNDINGS)
