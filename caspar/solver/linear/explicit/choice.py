"""How the damped system is solved where the user leaves it open: by sizes.

Once for each structure.
"""

from dataclasses import dataclass
from enum import Enum

from caspar.options import LinearSolverChoice
from caspar.solver.linear.explicit.structure import num_fill_pairs
from caspar.solver.plan.plan import Plan

MAX_DENSE = 500
"""Unknowns of a dense matrix on CUDA. A path with 616 takes 16 ms on an H200 with cuSOLVER, and 5
with cuDSS; that analyses the pattern for 10 to 15 ms once, so smaller ones gain too little."""

MAX_DENSE_QUICK_PCG = 60
"""Unknowns of any matrix where a node type is eliminated and no factor couples others of one type:
PCG then takes 10 to 30 iterations. On an H200 one is 0.012 ms, and a dense solve 0.27 ms with 189
unknowns, 0.56 with 441; on the processor PCG is as quick as a factorisation."""

MIN_DENSE_ON_CPU = 500
"""Smaller matrices are factorised as sparse ones on the processor even if they are full: QDLDL
takes 0.6 ms for 189 unknowns, and 7 ms for 441."""

MAX_SPARSE = 300_000
"""Unknowns of a sparse matrix: factors of planar graphs of that size take some 100 MB."""

MAX_SPARSE_ELIMINATED = 40_000
"""The same where a node type is eliminated, which fills the matrix."""

MAX_AUTO_PAIRS = 1 << 24
"""Pairs of items of eliminated nodes: from here on lists and products of pairs cost more than what
PCG takes, which has one product for each item and iteration. The processor lists as many in 3.6 s,
in 1 GB, and a step of a chain with 2 M observations takes it 0.5 s; a loose one of PCG 1.5."""

MAX_PAIRS_QUICK_PCG = 1 << 22
"""The same on the processor where no factor couples others of one type."""

FULL = 0.1
"""Share of entries from which on a matrix is no sparse one: factorising fills the rest."""

MAX_DENSE_ON_CPU = 4000
"""Unknowns of such a matrix on the processor. With as many, 2,000 places behind the elimination of
six beacons, QDLDL takes some 10 s a step, LAPACK 0.3, and a whole solve by PCG 0.1."""


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


def where_full(chosen: Method, size: int, num_entries: int) -> Method:
    """What suits a matrix on the processor that may not be sparse after all.

    Args:
        chosen: By `choose_method`.
        size: Rows of the matrix.
        num_entries: Entries of its lower triangle that are not zero.
    """
    is_small = size <= MIN_DENSE_ON_CPU or num_entries < FULL * 0.5 * size**2
    if chosen is not Method.SPARSE or is_small:
        return chosen
    return Method.DENSE if size <= MAX_DENSE_ON_CPU else Method.GRADIENTS


def choose_method(choice: LinearSolverChoice, plan: Plan) -> Choice:
    """What the user chose, or what suits the sizes."""
    if choice in _BY_NAME:
        return Choice(_BY_NAME[choice])
    size = sum(node.count * node.node.tangent_dim for node in plan.reduced)
    is_eliminated = len(plan.eliminated) > 0
    if is_eliminated and not plan.is_chained and size > MAX_DENSE_QUICK_PCG:
        return Choice(Method.GRADIENTS)
    in_parallel = plan.library.backend.traits.factorizes_in_parallel
    most_pairs = MAX_AUTO_PAIRS if in_parallel or plan.is_chained else MAX_PAIRS_QUICK_PCG
    num_pairs = num_fill_pairs(plan)
    if num_pairs > most_pairs:
        reason = f"{num_pairs:,} pairs of factors that share an eliminated node"
        return _gradients(reason) if plan.is_chained else Choice(Method.GRADIENTS)
    if in_parallel and size <= MAX_DENSE:
        return Choice(Method.DENSE)
    if size <= (MAX_SPARSE_ELIMINATED if is_eliminated else MAX_SPARSE):
        return Choice(Method.SPARSE)
    return _gradients(f"{size:,} unknowns")


def _gradients(too_many: str) -> Choice:
    """With advice, as chains may need more."""
    remark = (
        f"PCG solved the linear systems: with {too_many} a factorisation may take too much memory. "
        "Long chains, such as pose graphs, may need one: try linear_solver='sparse'."
    )
    return Choice(Method.GRADIENTS, (remark,))
