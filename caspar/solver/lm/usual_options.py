"""Options of a solve that its user leaves open: they follow precision and linear systems.

Input: a plan. Output: options by name. Once for each solve.
"""

from collections.abc import Mapping

from caspar.frontend.factors.block_parts import has_whole_block
from caspar.ir.dtype import DType
from caspar.solver.plan.plan import Plan

USUAL_OPTIONS: Mapping[str, float] = {
    "max_iterations": 100,
    "initial_damping": 1e-3,
    "min_damping": 1e-14,
    "tries_undamped": False,
    "cost_tolerance": 1e-8,
    "gradient_tolerance": 1e-14,
    "step_tolerance": 1e-8,
}
"""Options of a solve that the user leaves open. With 3e-7 a COLMAP model of 12 pictures ends 7e-9
from its minimum, with these 1e-10 (docs/design/0002-mixed-precision.md)."""

FLOAT32_OPTIONS: Mapping[str, float] = {**USUAL_OPTIONS, "cost_tolerance": 3e-7}
"""The same if values are in float32: rounding them changes a cost by as much."""

EXACT_OPTIONS: Mapping[str, float] = {
    "max_iterations": 1000,
    "initial_damping": 1e-3,
    "min_damping": 1e-14,
    "tries_undamped": False,
    "cost_tolerance": 1e-13,
    "gradient_tolerance": 1e-26,
    "step_tolerance": 1e-13,
}
"""The same if linear systems are solved to rounding: a few more steps reach the last digits."""

ELIMINATED_OPTIONS: Mapping[str, float] = {
    **EXACT_OPTIONS,
    "cost_tolerance": 1e-9,
    "gradient_tolerance": 1e-18,
    "step_tolerance": 1e-9,
}
"""The same if nodes are eliminated. Blocks of points that run to infinity become singular to
rounding, and steps by them are no better than that."""

FIT_DAMPING = 0.02
"""First damping if all unknowns are those of one node, as in a curve fit: the start may be far, and
a first step that is too long may end where a parameter has lost its influence."""

ROBUST_DAMPING = 1.0
"""First damping with a loss that levels off: a long first step may leave the basin, and what has
left it does not pull any more. With any loss if nodes are eliminated: points that are seen twice,
once wrongly, would go far in a long first step (docs/design/0025-losses.md)."""

CHAIN_DAMPING = 1e-8
"""First damping of chains that are factorised. A chain bends as a whole along directions that
damping holds long after it lets others go (docs/design/0014-levenberg-policy.md)."""


def usual_options(plan: Plan, *, is_direct: bool) -> Mapping[str, float]:
    """Options of a solve that the user leaves open, by name."""
    exact = _by_linear_systems(plan, is_direct=is_direct)
    has_parts = _is_of_many_parts(plan)
    num_unknowns = sum(node.count * node.node.tangent_dim for node in plan.nodes)
    exact = {**exact, "ends_by_rises": num_unknowns == 1, "asks_early": not has_parts}
    is_exact = is_direct and plan.types.storage is DType.FLOAT64
    if is_exact and len(plan.eliminated) == 0 and not has_parts:
        # a long step to bounds that is rejected would hold what it pushed there
        is_bounded = any(node.is_bounded for node in plan.nodes)
        exact = {**exact, "min_damping": 0.0, "tries_undamped": not is_bounded}
    losses = [one.factor.loss for one in plan.factors if one.factor.loss is not None]
    if len(losses) == 0:
        return exact
    is_careful = any(loss.levels_off for loss in losses) or len(plan.eliminated) > 0
    first = ROBUST_DAMPING if is_careful else USUAL_OPTIONS["initial_damping"]
    usual = {"min_damping": USUAL_OPTIONS["min_damping"], "tries_undamped": False}
    return {**exact, "initial_damping": first, **usual}


def _is_of_many_parts(plan: Plan) -> bool:
    """Return whether there are several nodes, and no factor couples two of them.

    One gain ratio, or one rise of the cost, says little of many fits: a step without damping may
    suit most of them, and throw some where their unknowns have no influence.
    """
    return sum(node.count for node in plan.nodes) > 1 and all(
        len(factor.factor.nodes) == 1 for factor in plan.factors
    )


def _by_linear_systems(plan: Plan, *, is_direct: bool) -> Mapping[str, float]:
    has_one_block = len(plan.reduced) == 1 and (
        plan.reduced[0].count == 1 and has_whole_block(plan.reduced[0].node)
    )
    if plan.types.values is DType.FLOAT32:
        is_stiff = len(plan.eliminated) == 0
        most = (EXACT_OPTIONS if is_stiff else FLOAT32_OPTIONS)["max_iterations"]
        return {**FLOAT32_OPTIONS, "max_iterations": most}
    # with Jacobians in float32 a chain that nothing holds drifts, by many steps of little damping
    if plan.types.rounds_values and (plan.is_chained or len(plan.eliminated) == 0):
        return USUAL_OPTIONS
    if not (is_direct or has_one_block):
        return USUAL_OPTIONS
    if is_direct and plan.is_chained:
        exact = ELIMINATED_OPTIONS if len(plan.eliminated) > 0 else EXACT_OPTIONS
        return {**exact, "initial_damping": CHAIN_DAMPING}
    if len(plan.eliminated) > 0:
        return ELIMINATED_OPTIONS
    return {**EXACT_OPTIONS, "initial_damping": FIT_DAMPING} if has_one_block else EXACT_OPTIONS
