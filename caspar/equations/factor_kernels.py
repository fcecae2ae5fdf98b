"""The kernels of a factor: score, linearise, and the products that linear solvers are made of.

Which kernels there are depends on the factor's form: whether one of its nodes is eliminated
(`schur_kernels` has the products then), and how sums over shared nodes are taken.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from caspar.equations.factor_builder import (
    FactorBuilder,
    FactorForm,
    SharedSums,
    add_block,
    add_gradients,
    add_linearized,
    add_products,
    computed_jacobian,
    linearization,
    moved_residual,
)
from caspar.equations.parts import FactorPart, NodePart, SolverPart, add_total
from caspar.equations.schur_kernels import schur_kernels
from caspar.frontend.factors.jacobian import (
    Blocks,
    JacobianSlots,
    load_jacobian,
    scaled_blocks,
    store_jacobian,
)
from caspar.frontend.factors.trace import TracedFactor
from caspar.frontend.names import part_name
from caspar.frontend.precision import Types
from caspar.ir.scalar import dot
from caspar.memory.kernel import KernelSpec
from caspar.memory.patterns import WriteSequential

FACTOR_ROLES = (
    *("score", "gradient", "linearize", "store", "square"),
    *("product", "gather", "scatter", "reduce", "inner"),
)
"""Ends of the names of a factor's kernels."""


def exact_role(role: str) -> str:
    """End of the name of a kernel that takes another's place, with Jacobians in float64."""
    return part_name(role, "exact")


@dataclass(frozen=True)
class FactorKernels:
    """The kernels of one factor.

    Attributes:
        kernels: By role. `score`: `residual`, and what it costs: `cost`; with a loss also how many
            residuals are longer than its scale.
            `linearize`: from `residual`, at the values it was scored at, for each node argument
            `FactorForm.linearized`. Where that is of rounded values, `gradient` adds the gradients,
            of exact ones. `store`: with the `diagonal` of all factors, the scaled Jacobian and,
            where it is not rounded, the scaled blocks. `square`: the blocks of a rounded one.
            `product`: J^T (J p) for each node argument, and |J p|^2: `curvature`; the Schur
            complement's where a node is eliminated. Others: see `schur_kernels`.
        jacobian_dim: Stored Jacobian entries.
        slots: Where they are; None: Jacobians are recomputed.
    """

    kernels: Mapping[str, KernelSpec]
    jacobian_dim: int
    slots: JacobianSlots | None


def factor_kernels(
    factor: TracedFactor, types: Types, form: FactorForm | None = None
) -> FactorKernels:
    """Derive a factor and write its kernels; the one form that tests and views need by default."""
    chosen = FactorForm(SharedSums.ORDERED) if form is None else form
    kernels = {
        "score": _score(factor, types, chosen),
        "linearize": _linearize(factor, types, chosen),
    }
    if chosen.linearizes_rounded(types):
        kernels["gradient"] = _gradient(factor, types, chosen)
    jacobian: JacobianSlots | None = None
    if chosen.jacobian.is_stored:
        kernels["store"], jacobian = _store(factor, types, chosen)
    if jacobian is not None and chosen.jacobian.is_rounded(types):
        kernels["square"] = _square(factor, types, chosen, jacobian)
    if chosen.eliminated is None:
        kernels["product"] = _product(factor, types, chosen, jacobian)
    else:
        kernels |= schur_kernels(factor, types, chosen, jacobian)
    return FactorKernels(kernels, 0 if jacobian is None else jacobian.num_stored, jacobian)


def jacobian_kernel(factor: TracedFactor, types: Types) -> KernelSpec:
    """Derives the Jacobian by all nodes and writes its entries, but for those that are zero.

    No solver runs it: it says what a Jacobian takes.
    """
    form = FactorForm(SharedSums.ATOMIC)
    kernel = FactorBuilder(factor, "jacobian", form, types.storage, types)
    blocks = computed_jacobian(kernel)
    entries = [entry for block in blocks.values() for row in block for entry in row]
    kept = [entry for entry in entries if kernel.graph.literal(entry.value) != 0.0]
    kernel.write(FactorPart.JACOBIAN.text, kept, types.storage, WriteSequential())
    return kernel.build()


def derivative_kernel(factor: TracedFactor, types: Types) -> KernelSpec:
    """Writes the cost, and for each node argument the whole Jacobian, unscaled.

    Items are instances in the order in which they were given. Each writes its `cost`, and for each
    argument, row by row, the rows x tangent_dim scalars of `<argument>__jacobian`, times the root
    of the weight, that of the loss included.
    """
    form = FactorForm(SharedSums.ATOMIC)
    kernel = FactorBuilder(factor, "derivative", form, types.storage, types)
    evaluation = kernel.evaluate(types.storage)
    rows = WriteSequential(rows=True)
    kernel.write(SolverPart.COSTS.addend, [evaluation.cost], types.storage, rows)
    root, blocks = evaluation.root_of_weight(), evaluation.jacobian(factor.nodes)
    for argument in factor.nodes:
        entries = [entry for row in blocks[argument.name] for entry in row]
        weighted = entries if root is None else [root * entry for entry in entries]
        kernel.write(argument.part(FactorPart.JACOBIAN.text), weighted, types.storage, rows)
    return kernel.build()


