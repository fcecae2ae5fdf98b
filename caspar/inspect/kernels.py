"""The kernel that a kernel function becomes."""

from caspar.codegen.targets import TARGETS
from caspar.errors import OptionError
from caspar.frontend.kernels.spec import kernel_spec
from caspar.frontend.kernels.trace import TracedKernel
from caspar.frontend.printing import print_kernel
from caspar.inspect.stages import KernelInspection
from caspar.ir.dtype import DType
from caspar.runtime.nvidia.nvrtc import DEFAULT_ARCHITECTURE

DTYPES = {dtype.value: dtype for dtype in (DType.FLOAT32, DType.FLOAT64)}
"""Types that kernels compute in, by name."""


def inspect_kernel(
    traced: TracedKernel,
    dtype: str = DType.FLOAT32.value,
    target: str = "cuda",
    arch: str = DEFAULT_ARCHITECTURE,
    *,
    deterministic: bool = False,
) -> KernelInspection:
    """The kernel itself, without those that complete its writes.

    Where a write chooses between ways by what is passed in a call, such as the statistics of an
    index, it is the way without an index.

    Args:
        traced: The kernel function.
        dtype: `float32` or `float64`.
        target: `cuda` or `cpu`.
        arch: Architecture of machine code.
        deterministic: Whether equal input must give equal bits.

    Raises:
        OptionError: A choice that does not exist.
    """
    for name, given, allowed in (("dtype", dtype, DTYPES), ("target", target, TARGETS)):
        if given not in allowed:
            raise OptionError(f"{name}={given!r}: must be one of {', '.join(map(repr, allowed))}")
    is_atomic = TARGETS[target].dialect.sums_are_atomic(deterministic)
    writes = {
        one.name: one.access.in_kernel(one.access.defaults, is_atomic) for one in traced.outputs
    }
    spec = kernel_spec(traced, DTYPES[dtype], writes)
    return KernelInspection(spec, TARGETS[target], arch, print_kernel(traced))
