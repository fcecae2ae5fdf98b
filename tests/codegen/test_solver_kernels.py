"""Every kernel of two solvers in every precision: CPU backend = CUDA source = NumPy."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from caspar.memory.kernel import KernelSpec
from caspar.options import Precision
from tests.harness import find_compiler
from tests.support_kernels import CompiledKernels, assert_close
from tests.support_problems import bundle_adjustment, case_for, pose_graph

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

COUNT = 300
NUM_OBJECTS = 20
ROUNDINGS = 10.0
"""See `assert_close`; the most any column needs is 3."""

each_precision = pytest.mark.parametrize(
    "precision", Precision, ids=lambda precision: precision.value
)


def distinct(specs: Iterable[KernelSpec], known: Iterable[KernelSpec] = ()) -> list[KernelSpec]:
    """Kernels that differ from each other and from known ones in more than their name."""
    seen = {replace(spec, name="") for spec in known}
    found = []
    for spec in specs:
        if replace(spec, name="") not in seen:
            seen.add(replace(spec, name=""))
            found.append(spec)
    return found


def assert_targets_agree(specs: list[KernelSpec]) -> None:
    compiled = CompiledKernels(specs)
    for spec in specs:
        for run in compiled.run(case_for(spec, COUNT, NUM_OBJECTS)):
            assert_close(run, ROUNDINGS)


@each_precision
def test_bundle_adjustment(precision: Precision) -> None:
    assert_targets_agree(distinct(bundle_adjustment().specs(precision)))


@each_precision
def test_pose_graph(precision: Precision) -> None:
    """Factors of its own, poses, and what else bundle adjustment does not have."""
    tested = bundle_adjustment().specs(precision)
    assert_targets_agree(distinct(pose_graph().specs(precision), tested))
