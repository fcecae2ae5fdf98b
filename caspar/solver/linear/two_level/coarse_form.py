"""Which coarse space suits factors, and how many columns it has; see `coarse_kernels`.

Once for each solver.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from caspar.equations.factor_builder import FactorForm, SharedSums
from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.trace import ArgumentKind, NodeType, TracedFactor

MAX_GROUP = 8
"""Columns of a group at most."""

MAX_ELIMINATED_DIM = 4
"""Of larger ones there are too many affine displacements."""


@dataclass(frozen=True)
class CoarseForm:
    """Columns of a cluster.

    Attributes:
        eliminated: The eliminated type.
        reduced: The reduced type.
        sums: How sums over shared nodes are taken.
        is_scaled: Whether linear systems are solved in scaled variables.
        masks_reduced: Whether components of the reduced type may be held: no column moves these.
    """

    eliminated: NodeType
    reduced: NodeType
    sums: SharedSums
    is_scaled: bool
    masks_reduced: bool

    @property
    def num_fields(self) -> int:
        """Affine displacements."""
        dim = self.eliminated.tangent_dim
        return dim + dim * dim

    @property
    def num_groups(self) -> int:
        """Groups of columns."""
        return -(-(self.num_fields + self.reduced.tangent_dim) // MAX_GROUP)

    @property
    def group(self) -> int:
        """Columns of a group; the last ones of the last group may be zero."""
        return -(-(self.num_fields + self.reduced.tangent_dim) // self.num_groups)

    @property
    def num_columns(self) -> int:
        """Columns of a cluster."""
        return self.group * self.num_groups


def coarse_refusal(factors: Sequence[TracedFactor], form: SolverForm) -> str:
    """Why there is no coarse space for these factors; empty where there is one."""
    nodes = {node.name: node for factor in factors for node in _types(factor)}
    reduced = [name for name in nodes if name not in form.eliminated]
    if len(form.eliminated) != 1 or len(reduced) != 1:
        return (
            f"node types: {len(form.eliminated)} eliminated and {len(reduced)} remaining; it needs "
            "one of each"
        )
    node = nodes[form.eliminated[0]]
    if node.storage_dim != node.tangent_dim or node.tangent_dim > MAX_ELIMINATED_DIM:
        return (
            f"the eliminated node type {node.name} has {node.storage_dim} scalars and a tangent of "
            f"{node.tangent_dim}; it needs vectors of at most {MAX_ELIMINATED_DIM}"
        )
    for factor in factors:
        kept = [one for one in factor.nodes if one.node_type.name in reduced]
        if len(kept) > 1 or any(one.kind is not ArgumentKind.NODE_SHARED for one in kept):
            return (
                f"factor {factor.name} does not touch exactly one {reduced[0]}, by an index; all "
                "factors must"
            )
    if not any(is_coarsened(factor, form.factors[factor.name]) for factor in factors):
        return f"no factor joins {node.name} and {reduced[0]}; it needs one that does"
    return ""


def _types(factor: TracedFactor) -> list[NodeType]:
    return [argument.node_type for argument in factor.nodes]


def coarse_form(factors: Sequence[TracedFactor], form: SolverForm) -> CoarseForm:
    """The coarse space of factors that `coarse_refusal` does not refuse."""
    nodes = {node.name: node for factor in factors for node in _types(factor)}
    (reduced,) = (node for name, node in nodes.items() if name not in form.eliminated)
    sums = next(iter(form.factors.values())).sums
    masked = reduced.name in form.masked
    return CoarseForm(nodes[form.eliminated[0]], reduced, sums, form.is_scaled, masked)


def is_coarsened(factor: TracedFactor, form: FactorForm) -> bool:
    """Whether a factor couples reduced nodes through eliminated ones."""
    return form.eliminated is not None and len(factor.nodes) > 1
