"""The kernels by which a graph decides whether to repeat itself."""

import numpy as np
import pytest

from caspar.codegen.cuda.loop.fuse import BEGIN_KERNEL, CONDITION_KERNEL, CONDITION_SOURCE
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.harness import compile_cuda, find_compiler

HANDLE = 12_345
GRAPH = f"""
__device__ u32 condition;
void cudaGraphSetConditional(u64 handle, u32 value) {{ if (handle == {HANDLE}) condition = value; }}
extern "C" __global__ void see(u32* seen) {{ seen[0] = condition; }}
"""
"""What a driver does."""


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_the_compiler_has_nothing_to_say(arch: str) -> None:
    compiled = compile_text(CONDITION_SOURCE, arch)
    assert compiled.warnings == (), compiled.log
    assert set(compiled.resources) == {BEGIN_KERNEL, CONDITION_KERNEL}
    # the driver puts the function in
    assert b"cudaGraphSetConditional" in compiled.cubin


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("max_runs", "at_once", "flags", "expected"),
    [
        (0, 1, [0.0], 0),
        (1, 1, [0.0], 1),
        (3, 1, [0.0], 3),
        (9, 1, [0.0, 0.0, 2.0], 2),
        (9, 1, [1.0], 0),
        (9, 1, [0.0, float("nan")], 1),
        (9, 4, [0.0], 8),
        (8, 4, [0.0], 8),
        (3, 4, [0.0], 0),
        (9, 4, [0.0, 1.0], 4),
    ],
)
def test_it_counts_runs_and_sees_the_flag(
    max_runs: int, at_once: int, flags: list[float], expected: int
) -> None:
    """As the device does: before the first run and after each; twice, and nothing is left over."""
    module = compile_cuda(CONDITION_SOURCE + GRAPH, defines={"__cudart_builtin__": ""})
    condition, left = np.zeros(1, np.uint32), np.array([77], np.uint32)
    for _ in range(2):
        module.launch(BEGIN_KERNEL, 1, 1, (left, np.uint32(max_runs)))
        num_bodies = -1
        condition[0] = 1
        while condition[0] != 0:
            num_bodies += 1
            flag = np.array(flags[min(num_bodies, len(flags) - 1) :][:1])
            arguments = (np.uint64(HANDLE), flag, left, np.uint32(at_once))
            module.launch(CONDITION_KERNEL, 1, 1, arguments)
            module.launch("see", 1, 1, (condition,))
        assert at_once * num_bodies == expected
