"""Nodes that no factor touches: users are warned of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.frontend.factors.trace import Argument, TracedFactor
from caspar.memory.array import Array
from caspar.runtime.array_tools import ArrayTools
from caspar.runtime.backend import Backend
from caspar.solver.input.parted_array import placed
from caspar.solver.input.problem import Problem
from caspar.solver.plan.plan import FactorPlan, NodePlan
from caspar.user_warnings import warn_user


def _has_all(plan: FactorPlan, argument: Argument, count: int) -> bool:
    """Return whether tiles have all nodes of an eliminated type, as they mostly do."""
    tiles = plan.order.node_tiles
    if tiles is None or argument is not plan.form.eliminated:
        return False
    return int(tiles.node_items.shape[0]) == count


def warn_untouched(
    backend: Backend, factors: Sequence[FactorPlan], nodes: Sequence[NodePlan]
) -> None:
    """Warn of them.

    Args:
        backend: Where the indices are.
        factors: All factors, in their orders.
        nodes: All node types.
    """
    num_items = sum(plan.count for plan in factors) + sum(plan.count for plan in nodes)
    tools = ArrayTools(backend, num_items)
    xp = tools.xp
    touched = {plan.node.name: xp.zeros(plan.count, dtype=bool) for plan in nodes}
    for plan in factors:
        for argument in plan.factor.nodes:
            flags = touched[argument.node_type.name]
            is_whole = _has_all(plan, argument, flags.shape[0])
            index = None if is_whole else plan.order.index(argument.name, tools.bring)
            flags[slice(None) if index is None else index] = True
    orders = {plan.node.name: plan.order for plan in nodes}
    for name, flags in touched.items():
        if bool(flags.all()):
            continue
        untouched = np.flatnonzero(~(flags if xp is np else backend.to_host(flags)))
        order = orders[name]
        if order is not None:
            untouched = np.sort(backend.to_host(order.node)[untouched])
        _warn(name, untouched, flags.shape[0])


def warn_untouched_of(backend: Backend, problem: Problem, factors: Sequence[TracedFactor]) -> None:
    """The same of a problem in parts.

    Args:
        backend: Where the indices are, unless they are on the host.
        problem: All of it.
        factors: Its factors.
    """
    for name, count in problem.counts.items():
        flags = np.zeros(count, bool)
        for factor in factors:
            for argument in factor.nodes:
                if argument.node_type.name != name or problem.factors[factor.name].count == 0:
                    continue
                index = problem.factors[factor.name].nodes[argument.name]
                if index is None:
                    flags[:] = True
                    continue
                for part, device in placed(index, backend):
                    with device.scope():
                        flags |= _touched(device, part, count)
        if not flags.all():
            _warn(name, np.flatnonzero(~flags), count)


def _touched(backend: Backend, index: Array, count: int) -> NDArray[Any]:
    """(count,) booleans on the host: nodes that an index names."""
    is_host = isinstance(index, np.ndarray)
    found = (np if is_host else backend.xp).zeros(count, bool)
    found[index] = True
    return found if is_host else backend.to_host(found)


def _warn(name: str, untouched: NDArray[Any], count: int) -> None:
    warn_user(
        f"node type {name}: {untouched.shape[0]} of {count} instances are touched "
        f"by no factor, first {untouched[0]}; they are kept as they are"
    )
