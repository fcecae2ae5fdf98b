"""A success is looked at again: by its own derivatives a node may still promise a lower cost."""

from dataclasses import dataclass
from typing import Annotated, Any, cast

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from caspar.options import BackendName, SolveOptions
from caspar.solver.lm.checks.table import HELD_BACK
from caspar.solver.lm.course import Course
from caspar.solver.lm.minimize import minimize
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.result.result import SolveStatus
from caspar.solver.system.lone_promises import Promises
from tests.solver.lm.scripted import REJECTED, STEP, FakeSystem, steps
from tests.solver.solving import ON_BACKENDS

Numbers = NDArray[np.float64]


@dataclass
class Growth:
    """What a demand for oxygen comes to, and how fast."""

    limit: sf.Scalar
    rate: sf.Scalar


class Sample(sf.V2):
    """Time and height."""


@caspar.factor
def saturation(
    growth: Annotated[Growth, caspar.TunableUnique],
    sample: Annotated[Sample, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1(growth.limit * (1 - sf.exp(-growth.rate * sample[0])) - sample[1])


@caspar.factor
def product(
    growth: Annotated[Growth, caspar.TunableUnique],
    sample: Annotated[Sample, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1(growth.limit * growth.rate * sample[0] - sample[1])


BOX_BOD = [[1.0, 109.0], [2.0, 149.0], [3.0, 149.0], [5.0, 191.0], [7.0, 213.0], [10.0, 224.0]]
"""NIST's BoxBOD: its least sum of squares is 1168.00888."""


@ON_BACKENDS
@pytest.mark.parametrize("start", [(1.0, 0.75), (1.3, 0.75), (10.0, 3.0)])
def test_a_rate_that_has_lost_its_influence(
    start: tuple[float, float], backend: BackendName
) -> None:
    """A step leads to a rate at which the curve is a constant, of a cost of 4,886."""
    solver = caspar.Solver(saturation, backend=backend)
    result = solver.solve({"Growth": [start], "saturation": {"sample": BOX_BOD}})
    assert result.status.is_success
    assert result.final_cost == pytest.approx(0.5 * 1168.0088766, rel=1e-9)
    assert result.remarks == ()


@ON_BACKENDS
@pytest.mark.parametrize("start", [(1.0, 2.0), (1.0, 3.0), (3.0, 3.0)])
def test_a_rate_that_no_step_brings_back(start: tuple[float, float], backend: BackendName) -> None:
    """It says that this is no minimum, or that nothing determines the rate."""
    solver = caspar.Solver(saturation, backend=backend)
    result = solver.solve({"Growth": [start], "saturation": {"sample": BOX_BOD}})
    if result.final_cost > 4885.0:
        said = "do not determine" if result.status.is_success else "Growth 0, rate alone could"
        assert said in " ".join(result.remarks)


@ON_BACKENDS
def test_what_the_residuals_do_not_determine_has_a_remark(backend: BackendName) -> None:
    solver = caspar.Solver(product, backend=backend)
    result = solver.solve({"Growth": [[2.0, 3.0]], "product": {"sample": BOX_BOD}})
    assert result.status.is_success
    (remark,) = result.remarks
    assert "do not determine Growth 0, limit and rate" in remark
    # one of them is held: the other is determined
    fixed = solver.solve(
        {"Growth": [[2.0, 3.0]], "product": {"sample": BOX_BOD}}, fixed={"Growth": [[True, False]]}
    )
    assert fixed.status.is_success
    assert fixed.remarks == ()


# -- what follows from it --------------------------------------------------------------------------

TOLERANCE = 1e-6
LITTLE, MUCH = 0.5 * HELD_BACK * TOLERANCE, 5.0 * HELD_BACK * TOLERANCE
CONVERGING = steps(50.0, 1e-6, 1e-6)
"""Three steps to a cost of 50 that end a solve."""


def looked_at(
    script: Any,
    decrease: float,
    trusted: float,
    rounding: float = 0.0,
    *,
    is_joint: bool = False,
) -> tuple[Course, FakeSystem]:
    """A scripted solve at whose ends a node, or all together, promise a share of a cost of 50."""
    promised = 50.0 * decrease, 50.0 * trusted
    lone = None if is_joint else Promises(*promised, "Growth 0, rate", ())
    system = FakeSystem(100.0, script, lone=lone, promised=promised, rounding=rounding)
    options = SolveOptions(
        max_iterations=len(script),
        gradient_tolerance=0.0,
        cost_tolerance=TOLERANCE,
        max_damping=1e3,
    )
    return minimize(cast(NormalEquations, system), options, None), system


def test_little_promised_is_a_minimum() -> None:
    course, system = looked_at(CONVERGING, LITTLE, LITTLE)
    assert course.status is SolveStatus.CONVERGED_COST
    assert "forget" not in system.calls
    assert len(course.records) == 3


def test_what_rounding_explains_is_a_minimum() -> None:
    course, system = looked_at(CONVERGING, MUCH, MUCH, rounding=60.0 * MUCH)
    assert course.status is SolveStatus.CONVERGED_COST
    assert "forget" not in system.calls


def test_much_promised_goes_on_from_the_first_damping() -> None:
    """And once more where that has gained: the last end has gained nothing since."""
    more = steps(20.0, 1e-6, 1e-6, start=50.0 - 2e-6)
    course, system = looked_at([*CONVERGING, *more, *[REJECTED] * 20], MUCH, LITTLE)
    assert system.calls.count("forget") == 2
    assert [goal.damping for goal in system.goals[:4]][3] == system.goals[0].damping
    linearized = [i for i, call in enumerate(system.calls) if call == "forget"]
    assert all(system.calls[i + 1] == "linearize" for i in linearized)
    assert course.status is SolveStatus.CONVERGED_COST
    assert course.cost == pytest.approx(30.0, rel=1e-6)


@pytest.mark.parametrize("is_trusted", [True, False])
def test_what_no_step_keeps(is_trusted: bool) -> None:
    """The end from which it went on stays, unless the promise is no rounding."""
    script = [*CONVERGING, *[REJECTED] * 20]
    course, system = looked_at(script, MUCH, MUCH if is_trusted else LITTLE)
    assert system.calls.count("forget") == 1
    assert course.is_success is not is_trusted
    assert ("Growth 0, rate alone" in " ".join(course.remarks)) is is_trusted


@pytest.mark.parametrize("is_trusted", [True, False])
def test_what_no_step_keeps_of_all_nodes_together(is_trusted: bool) -> None:
    """As with one: it goes on, and the end is a success only if the directions have no digits."""
    # the confirming step promises something, in vain, and the one after it has more damping
    script = [*CONVERGING[:2], REJECTED, CONVERGING[2], *[REJECTED] * 20]
    trusted = MUCH if is_trusted else LITTLE
    course, system = looked_at(script, MUCH, trusted, is_joint=True)
    assert "lone_promises" not in system.calls
    assert system.calls.count("promise") == 3
    assert system.calls.count("forget") == 2
    assert course.is_success is not is_trusted
    (remark,) = course.remarks
    assert ("no step does" in remark) is is_trusted
    assert course.remaining_decrease == pytest.approx(REJECTED.model_decrease / 50.0)


def test_a_promise_that_is_known_takes_no_other_linear_solve() -> None:
    course, system = looked_at(CONVERGING, MUCH, MUCH, is_joint=True)
    assert course.status is SolveStatus.CONVERGED_COST
    assert "promise" not in system.calls
    assert len(course.records) == 3


@pytest.mark.parametrize("is_trusted", [True, False])
def test_an_end_at_the_same_cost(is_trusted: bool) -> None:
    vain = STEP._replace(cost=50.0 - 2e-6, model_decrease=1e-9)
    course, _ = looked_at([*CONVERGING, *[vain] * 2], MUCH, MUCH if is_trusted else LITTLE)
    wanted = SolveStatus.DAMPING_LIMIT if is_trusted else SolveStatus.CONVERGED_COST
    assert course.status is wanted


@dataclass
class Peak:
    """A bell curve."""

    height: sf.Scalar
    place: sf.Scalar
    width: sf.Scalar


@caspar.factor
def bell(
    peak: Annotated[Peak, caspar.TunableShared],
    sample: Annotated[Sample, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1(peak.height * sf.exp(-(((sample[0] - peak.place) / peak.width) ** 2)) - sample[1])


PLACES = np.linspace(0.1, 8.0, 20)


def peaks(count: int, spread: float, seed: int) -> tuple[Numbers, Numbers]:
    """(count, 3) starts, and (count, 20, 2) noisy samples of a bell each."""
    random = np.random.default_rng(seed)
    true = random.uniform((1.0, 2.0, 0.5), (5.0, 6.0, 2.0), (count, 3))
    heights = true[:, :1] * np.exp(-(((PLACES - true[:, 1:2]) / true[:, 2:]) ** 2))
    heights += random.normal(0.0, 0.02, heights.shape)
    samples = np.stack([np.broadcast_to(PLACES, heights.shape), heights], axis=2)
    return true * np.exp(random.normal(0.0, spread, true.shape)), samples


def fitted_together(starts: Numbers, samples: Numbers, backend: BackendName) -> caspar.SolveResult:
    index = np.repeat(np.arange(len(starts)), len(PLACES))
    return caspar.Solver(bell, backend=backend).solve(
        {"Peak": starts, "bell": {"sample": samples.reshape(-1, 2), "peak": index}}
    )


@pytest.mark.parametrize(("count", "spread", "seed"), [(1000, 0.1, 0), (1000, 0.1, 1)])
def test_many_fits_in_one_solve_are_each_at_a_minimum(count: int, spread: float, seed: int) -> None:
    """Some lose their influence on the way, which a remark says; how many, rounding decides."""
    starts, samples = peaks(count, spread, seed)
    result = fitted_together(starts, samples, "cpu")
    assert result.status.is_success
    assert "do not determine Peak" in " ".join(result.remarks)
    height, place, width = np.asarray(result.values["Peak"]).T[..., None]
    curves = height * np.exp(-(((samples[..., 0] - place) / width) ** 2))
    is_seen = (np.abs(curves) > 1e-6).any(axis=1)
    assert is_seen.sum() > 0.98 * count
    costs = 0.5 * ((curves - samples[..., 1]) ** 2).sum(axis=1)
    # with a damping from the first step on, which leads to no other minimum
    singly = caspar.BatchSolver(bell, backend="cpu").solve(
        {"Peak": result.values["Peak"], "bell": {"sample": samples}}, initial_damping=1e-3
    )
    assert singly.final_cost[is_seen].sum() > 0.999 * costs[is_seen].sum()


@ON_BACKENDS
def test_a_fit_without_influence_does_not_hold_the_others_up(backend: BackendName) -> None:
    """Its peak is narrow and beside all samples: each step threw it far away."""
    starts, samples = peaks(50, 0.05, 3)
    whole = fitted_together(starts, samples, backend)
    starts[17] = 3.0, 60.0, 3.5
    result = fitted_together(starts, samples, backend)
    alone = 0.5 * float((samples[17, :, 1] ** 2).sum())
    assert result.final_cost < alone + 1.01 * whole.final_cost
    moved = np.delete(np.asarray(result.values["Peak"]), 17, axis=0)
    wanted = np.delete(np.asarray(whole.values["Peak"]), 17, axis=0)
    np.testing.assert_allclose(np.abs(moved), np.abs(wanted), rtol=1e-5)


def test_what_is_weak_is_held_once_unless_that_gains() -> None:
    """At the damping limit the solve goes on from the first damping, again after a gain."""
    rejected = [REJECTED._replace(model_decrease=9.0)] * 6
    script = [*rejected, *steps(40.0), rejected[0], *rejected, *rejected]
    system = FakeSystem(100.0, script, weak=(True, True, True))
    options = SolveOptions(max_iterations=len(script), gradient_tolerance=0.0, max_damping=1e3)
    course = minimize(cast(NormalEquations, system), options, None)
    assert course.status is SolveStatus.DAMPING_LIMIT
    assert system.calls.count("hold_weak") == 2
    first = system.goals[0].damping
    assert [goal.damping for goal in system.goals].count(first) == 3
