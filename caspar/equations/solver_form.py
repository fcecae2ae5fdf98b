"""Choose which node types are eliminated, and how each factor's kernels are made.

Input: traced factors. Output: a `SolverForm`. Once for each solver.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caspar.equations.factor_builder import FactorForm, SharedSums
from caspar.frontend.factors.jacobian import JacobianStorage
from caspar.frontend.factors.trace import Argument, ArgumentKind, NodeType, TracedFactor
from caspar.frontend.precision import Types
from caspar.memory.kernel import Dialect
from caspar.options import DEFAULT_INNER_ITERATIONS

FEWER = 2
"""Other types are eliminated instead of the usual ones only if they have more than this many times
their unknowns. Otherwise kernels would be compiled anew if two types have about the same counts."""


SMALL = 3
"""Scalars of a tangent that is eliminated as well as any other: sums over a node of nine, as inner
iterations take them, need 118 KiB of shared memory."""


MAX_ELIMINATED_DIM = 15
"""Degrees of freedom of a node that can be eliminated: see design record 0018."""


@dataclass(frozen=True)
class SolverForm:
    """The variants in which a solver's kernels are made: that of each factor, and node types.

    Types may be eliminated, `masked` if components may be held, and `bounded` among these.
    """

    factors: Mapping[str, FactorForm]
    eliminated: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    bounded: tuple[str, ...] = ()

    @property
    def is_scaled(self) -> bool:
        """Return whether linear systems are solved in scaled variables: see `node_kernels`."""
        return any(form.jacobian.is_stored for form in self.factors.values())

    def rounds_values(self, types: Types) -> bool:
        """Return whether kernels recompute Jacobians from values rounded to the storage type."""
        recomputes = any(not form.jacobian.is_stored for form in self.factors.values())
        return types.rounds_values and recomputes

    @property
    def is_ordered(self) -> bool:
        """Return whether sums are taken in a fixed order."""
        return all(form.sums is SharedSums.ORDERED for form in self.factors.values())

    @property
    def key(self) -> str:
        """Text that determines the form."""
        forms = "; ".join(f"{name} {form.key}" for name, form in self.factors.items())
        return (
            f"{forms}; eliminated {self.eliminated}; masked {self.masked}; bounded {self.bounded}"
        )


def eliminable_types(
    factors: Sequence[TracedFactor],
    nodes: Sequence[NodeType],
    counts: Mapping[str, int] | None = None,
) -> tuple[NodeType, ...]:
    """Node types that can be eliminated together, at least one other remaining.

    A type can be eliminated where no factor touches two of its instances; several can where no
    factor touches two of them. Small tangents go first: there tend to be more of them, and their
    blocks are cheaper to invert. Of tangents up to SMALL, where counts say otherwise, by FEWER,
    what has the most unknowns does: points, not the few lenses that took their pictures.

    Counts are None while they are not known.
    """
    usual = _in_order(factors, sorted(nodes, key=lambda node: node.tangent_dim))
    if counts is None:
        return usual

    def unknowns(*chosen: NodeType) -> int:
        return sum(counts[node.name] * node.tangent_dim for node in chosen)

    def place(node: NodeType) -> int:
        return -unknowns(node) if node.tangent_dim <= SMALL else node.tangent_dim

    largest = _in_order(factors, sorted(nodes, key=place))
    return largest if unknowns(*largest) > FEWER * unknowns(*usual) else usual


def _in_order(factors: Sequence[TracedFactor], nodes: Sequence[NodeType]) -> tuple[NodeType, ...]:
    chosen: list[NodeType] = []
    for node in nodes:
        if len(chosen) + 1 == len(nodes) or not _stands_alone(factors, node):
            continue
        together = {node.name, *(other.name for other in chosen)}
        if all(len(_touched(factor, together)) <= 1 for factor in factors):
            chosen.append(node)
    return tuple(chosen)


def _touched(factor: TracedFactor, names: set[str]) -> list[Argument]:
    return [node for node in factor.nodes if node.node_type.name in names]


def _stands_alone(factors: Sequence[TracedFactor], node: NodeType) -> bool:
    """Return whether it is small enough, and no factor touches two of its nodes.

    A type that all factors share stays.
    """
    return node.tangent_dim <= MAX_ELIMINATED_DIM and all(
        len(touched) <= 1 and all(one.kind is ArgumentKind.NODE_SHARED for one in touched)
        for touched in (_touched(factor, {node.name}) for factor in factors)
    )


def elimination_refusal(
    factors: Sequence[TracedFactor], nodes: Sequence[NodeType], names: Sequence[str]
) -> str:
    """Return why node types cannot be eliminated together; empty if they can."""
    if len(names) == len(nodes):
        return "another node type has to remain"
    for node in nodes:
        if node.name in names and node.tangent_dim > MAX_ELIMINATED_DIM:
            return (
                f"{node.name} has {node.tangent_dim} degrees of freedom; at most "
                f"{MAX_ELIMINATED_DIM} are allowed"
            )
    for factor in factors:
        touched = _touched(factor, set(names))
        if len(touched) > 1:
            arguments = " and ".join(argument.source for argument in touched[:2])
            return f"factor {factor.name} touches two of their nodes, by {arguments}"
        for argument in touched:
            if argument.kind is not ArgumentKind.NODE_SHARED:
                return (
                    f"factor {factor.name} reaches {argument.node_type.name} by {argument.source}, "
                    "which is no caspar.TunableShared"
                )
    return ""


def solver_form(
    factors: Sequence[TracedFactor],
    eliminated: Sequence[NodeType],
    sums: SharedSums,
    jacobian: JacobianStorage,
    inner_iterations: int = 0,
    masked: Sequence[str] = (),
    bounded: Sequence[str] = (),
) -> SolverForm:
    """The forms of all factors; with nothing eliminated, for the full normal equations.

    `inner_iterations` are steps that eliminated nodes take by themselves after each common one.
    Components of `masked` types may be held; those of them with bounds are `bounded`.
    """
    names = {node.name for node in eliminated}
    arguments = {factor.name: next(iter(_touched(factor, names)), None) for factor in factors}
    touching = [argument.node for argument in arguments.values() if argument is not None]
    forms = {}
    for name, argument in arguments.items():
        is_fused = argument is not None and touching.count(argument.node) == 1
        forms[name] = FactorForm(
            sums,
            jacobian,
            argument,
            is_fused,
            inner_iterations,
            solver_eliminates=len(names) > 0,
            masks_eliminated=argument is not None and argument.node_type.name in masked,
            bounds_eliminated=argument is not None and argument.node_type.name in bounded,
        )
    names_in_order = tuple(node.name for node in eliminated)
    return SolverForm(forms, names_in_order, tuple(masked), tuple(bounded))


def usual_sums(dialect: Dialect, *, deterministic: bool = False) -> SharedSums:
    """Return how a target takes sums over shared nodes."""
    return SharedSums.ATOMIC if dialect.sums_are_atomic(deterministic) else SharedSums.ORDERED


def usual_storage(
    factors: Sequence[TracedFactor], eliminated: Sequence[NodeType], dialect: Dialect
) -> JacobianStorage:
    """Return a target's default storage of Jacobians, before their price is considered.

    A solver stores Jacobians that are expensive to recompute: see `solver.choice.jacobian`.

    If the target recomputes them at all, it does so when PCG is the usual linear solver: nodes are
    eliminated, and no factor couples two remaining nodes of one type. A direct solver reads each
    Jacobian only a few times, and exactly.
    """
    is_quick = len(eliminated) > 0 and not couples_reduced(factors, eliminated)
    recomputes = dialect.recomputes_jacobians and is_quick
    return JacobianStorage.RECOMPUTED if recomputes else JacobianStorage.STORED


def couples_reduced(factors: Sequence[TracedFactor], eliminated: Sequence[NodeType]) -> bool:
    """Return whether a factor couples two nodes of one type that remains; ties do not count."""
    names = {node.name for node in eliminated}
    return any(
        couples_one_type([one for one in factor.nodes if one.node_type.name not in names])
        for factor in factors
        if not factor.is_tie
    )


def couples_one_type(reduced: Sequence[Argument]) -> bool:
    """Return whether two reduced arguments of a factor have one type: PCG is slow on chains."""
    names = [argument.node_type.name for argument in reduced]
    return len(set(names)) < len(names)


def usual_form(
    factors: Sequence[TracedFactor], nodes: Sequence[NodeType], dialect: Dialect
) -> SolverForm:
    """The forms of all factors in a solver for a target whose user chose nothing.

    See `usual_storage` for what may differ.
    """
    eliminated = eliminable_types(factors, nodes)
    return solver_form(
        factors,
        eliminated,
        usual_sums(dialect),
        usual_storage(factors, eliminated, dialect),
        DEFAULT_INNER_ITERATIONS,
    )
