"""`BatchSolver`: each problem as a `Solver` alone would solve it, here and in CUDA C."""

import copy
import pickle
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.errors import InputError
from caspar.solver.result.result import SolveStatus
from tests.batch.batch_cases import (
    CASES,
    Case,
    Curve,
    cameras,
    curves,
    decay,
    near,
    paths,
    reprojection,
    views,
)
from tests.covering import usual
from tests.harness_backend import HarnessBackend

FLAT = 3e-8
"""How far apart values of the same minimum are: the last step is taken or not by a rounding of the
cost, which tells values only to the root of its own precision."""


def solved(case: Case, **choices: Any) -> caspar.BatchResult:
    """The batch of a case."""
    solver = caspar.BatchSolver(case.factors, **{"backend": "cpu", **choices})
    return solver.solve(case.arrays, fixed=case.fixed)


@pytest.mark.parametrize("name", CASES)
def test_as_solved_one_by_one(name: str) -> None:
    case = CASES[name]()
    result = solved(case)
    solver = caspar.Solver(case.factors, backend="cpu", precision="float64")
    assert result.num_problems == case.num_problems
    for number in range(case.num_problems):
        fixed = None if case.single_fixed is None else case.single_fixed(number)
        single = solver.solve(case.single(number), fixed=fixed)
        assert result.status[number].is_success
        assert single.status.is_success
        assert_allclose(result.initial_cost[number], single.initial_cost, rtol=1e-13)
        assert_allclose(result.final_cost[number], single.final_cost, rtol=1e-12)
        assert result.num_residuals[number] == single.problem.num_residuals
        for node, values in single.values.items():
            assert_allclose(
                result.values[node][number].reshape(values.shape), values, rtol=0, atol=FLAT
            )


@pytest.mark.parametrize(
    ("name", "precision"),
    usual([("triangles", "float32"), ("cameras", "float64")], CASES, ["float32", "float64"]),
)
def test_cuda_text_gives_the_same(name: str, precision: str) -> None:
    case = CASES[name]()
    result = solved(case, precision=precision)
    other = solved(case, precision=precision, backend=HarnessBackend())
    assert_array_equal(other.status_codes, result.status_codes)
    tolerance = 1e-9 if precision == "float64" else 1e-4
    for node, values in result.values.items():
        assert_allclose(other.values[node], values, rtol=tolerance, atol=tolerance)
    assert_allclose(other.final_cost, result.final_cost, rtol=tolerance)


def test_held_parts_keep_their_bits() -> None:
    case = paths()
    result = solved(case)
    assert_array_equal(result.values["Place"][:, 0], case.arrays["Place"][:, 0])
    assert (result.values["Place"][:, 1:] != case.arrays["Place"][:, 1:]).all()


def ragged(lengths: list[int], seed: int = 5) -> tuple[dict[str, Any], list[Any], np.ndarray]:
    """Curves with different numbers of samples, shuffled; and the samples of each."""
    rng = np.random.default_rng(seed)
    samples = []
    for length in lengths:
        time = np.sort(rng.uniform(0.0, 4.0, length))
        value = 3.0 * np.exp(-time) + 0.5 + rng.normal(0.0, 0.02, length)
        samples.append((time, value))
    problem = np.repeat(np.arange(len(lengths)), lengths)
    order = rng.permutation(len(problem))
    time = np.concatenate([one[0] for one in samples])[order]
    value = np.concatenate([one[1] for one in samples])[order]
    arrays = {
        "Curve": np.tile([2.0, 1.2, 0.3], (len(lengths), 1)),
        "decay": {
            "time": {"values": time, "problem": problem[order]},
            "value": {"values": value, "problem": problem[order]},
        },
    }
    return arrays, samples, order


def test_ragged_problems_in_any_order() -> None:
    lengths = [7, 0, 30, 4, 1, 12, 0]
    arrays, samples, _ = ragged(lengths)
    result = caspar.BatchSolver(decay, backend="cpu").solve(arrays)
    assert_array_equal(result.num_residuals, lengths)
    assert_array_equal(result.status == SolveStatus.NO_RESIDUALS, np.array(lengths) == 0)
    assert_array_equal(result.iterations[np.array(lengths) == 0], 0)
    assert_array_equal(result.values["Curve"][[1, 6]], arrays["Curve"][[1, 6]])
    solver = caspar.Solver([decay], backend="cpu")
    for number, (time, value) in enumerate(samples):
        if len(time) < 3:
            continue
        single = solver.solve(
            {"Curve": arrays["Curve"][:1], "decay": {"time": time, "value": value}}
        )
        assert_allclose(result.final_cost[number], single.final_cost, rtol=1e-9, atol=1e-25)
        assert_allclose(result.values["Curve"][number], single.values["Curve"][0], atol=FLAT)


