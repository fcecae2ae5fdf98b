"""Model the time of a linear solve, with constants that were measured for each backend.

Input: a plan, and pairs of items of eliminated nodes. Output: seconds. Only their ratios matter:
they say which method suits a structure. Nothing is timed, so equal input is solved in the same way.
`docs/design/0027-choice-of-linear-solver.md` has the measurements. Cost tier: once for a structure.
"""

from dataclasses import dataclass
from itertools import pairwise

from caspar.solver.plan.plan import Plan

USUAL_ITERATIONS = 15
"""PCG iterations a step on the Schur complement if one type of nodes remains: 15 of Trafalgar-21,
16 of Ladybug-49."""

COUPLED_ITERATIONS = 70
"""The same if factors couple nodes of several types that remain, and there are about as many of
each, such as poses and lenses of cameras: block Jacobi leaves out what couples them. Trafalgar-21
with its cameras in three nodes takes 70."""

SIMILAR_COUNTS = 2
"""Times as many nodes of one type as of the other, up to which they are about as many. Two lenses
that 16 pictures share take 17 iterations a step."""

USUAL_STEPS = 10
"""Steps of a solve, over which what is done once for a structure is spread."""

MIX_PRODUCTS = 4
"""Products that take as long as computing Z of all items."""


@dataclass(frozen=True)
class LinearCosts:
    """Seconds.

    Attributes:
        iteration_s: Of a PCG iteration with hardly any factors.
        scalar_s: For each scalar of a Jacobian in a PCG iteration.
        pair_s: For each pair of items of an eliminated node, to form the matrix.
        pair_entry_s: For each entry of such a pair's block.
        listing_s: For each pair, to list it once for a structure.
        ordering_s: For everything else that a factorisation takes once for a structure.
        row_s: For each row of a dense factorisation.
        operation_s: For each of its size^3 / 3 operations.
    """

    iteration_s: float
    scalar_s: float
    pair_s: float
    pair_entry_s: float
    listing_s: float
    ordering_s: float
    row_s: float
    operation_s: float


ON_CORES = LinearCosts(2e-5, 0.65e-9, 1e-8, 4e-10, 2e-7, 0.0, 0.0, 1.0 / 3e10)
"""Two cores of an Intel Xeon."""

IN_PARALLEL = LinearCosts(8e-6, 1e-12, 3e-10, 1e-11, 1.7e-7, 0.03, 1.2e-6, 1.0 / 3e13)
"""An H100 and an H200."""


def costs_of(plan: Plan) -> LinearCosts:
    """The constants of a plan's backend."""
    in_parallel = plan.library.backend.traits.factorizes_in_parallel
    return IN_PARALLEL if in_parallel else ON_CORES


def reduced_size(plan: Plan) -> int:
    """Unknowns of the system."""
    return sum(node.count * node.node.tangent_dim for node in plan.reduced)


def expected_iterations(plan: Plan) -> int:
    """PCG iterations a step that are likely where a type is eliminated and no chains remain."""
    for factor in plan.factors:
        if factor.form.eliminated is None:
            continue
        names = {argument.node_type.name for argument in factor.reduced}
        counts = sorted(plan.node_plans[name].count for name in names)
        if any(more <= SIMILAR_COUNTS * fewer for fewer, more in pairwise(counts)):
            return COUPLED_ITERATIONS
    return USUAL_ITERATIONS


def iteration_s(plan: Plan) -> float:
    """Seconds of a PCG iteration."""
    costs = costs_of(plan)
    return costs.iteration_s + costs.scalar_s * _jacobian_scalars(plan)


def factorizing_s(plan: Plan) -> float:
    """Seconds of a dense factorisation."""
    costs, size = costs_of(plan), reduced_size(plan)
    return costs.row_s * size + costs.operation_s * size**3 / 3.0


def forming_s(plan: Plan, num_pairs: int) -> float:
    """Seconds that forming the matrix takes.

    Args:
        plan: The structure.
        num_pairs: Pairs of items of eliminated nodes.
    """
    costs = costs_of(plan)
    pairs_s = num_pairs * (costs.pair_s + costs.pair_entry_s * _mean_dim(plan) ** 2)
    mixing_s = MIX_PRODUCTS * costs.scalar_s * _jacobian_scalars(plan)
    return pairs_s + mixing_s + listing_s(plan, num_pairs) / USUAL_STEPS


def listing_s(plan: Plan, num_pairs: int) -> float:
    """Seconds that listing the pairs takes, once for a structure."""
    return costs_of(plan).listing_s * num_pairs


def setup_s(plan: Plan, num_pairs: int) -> float:
    """Seconds that a factorisation takes once for a structure."""
    return listing_s(plan, num_pairs) + costs_of(plan).ordering_s


def _mean_dim(plan: Plan) -> float:
    """Tangent dimension of the nodes that items of eliminated nodes have."""
    dims = [
        (one.count, argument.tangent_dim)
        for one in plan.factors
        if one.form.eliminated is not None
        for argument in one.reduced
    ]
    total = sum(count for count, _ in dims)
    return sum(count * dim for count, dim in dims) / total if total > 0 else 0.0


def _jacobian_scalars(plan: Plan) -> int:
    return sum(
        one.count * len(one.factor.residual) * sum(node.tangent_dim for node in one.factor.nodes)
        for one in plan.factors
    )
