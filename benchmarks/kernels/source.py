"""A CUDA source of either side."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from benchmarks.kernels.cases import Case, Role


class Side(Enum):
    """Who generated it."""

    OURS = "ours"
    REFERENCE = "reference"


@dataclass(frozen=True)
class Source:
    """One kernel's source.

    Attributes:
        case: Of which residual.
        role: Its task.
        side: Who generated it.
        path: CUDA C with this kernel and no other.
        predicted: 32-bit registers that the generator counts on.
    """

    case: Case
    role: Role
    side: Side
    path: Path
    predicted: int
