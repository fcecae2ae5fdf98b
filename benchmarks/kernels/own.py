"""Our kernels of the residuals: sources and predicted peaks of live registers."""

from pathlib import Path

from benchmarks.kernels.cases import CASES, Case, Role
from benchmarks.kernels.source import Side, Source
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.equations.factor_builder import (
    FactorBuilder,
    FactorForm,
    SharedSums,
)
from caspar.equations.factor_kernels import factor_kernels
from caspar.equations.parts import NodePart, SolverPart, add_total
from caspar.frontend.factors.jacobian import store_jacobian
from caspar.frontend.factors.trace import TracedFactor, trace
from caspar.frontend.precision import TYPES
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar, dot
from caspar.memory.kernel import KernelSpec
from caspar.options import Precision

REGISTERS = {DType.FLOAT32: 1, DType.FLOAT64: 2}
"""32-bit registers of a value."""


def generate(folder: Path) -> list[Source]:
    """Write the sources of all cases into `folder`; return what there is."""
    return [_write(case, role, spec, folder) for case in CASES for role, spec in specs(case)]


def _write(case: Case, role: Role, spec: KernelSpec, folder: Path) -> Source:
    source = compile_kernel(spec, TARGETS["cuda"])
    path = folder / case.name / f"{spec.name}_{spec.graph.dtype.value}.cu"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source.text, encoding="utf-8")
    predicted = REGISTERS[spec.graph.dtype] * source.num_registers
    return Source(case, role, Side.OURS, path, predicted)


def specs(case: Case) -> list[tuple[Role, KernelSpec]]:
    """Its kernels before compilation."""
    traced = trace(case.load())
    single = factor_kernels(traced, TYPES[Precision.FLOAT32]).kernels
    mixed = factor_kernels(traced, TYPES[Precision.MIXED]).kernels
    return [
        (Role.FIRST, first_linearization(traced)),
        (Role.AGAIN, single["linearize"]),
        (Role.SCORE, single["score"]),
        (Role.SCORE_MIXED, mixed["score"]),
        (Role.PRODUCT, mixed["product"]),
    ]


def first_linearization(factor: TracedFactor) -> KernelSpec:
    """One kernel with all outputs of the reference's `res_jac_first`, in float32."""
    types = TYPES[Precision.FLOAT32]
    form = FactorForm(SharedSums.ORDERED)
    kernel = FactorBuilder(factor, "first", form, types.storage, types)
    evaluation = kernel.evaluate(types.storage)
    rows = evaluation.residual
    kernel.write_residual(rows)
    add_total(kernel, SolverPart.COSTS, [evaluation.cost], types)
    blocks = evaluation.jacobian(factor.nodes)
    # the reference's are not scaled
    one = Scalar(kernel.graph, kernel.graph.const(1.0))
    scales = {name: [one] * len(rows_of[0]) for name, rows_of in blocks.items()}
    store_jacobian(kernel, blocks, scales, types.storage)
    for argument in factor.nodes:
        columns = list(zip(*blocks[argument.name], strict=True))
        slope = [dot(column, rows) for column in columns]
        square = [dot(columns[i], columns[j]) for i in range(len(columns)) for j in range(i + 1)]
        kernel.add_node(argument, NodePart.GRADIENT, slope)
        kernel.add_node(argument, NodePart.BLOCK, square)
    return kernel.build()
