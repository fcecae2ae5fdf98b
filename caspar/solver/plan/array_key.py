"""Keys of the arrays of a plan: a row of `equations.parts` with its owner, or a `Span`."""

from dataclasses import dataclass
from enum import Enum

from caspar.equations.parts import FactorPart, NodePart, SolverPart
from caspar.frontend.names import part_name


class Span(Enum):
    """Arrays that one launch clears or copies.

    ALL_NODES, ALL_CANDIDATES: of all types, or none is accepted. ALL_SUMS: what a linearisation
    adds to. SUMS, REDUCED_SUMS: gradients and blocks of reduced types, of which the second begin as
    a copy of the first. ALL_INNER: `inner` of eliminated types. SCRATCH: everything but values,
    constants and sums over all items: free while values are brought in.
    """

    __hash__ = object.__hash__  # each member is there once; Enum's own hashes its name in Python

    ALL_NODES = "all nodes"
    ALL_CANDIDATES = "all candidate"
    ALL_SUMS = "all sums"
    SUMS = "sums"
    REDUCED_SUMS = "reduced_sums"
    ALL_INNER = "all inner"
    SCRATCH = "all scratch"

    @property
    def text(self) -> str:
        """Text in tables."""
        return self.value


@dataclass(frozen=True)
class OwnedPart:
    """An array of a node type or of a factor.

    Attributes:
        part: What it is. Of a factor and a `NodePart` it is partial sums of the argument's nodes.
        owner: Name of the node type or factor.
        argument: The factor's argument that has it; empty: it is no argument's.
    """

    part: NodePart | FactorPart
    owner: str
    argument: str = ""

    @property
    def text(self) -> str:
        """Text in tables: `Pose.gradient`, `snavely.residual`, `snavely.point__gradient`."""
        array = self.part.text if self.argument == "" else part_name(self.argument, self.part.text)
        return f"{self.owner}.{array}"


ArrayKey = SolverPart | OwnedPart | Span
"""An array of a plan."""