def test_one_bad_problem_leaves_the_others_alone() -> None:
    case = curves(num_problems=20)
    good = solved(case)
    start, value = case.arrays["Curve"].copy(), case.arrays["decay"]["value"].copy()
    start[3] = np.nan
    value[7, 2] = np.inf
    start[11] = [1.0, -1e4, 0.0]  # overflows
    arrays = {**case.arrays, "Curve": start, "decay": {**case.arrays["decay"], "value": value}}
    result = caspar.BatchSolver(case.factors, backend="cpu").solve(arrays)
    bad = np.isin(np.arange(20), [3, 7, 11])
    assert_array_equal(result.status == SolveStatus.INITIAL_COST_NOT_FINITE, bad)
    assert_array_equal(result.values["Curve"][~bad], good.values["Curve"][~bad])
    assert_array_equal(result.values["Curve"][bad], start[bad])
    assert_array_equal(result.iterations[bad], 0)
    assert_array_equal(result.is_success, ~bad)
    assert result.counts[SolveStatus.INITIAL_COST_NOT_FINITE] == 3
    assert "3  INITIAL_COST_NOT_FINITE" in str(result)


@caspar.factor
def rooted(
    curve: Annotated[Curve, caspar.TunableUnique],
    goal: Annotated[sf.V3, caspar.ConstUnique],
) -> sf.V3:
    """A root whose slope is infinite where the goal is 0."""
    return sf.V3(sf.sqrt(curve[0]) - goal[0], curve[1] - goal[1], curve[2] - goal[2])


def test_each_problem_has_its_own_word() -> None:
    start = np.array([[1.0, 1.0, 1.0], [0.0, 1.0, 1.0], [4.0, 0.0, 0.0], [1e-3, 5.0, 1.0]])
    goal = np.array([[2.0, 1.0, 1.0], [2.0, 1.0, 1.0], [2.0, 0.0, 0.0], [9.0, 2.0, 1.0]])
    solver = caspar.BatchSolver(rooted, backend="cpu")
    result = solver.solve({"Curve": start, "rooted": {"goal": goal}})
    assert result.status[0].is_success
    assert result.status[1] is SolveStatus.DERIVATIVES_NOT_FINITE
    assert result.status[2] is SolveStatus.CONVERGED_GRADIENT
    assert result.iterations[2] == 1
    assert_allclose(result.values["Curve"][[0, 3]], [[4.0, 1.0, 1.0], [81.0, 2.0, 1.0]])
    limited = solver.solve({"Curve": start, "rooted": {"goal": goal}}, max_iterations=1)
    assert limited.status[3] is SolveStatus.ITERATION_LIMIT
    assert_array_equal(limited.iterations, 1)


def test_measurements_without_noise_end_at_zero() -> None:
    """The cost falls to what rounding leaves: the kernel asks what a rounding changes."""
    time = np.linspace(0.0, 3.0, 9)
    true = np.random.default_rng(3).uniform([1.0, 0.5, -1.0], [4.0, 2.0, 1.0], (30, 3))
    value = true[:, :1] * np.exp(-true[:, 1:2] * time) + true[:, 2:]
    arrays = {
        "Curve": np.tile([2.0, 1.0, 0.0], (30, 1)),
        "decay": {"time": time[None], "value": value},
    }
    result = caspar.BatchSolver(decay, backend="cpu").solve(arrays)
    assert result.is_success.all()
    assert_allclose(result.values["Curve"], true, rtol=1e-9, atol=1e-9)
    assert (result.iterations < 30).all()


def test_weights_and_losses() -> None:
    start, points, pixels = views()
    pixels = pixels.copy()
    pixels[:, 0] += 80.0  # an outlier each
    weight = np.ones(pixels.shape[:2])
    weight[:, 0] = 0.0
    weight[:, 1] = 2.0
    weighted = {"point": points, "pixel": pixels, "weight": weight}
    solver = caspar.BatchSolver(reprojection, backend="cpu")
    result = solver.solve({"Camera": start, "reprojection": weighted})
    assert_array_equal(result.num_residuals, 2 * (points.shape[1] - 1))
    robust = reprojection.with_loss(caspar.loss.Cauchy)
    shared = np.zeros(points.shape[1], np.int32)
    single = caspar.Solver([reprojection], backend="cpu", precision="float64")
    for factor, given in ((reprojection, weighted), (robust, {**weighted, "loss_scale": 2.0})):
        batch = caspar.BatchSolver(factor, backend="cpu")
        result = batch.solve({"Camera": start, "reprojection": given})
        single = caspar.Solver([factor], backend="cpu", precision="float64")
        for number in range(0, len(start), 4):
            own = {
                name: value[number] if isinstance(value, np.ndarray) else value
                for name, value in given.items()
            }
            one = single.solve(
                {
                    "Camera": start[number : number + 1],
                    "reprojection": {"camera": shared, **own},
                }
            )
            assert_allclose(result.final_cost[number], one.final_cost, rtol=1e-9)
            assert_allclose(result.values["Camera"][number], one.values["Camera"][0], atol=1e-6)


