"""Test functions 20 to 35 of Moré, Garbow and Hillstrom, which exist in many sizes.

The source and how minima were found are those of `mgh_fixed`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import symforce.symbolic as sf

from benchmarks.regression.problem import NONE, Problem, Residuals, one_kind

NUM_LINEAR_RESIDUALS = 20
"""The paper leaves the number open; the unknowns are 10."""

TRIGONOMETRIC = (2.7950561e-5, 4.2186339e-5, 4.4735658e-7, 8.7882252e-4)
"""Local minima of the trigonometric function of 10 unknowns; the paper gives the first."""


def _watson(x: Any, d: Any) -> Any:
    t = d[0]
    slope = sum(j * x[j] * t ** (j - 1) for j in range(1, len(x)))
    value = sum(x[j] * t**j for j in range(len(x)))
    # the two residuals without t, shared out over the 29 instances
    share = 1 / math.sqrt(29.0)
    return [slope - value**2 - 1, share * x[0], share * (x[1] - x[0] ** 2 - 1)]


def _extended_rosenbrock(x: Any, _: Any) -> Any:
    rows = []
    for i in range(0, len(x), 2):
        rows += [10 * (x[i + 1] - x[i] ** 2), 1 - x[i]]
    return rows


def _extended_powell(x: Any, _: Any) -> Any:
    rows = []
    for i in range(0, len(x), 4):
        rows += [x[i] + 10 * x[i + 1], math.sqrt(5.0) * (x[i + 2] - x[i + 3])]
        rows += [(x[i + 1] - 2 * x[i + 2]) ** 2, math.sqrt(10.0) * (x[i] - x[i + 3]) ** 2]
    return rows


def _penalty_1(x: Any, _: Any) -> Any:
    return [*(math.sqrt(1e-5) * (xi - 1) for xi in x), sum(xi**2 for xi in x) - 0.25]


def _penalty_2(x: Any, _: Any) -> Any:
    n, root = len(x), math.sqrt(1e-5)
    rows = [x[0] - 0.2]
    for i in range(1, n):
        y = math.exp((i + 1) / 10) + math.exp(i / 10)
        rows.append(root * (sf.exp(x[i] / 10) + sf.exp(x[i - 1] / 10) - y))
    rows += [root * (sf.exp(x[i] / 10) - math.exp(-0.1)) for i in range(1, n)]
    return [*rows, sum((n - j) * x[j] ** 2 for j in range(n)) - 1]


def _variably_dimensioned(x: Any, _: Any) -> Any:
    total = sum((j + 1) * (x[j] - 1) for j in range(len(x)))
    return [*(xi - 1 for xi in x), total, total**2]


def _trigonometric(x: Any, _: Any) -> Any:
    n, total = len(x), sum(sf.cos(xj) for xj in x)
    return [n - total + (i + 1) * (1 - sf.cos(x[i])) - sf.sin(x[i]) for i in range(n)]


def _brown_almost_linear(x: Any, _: Any) -> Any:
    n, total = len(x), sum(x)
    product = sf.S(1)
    for xi in x:
        product = product * xi
    return [*(x[i] + total - (n + 1) for i in range(n - 1)), product - 1]


def _discrete_boundary(x: Any, _: Any) -> Any:
    n = len(x)
    h, padded = 1 / (n + 1), [0, *x, 0]
    return [
        2 * padded[i] - padded[i - 1] - padded[i + 1] + h**2 * (padded[i] + i * h + 1) ** 3 / 2
        for i in range(1, n + 1)
    ]


def _discrete_integral(x: Any, _: Any) -> Any:
    n = len(x)
    h = 1 / (n + 1)
    t = [(i + 1) * h for i in range(n)]
    cubes = [(x[j] + t[j] + 1) ** 3 for j in range(n)]
    rows = []
    for i in range(n):
        before = sum(t[j] * cubes[j] for j in range(i + 1))
        after = sum(((1 - t[j]) * cubes[j] for j in range(i + 1, n)), sf.S(0))
        rows.append(x[i] + h * ((1 - t[i]) * before + t[i] * after) / 2)
    return rows


def _broyden_tridiagonal(x: Any, _: Any) -> Any:
    padded = [0, *x, 0]
    return [
        (3 - 2 * padded[i]) * padded[i] - padded[i - 1] - 2 * padded[i + 1] + 1
        for i in range(1, len(x) + 1)
    ]


def _broyden_banded(x: Any, _: Any) -> Any:
    n, rows = len(x), []
    for i in range(n):
        near = [j for j in range(max(0, i - 5), min(n, i + 2)) if j != i]
        rows.append(x[i] * (2 + 5 * x[i] ** 2) + 1 - sum(x[j] * (1 + x[j]) for j in near))
    return rows


def _linear_full_rank(x: Any, _: Any) -> Any:
    m, total = NUM_LINEAR_RESIDUALS, sum(x)
    rest = -2 * total / m - 1
    return [*(xi + rest for xi in x), *(rest for _ in range(m - len(x)))]


def _linear_rank_1(x: Any, _: Any) -> Any:
    total = sum((j + 1) * x[j] for j in range(len(x)))
    return [(i + 1) * total - 1 for i in range(NUM_LINEAR_RESIDUALS)]


def _linear_rank_1_with_zeros(x: Any, _: Any) -> Any:
    total = sum((j + 1) * x[j] for j in range(1, len(x) - 1))
    inner = [i * total - 1 for i in range(1, NUM_LINEAR_RESIDUALS - 1)]
    return [sf.S(-1), *inner, sf.S(-1)]


def _chebyquad(x: Any, _: Any) -> Any:
    n = len(x)
    # Chebyshev polynomials of the interval from 0 to 1, by their recurrence
    before, now = [sf.S(1)] * n, [2 * xj - 1 for xj in x]
    rows = []
    for i in range(1, n + 1):
        integral = 0 if i % 2 == 1 else -1 / (i**2 - 1)
        rows.append(sum(now) / n - integral)
        after = [2 * (2 * xj - 1) * t - s for xj, t, s in zip(x, now, before, strict=True)]
        before, now = now, after
    return rows


def _sized(
    name: str,
    residuals: Residuals,
    n: int,
    start: Callable[[int], float],
    minimum: float = 0.0,
    local_minima: tuple[float, ...] = (),
) -> Problem:
    """A problem of n unknowns; `start` takes the number of an unknown, from 1."""
    starts = (tuple(start(j) for j in range(1, n + 1)),)
    return one_kind(f"{name} {n}", residuals, NONE, starts, minimum, local_minima)


def _watson_problem(n: int, minimum: float) -> Problem:
    times = np.arange(1.0, 30.0)[:, None] / 29
    return one_kind(f"Watson {n}", _watson, times, ((0.0,) * n,), minimum)


def _chebyquad_problem(n: int, minimum: float, local_minima: tuple[float, ...] = ()) -> Problem:
    return _sized("Chebyquad", _chebyquad, n, lambda j: j / (n + 1), minimum, local_minima)


def linear_problems() -> list[Problem]:
    """Functions 32 to 34, solved by one step from anywhere."""
    n, m = 10, NUM_LINEAR_RESIDUALS
    rank_1 = m * (m - 1) / (2 * (2 * m + 1))
    with_zeros = (m**2 + 3 * m - 6) / (2 * (2 * m - 3))
    return [
        _sized("Linear, full rank", _linear_full_rank, n, lambda j: 1.0, float(m - n)),
        _sized("Linear, rank 1", _linear_rank_1, n, lambda j: 1.0, rank_1),
        _sized(
            "Linear, rank 1 with zeros", _linear_rank_1_with_zeros, n, lambda j: 1.0, with_zeros
        ),
    ]


def problems() -> list[Problem]:
    """Functions 20 to 31 and 35, some in several sizes."""
    n = 10
    on_grid = [j / (n + 1) * (j / (n + 1) - 1) for j in range(n + 1)]
    return [
        _watson_problem(6, 2.287670053552e-3),
        _watson_problem(9, 1.39976013809e-6),
        _watson_problem(12, 4.722381102e-10),
        _sized("Extended Rosenbrock", _extended_rosenbrock, n, lambda j: -1.2 if j % 2 else 1.0),
        _sized("Extended Powell", _extended_powell, 12, lambda j: (1.0, 3.0, -1.0, 0.0)[j % 4]),
        _sized("Penalty I", _penalty_1, 4, float, 2.2499775009e-5),
        _sized("Penalty I", _penalty_1, n, float, 7.08765146709e-5),
        _sized("Penalty II", _penalty_2, 4, lambda j: 0.5, 9.376293007355e-6),
        _sized("Penalty II", _penalty_2, n, lambda j: 0.5, 2.936605374567e-4),
        _sized("Variably dimensioned", _variably_dimensioned, n, lambda j: 1 - j / n),
        _sized("Trigonometric", _trigonometric, n, lambda j: 1 / n, 0.0, TRIGONOMETRIC),
        _sized("Brown almost linear", _brown_almost_linear, n, lambda j: 0.5, 0.0, (1.0,)),
        _sized("Discrete boundary value", _discrete_boundary, n, lambda j: on_grid[j]),
        _sized("Discrete integral equation", _discrete_integral, n, lambda j: on_grid[j]),
        _sized("Broyden tridiagonal", _broyden_tridiagonal, n, lambda j: -1.0),
        _sized("Broyden banded", _broyden_banded, n, lambda j: -1.0),
        _chebyquad_problem(7, 0.0),
        _chebyquad_problem(8, 3.516873725678e-3),
        _chebyquad_problem(9, 0.0),
        # The paper gives the minimum that its start leads to, the first of the other two.
        _chebyquad_problem(n, 4.772713696375e-3, (6.503954802979e-3, 9.5006289e-3)),
    ]
