"""The kernels of items that are summed before their pairs are walked; see `coupled_items`.

They are compiled for structures that have such items only.
"""

from collections.abc import Collection

from caspar.driver import SolverDesign
from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.names import SEPARATOR, internal_name
from caspar.frontend.precision import Types
from caspar.ir.dtype import DType
from caspar.memory.kernel import KernelSpec
from caspar.memory.kernel_builder import KernelBuilder
from caspar.memory.patterns import ReadIndexed
from caspar.solver.linear.explicit.explicit_kernels import (
    FillTypes,
    fill_kernel,
    pairs_of_types,
)
from caspar.solver.linear.explicit.structure import MixedTypes


def merge_name(eliminated: str, reduced: str) -> str:
    """Name of the kernel that sums Z of items that couple the same two nodes."""
    return SEPARATOR.join(("merge", *map(internal_name, (eliminated, reduced))))


def merge_kernels(design: SolverDesign, merged: Collection[MixedTypes]) -> list[KernelSpec]:
    """`merge__*` of each array of Z that is summed, and `fill_*` that read the sums.

    Args:
        design: Of the solver.
        merged: Eliminated and reduced types of the arrays.
    """
    types, form = design.types, design.form
    by_name = {node.name: node for node in design.nodes}
    made = [
        _merge(by_name[eliminated], by_name[reduced], types, form)
        for eliminated, reduced in sorted(merged)
    ]
    for eliminated, row, column in pairs_of_types(design.factors, design.nodes, form):
        given = FillTypes(
            eliminated,
            row,
            column,
            sums_rows=(eliminated.name, row.name) in merged,
            sums_columns=(eliminated.name, column.name) in merged,
        )
        if given.sums_rows or given.sums_columns:
            made.append(fill_kernel(given, types, form))
    return made


def _merge(eliminated: NodeType, reduced: NodeType, types: Types, form: SolverForm) -> KernelSpec:
    """Z of items, added in float64."""
    kernel = KernelBuilder(merge_name(eliminated.name, reduced.name), DType.FLOAT64)
    dim = eliminated.tangent_dim * reduced.tangent_dim
    values = kernel.read("item_mixed", dim, types.storage, ReadIndexed())
    sums = next(iter(form.factors.values())).sums
    kernel.write("merged", values, DType.FLOAT64, sums.block_access)
    return kernel.build()
