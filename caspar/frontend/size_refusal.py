"""Refuse factors whose kernels would take minutes to compile.

Input: traced factors, node types, and the kernel that is too large. Output: a message. Only if
kernels are refused.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from caspar.errors import SizeError
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.frontend.names import internal_name

MAX_NAMED = 4
"""Arguments that are named one by one."""


@contextmanager
def naming_owners(
    factors: Sequence[TracedFactor], nodes: Sequence[NodeType], otherwise: str = ""
) -> Iterator[None]:
    """Have a `SizeError` that names a kernel in the body name the factor or the node type."""
    try:
        yield
    except SizeError as error:
        refusal = size_refusal(factors, nodes, error.kernel, str(error))
        raise SizeError(refusal + otherwise, error.kernel) from None


def size_refusal(
    factors: Sequence[TracedFactor], nodes: Sequence[NodeType], kernel: str, reason: str
) -> str:
    """Names the factor or the node type, its size, what is wrong and what to do."""
    for factor in factors:
        if kernel.startswith(f"{internal_name(factor.name)}__"):
            return (
                f"factor {factor.name} ({factor.location}) is too large: a residual of "
                f"{len(factor.residual)} rows by {_arguments(factor)}; {reason}. Return fewer "
                "rows and pass more instances, split the residual into several factors, or split "
                "a node of many degrees of freedom into several node types"
            )
    for node in nodes:
        if kernel.startswith(f"{internal_name(node.name)}__"):
            return (
                f"node type {node.name} is too large: it has {node.tangent_dim} degrees of "
                f"freedom; {reason}. Split it into several node types"
            )
    return f"the factors are too large: {reason}. Use fewer factors in one solver"


def _arguments(factor: TracedFactor) -> str:
    """Name the arguments that a residual is derived by; of many, the largest."""
    nodes = factor.nodes
    if len(nodes) > MAX_NAMED:
        nodes = tuple(sorted(nodes, key=lambda one: -one.tangent_dim)[: MAX_NAMED - 1])
    named = [f"{one.source} of {one.tangent_dim}" for one in nodes]
    if len(nodes) < len(factor.nodes):
        total = sum(one.tangent_dim for one in factor.nodes)
        others = len(factor.nodes) - len(nodes)
        return f"{', '.join(named)} and {others} others, {total} degrees of freedom in all"
    return f"{' and '.join(named)} degrees of freedom"
