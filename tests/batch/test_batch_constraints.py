"""Constraints in batches: each problem as a `Solver` with the same constraints solves it alone."""

import copy
import pickle
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import caspar
from benchmarks.constrained_random import (
    Drawn,
    contradicting,
    drawn,
    equation,
    inequality,
    residual,
)
from caspar import SolveStatus
from caspar.batch.constraints.parts import on_device, part_of
from caspar.batch.options import MAX_UNKNOWNS, option_numbers
from caspar.errors import InputError, OptionError
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.batch.batch_cases import decay, views
from tests.batch.batch_cases import near as near_goal
from tests.batch.test_batch_indexed import template
from tests.batch.test_batch_solver import ragged
from tests.covering import first
from tests.harness_backend import HarnessBackend

Floats = NDArray[np.float64]


class Arm(sf.V5):
    """Angles of five joints in the plane."""


class Spot(sf.V2):
    """A place in the plane."""


@caspar.factor
def rest(
    arm: Annotated[Arm, caspar.TunableUnique], angles: Annotated[sf.V5, caspar.ConstUnique]
) -> sf.V5:
    """Joints stay near their rest."""
    return arm - angles


@caspar.constraint(kind="zero")
def hand(
    arm: Annotated[Arm, caspar.TunableUnique], pose: Annotated[sf.V3, caspar.ConstUnique]
) -> sf.V3:
    """The hand is at a place, and points in a direction."""
    x, y, angle = 0, 0, 0
    for joint in arm:
        angle += joint
        x, y = x + sf.cos(angle), y + sf.sin(angle)
    return sf.V3(x, y, angle) - pose


@caspar.constraint(kind="positive")
def folded(
    arm: Annotated[Arm, caspar.TunableUnique], most: Annotated[sf.V1, caspar.ConstUnique]
) -> sf.V2:
    """The first two joints, and the next two, turn by no more than this together."""
    return sf.V2(most[0] - arm[0] - arm[1], most[0] - arm[2] - arm[3])


@caspar.factor
def near(
    spot: Annotated[Spot, caspar.TunableShared], place: Annotated[sf.V2, caspar.ConstSequential]
) -> sf.V2:
    """A measured place."""
    return spot - place


