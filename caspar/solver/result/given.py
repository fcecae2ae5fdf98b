"""What a result can still ask for: the arrays of its solve, and their evaluation.

Input: what `solve` was given. Cost: that of `solved_arrays`, else nothing until somebody asks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from caspar.solver.result.solved_arrays import SolvedArrays

__all__ = ["Evaluated", "Given", "SolvedArrays"]
"""`SolvedArrays` too: whoever makes a `Given` needs both."""


class Evaluated(Protocol):
    """Costs, residuals and weights at some values: see `caspar.Evaluation`."""

    @property
    def cost(self) -> float:
        """That of all factors."""

    def residuals(self, factor: str) -> NDArray[np.float64]:
        """(m, residual_dim) of a factor."""

    def weights(self, factor: str) -> NDArray[np.float64]:
        """(m,) of a factor."""


@dataclass(frozen=True, eq=False)
class Given:
    """What a solve was given.

    Attributes:
        factors: All factors of the solver, each a `TracedFactor`.
        arrays: Start values, arguments and constraints, unless they have been written to since.
        evaluate: Evaluates the factors at the values of some arrays.
    """

    factors: tuple[Any, ...]
    arrays: SolvedArrays
    evaluate: Callable[[Mapping[str, Any]], Evaluated]
