"""When a factorisation takes over from conjugate gradients in the middle of a solve."""

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

import caspar
from benchmarks.synthetic import make_bal
from caspar.bundle_adjustment import snavely
from caspar.errors import OutOfMemoryError
from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.linear.method import (
    COMPILE_S,
    MAX_LIMITED,
    MIN_LIMIT,
    HandOver,
    LinearSolver,
    Replacement,
    Seconds,
)


@dataclass
class Named:
    """A linear solver that solves nothing."""

    name: str
    remarks: tuple[str, ...] = ()
    num_bytes: int = 1


PCG, FACTORISED = Named("schur_pcg", ("first",), 10), Named("sparse", ("second",), 200)


def watch(
    *,
    step_s: float = 1e-3,
    setup_s: float = 0.0,
    least_setup_s: float = 0.0,
    made: Any = FACTORISED,
) -> HandOver:
    """Of PCG that takes a millisecond an iteration."""
    seconds = Seconds(step_s, setup_s)
    replacement = Replacement(1e-3, least_setup_s, lambda: seconds, lambda: made)
    return HandOver(cast(LinearSolver, PCG), replacement)


def takes_over(hand_over: HandOver, *iterations: int, limit: int = 200) -> bool:
    """Whether the solver changes behind some linear solves."""
    for number in iterations:
        hand_over.count(number, limit, is_limited=number == limit)
    return hand_over.take_over()


def test_nothing_happens_while_pcg_is_quick() -> None:
    def fail() -> Seconds:
        raise AssertionError("nobody should ask")

    replacement = Replacement(1e-3, 0.3, fail, lambda: None)
    hand_over = HandOver(cast(LinearSolver, PCG), replacement)
    assert not hand_over.take_over()
    assert not takes_over(hand_over, 100, 100, 99, limit=100)  # 0.299 s, twice at the limit
    hand_over.begin()
    assert not takes_over(hand_over, *[MIN_LIMIT - 1] * 100)
    assert not takes_over(HandOver(cast(LinearSolver, PCG)), 200, 200, 200)


def test_solves_that_reach_the_limit() -> None:
    hand_over = watch()
    assert not takes_over(hand_over, 12, 200)
    assert not takes_over(hand_over, 12)
    assert MAX_LIMITED == 2
    assert (hand_over.remarks, hand_over.num_bytes) == (("first",), 10)
    assert takes_over(hand_over, 200)
    assert not hand_over.take_over()
    assert hand_over.current is cast(LinearSolver, FACTORISED)
    assert hand_over.remarks[:2] == ("first", "second")
    assert (
        "2 of 4 linear solves by PCG stopped at max_linear_iterations=200" in (hand_over.remarks[2])
    )
    assert hand_over.num_bytes == 210
    # the next solve begins by PCG again
    hand_over.begin()
    assert hand_over.current is cast(LinearSolver, PCG)
    assert hand_over.remarks == ("first",)
    assert not hand_over.take_over()
    assert takes_over(hand_over, 200, 200)


def test_a_low_limit_is_what_the_user_wants() -> None:
    assert not takes_over(watch(), *[MIN_LIMIT - 1] * 9, limit=MIN_LIMIT - 1)


def test_a_solve_that_may_end_soon_does_not_pay_for_both() -> None:
    """PCG goes on until it has taken as long as setting up a factorisation: 0.7 s."""
    for hand_over in (watch(setup_s=0.7), watch(least_setup_s=0.7)):
        assert not takes_over(hand_over, 200, 200, 200)
        assert takes_over(hand_over, 200)


@pytest.mark.parametrize(("step_s", "pays"), [(0.59, True), (0.61, False), (math.inf, False)])
def test_a_matrix_that_takes_too_long(step_s: float, pays: bool) -> None:
    """PCG up to its limit takes 0.2 s."""
    assert takes_over(watch(step_s=step_s), 200, 200) == pays


