"""CUDA's kernels of the block tridiagonal preconditioner fit registers, whatever the block's size.

What they compute: tests/solver/test_tridiagonal.py.
"""

import pytest

from caspar.driver import TARGETS
from caspar.equations.linear.chain_kernels import chain_node_kernels
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.precision import TYPES
from caspar.options import Precision
from caspar.runtime.nvidia.nvrtc import compile_kernel_text
from tests.solver.linear_cases import View
from tests.support_kernels import generate

SPILLED_BYTES = {6: 0, 9: 0, 15: 1280}
"""By rows of a block, at most, stores and loads together. A triangle of 15 rows in float64 takes
240 registers."""


@pytest.mark.parametrize("precision", [Precision.MIXED, Precision.FLOAT64])
@pytest.mark.parametrize("dim", SPILLED_BYTES)
def test_blocks_fit_registers(dim: int, precision: Precision) -> None:
    node = NodeType("View", View, dim, dim, ())
    specs = chain_node_kernels(node, TYPES[precision], scaled=True)
    for name, source in generate(specs, TARGETS["cuda"]).items():
        for arch in ("sm_75", "sm_90"):
            entry = compile_kernel_text(source.text, arch).resources[name]
            assert entry.spill_bytes <= SPILLED_BYTES[dim], f"{name} for {arch}: {entry}"
