"""Node types of which a solve holds everything: their nodes become constants of the factors.

Localisation holds all points, a calibration all poses. Then the solve runs on the unknowns that are
left: nothing is eliminated or summed for what cannot move. Cost tier: once for each solve, without
looking at values.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from caspar.frontend.factors.trace import Argument, ArgumentKind, TracedFactor
from caspar.solver.input.problem import ConstantArray, FactorArrays, Problem

_CONSTANT_KINDS = {
    ArgumentKind.NODE_SHARED: ArgumentKind.CONST_INDEXED,
    ArgumentKind.NODE_UNIQUE: ArgumentKind.CONST_UNIQUE,
}
"""What an argument becomes if all of its nodes are held."""


def types_to_hold(factors: Sequence[TracedFactor], problem: Problem) -> tuple[str, ...]:
    """Names of the node types that become constants.

    All of a type is held, no factor takes its nodes in pairs, and each factor keeps another type: a
    factor of which everything is held stays as it is, so that its cost counts.
    """
    held = {name for name, free in problem.free.items() if len(free) > 0 and not np.any(free)}
    for factor in factors:
        types = {argument.node_type.name for argument in factor.nodes}
        paired = {
            argument.node_type.name
            for argument in factor.nodes
            if argument.kind not in _CONSTANT_KINDS
        }
        held -= types if types <= held else paired
    touched = {argument.node_type.name for factor in factors for argument in factor.nodes}
    return tuple(sorted(held & touched))


def with_constants(factor: TracedFactor, held: Collection[str]) -> TracedFactor:
    """The same residual, with the nodes of some types as constants."""
    if not any(_is_held(argument, held) for argument in factor.arguments):
        return factor
    arguments = tuple(
        replace(argument, kind=_CONSTANT_KINDS[argument.kind], node=None)
        if _is_held(argument, held)
        else argument
        for argument in factor.arguments
    )
    return replace(factor, arguments=arguments)


def arrays_with_constants(
    factor: TracedFactor, problem: Problem, held: Collection[str]
) -> FactorArrays:
    """The arrays of a factor whose nodes of some types are constants.

    Args:
        factor: As the user wrote it.
        problem: Has its arrays, and the values of the nodes.
        held: Names of the types.
    """
    arrays = problem.factors[factor.name]
    nodes, constants = dict(arrays.nodes), dict(arrays.constants)
    for argument in factor.nodes:
        if _is_held(argument, held):
            values = problem.values[argument.node_type.name]
            constants[argument.source] = ConstantArray(values, nodes.pop(argument.name))
    return replace(arrays, nodes=nodes, constants=constants)


def _is_held(argument: Argument, held: Collection[str]) -> bool:
    return argument.node is not None and argument.node.name in held
