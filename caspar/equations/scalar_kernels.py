"""The kernels of one item that steer PCG on the device, and collect what the host reads.

And those that several devices need besides, before they add up what products leave.

`done` is 0 while PCG runs and then says why it stopped; every kernel of the loop is guarded by it,
so that running the loop once too often does nothing.
"""

import sys
from enum import IntEnum

from caspar.equations.parts import NodeBuilder, NodePart, SolverPart, read_total
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.precision import Types
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar
from caspar.memory.accessors.sums.slots import ReadSlots
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.patterns import ReadSequential, WriteSequential, WriteUnique

CURVATURE_KERNEL = "pcg_curvature"
"""Its name; no kernel of a solver on one device."""

MERGE = "merge"
"""The name's end of the kernel of a node type that adds up slots."""

MERGED = "merged"
"""The name of that kernel's output."""

LARGEST = sys.float_info.max
"""Comparisons with it are false for infinity and NaN."""


class LinearOutcome(IntEnum):
    """The reason why PCG stopped."""

    RUNNING = 0
    TOLERANCE = 1
    ITERATIONS = 2
    NO_CURVATURE = 3
    """p.Ap was not positive: the step so far is kept."""
    NOT_FINITE = 4
    AT_OPTIMUM = 5
    """The gradient is zero."""


def scalar_kernels(types: Types) -> list[KernelSpec]:
    """All of them: `pcg_begin`, `pcg_alpha`, `pcg_beta` and `collect`."""
    return [_begin(types), _alpha(types), _beta(types), _collect(types)]


def _put(kernel: KernelBuilder, name: str, value: Scalar) -> None:
    kernel.write(name, [value], DType.FLOAT64, WriteUnique())


def _begin(types: Types) -> KernelSpec:
    """After `start`: remember r.z, reset the count, see whether there is anything to do."""
    kernel = KernelBuilder("pcg_begin", DType.FLOAT64)
    (descent,) = read_total(kernel, SolverPart.DESCENTS, types)
    finite = descent < LARGEST
    positive = 0.0 < descent
    one = Scalar(kernel.graph, kernel.graph.const(1.0))
    stopped = positive.where(float(LinearOutcome.RUNNING), float(LinearOutcome.AT_OPTIMUM))
    _put(kernel, "done", finite.where(stopped, float(LinearOutcome.NOT_FINITE)))
    _put(kernel, "descent", descent)
    _put(kernel, "first_descent", descent)
    _put(kernel, "linear_iterations", one * 0.0)
    return kernel.build()


def curvature_kernel(types: Types) -> KernelSpec:
    """Sums the parts of p.Ap to `curvature_sum`, which devices add up before `pcg_alpha`."""
    kernel = KernelBuilder(CURVATURE_KERNEL, DType.FLOAT64)
    (curvature,) = read_total(kernel, SolverPart.CURVATURES, types)
    kernel.write("curvature_sum", [curvature], types.sums, WriteUnique())
    return kernel.build()


def merge_kernel(node: NodeType, types: Types, *, many_slots: bool = False) -> KernelSpec:
    """The slots of `product` added up to `merged`: less to exchange."""
    kernel = NodeBuilder(node, MERGE, types.storage, types, few_items=True)
    kernel.guard("done")
    product = kernel.read_part(NodePart.PRODUCT, ReadSlots(many=many_slots))
    kernel.write(MERGED, product, NodePart.PRODUCT.dtype(types), WriteSequential())
    return kernel.build()


def _alpha(types: Types) -> KernelSpec:
    """alpha = r.z / p.Ap; without curvature along p the step is kept as it is."""
    kernel = KernelBuilder("pcg_alpha", DType.FLOAT64)
    kernel.guard("done")
    (curvature,) = read_total(kernel, SolverPart.CURVATURES, types)
    usable = (0.0 < curvature) & (curvature < LARGEST)
    safe = usable.where(curvature, 1.0)
    _put(kernel, "alpha", usable.where(kernel.scalar("descent") / safe, 0.0))
    running = float(LinearOutcome.RUNNING)
    _put(kernel, "done", usable.where(running, float(LinearOutcome.NO_CURVATURE)))
    return kernel.build()


def _beta(types: Types) -> KernelSpec:
    """beta = r.z / previous r.z; stop on the preconditioned residual norm or the count."""
    kernel = KernelBuilder("pcg_beta", DType.FLOAT64)
    kernel.guard("done")
    (descent,) = read_total(kernel, SolverPart.DESCENTS, types)
    count = kernel.scalar("linear_iterations") + 1.0
    tolerance = kernel.scalar("linear_tolerance")
    goal = tolerance * tolerance * kernel.scalar("first_descent")
    enough = kernel.scalar("min_linear_iterations") <= count
    # an exactly solved system has no next direction, however few iterations it took
    reached = ((descent <= goal) & enough) | (descent <= 0.0)
    exhausted = kernel.scalar("max_linear_iterations") <= count
    outcome = exhausted.where(float(LinearOutcome.ITERATIONS), float(LinearOutcome.RUNNING))
    outcome = reached.where(float(LinearOutcome.TOLERANCE), outcome)
    finite = descent < LARGEST
    _put(kernel, "done", finite.where(outcome, float(LinearOutcome.NOT_FINITE)))
    _put(kernel, "beta", descent / kernel.scalar("descent"))
    _put(kernel, "descent", descent)
    _put(kernel, "linear_iterations", count)
    return kernel.build()


def _collect(types: Types) -> KernelSpec:
    kernel = KernelBuilder("collect", DType.FLOAT64)
    _put(kernel, "cost", read_total(kernel, SolverPart.COSTS, types)[0])
    names = ("step_gradient", "step_residual", "step_damping", "step_norm", "eliminated_descent")
    for name, value in zip(names, read_total(kernel, SolverPart.MODELS, types), strict=True):
        _put(kernel, name, value)
    return kernel.build()


_WIDTH = DType.FLOAT32.chunk_length
"""Scalars of an item of the kernels that clear and copy stretches of the arena."""


def memory_kernels() -> list[KernelSpec]:
    """`clear` writes zeros to `target`, `copy` writes `source` there."""
    clear = KernelBuilder("clear", DType.FLOAT32)
    zero = Scalar(clear.graph, clear.graph.const(0.0))
    clear.write("target", [zero] * _WIDTH, DType.FLOAT32, WriteSequential())
    copy = KernelBuilder("copy", DType.FLOAT32)
    source = copy.read("source", _WIDTH, DType.FLOAT32, ReadSequential())
    copy.write("target", source, DType.FLOAT32, WriteSequential())
    return [clear.build(), copy.build()]
