"""A reference for gradients: finite differences of solves that are taken to rounding.

A solve ends where the cost no longer falls, that is, with values known to half of the digits.
`polished` goes on by Gauss-Newton steps of its own, which need no cost: until steps are rounding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from caspar.options import Precision
from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.choice.recipe import make_recipe
from caspar.solver.input.constraints import Constraints
from caspar.solver.input.problem_reader import given_factors, read_problem
from caspar.solver.normal.instance_kernels import DerivativeKernels

Rows = NDArray[np.float64]
Arrays = dict[str, Any]
Parts = Sequence[str | int]
"""What a node's storage consists of: "rotation", "turn" (2-D), or a number of scalars."""


def retracted(rows: Rows, steps: Rows, parts: Parts) -> Rows:
    """(n, storage_dim) after steps (n, tangent_dim)."""
    found, first, step_first = [], 0, 0
    for part in parts:
        if part == "rotation":
            own, step = rows[:, first : first + 4], steps[:, step_first : step_first + 3]
            found.append((Rotation.from_quat(own) * Rotation.from_rotvec(step)).as_quat())
            found[-1] *= np.sign((found[-1] * own).sum(axis=1, keepdims=True))
            first, step_first = first + 4, step_first + 3
        elif part == "turn":
            (c, s), angle = rows[:, first : first + 2].T, steps[:, step_first]
            c, s = c * np.cos(angle) - s * np.sin(angle), s * np.cos(angle) + c * np.sin(angle)
            found.append(np.stack([c, s], axis=1))
            first, step_first = first + 2, step_first + 1
        else:
            size = int(part)
            found.append(rows[:, first : first + size] + steps[:, step_first : step_first + size])
            first, step_first = first + size, step_first + size
    return np.concatenate(found, axis=1)


@dataclass(frozen=True)
class Reference:
    """Polishes solves of some factors.

    Attributes:
        factors: The factors.
        parts: By node type, what its storage consists of.
        fixed: As for `Solver.solve`.
    """

    factors: Sequence[caspar.Factor]
    parts: Mapping[str, Parts]
    fixed: Mapping[str, Any] | None = None

    def kernels(self) -> "Polisher":
        """What runs."""
        return Polisher(self)


class Polisher:
    """See `Reference`."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._backend = CpuBackend()
        self._recipe = make_recipe(reference.factors)
        self._kernels = DerivativeKernels(self._backend)
        self._solver = caspar.Solver(reference.factors, backend="cpu", precision="float64")

    def polished(self, arrays: Arrays, *, steps: int = 300) -> dict[str, Rows]:
        """The values of the minimum near those of `arrays`."""
        recipe, free = self._recipe, Constraints(self._reference.fixed)
        problem = read_problem(
            arrays,
            recipe.factors,
            recipe.nodes,
            self._backend,
            Precision.FLOAT64,
            constraints=free,
        )
        smallest, idle = np.inf, 0
        for _ in range(steps):
            values, size = self._step(arrays, problem)
            problem = replace(problem, values=values)
            idle = 0 if size < smallest else idle + 1
            smallest = min(size, smallest)
            # no longer convergence, but rounding
            if size < 1e-9 and idle == 2:
                return {name: np.asarray(rows) for name, rows in values.items()}
        raise AssertionError(f"the reference has not converged: last step {size:.1e}")

    def _counts(self, name: str, arrays: Arrays) -> Any:
        """Selects the instances whose weight is not zero."""
        weight = arrays[name].get("weight")
        return slice(None) if weight is None else np.asarray(weight) > 0.0

    def _step(self, arrays: Arrays, problem: Any) -> tuple[dict[str, Rows], float]:
        factors = given_factors(self._recipe.factors, problem)
        at = self._solver.evaluate({**arrays, **problem.values})
        dims = {node.name: node.tangent_dim for node in self._recipe.nodes}
        firsts, size = {}, 0
        for name, dim in dims.items():
            firsts[name] = size
            size += problem.counts[name] * dim
        jacobians, residuals = [], []
        for one in self._kernels.evaluate(factors, problem):
            weights = at.weights(one.name)
            rows = (np.sqrt(weights)[:, None] * at.residuals(one.name))[
                self._counts(one.name, arrays)
            ]
            dense = np.zeros((one.count, one.num_rows, size))
            for node in one.nodes:
                for k in range(dims[node.node]):
                    columns = firsts[node.node] + node.index * dims[node.node] + k
                    dense[np.arange(one.count), :, columns] += node.entries[:, :, k]
            jacobians.append(dense.reshape(-1, size))
            residuals.append(rows.ravel())
        moves = np.concatenate(
            [
                np.asarray(problem.free.get(name, np.ones((problem.counts[name], dim)))).ravel()
                for name, dim in dims.items()
            ]
        )
        jacobian = np.concatenate(jacobians) * moves
        step = -np.linalg.lstsq(jacobian, np.concatenate(residuals), rcond=1e-12)[0]
        values = {
            name: retracted(
                np.asarray(problem.values[name]),
                step[firsts[name] : firsts[name] + problem.counts[name] * dim].reshape(-1, dim),
                self._reference.parts[name],
            )
            for name, dim in dims.items()
        }
        return values, float(np.abs(step).max())


def directional(solve: Callable[[Rows], float], start: Rows, direction: Rows, step: float) -> float:
    """The derivative of a function along a direction: six values, an error of step^6."""
    terms = ((1, 45.0), (2, -9.0), (3, 1.0))
    total = sum(
        factor * (solve(start + k * step * direction) - solve(start - k * step * direction))
        for k, factor in terms
    )
    return float(total / (60.0 * step))