def row_kernel(
    factor: TracedFactor, types: Types, columns: Mapping[str, Iterable[int]]
) -> KernelSpec:
    """Writes `cost`, `residual` and `jacobian` of each instance, the Jacobian row by row.

    Residual and Jacobian are multiplied by the root of the weight, that of the loss included.

    Args:
        factor: The factor.
        types: Types of scalars.
        columns: By node argument the components of the tangent that the Jacobian has.
    """
    kernel = FactorBuilder(factor, "rows", FactorForm(SharedSums.ATOMIC), types.storage, types)
    evaluation, rows = kernel.evaluate(types.storage), WriteSequential(rows=True)
    root, blocks = evaluation.root_of_weight(), evaluation.jacobian(factor.nodes)
    written = {
        FactorPart.RESIDUAL.text: list(evaluation.residual),
        FactorPart.JACOBIAN.text: [
            blocks[argument][row][component]
            for row in range(len(factor.residual))
            for argument, chosen in columns.items()
            for component in chosen
        ],
    }
    kernel.write(SolverPart.COSTS.addend, [evaluation.cost], types.storage, rows)
    for name, entries in written.items():
        weighted = entries if root is None else [root * entry for entry in entries]
        kernel.write(name, weighted, types.storage, rows)
    return kernel.build()


def residual_kernel(factor: TracedFactor, types: Types) -> KernelSpec:
    """Writes the residual of each instance, in the order in which they were given."""
    form = FactorForm(SharedSums.ATOMIC)
    kernel = FactorBuilder(factor, "residual", form, types.storage, types)
    residual = kernel.evaluate(types.storage).residual
    rows = WriteSequential(rows=True)
    kernel.write(FactorPart.RESIDUAL.text, residual, types.storage, rows)
    return kernel.build()


def _score(factor: TracedFactor, types: Types, form: FactorForm) -> KernelSpec:
    kernel = FactorBuilder(factor, "score", form, types.sums, types)
    evaluation = kernel.evaluate(types.sums)
    kernel.write_residual(evaluation.residual)
    kernel.graph.origin = f"{factor.name}: cost"
    add_total(kernel, SolverPart.COSTS, [evaluation.cost], types)
    if factor.loss is not None:
        add_total(kernel, SolverPart.BEYOND_SCALE, [evaluation.is_beyond_scale()], types)
    return kernel.build()


def _linearize(factor: TracedFactor, types: Types, form: FactorForm) -> KernelSpec:
    rounds = form.linearizes_rounded(types)
    dtype = types.storage if rounds else types.values
    kernel = FactorBuilder(factor, "linearize", form, dtype, types)
    add_linearized(kernel, has_gradients=not rounds)
    return kernel.build()


def _gradient(factor: TracedFactor, types: Types, form: FactorForm) -> KernelSpec:
    kernel = FactorBuilder(factor, "gradient", form, types.values, types)
    add_gradients(kernel)
    return kernel.build()


def _store(
    factor: TracedFactor, types: Types, form: FactorForm
) -> tuple[KernelSpec, JacobianSlots]:
    kernel = FactorBuilder(factor, "store", form, types.values, types)
    blocks = computed_jacobian(kernel)
    kernel.graph.origin = "D^-1/2"
    scales = {}
    for argument in factor.nodes:
        diagonal = kernel.read_node(argument, NodePart.DIAGONAL)
        scales[argument.name] = [entry.sqrt().reciprocal() for entry in diagonal]
    slots = store_jacobian(kernel, blocks, scales, form.jacobian.dtype(types))
    if not form.jacobian.is_rounded(types):
        _add_blocks(kernel, scaled_blocks(blocks, scales))
    return kernel.build(), slots


def _square(
    factor: TracedFactor, types: Types, form: FactorForm, slots: JacobianSlots
) -> KernelSpec:
    """Blocks that belong to the very Jacobian of the products.

    With those of another one the Schur complement is indefinite wherever a node's block is nearly
    singular: there J^T J and the rounded J's differ by more than it.
    """
    kernel = FactorBuilder(factor, "square", form, types.storage, types)
    _add_blocks(kernel, load_jacobian(kernel, slots))
    return kernel.build()


def _add_blocks(kernel: FactorBuilder, blocks: Blocks) -> None:
    for argument in kernel.factor.nodes:
        if kernel.form.has_block(argument):
            kernel.graph.origin = f"diagonal block of {argument.name}"
            add_block(kernel, argument, list(zip(*blocks[argument.name], strict=True)))


def _product(
    factor: TracedFactor, types: Types, form: FactorForm, slots: JacobianSlots | None
) -> KernelSpec:
    kernel = FactorBuilder(factor, "product", form, types.storage, types)
    kernel.guard("done")
    linear = linearization(kernel, slots)
    moved = moved_residual(kernel, linear)
    add_products(kernel, linear, moved)
    kernel.graph.origin = "|J p|^2"
    kernel.add_curvature(dot(moved, moved))
    return kernel.build()