def test_pcg_that_takes_longer_than_a_factorisation_by_more_than_that_costs() -> None:
    """100 iterations are 0.1 s, and a step by the factorisation 0.05."""
    setup_s = 0.52
    hand_over = watch(step_s=0.05, setup_s=setup_s)
    number = 0
    while not takes_over(hand_over, 100):
        number += 1
        assert number < 100
    assert 0.05 * number <= setup_s + COMPILE_S < 0.05 * (number + 1)
    assert "PCG took 100 iterations a step" in hand_over.remarks[-1]


def test_what_cannot_be_made_is_not_asked_for_again() -> None:
    calls = []

    seconds = Seconds(1e-3, 0.0)
    replacement = Replacement(1e-3, 0.0, lambda: seconds, lambda: calls.append(1))
    hand_over = HandOver(cast(LinearSolver, PCG), replacement)
    assert not takes_over(hand_over, 200, 200)
    assert not takes_over(hand_over, 200, 200)
    assert len(calls) == 1
    assert (hand_over.remarks, hand_over.num_bytes) == (("first",), 10)


# -- in a solve ------------------------------------------------------------------------------------


def loose_street() -> dict[str, Any]:
    made = make_bal(60, 40 * 60, 100 * 60, "street", start_error=8.0)
    return {
        "Cam": made.cameras,
        "Point": made.points,
        "snavely": {"cam": made.camera_index, "point": made.point_index, "pixel": made.pixels},
    }


OPTIONS: dict[str, Any] = {"max_linear_iterations": MIN_LIMIT, "max_iterations": 25}


def test_a_street_that_is_hardly_held_together() -> None:
    arrays = loose_street()
    solver = caspar.Solver([snavely], backend="cpu")
    result = solver.solve(arrays, **OPTIONS)
    iterations = [record.linear_iterations for record in result.iterations]
    first = iterations.index(1)
    assert sum(number == MIN_LIMIT for number in iterations[:first]) == MAX_LIMITED
    assert iterations[first - 1] == MIN_LIMIT
    assert set(iterations[first:]) == {1}
    assert result.linear_solver in ("sparse", "schur_dense")
    (remark,) = [text for text in result.remarks if "took over" in text]
    assert f"max_linear_iterations={MIN_LIMIT}" in remark
    assert f"linear_solver={result.linear_solver!r}" in remark
    # equal input gives equal bits: the next solve begins by PCG too
    again = solver.solve(arrays, **OPTIONS)
    assert [record.linear_iterations for record in again.iterations] == iterations
    np.testing.assert_array_equal(again.values["Cam"], result.values["Cam"])
    gradients = caspar.Solver([snavely], backend="cpu", linear_solver="schur_pcg")
    other = gradients.solve(arrays, **OPTIONS)
    assert result.final_cost < other.final_cost * (1.0 + 1e-9)
    assert not any("took over" in text for text in other.remarks)
    assert any("linear_solver='sparse'" in text for text in other.remarks)
    assert not any("chains" in text for text in other.remarks)


@pytest.mark.parametrize("eliminate", [("Point",), None])
def test_what_a_pinned_solver_may_need_is_compiled_beforehand(
    monkeypatch: pytest.MonkeyPatch, eliminate: tuple[str, ...] | None
) -> None:
    loaded: list[str] = []
    load = CpuBackend.load

    def counted(backend: CpuBackend, sources: Any, *options: Any, **more: Any) -> Any:
        loaded.extend(source.name for source in sources)
        return load(backend, sources, *options, **more)

    monkeypatch.setattr(CpuBackend, "load", counted)
    solver = caspar.Solver([snavely], backend="cpu", eliminate=eliminate)
    solver.compile()
    loaded.clear()
    result = solver.solve(loose_street(), **OPTIONS)
    assert any("took over" in text for text in result.remarks)
    compiled_late = any(name.startswith("fill") for name in loaded)
    assert compiled_late == (eliminate is None)


def test_a_matrix_without_memory_leaves_the_solve_to_pcg(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OutOfMemoryError("no memory")

    monkeypatch.setattr(CpuBackend, "dense_factorization", refuse)
    monkeypatch.setattr(CpuBackend, "sparse_factorization", refuse)
    result = caspar.Solver([snavely], backend="cpu").solve(loose_street(), **OPTIONS)
    assert result.linear_solver == "schur_pcg"
    assert not any("took over" in text for text in result.remarks)
