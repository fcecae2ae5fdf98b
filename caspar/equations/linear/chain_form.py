"""Which factors make chains of nodes: those that join two nodes of one type.

Input: traced factors and their forms. Output: pairs of arguments. Once for each solver; which
instances join neighbours, indices say.
"""

from collections.abc import Sequence

from caspar.equations.factor_builder import FactorForm
from caspar.equations.linear.explicit_kernels import ArgumentPair, argument_pairs
from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.block_parts import MAX_WHOLE_BLOCK, has_whole_block
from caspar.frontend.factors.trace import ArgumentKind, TracedFactor


def chain_pairs(factor: TracedFactor, form: FactorForm) -> list[ArgumentPair]:
    """Pairs of arguments of one node type.

    A factor with an eliminated node has none: what its nodes share goes through that node.
    """
    if form.eliminated is not None:
        return []
    ranks = {argument.node_type.name: 0 for argument in factor.nodes}
    return [
        pair
        for pair in argument_pairs(factor, form, ranks)
        if pair.is_of_one_type
        and not pair.is_of_one_argument
        and ArgumentKind.NODE_UNIQUE not in (pair.row.kind, pair.column.kind)
    ]


def chained_types(factors: Sequence[TracedFactor], form: SolverForm) -> tuple[str, ...]:
    """Names of the node types that a factor may chain, in order of appearance."""
    names = [
        pair.row.node_type.name
        for factor in factors
        for pair in chain_pairs(factor, form.factors[factor.name])
    ]
    return tuple(dict.fromkeys(names))


def chain_refusal(factors: Sequence[TracedFactor], form: SolverForm) -> str:
    """Why there are no chains whatever the indices; empty: there may be some."""
    chained = chained_types(factors, form)
    for factor in factors:
        for argument in factor.nodes:
            node = argument.node_type
            if node.name in chained and not has_whole_block(node):
                return (
                    f"factor {factor.name}, argument {argument.source}: {node.name} has "
                    f"{node.tangent_dim} degrees of freedom; it needs node types of at most "
                    f"{MAX_WHOLE_BLOCK}"
                )
    if len(chained) > 0:
        return ""
    names = ", ".join(factor.name for factor in factors)
    return (
        "no factor joins two nodes of one type and is without eliminated nodes "
        f"({names}); one that does has two TunableShared arguments of that type, or a TunablePair"
    )
