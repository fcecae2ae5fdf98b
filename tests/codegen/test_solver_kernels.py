"""Every kernel of two solvers in every precision and way: CPU backend = CUDA source = NumPy."""

import pytest

from caspar.options import Precision
from tests.harness import find_compiler
from tests.support_kernels import CompiledKernels, assert_close
from tests.support_problems import Way, case_for, distinct_specs, most_unlike

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

COUNT = 300
FULL_COUNT = 512
"""Whole tiles: races in kernels that update in place are looked for only here."""

NUM_OBJECTS = 20
NUM_COPIES = 4
CUDA_ROUNDINGS = 5.0
"""See `assert_close`; the most any column needs is 3.4."""

CPU_ROUNDINGS = 14.0
"""The same; 12 of a float32 sum of 300 equal values, one after the other, else 3.4."""


@pytest.mark.parametrize(("problem", "way", "precision"), most_unlike(Precision))
def test_targets_agree_with_numpy(problem: str, way: Way, precision: Precision) -> None:
    specs = distinct_specs(precision)[problem, way]
    on_both = way is not Way.CUDA
    compiled = CompiledKernels(specs, cpu=on_both)
    for spec in specs:
        in_place = any(arg.read and arg.write for arg in spec.args)
        for count in (COUNT, FULL_COUNT) if in_place else (COUNT,):
            case = case_for(spec, count, NUM_OBJECTS, copies=NUM_COPIES)
            assert_close(compiled.run_cuda(case), CUDA_ROUNDINGS)
            if on_both:
                # sums of one slot: see `accessors.slots`
                case = case_for(spec, count, NUM_OBJECTS)
                assert_close(compiled.run_cpu(case), CPU_ROUNDINGS)
