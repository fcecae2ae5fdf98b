"""Plain steps of a system that takes the plans of other structures: bits of a fresh solver."""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.preparation import MAX_KEPT
from tests.solver.lm.test_plain_steps import decay, decays, see, told, views
from tests.solver.solving import assert_same_result


class Knot(sf.V2):
    """A value and a slope."""


@caspar.factor
def follow(
    earlier: Annotated[Knot, caspar.TunableShared],
    later: Annotated[Knot, caspar.TunableShared],
    step: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V2:
    """What one knot says about another."""
    moved = sf.V2(earlier[0] + step[0] * sf.sin(earlier[1]), earlier[1])
    return sf.V2(later[0] - moved[0], 3.0 * (later[1] - moved[1]))


@caspar.factor
def hold(
    knot: Annotated[Knot, caspar.TunableShared], at: Annotated[sf.V2, caspar.ConstSequential]
) -> sf.V2:
    """Where a knot is."""
    return sf.V2(sf.exp(knot[0]) - at[0], knot[1] - at[1])


def knots(pairs: list[tuple[int, int]], count: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    earlier, later = np.array(pairs, dtype=np.int32).T
    return {
        "Knot": 0.3 * rng.normal(size=(count, 2)),
        "follow": {
            "earlier": earlier,
            "later": later,
            "step": rng.uniform(0.5, 1.0, (len(pairs), 1)),
        },
        "hold": {
            "knot": np.arange(count, dtype=np.int32),
            "at": rng.uniform(0.5, 2.0, (count, 2)),
        },
    }


@pytest.fixture
def renewed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether systems took a plan."""
    found: list[bool] = []
    take = NormalEquations.renewed

    def noted(self: NormalEquations, *given: Any) -> bool:
        found.append(take(self, *given))
        return found[-1]

    monkeypatch.setattr(NormalEquations, "renewed", noted)
    return found


def few(arrays: dict[str, Any], name: str, count: int) -> dict[str, Any]:
    """Fewer instances of a factor."""
    return {**arrays, name: {one: rows[:count] for one, rows in arrays[name].items()}}


def check(solver: caspar.Solver, make: Callable[[], caspar.Solver], given: list[Any]) -> None:
    for arrays in given:
        result, fresh = solver.solve(arrays), make().solve(arrays)
        assert told(result) == told(fresh)
        assert_same_result(result, fresh)


@pytest.mark.parametrize("kind", ["curve", "pose"])
def test_of_other_counts(kind: str, renewed: list[bool]) -> None:
    factor, arrays, most = (
        (decay, decays(1, 0.1, 0.1), 60) if kind == "curve" else (see, views(1), 40)
    )
    solver = caspar.Solver(factor, backend="cpu")
    counts = [most - 3 * number for number in range(2 * MAX_KEPT)]
    given = [few(arrays, factor.name, count) for count in counts]
    check(solver, lambda: caspar.Solver(factor, backend="cpu"), [*given, *given[::-1], given[3]])
    assert sum(renewed) > MAX_KEPT


def test_of_full_and_sparse_matrices(renewed: list[bool]) -> None:
    chain = [(number, number + 1) for number in range(5)]
    loops = [(first, later) for later in range(6) for first in range(later)]
    given = [
        knots(pairs, 6, seed)
        for seed, pairs in enumerate(
            [chain, loops, chain[:4], loops[:14], [*chain, (0, 5)], [*loops, (0, 5)], chain, loops]
        )
    ]
    given += [knots(loops[:3], 3, 9), knots(chain[:3], 4, 10), knots(loops[:6], 4, 11)]

    def make() -> caspar.Solver:
        return caspar.Solver([follow, hold], backend="cpu", linear_solver="sparse")

    check(make(), make, [*given, *given[::-1]])
    assert sum(renewed) > MAX_KEPT
