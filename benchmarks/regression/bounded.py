"""Problems with bounds that bind: fits of NIST, and random ones from fixed seeds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import symforce.symbolic as sf

from benchmarks.regression.nist import problems as nist_problems
from benchmarks.regression.problem import Array, Kind, Problem, Residuals

NUM_RANDOM = 11
"""Of each kind."""


def bounded_problems() -> list[Problem]:
    """The 27 data sets of NIST from their second starts, then 33 random problems."""
    random = [
        make(f"{kind} {seed}", np.random.default_rng(seed))
        for kind, make in _KINDS.items()
        for seed in range(NUM_RANDOM)
    ]
    return [*(_halfway(problem, n) for n, problem in enumerate(nist_problems())), *random]


def _halfway(problem: Problem, number: int) -> Problem:
    """One parameter may go half of the way from the start to its certified value."""
    assert problem.certified is not None
    start, end = np.array(problem.starts[1]), np.array(problem.certified)
    which = number % len(start)
    lower, upper = np.full(len(start), -np.inf), np.full(len(start), np.inf)
    limits = upper if end[which] > start[which] else lower
    limits[which] = 0.5 * (start[which] + end[which])
    return replace(
        problem,
        name=f"{problem.name}, b{which + 1}",
        starts=problem.starts[1:],
        bounds=(lower, upper),
    )


def _cut(
    random: np.random.Generator, name: str, residuals: Residuals, data: Array, truth: Array
) -> Problem:
    """Each parameter in an interval that holds its true value with a chance of one half."""
    size = 0.2 + random.random(len(truth))
    middle = truth + size * random.uniform(-1.0, 1.0, len(truth))
    lower, upper = middle - 0.5 * size, middle + 0.5 * size
    is_open = random.random(len(truth)) < 0.2
    lower[is_open] = -np.inf
    start = random.uniform(np.maximum(lower, middle - 0.5 * size), upper)
    starts, kinds = (tuple(start.tolist()),), (Kind(residuals, data),)
    return Problem(name, kinds, starts, minimum=0.0, bounds=(lower, upper))


def _linear(name: str, random: np.random.Generator) -> Problem:
    """Thirty rows of eight coupled unknowns."""
    truth = random.normal(size=8)
    rows = random.normal(size=(30, 8)) @ (np.eye(8) + 0.5 * random.normal(size=(8, 8)))
    data = np.column_stack([rows @ truth + 0.1 * random.normal(size=30), rows])

    def residuals(x: Any, d: Any) -> Sequence[Any]:
        return [sum(d[1 + i] * x[i] for i in range(8)) - d[0]]

    return _cut(random, name, residuals, data, truth)


def _decays(name: str, random: np.random.Generator) -> Problem:
    """A sum of two exponentials, which is stiff."""
    truth = np.array([1.0, 0.5, 2.0, 3.0]) + 0.3 * random.normal(size=4)
    time = np.linspace(0.0, 4.0, 40)
    response = truth[0] * np.exp(-truth[1] * time) + truth[2] * np.exp(-truth[3] * time)
    data = np.column_stack([response + 0.01 * random.normal(size=40), time])

    def residuals(b: Any, d: Any) -> Sequence[Any]:
        return [b[0] * sf.exp(-b[1] * d[1]) + b[2] * sf.exp(-b[3] * d[1]) - d[0]]

    return _cut(random, name, residuals, data, truth)


def _neurons(name: str, random: np.random.Generator) -> Problem:
    """Two neurons of two inputs, which are not convex."""
    truth = random.normal(size=6)
    inputs = random.normal(size=(50, 2))

    def response(b: Any, x: Any, tanh: Any) -> Any:
        first = b[2] * tanh(b[0] * x[0] + b[1] * x[1])
        return first + b[5] * tanh(b[3] * x[0] + b[4] * x[1])

    data = np.column_stack([response(truth, inputs.T, np.tanh), inputs])
    data[:, 0] += 0.05 * random.normal(size=50)

    def residuals(b: Any, d: Any) -> Sequence[Any]:
        return [response(b, d[1:], sf.tanh) - d[0]]

    return _cut(random, name, residuals, data, truth)


_KINDS: dict[str, Callable[[str, np.random.Generator], Problem]] = {
    "linear": _linear,
    "decays": _decays,
    "neurons": _neurons,
}
