"""Gradients through batches against those of single problems."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.errors import InputError


class Wave(sf.V3):
    """Height, frequency and phase."""


class Knot(sf.V2):
    """A place in the plane, several in a problem."""


@caspar.factor
def sample(
    wave: Annotated[Wave, caspar.TunableUnique],
    x: Annotated[sf.V1, caspar.ConstSequential],
    y: Annotated[sf.V1, caspar.ConstSequential],
    sigma: Annotated[sf.V1, caspar.ConstUnique],
) -> sf.V1:
    """A sample of a wave."""
    return sf.V1((wave[0] * sf.sin(wave[1] * x[0] + wave[2]) - y[0]) / sigma[0])


@caspar.factor
def usual(
    wave: Annotated[Wave, caspar.TunableUnique], expected: Annotated[Wave, caspar.ConstUnique]
) -> sf.V3:
    """What waves are like."""
    return 0.5 * (wave - expected)


@caspar.factor
def link(
    knots: Annotated[caspar.Pair[Knot], caspar.TunablePair],
    measured: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A step from a knot to the next."""
    first, second = knots
    return second - first - measured


@caspar.factor
def nail(
    knot: Annotated[Knot, caspar.TunableShared], at: Annotated[sf.V2, caspar.ConstSequential]
) -> sf.V2:
    """A knot is somewhere."""
    return sf.V2((knot[0] - at[0]) + 0.1 * knot[1] ** 2, knot[1] - at[1])


NUM = 4
SAMPLES = 9
FACTORS = [sample.with_loss(caspar.loss.Cauchy), usual]


def waves(rng: np.random.Generator) -> dict[str, Any]:
    """Samples of waves with noise; x and sigma are the same for all problems."""
    x = np.linspace(0.0, 4.0, SAMPLES)
    y = 2.0 * np.sin(1.3 * x + 0.2) + 0.1 * rng.normal(size=(NUM, SAMPLES))
    return {
        "Wave": np.tile([2.1, 1.25, 0.3], (NUM, 1)),
        "sample": {
            "x": x[None],
            "y": y,
            "sigma": np.full((1, 1), 0.3),
            "weight": rng.uniform(0.5, 2.0, (NUM, SAMPLES)),
            "loss_scale": 1.5,
        },
        "usual": {"expected": np.tile([2.0, 1.3, 0.2], (NUM, 1))},
    }


def single(arrays: dict[str, Any], problem: int) -> dict[str, Any]:
    """One problem of `waves`."""
    given = arrays["sample"]
    return {
        "Wave": arrays["Wave"][problem : problem + 1],
        "sample": {
            "x": given["x"][0],
            "y": given["y"][problem],
            "sigma": given["sigma"][0],
            "weight": given["weight"][problem],
            "loss_scale": given["loss_scale"],
        },
        "usual": {"expected": arrays["usual"]["expected"][problem]},
    }


def test_gradients_are_those_of_single_problems() -> None:
    rng = np.random.default_rng(0)
    arrays, cotangents = waves(rng), rng.normal(size=(NUM, 3))
    batch = caspar.BatchSolver(FACTORS, backend="cpu")
    result = batch.solve(arrays, fixed={"Wave": np.array([[False, False, True]] * NUM)})
    found = batch.gradient(result, {"Wave": cotangents})
    assert found.remarks == ()
    solver = caspar.Solver(FACTORS, backend="cpu")
    sums: dict[str, Any] = {"x": 0.0, "sigma": 0.0, "loss_scale": 0.0}
    for problem in range(NUM):
        own = {**single(arrays, problem), "Wave": result.values["Wave"][problem : problem + 1]}
        fixed = {"Wave": np.array([[False, False, True]])}
        one = solver.gradient(own, {"Wave": cotangents[problem : problem + 1]}, fixed=fixed)
        for name in ("y", "weight"):
            np.testing.assert_allclose(
                found["sample"][name][problem], one["sample"][name], atol=1e-12
            )
        expected = one["usual"]["expected"]
        np.testing.assert_allclose(found["usual"]["expected"][problem], expected, atol=1e-12)
        np.testing.assert_allclose(found["Wave"][problem], one["Wave"][0], atol=1e-12)
        sums = {name: total + one["sample"][name] for name, total in sums.items()}
    assert found["Wave"][:, 2].all()
    assert not found["Wave"][:, :2].any()
    # what is the same for all problems gets the derivatives of all
    for name, total in sums.items():
        np.testing.assert_allclose(np.ravel(found["sample"][name]), np.ravel(total), atol=1e-12)


