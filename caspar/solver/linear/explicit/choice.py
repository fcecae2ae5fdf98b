"""How the damped system is solved where the user leaves it open: by sizes.

Once for each structure.
"""

from dataclasses import dataclass
from enum import Enum

from caspar.options import LinearSolverChoice
from caspar.solver.limits import Limits
from caspar.solver.linear.explicit.structure import num_fill_pairs
from caspar.solver.plan.plan import Plan


class Method(Enum):
    """Ways to solve the system."""

    GRADIENTS = "conjugate gradients"
    DENSE = "dense factorisation"
    SPARSE = "sparse factorisation"


@dataclass(frozen=True)
class Choice:
    """A way, and what to tell of it.

    Attributes:
        method: The way.
        remarks: With advice.
    """

    method: Method
    remarks: tuple[str, ...] = ()


_BY_NAME = {
    LinearSolverChoice.PCG: Method.GRADIENTS,
    LinearSolverChoice.SCHUR_PCG: Method.GRADIENTS,
    LinearSolverChoice.SCHUR_DENSE: Method.DENSE,
    LinearSolverChoice.SPARSE: Method.SPARSE,
}


def where_full(chosen: Method, size: int, num_entries: int, limits: Limits) -> Method:
    """What suits a matrix on the processor that may not be sparse after all.

    Args:
        chosen: By `choose_method`.
        size: Rows of the matrix.
        num_entries: Entries of its lower triangle that are not zero.
        limits: Sizes at which another way is chosen.
    """
    is_sparse = num_entries < limits.full_share * 0.5 * size**2
    if chosen is not Method.SPARSE or is_sparse or size <= limits.min_dense_on_one_core:
        return chosen
    return Method.DENSE if size <= limits.max_dense_on_one_core else Method.GRADIENTS


def choose_method(choice: LinearSolverChoice, plan: Plan) -> Choice:
    """What the user chose, or what suits the sizes."""
    if choice in _BY_NAME:
        return Choice(_BY_NAME[choice])
    limits = plan.limits
    size = sum(node.count * node.node.tangent_dim for node in plan.reduced)
    is_eliminated = len(plan.eliminated) > 0
    if is_eliminated and not plan.is_chained and size > limits.max_matrix_quick_pcg:
        return Choice(Method.GRADIENTS)
    in_parallel = plan.library.backend.traits.factorizes_in_parallel
    takes_more = in_parallel or plan.is_chained
    num_pairs = num_fill_pairs(plan)
    if num_pairs > (limits.max_auto_pairs if takes_more else limits.max_pairs_quick_pcg):
        reason = f"{num_pairs:,} pairs of factors that share an eliminated node"
        return _gradients(reason) if plan.is_chained else Choice(Method.GRADIENTS)
    if in_parallel and size <= limits.max_dense:
        return Choice(Method.DENSE)
    if size <= (limits.max_sparse_eliminated if is_eliminated else limits.max_sparse):
        return Choice(Method.SPARSE)
    return _gradients(f"{size:,} unknowns")


def _gradients(too_many: str) -> Choice:
    """With advice, as chains may need more."""
    remark = (
        f"PCG solved the linear systems: with {too_many} a factorisation may take too much memory. "
        "Long chains, such as pose graphs, may need one: try linear_solver='sparse'."
    )
    return Choice(Method.GRADIENTS, (remark,))
