"""Costs, residuals and weights at some values, without a solve.

Input: the system of a problem, just scored. Output: an `Evaluation`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caspar.errors import InputError
from caspar.frontend.factors.trace import WEIGHT, TracedFactor
from caspar.memory.array import Array
from caspar.solver.input.problem import FactorArrays, Problem
from caspar.solver.iterate.normal_equations import NormalEquations

Floats = NDArray[np.float64]
Host = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What the factors cost at some values.

    Attributes:
        costs: The cost of each factor, by name: 1/2 * the sum of w rho(|r|^2) over its instances.
    """

    costs: Mapping[str, float]
    _residuals: Mapping[str, Floats] = field(repr=False)
    _weights: Mapping[str, Floats] = field(repr=False)

    @property
    def cost(self) -> float:
        """That of all factors."""
        return sum(self.costs.values())

    def residuals(self, factor: str) -> Floats:
        """The residuals of a factor, without weight and loss.

        Args:
            factor: Its name.

        Returns:
            (m, residual_dim), in the order of its arrays, on the host. They are as precise as the
            values: float32 in `mixed` precision.

        Raises:
            InputError: There is no such factor.
        """
        return self._of(self._residuals, factor)

    def weights(self, factor: str) -> Floats:
        """What each instance of a factor weighs: w rho'(|r|^2).

        1 without a weight and a loss; near 0 for an instance that a loss takes for an outlier.

        Args:
            factor: Its name.

        Returns:
            (m,), in the order of its arrays, on the host.

        Raises:
            InputError: There is no such factor.
        """
        return self._of(self._weights, factor)

    def _of(self, arrays: Mapping[str, Floats], factor: str) -> Floats:
        if factor not in arrays:
            raise InputError(f"{factor!r} is no factor; these are {', '.join(arrays)}")
        return arrays[factor].copy()


def evaluation(
    factors: Sequence[TracedFactor], problem: Problem, system: NormalEquations
) -> Evaluation:
    """Read what a score has left.

    Args:
        factors: All factors of the solver.
        problem: The arrays; a factor without instances has no part in the system.
        system: It was scored last.
    """
    costs = {factor.name: 0.0 for factor in factors} | system.costs()
    residuals, weights = {}, {}
    for factor in factors:
        arrays = problem.factors[factor.name]
        rows = system.residuals(factor.name) if arrays.count > 0 else None
        rows = np.empty((0, len(factor.residual))) if rows is None else rows
        residuals[factor.name] = rows
        weights[factor.name] = _weights(factor, arrays, rows, system.to_host)
    return Evaluation(costs, residuals, weights)


def _weights(factor: TracedFactor, arrays: FactorArrays, residuals: Floats, host: Host) -> Floats:
    """w rho'(|r|^2) of each instance: (m,)."""

    def number(name: str) -> Floats:
        return np.asarray(host(arrays.constants[name].rows), np.float64)[:, 0]

    weights = np.ones(len(residuals))
    if factor.loss is not None and len(residuals) > 0:
        values = {one.name: number(one.source) for one in factor.loss.parameters}
        weights = factor.loss.on_numbers((residuals**2).sum(axis=1), values)[1]
    if WEIGHT in arrays.by_instance:
        weight = number(WEIGHT)
        # of one that does not count, whatever the residual is
        weights = np.where(weight > 0.0, weight * weights, 0.0)
    return weights