def test_ragged_batches_have_gradients_in_the_order_of_their_rows() -> None:
    rng = np.random.default_rng(1)
    arrays, cotangents = waves(rng), rng.normal(size=(NUM, 3))
    order = rng.permutation(NUM * SAMPLES)
    problem = np.repeat(np.arange(NUM), SAMPLES)[order]
    every = {**arrays["sample"], "x": np.tile(arrays["sample"]["x"], (NUM, 1))}
    ragged = {
        name: {"values": every[name].reshape(-1)[order], "problem": problem}
        for name in ("x", "y", "weight")
    }
    mixed = {**arrays, "sample": {**every, **ragged}}
    batch = caspar.BatchSolver(FACTORS, backend="cpu")
    values = batch.solve(arrays).values
    expected = batch.gradient({**arrays, **values}, {"Wave": cotangents})
    found = batch.gradient({**mixed, **values}, {"Wave": cotangents})
    for name in ("y", "weight"):
        rows = expected["sample"][name].reshape(-1)[order]
        np.testing.assert_allclose(found["sample"][name], rows, atol=1e-13)


def test_several_nodes_in_a_problem() -> None:
    rng = np.random.default_rng(2)
    arrays: dict[str, Any] = {
        "Knot": rng.normal(size=(NUM, 3, 2)),
        "link": {"measured": rng.normal(size=(NUM, 2, 2))},
        "nail": {
            "knot": np.tile([0, 2], (NUM, 1)),
            "at": rng.normal(size=(NUM, 2, 2)),
        },
    }
    batch = caspar.BatchSolver([link, nail], backend="cpu")
    result = batch.solve(arrays)
    cotangents = rng.normal(size=(NUM, 3, 2))
    found = batch.gradient(result, {"Knot": cotangents})
    assert found["Knot"].shape == (NUM, 3, 2)
    solver = caspar.Solver([link, nail], backend="cpu")
    for problem in range(NUM):
        own = {
            "Knot": result.values["Knot"][problem],
            "link": {"measured": arrays["link"]["measured"][problem]},
            "nail": {"knot": [0, 2], "at": arrays["nail"]["at"][problem]},
        }
        one = solver.gradient(own, {"Knot": cotangents[problem]})
        np.testing.assert_allclose(
            found["link"]["measured"][problem], one["link"]["measured"], atol=1e-12
        )
        np.testing.assert_allclose(found["nail"]["at"][problem], one["nail"]["at"], atol=1e-12)


def test_nan_and_singular_problems_leave_the_others_alone() -> None:
    rng = np.random.default_rng(3)
    arrays, cotangents = waves(rng), rng.normal(size=(NUM, 3))
    batch = caspar.BatchSolver([sample, usual], backend="cpu")
    del arrays["sample"]["loss_scale"]
    expected = batch.gradient(batch.solve(arrays), {"Wave": cotangents})
    spoiled = {**arrays, "sample": {**arrays["sample"], "y": arrays["sample"]["y"].copy()}}
    spoiled["sample"]["y"][1, 3] = np.nan
    result = batch.solve(spoiled)
    given = cotangents.copy()
    given[1] = np.nan
    found = batch.gradient(result, {"Wave": given})
    assert any("not finite" in remark for remark in found.remarks)
    others = [0, 2, 3]
    y, expected_y = found["sample"]["y"], expected["sample"]["y"]
    np.testing.assert_allclose(y[others], expected_y[others], atol=1e-12)
    assert np.isfinite(y).all()
    assert np.isfinite(found["sample"]["x"]).all()
    lone = caspar.BatchSolver([sample], backend="cpu")
    del arrays["usual"]
    arrays["sample"]["weight"][2, 2:] = 0.0
    singular = lone.gradient(arrays, {"Wave": cotangents})
    assert any("of 1 of 4 problems is singular" in remark for remark in singular.remarks)
    assert np.isfinite(singular["sample"]["y"]).all()


def test_copies_of_results_are_refused() -> None:
    import pickle

    arrays = waves(np.random.default_rng(4))
    batch = caspar.BatchSolver(FACTORS, backend="cpu")
    result = pickle.loads(pickle.dumps(batch.solve(arrays)))
    with pytest.raises(InputError, match="copy or comes from a pickle"):
        batch.gradient(result, {"Wave": np.ones((NUM, 3))})