def test_float32_gives_back_what_was_given() -> None:
    case = curves()
    result = solved(case, precision="float32")
    assert result.precision == "float32"
    assert result.values["Curve"].dtype == np.float64
    assert_allclose(result.values["Curve"], solved(case).values["Curve"], rtol=2e-3, atol=2e-3)
    narrow = {**case.arrays, "Curve": case.arrays["Curve"].astype(np.float32)}
    solver = caspar.BatchSolver(case.factors, backend="cpu", precision="float32")
    assert solver.solve(narrow).values["Curve"].dtype == np.float32


def test_a_batch_of_none() -> None:
    case = curves(num_problems=3)
    arrays = {
        "Curve": np.empty((0, 3)),
        "decay": {"time": np.linspace(0, 1, 5)[None], "value": np.empty((0, 5))},
        "near": {"goal": np.zeros((1, 3))},
    }
    result = caspar.BatchSolver(case.factors, backend="cpu").solve(arrays)
    assert result.num_problems == 0
    assert result.values["Curve"].shape == (0, 3)
    assert result.counts == {}


def test_torch_tensors_come_back_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    case = cameras()
    arrays = {
        "Camera": torch.from_numpy(case.arrays["Camera"]),
        "reprojection": {
            name: torch.from_numpy(value) for name, value in case.arrays["reprojection"].items()
        },
    }
    result = caspar.BatchSolver(case.factors, backend="cpu").solve(arrays)
    assert isinstance(result.values["Camera"], torch.Tensor)
    assert isinstance(result.final_cost, torch.Tensor)
    assert_array_equal(result.values["Camera"].numpy(), solved(case).values["Camera"])
    assert result.is_success.all()


def test_copies_and_pickles_solve_the_same() -> None:
    case = curves(num_problems=4)
    solver = caspar.BatchSolver(case.factors, backend="cpu")
    expected = solver.solve(case.arrays).values["Curve"]
    for other in (copy.copy(solver), copy.deepcopy(solver), pickle.loads(pickle.dumps(solver))):
        assert_array_equal(other.solve(case.arrays).values["Curve"], expected)
    assert repr(solver) == (
        "BatchSolver(factors: decay, near; node types: Curve; cpu, float64 precision)"
    )
    with pytest.raises(pickle.PicklingError, match="belongs to its process"):
        pickle.dumps(caspar.BatchSolver([near], backend=HarnessBackend()))


def test_the_kernel_can_be_read() -> None:
    case = curves(num_problems=4)
    text = caspar.BatchSolver(case.factors, backend="cpu").source(case.arrays)
    assert "def solve_problems(table, tile):" in text
    assert "# Cholesky" in text
    cuda = caspar.BatchSolver(case.factors, backend=HarnessBackend()).source(case.arrays)
    assert 'extern "C" __global__' in cuda


@dataclass
class Peak:
    height: sf.Scalar
    centre: sf.V2


@caspar.factor
def bump(
    peak: Annotated[Peak, caspar.TunableUnique],
    place: Annotated[sf.V2, caspar.ConstSequential],
    value: Annotated[sf.Scalar, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1(peak.height * sf.exp(-(place - peak.centre).squared_norm()) - value)


def test_values_by_fields() -> None:
    places = np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.5], [-0.5, -0.5]])
    true = np.array([[1.0, 0.1, -0.1], [2.0, 0.0, 0.2]])
    squares = ((places[None] - true[:, None, 1:]) ** 2).sum(axis=2)
    fits = caspar.BatchSolver(bump, backend="cpu").solve(
        {
            "Peak": np.tile([1.5, 0.0, 0.0], (2, 1)),
            "bump": {"place": places[None], "value": true[:, :1] * np.exp(-squares)},
        }
    )
    found = fits.values_of("Peak")
    assert list(found) == ["height", "centre"]
    np.testing.assert_allclose(found["height"], true[:, 0], rtol=1e-6)
    np.testing.assert_allclose(found["centre"], true[:, 1:], atol=1e-6)
    with pytest.raises(InputError, match="'Top' is no node type; these are Peak"):
        fits.values_of("Top")
