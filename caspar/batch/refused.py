"""The instances of a batch that are left out: they look up outside of a table that refuses that.

Input: checked arrays with the values after a solve, in float64. Output: how many there are in each
problem, by factor, and which problems have no others. Cost tier: a kernel over the instances of
factors with such tables, once for each solve.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from caspar.batch.gradients.flat import FlatFactor, as_one_factor, as_one_problem
from caspar.batch.input import Batch
from caspar.frontend.factors.trace import WEIGHT, TracedFactor
from caspar.runtime.backend import Backend
from caspar.solver.evaluation import Residuals, refused_instances

Counts = dict[str, NDArray[np.int64]]


class RefusedCounts:
    """Counts what is left out.

    Args:
        backend: Where problems are solved.
        factors: All factors.

    Attributes:
        names: Factors of which instances may be left out.
    """

    def __init__(self, backend: Backend, factors: Sequence[TracedFactor]) -> None:
        self.names = tuple(one.name for one in factors if one.inside)
        self._backend, self._exact = backend, Residuals(backend)

    def of(self, batch: Batch) -> tuple[Counts, NDArray[np.bool_]]:
        """Count the instances that are left out.

        Returns:
            By factor (P,) instances that are left out; and (P,) whether a problem has residuals,
            all of them of such instances.
        """
        backend = self._backend
        whole = as_one_problem(batch, backend, self.names)
        parts = {
            one.factor.name: FlatFactor(batch, backend, number, one)
            for number, one in enumerate(batch.shape.factors)
            if one.factor.name in self.names
        }
        factors = [as_one_factor(one.factor) for one in batch.shape.factors]
        present = [
            one for one in factors if one.name in parts and whole.factors[one.name].count > 0
        ]
        refused = refused_instances(present, whole, self._exact)
        count = batch.num_problems
        counts = {name: np.zeros(count, np.int64) for name in self.names}
        total = np.broadcast_to(backend.to_host(backend.upload(batch.num_residuals)), count)
        rows = total.astype(np.int64)
        for factor in present:
            flags, name = refused[factor.name], factor.name
            problem = backend.to_host(parts[name].problem)
            counts[name] = np.bincount(problem[flags], minlength=count)
            if factor.is_weighted:
                weight = whole.factors[name].constants[WEIGHT]
                weights = backend.to_host(weight.rows[:, 0][weight.index])
                flags = flags & (weights > 0.0)
            rows -= len(factor.residual) * np.bincount(problem[flags], minlength=count)
        return counts, (total > 0) & (rows == 0)
