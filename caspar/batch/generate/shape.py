"""Describe what problems of a batch share: their nodes, and how factors' arrays are passed.

Input: traced factors, and what the user's arrays look like. Output: a `BatchShape`, all that the
kernel depends on besides the factors. Once for each solve, some microseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from caspar.frontend.factors.trace import Argument, ArgumentKind, NodeType, TracedFactor
from caspar.ir.dtype import DType


@dataclass(frozen=True)
class ProblemNodes:
    """The nodes of a type within a problem.

    Attributes:
        storage_first: Where their values begin among those of the problem.
        tangent_first: Where their steps begin.
        is_masked: Whether components may be held, by the user or at a bound.
        is_bounded: Whether numbers have bounds.
    """

    node: NodeType
    count: int
    storage_first: int
    tangent_first: int
    is_masked: bool
    is_bounded: bool

    @property
    def storage_size(self) -> int:
        """Scalars of them all in memory."""
        return self.count * self.node.storage_dim

    @property
    def tangent_size(self) -> int:
        """Unknowns of them all."""
        return self.count * self.node.tangent_dim


class Instances(Enum):
    """The number of instances of a factor in a problem.

    ONE: one, as nothing is passed for single instances. EQUAL: as many as every other problem.
    RAGGED: any number.
    """

    ONE = "one"
    EQUAL = "equal"
    RAGGED = "ragged"


class Team(Enum):
    """The threads that solve a problem.

    THREAD: one thread, with the normal matrix in its registers, by code without loops. WARP: the
    threads of a warp, with the matrix in memory that they share, by loops; on the processor one
    thread, by the same loops.
    """

    THREAD = "thread"
    WARP = "warp"

    @classmethod
    def usual(
        cls, has_warps: bool, num_unknowns: int, num_problems: int, instances: float
    ) -> "Team":
        """Choose who solves problems.

        `instances`: Of all factors in a problem, on average. `has_warps`: See `Dialect`.
        """
        if num_unknowns > MOST_OF_THREAD:
            return cls.WARP
        is_idle = num_problems <= FEW_PROBLEMS and instances >= MANY_INSTANCES
        return cls.WARP if has_warps and is_idle else cls.THREAD


MOST_OF_THREAD = 12
"""Unknowns up to which a thread solves a problem. With more, code without loops takes long to
compile, and a thread of a GPU spills most of its matrix: see design record 0039."""

FEW_PROBLEMS, MANY_INSTANCES = 8192, 64
"""So few problems, of so many instances, leave a GPU idle where a thread solves each."""


@dataclass(frozen=True)
class ProblemFactor:
    """A factor and its instances within a problem.

    Attributes:
        factor: With its weight and the parameters of its loss as they were passed.
    """

    factor: TracedFactor
    instances: Instances


@dataclass(frozen=True)
class BatchShape:
    """The properties that all problems of a batch share.

    Attributes:
        team: The threads that solve a problem.
        is_orthogonal: Whether steps come from a QR decomposition of the Jacobian, by a warp, and
            not from the normal equations.
    """

    nodes: tuple[ProblemNodes, ...]
    factors: tuple[ProblemFactor, ...]
    storage: DType
    team: Team = Team.THREAD
    is_orthogonal: bool = False

    @property
    def storage_dim(self) -> int:
        """Scalars of a problem's values."""
        return sum(one.storage_size for one in self.nodes)

    @property
    def num_unknowns(self) -> int:
        """Unknowns of a problem."""
        return sum(one.tangent_size for one in self.nodes)

    @property
    def row_length(self) -> int:
        """Entries of a row of the matrix in memory.

        A warp keeps its factor above the diagonal, and the gradient as one more row; an odd number
        keeps the entries of a column in different banks of shared memory.
        """
        size = self.num_unknowns
        return size if self.team is Team.THREAD else (size + 2) | 1

    @property
    def hands_over(self) -> bool:
        """Return whether ill-conditioned problems may be left to the kernel of `orthogonal`."""
        return self.storage is DType.FLOAT64 and not self.is_orthogonal

    @property
    def orthogonal(self) -> "BatchShape":
        """The shape of the kernel that solves these by QR decompositions."""
        return replace(self, team=Team.WARP, is_orthogonal=True)

    @property
    def is_masked(self) -> bool:
        """Return whether a component may be held."""
        return any(one.is_masked for one in self.nodes)

    @property
    def is_bounded(self) -> bool:
        """Return whether a number has bounds."""
        return any(one.is_bounded for one in self.nodes)

    @property
    def has_loss(self) -> bool:
        """Return whether the linearisation depends on the damping."""
        return any(one.factor.loss is not None for one in self.factors)

    def nodes_of(self, argument: Argument) -> ProblemNodes:
        """The nodes that an argument names."""
        name = argument.node_type.name
        return next(one for one in self.nodes if one.node.name == name)

    @property
    def structure(self) -> tuple[object, ...]:
        """Key of the kernel among those of the same factors; cheap."""
        nodes = tuple((one.count, one.is_masked, one.is_bounded) for one in self.nodes)
        factors = tuple(
            (one.instances, tuple((term.source, term.kind) for term in one.factor.terms))
            for one in self.factors
        )
        return (self.team, self.is_orthogonal, *nodes, *factors)

    @cached_property
    def key(self) -> str:
        """Text that determines the kernel."""
        nodes = [
            f"{one.node.name} {one.node.retraction_key} {one.count} {one.is_masked}"
            f" {one.is_bounded}"
            for one in self.nodes
        ]
        factors = [f"{one.factor.key} {one.instances.value}" for one in self.factors]
        head = ["batch", self.storage.value, self.team.value, str(self.is_orthogonal)]
        return "\n".join([*head, *nodes, *factors])


def batch_shape(
    nodes: Sequence[tuple[NodeType, int, bool, bool]],
    factors: Sequence[ProblemFactor],
    storage: DType,
) -> BatchShape:
    """Lay out the values of a problem.

    `nodes`: Types, how many nodes a problem has of each, whether components may be held, and
    whether numbers have bounds.
    """
    made: list[ProblemNodes] = []
    storage_first = tangent_first = 0
    for node, count, is_masked, is_bounded in nodes:
        first = (storage_first, tangent_first)
        made.append(ProblemNodes(node, count, *first, is_masked or is_bounded, is_bounded))
        storage_first += made[-1].storage_size
        tangent_first += made[-1].tangent_size
    return BatchShape(tuple(made), tuple(factors), storage)


def is_per_instance(argument: Argument) -> bool:
    """Return whether a constant has a value for each instance."""
    return argument.kind is ArgumentKind.CONST_SEQUENTIAL