@caspar.constraint(kind="zero")
def rod(
    first: Annotated[Spot, caspar.TunableShared],
    second: Annotated[Spot, caspar.TunableShared],
    length: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    """A distance that is known."""
    return sf.V1((first - second).norm(sf.epsilon()) - length[0])


@caspar.constraint(kind="positive")
def above(
    spot: Annotated[Spot, caspar.TunableShared], least: Annotated[sf.V1, caspar.ConstSequential]
) -> sf.V1:
    """A height that is the least."""
    return sf.V1(spot[1] - least[0])


LIMITS = (np.full(5, 0.0), np.full(5, 0.7))


def hands(angles: Floats) -> Floats:
    """(P, 3) where the hand is."""
    total = np.cumsum(angles, axis=1)
    return np.column_stack([np.cos(total).sum(1), np.sin(total).sum(1), total[:, -1]])


def arms(num_problems: int, seed: int = 0) -> dict[str, Any]:
    """Arms whose hands can be where they have to be, with a rest that may be beyond limits."""
    rng = np.random.default_rng(seed)
    shape = (num_problems, 5)
    goals = hands(rng.uniform(0.1, 0.5, shape))
    angles = rng.uniform(-0.2, 1.0, shape)
    return {"Arm": np.full(shape, 0.4), "rest": {"angles": angles}, "hand": {"pose": goals}}


def webs(num_problems: int, seed: int = 1) -> dict[str, Any]:
    """Four spots with three rods between them, and heights of which some hold them back."""
    rng = np.random.default_rng(seed)
    places = np.array([[0.0, 0.0], [1.0, 0.1], [1.1, 1.0], [0.1, 1.1]])
    places = places + rng.normal(0.0, 0.1, (num_problems, 4, 2))
    lengths = rng.uniform(0.8, 1.2, (num_problems, 3, 1))
    least = places[:, :, 1:] + rng.uniform(-0.6, 0.3, (num_problems, 4, 1))
    return {
        "Spot": places,
        "near": {"spot": np.arange(4)[None], "place": places},
        "rod": {
            "first": np.array([[0, 1, 2]]),
            "second": np.array([[1, 2, 3]]),
            "length": lengths,
        },
        "above": {"spot": np.arange(4)[None], "least": least},
    }


def web_of(arrays: dict[str, Any], number: int) -> dict[str, Any]:
    """One problem of `webs`."""
    own = {
        name: {key: rows[number if len(rows) > 1 else 0] for key, rows in arrays[name].items()}
        for name in ("near", "rod", "above")
    }
    return {"Spot": arrays["Spot"][number], **own}


def test_arms_with_an_exact_hand_within_limits() -> None:
    arrays = arms(40)
    found = caspar.BatchSolver([rest, hand], backend="cpu").solve(arrays, bounds={"Arm": LIMITS})
    solver = caspar.Solver([rest, hand], backend="cpu")
    assert found.is_success.sum() >= 38
    assert np.count_nonzero(found.active_bounds["Arm"]) > 10
    assert found.multipliers["hand"].shape == (40, 1, 3)
    assert found.violation.scaled[found.is_success].max() < 1e-9
    apart = np.abs(hands(found.values["Arm"]) - arrays["hand"]["pose"]).max(axis=1)
    assert_allclose(found.violation.unscaled, apart, atol=1e-14)
    for number in np.flatnonzero(found.is_success):
        single = solver.solve(
            {
                "Arm": arrays["Arm"][number : number + 1],
                "rest": {"angles": arrays["rest"]["angles"][number]},
                "hand": {"pose": arrays["hand"]["pose"][number]},
            },
            bounds={"Arm": LIMITS},
        )
        assert single.status.is_success
        assert_allclose(found.values["Arm"][number], single.values["Arm"][0], atol=1e-6)
        assert_allclose(found.initial_cost[number], single.initial_cost, atol=1e-12)
        assert_allclose(found.final_cost[number], single.final_cost, rtol=1e-7)
        multipliers = single.multipliers["hand"]
        assert_allclose(found.multipliers["hand"][number], multipliers, rtol=1e-4, atol=1e-5)
        assert_array_equal(found.active_bounds["Arm"][number], single.active_bounds["Arm"][0])


def test_rods_and_heights_between_several_nodes() -> None:
    arrays = webs(30)
    batch = caspar.BatchSolver([near, rod, above], backend="cpu")
    found = batch.solve(arrays)
    solver = caspar.Solver([near, rod, above], backend="cpu")
    assert found.is_success.all()
    assert found.violation.scaled.max() < 1e-9
    assert 20 < np.count_nonzero(found.multipliers["above"] > 0.0) < 100
    assert_array_equal(found.num_residuals, 8)
    for number in range(30):
        single = solver.solve(web_of(arrays, number))
        assert_allclose(found.values["Spot"][number], single.values["Spot"], atol=1e-7)
        assert_allclose(found.final_cost[number], single.final_cost, rtol=1e-8)
        assert_allclose(found.initial_cost[number], single.initial_cost, atol=1e-12)
        for name in ("rod", "above"):
            own = single.multipliers[name]
            assert_allclose(found.multipliers[name][number], own, rtol=1e-5, atol=1e-6)
    text = str(found)
    assert "constraints" in text


def as_ragged(arrays: dict[str, Any], keeps: NDArray[np.bool_], seed: int = 0) -> dict[str, Any]:
    """`webs` with the heights that are kept, in any order."""
    problem, number = np.nonzero(keeps)
    order = np.random.default_rng(seed).permutation(len(problem))
    problem, number = problem[order], number[order]
    above = {
        "spot": {"values": number, "problem": problem},
        "least": {"values": arrays["above"]["least"][problem, number], "problem": problem},
    }
    return {**arrays, "above": above}


def test_ragged_constraints() -> None:
    arrays = webs(12)
    keeps = np.random.default_rng(2).uniform(size=(12, 4)) < 0.5
    keeps[3] = False
    ragged = as_ragged(arrays, keeps)
    batch = caspar.BatchSolver([near, rod, above], backend="cpu")
    found = batch.solve(ragged)
    # a height that is far below holds nothing back
    idle = np.where(keeps[:, :, None], arrays["above"]["least"], -100.0)
    equal = batch.solve({**arrays, "above": {**arrays["above"], "least": idle}})
    assert found.is_success.all()
    assert_allclose(found.values["Spot"], equal.values["Spot"], atol=1e-7)
    rows = ragged["above"]["spot"]
    own = equal.multipliers["above"][rows["problem"], rows["values"]]
    assert_allclose(found.multipliers["above"], own, atol=1e-5)
    assert_array_equal(found.num_residuals, 8)


def test_each_problem_is_as_alone() -> None:
    """Bits do not depend on the others, some of which end earlier, later or never."""
    arrays = webs(9)
    held = np.zeros((9, 4), np.bool_)
    held[4] = True
    arrays["near"]["place"][6, 0, 0] = np.nan
    arrays["rod"]["length"][7, 2] = np.nan
    keeps = np.random.default_rng(5).uniform(size=(9, 4)) < 0.7
    batch = caspar.BatchSolver([near, rod, above], backend="cpu")
    found = batch.solve(as_ragged(arrays, keeps), fixed={"Spot": held.ravel()})
    assert found.status[4] is SolveStatus.INFEASIBLE
    assert found.status[6] is SolveStatus.INITIAL_COST_NOT_FINITE
    assert found.status[7] is SolveStatus.INITIAL_COST_NOT_FINITE
    assert np.isnan(found.violation.scaled[7])
    assert (found.violation.constraint[7], found.violation.instance[7]) == ("rod", 2)
    assert np.delete(found.is_success, [4, 6, 7]).all()
    for number in range(9):
        one = {
            name: {
                key: rows[-1:] if len(rows) == 1 else rows[[number]] for key, rows in own.items()
            }
            for name, own in arrays.items()
            if name != "Spot"
        }
        one["Spot"] = arrays["Spot"][[number]]
        arrays_of_one = as_ragged(one, keeps[[number]], seed=number)
        alone = batch.solve(arrays_of_one, fixed={"Spot": held[number]})
        assert alone.status[0] is found.status[number]
        assert_array_equal(alone.values["Spot"][0], found.values["Spot"][number])
        assert alone.iterations[0] == found.iterations[number]


def test_problems_that_contradict_are_named() -> None:
    arrays = webs(10)
    both = {
        name: np.concatenate([rows, rows[:, 1:2]], axis=1) for name, rows in arrays["rod"].items()
    }
    both["length"][3, 3] += 0.5
    batch = caspar.BatchSolver([near, rod, above], backend="cpu")
    found = batch.solve({**arrays, "rod": both})
    assert found.status[3] is SolveStatus.INFEASIBLE
    assert found.violation.constraint[3] == "rod"
    assert found.violation.instance[3] in (1, 3)
    assert found.violation.unscaled[3] == pytest.approx(0.25, rel=0.05)
    others = np.delete(np.arange(10), 3)
    assert found.is_success[others].all()
    plain = batch.solve(arrays)
    assert_allclose(found.values["Spot"][others], plain.values["Spot"][others], atol=1e-7)
    assert "problem 3: rod[" in str(found)


def test_what_is_held_may_contradict() -> None:
    arrays = webs(4)
    held = np.zeros((4, 4), bool)
    held[1, :2] = True
    held[2, 0] = True
    batch = caspar.BatchSolver([near, rod, above], backend="cpu")
    arrays["above"]["least"] -= 10.0
    found = batch.solve(arrays, fixed={"Spot": held.ravel()})
    assert found.status[1] is SolveStatus.INFEASIBLE
    assert (found.violation.constraint[1], found.violation.instance[1]) == ("rod", 0)
    assert found.is_success[[0, 2, 3]].all()
    assert_array_equal(found.values["Spot"][2, 0], arrays["Spot"][2, 0])


def test_hands_out_of_reach() -> None:
    arrays = arms(6)
    arrays["hand"]["pose"][2] = [9.0, 9.0, 1.0]
    found = caspar.BatchSolver([rest, hand], backend="cpu").solve(arrays)
    assert found.status[2] is SolveStatus.INFEASIBLE
    assert np.delete(found.is_success, 2).all()


def test_float32_has_its_own_tolerance() -> None:
    arrays, bounds = webs(10), None
    batch = caspar.BatchSolver([near, rod, above], backend="cpu", precision="float32")
    found = batch.solve(arrays, bounds=bounds)
    exact = caspar.BatchSolver([near, rod, above], backend="cpu").solve(arrays)
    assert found.is_success.all()
    assert found.violation.scaled.max() < 1e-5
    assert_allclose(found.values["Spot"], exact.values["Spot"], atol=1e-3)
    narrow = caspar.BatchSolver([near, rod, above], backend="cpu").solve(
        {**arrays, "Spot": arrays["Spot"].astype(np.float32)}
    )
    assert narrow.is_success.all()
    assert narrow.values["Spot"].dtype == np.float32
    assert 1e-9 < narrow.violation.scaled.max() < 1e-5


@pytest.mark.parametrize("precision", first(1, ["float64", "float32"]))
def test_cuda_text_gives_the_same(precision: Any) -> None:
    arrays = arms(6)
    arrays["folded"] = {"most": np.array([[1.05]])}
    cpu, cuda = (
        caspar.BatchSolver([rest, hand, folded], backend=backend, precision=precision).solve(
            arrays, bounds={"Arm": LIMITS}
        )
        for backend in ("cpu", HarnessBackend())
    )
    assert_array_equal(cuda.is_success, cpu.is_success)
    assert cpu.is_success.all()
    close = 1e-6 if precision == "float64" else 1e-2
    assert_allclose(cuda.values["Arm"], cpu.values["Arm"], atol=close)


def test_kernels_compile_for_cuda() -> None:
    solver: Any = caspar.BatchSolver([near, rod, above], backend=HarnessBackend())
    compiled = compile_text(solver.source(webs(3)), "sm_90")
    assert compiled.warnings == ()
    seen = caspar.BatchSolver([near, rod, above], backend="cpu").inspect(webs(3), target="cuda")
    assert "rod score" in seen


def test_limits_of_iterations() -> None:
    arrays = webs(10)
    batch = caspar.BatchSolver([near, rod, above], backend="cpu")
    free = batch.solve(arrays)
    most = int(np.median(free.iterations))
    found = batch.solve(arrays, max_iterations=most)
    assert (found.iterations <= most).all()
    assert found.is_success[free.iterations <= most].all()
    assert found.violation.scaled[found.is_success].max() < 1e-8
    short = batch.solve(arrays, max_iterations=most // 3)
    assert (short.status == SolveStatus.ITERATION_LIMIT).all()
    assert (short.iterations <= most // 3).all()
    # the last solve is for more digits than the tolerance asks for
    nearly = batch.solve(arrays, max_iterations=int(free.iterations.max()) - 1)
    assert nearly.is_success.all()
    assert nearly.violation.scaled.max() < 1e-8
    loose = batch.solve(arrays, constraint_tolerance=1e-3)
    assert loose.is_success.all()
    assert (loose.iterations <= free.iterations).all()
    assert loose.iterations.sum() < free.iterations.sum()


def test_constraints_without_instances_and_alone() -> None:
    arrays = webs(3)
    empty = {name: rows[:, :0] for name, rows in arrays["above"].items()}
    batch = caspar.BatchSolver([near, rod, above], backend="cpu")
    found = batch.solve({**arrays, "above": empty})
    assert found.is_success.all()
    assert found.multipliers["above"].shape == (3, 0, 1)
    alone = caspar.BatchSolver([rod, above], backend="cpu")
    own = {name: arrays[name] for name in ("Spot", "rod", "above")}
    found = alone.solve(own)
    assert found.is_success.all()
    assert_allclose(found.final_cost, 0.0, atol=1e-12)
    assert_array_equal(found.num_residuals, 0)
    holding = caspar.BatchSolver(above, backend="cpu")
    least = np.full((3, 4, 1), -100.0)
    idle = holding.solve({"Spot": arrays["Spot"], "above": {**own["above"], "least": least}})
    assert idle.is_success.all()
    none = batch.solve(
        {
            "Spot": arrays["Spot"][:0],
            "near": {"spot": np.zeros((1, 4), int), "place": np.zeros((0, 4, 2))},
            "rod": {**arrays["rod"], "length": np.zeros((0, 3, 1))},
            "above": {**arrays["above"], "least": np.zeros((0, 4, 1))},
        }
    )
    assert none.num_problems == 0


def test_what_is_not_taken_is_named() -> None:
    arrays = webs(2)
    batch = caspar.BatchSolver([near, rod, above], backend="cpu")
    found = batch.solve(arrays)
    with pytest.raises(InputError, match="needs the result of its solve"):
        batch.gradient({**arrays, **found.values}, {"Spot": np.ones((2, 4, 2))})
    with pytest.raises(InputError, match="constraint rod: 'weight' is given"):
        batch.solve({**arrays, "rod": {**arrays["rod"], "weight": np.ones((2, 3))}})
    plain = caspar.BatchSolver(near, backend="cpu")
    own = {name: arrays[name] for name in ("Spot", "near")}
    with pytest.raises(OptionError, match="has no constraints"):
        plain.solve(own, constraint_tolerance=1e-6)
    assert_array_equal(plain.solve(own).violation.scaled, np.zeros(2))
    with pytest.MonkeyPatch.context() as small:
        small.setitem(MAX_UNKNOWNS, "cpu", 7)
        with pytest.raises(InputError, match="constraints: a problem has 8 unknowns"):
            batch.solve(arrays)


def test_parts_of_a_batch_are_solved_as_the_whole() -> None:
    """Values of each problem and of all, nodes by index, ragged rows, weights, what is held."""
    arrays, _, _ = ragged([7, 5, 30, 4, 6, 12])
    arrays["decay"]["weight"] = {**arrays["decay"]["time"]}
    arrays["near"] = {"goal": np.array([[2.0, 1.0, 0.0]])}
    solver: Any = caspar.BatchSolver([decay, near_goal], backend="cpu")
    held = {"Curve": np.arange(6) == 3}
    bounds = {"Curve": (np.linspace(0.0, 1.2, 6)[:, None] * np.ones(3), None)}
    arrays["Curve"] = np.full((6, 3), 1.3)
    _compare_parts(solver, arrays, held, bounds)
    start, points, pixels = views(6)
    problem, number = np.nonzero(np.random.default_rng(1).uniform(size=points.shape[:2]) < 0.8)
    rows = {"values": problem * points.shape[1] + number, "problem": problem}
    given = {
        "point": {"values": points.reshape(1, -1, 3), "index": rows},
        "pixel": {"values": pixels[problem, number], "problem": problem},
    }
    indexed: Any = caspar.BatchSolver(template, backend="cpu")
    _compare_parts(indexed, {"Camera": start, "template": given})
    given = {
        "point": {"values": points, "index": np.arange(points.shape[1])[None]},
        "pixel": pixels,
    }
    _compare_parts(indexed, {"Camera": start, "template": given})


def _compare_parts(solver: Any, arrays: Any, fixed: Any = None, bounds: Any = None) -> None:
    whole = solver.solve(arrays, fixed=fixed, bounds=bounds)
    batch = on_device(solver._read(arrays, fixed, bounds, check=True), solver.backend)
    part = part_of(batch, solver.backend, np.array([1, 3, 4]))
    kernel = solver._kernels.solving(part.shape)
    numbers = option_numbers(caspar.SolveOptions(), part.shape)
    run = solver._kernels.run(kernel, part, numbers)
    run.launch()
    (name,) = whole.values
    assert_array_equal(run.ends[0], whole.values[name][[1, 3, 4]])
    assert_array_equal(run.outputs["final"], whole.final_cost[[1, 3, 4]])


def batched(problems: list[Drawn]) -> dict[str, Any]:
    """Random problems, each with its own number of constraints, as a batch."""
    arrays: dict[str, Any] = {"Values": np.array([one.start for one in problems])}
    for name in ("residual", "equation", "inequality"):
        parts = [one.arrays[name] for one in problems]
        problem = np.repeat(np.arange(len(parts)), [len(one["ends"]) for one in parts])
        arrays[name] = {
            key: {"values": np.concatenate([one[key] for one in parts]), "problem": problem}
            for key in parts[0]
        }
    return arrays


def test_random_problems() -> None:
    """Those that can be met are, at the minimum of a `Solver`; none of the others is a success."""
    batch = caspar.BatchSolver([residual, equation, inequality], backend="cpu")
    problems = [drawn(seed) for seed in range(40)]
    found = batch.solve(batched(problems))
    assert found.is_success.all()
    for problem, values in zip(problems, found.values["Values"], strict=True):
        assert problem.violation(values) < 1e-6
    solver = caspar.Solver([residual, equation, inequality], backend="cpu")
    for number in range(8):
        single = solver.solve(problems[number].arrays)
        assert found.final_cost[number] == pytest.approx(single.final_cost, rel=1e-6)
    failed = batch.solve(batched([contradicting(seed) for seed in range(40)]))
    assert (failed.status == SolveStatus.INFEASIBLE).all()


def test_copies() -> None:
    arrays = webs(2)
    batch = caspar.BatchSolver([near, rod, above], backend="cpu")
    found = batch.solve(arrays)
    again = copy.copy(batch).solve(arrays)
    assert_array_equal(again.values["Spot"], found.values["Spot"])
    kept = pickle.loads(pickle.dumps(found))
    assert_array_equal(kept.multipliers["rod"], found.multipliers["rod"])
    assert_array_equal(kept.violation.constraint, found.violation.constraint)
