"""The arrays of a solve, which its result can evaluate later.

Input: the arguments of `solve`. Cost: that of `solved_arrays`, else nothing until somebody asks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from caspar.solver.result.result import Evaluated
from caspar.solver.result.solved_arrays import SolvedArrays

__all__ = ["Given", "SolvedArrays"]
"""`SolvedArrays` too: whoever makes a `Given` needs both."""


@dataclass(frozen=True, eq=False)
class Given:
    """The input of a solve.

    Attributes:
        factors: All factors of the solver, each a `TracedFactor`.
        arrays: Start values, arguments and constraints, unless they have been written to since.
        evaluate: Evaluates the factors at the values of some arrays.
    """

    factors: tuple[Any, ...]
    arrays: SolvedArrays
    evaluate: Callable[[Mapping[str, Any]], Evaluated]
