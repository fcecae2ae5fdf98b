"""What a result, or a record of an iteration, can still ask for: values, and their evaluation.

Input: what `solve` was given. Cost: nothing until somebody asks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from caspar.errors import InputError
from caspar.solver.result.solved_arrays import SolvedArrays

__all__ = ["Evaluated", "Given", "SolvedArrays", "ValuesReader"]
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


class ValuesReader:
    """Reads the values of a solve that goes on, until it is closed.

    Args:
        read: Copies the values by node type.
    """

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read: Callable[[], Mapping[str, Any]] | None = read

    def __call__(self) -> Mapping[str, Any]:
        """The values.

        Raises:
            InputError: The solve has gone on.
        """
        if self._read is None:
            raise InputError(
                "the values of an iteration can be read only while on_iteration is called with "
                "its record: read them there, and keep what it returns"
            )
        return self._read()

    def close(self) -> None:
        """The solve goes on."""
        self._read = None
