"""What `BatchSolver` refuses, in words."""

from typing import Any

import numpy as np
import pytest

import caspar
from caspar.errors import InputError, OptionError
from tests.batch.batch_cases import CASES, curves, decay, paths, triangles, views

Change = dict[str, Any]


def _solve(factors: Any, arrays: Any, **options: Any) -> None:
    caspar.BatchSolver(factors, backend="cpu").solve(arrays, **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Curve": np.zeros((40, 2))}, r"node type Curve: shape \(40, 2\); expected \(P, 3\)"),
        ({"Curve": np.zeros(3)}, r"node type Curve: shape \(3,\)"),
        ({"Curve": np.zeros((40, 0, 3))}, "a problem has no node of it"),
        ({"decy": {}}, r"unknown name 'decy' \(did you mean 'decay'\?\)"),
        ({"near": {}}, "factor near: 'goal' is missing"),
        ({"near": {"goal": np.zeros((7, 3))}}, r"factor near, argument goal: shape \(7, 3\)"),
        ({"near": 3}, r"factor near: expected a mapping of names \(goal\), got int"),
    ],
)
def test_arrays(change: Change, message: str) -> None:
    case = curves()
    with pytest.raises(InputError, match=message):
        _solve(case.factors, {**case.arrays, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"time": np.zeros((2, 15))},
            "argument time: 2 problems along the first axis; expected 40",
        ),
        ({"time": np.zeros(15)}, r"argument time: shape \(15,\); expected \(P, m, 1\) or \(P, m\)"),
        ({"time": np.zeros((1, 14))}, "time has 14, value has 15; all must be equal"),
        ({"time": np.array([["a"] * 15])}, "argument time: dtype"),
        ({"weight": np.full((40, 15), -1.0)}, "argument weight: a weight is negative or NaN"),
        ({"loss_scale": 1.0}, "unknown name 'loss_scale'"),
        (
            {"time": {"values": np.zeros(600), "problem": np.zeros(600, int)}},
            "factor decay: time is ragged, but value is not",
        ),
        ({"time": {"values": np.zeros(600)}}, "a mapping of 'values'; expected an array, or"),
    ],
)
def test_instances(change: Change, message: str) -> None:
    case = curves()
    arrays = {**case.arrays, "decay": {**case.arrays["decay"], **change}}
    with pytest.raises(InputError, match=message):
        _solve(case.factors, arrays)


@pytest.mark.parametrize(
    ("time", "value", "message"),
    [
        ([0, 0, 5], [0, 0, 5], "problem 5 is out of range; there are 3 problems"),
        ([0, 0, 1], [0, 1, 1], "argument value: its 'problem' differs from that of time"),
        ([0, 0], [0, 0], "3 rows of values, but 2 entries of problem"),
        ([0.0, 0.0, 1.0], [0.0, 0.0, 1.0], "problem: float64 of shape"),
    ],
)
def test_ragged(time: list[float], value: list[float], message: str) -> None:
    arrays = {
        "Curve": np.ones((3, 3)),
        "decay": {
            "time": {"values": np.zeros(3), "problem": np.array(time)},
            "value": {"values": np.zeros(3), "problem": np.array(value)},
        },
    }
    with pytest.raises(InputError, match=message):
        _solve(decay, arrays)


def test_indices_and_counts_of_nodes() -> None:
    case = triangles()
    wrong = {**case.arrays["distance"], "first": np.full((1, 12), 4)}
    with pytest.raises(InputError, match="index 4 is out of range; a problem has 4 such nodes"):
        _solve(case.factors, {**case.arrays, "distance": wrong})
    one = {**case.arrays, "Place": case.arrays["Place"][:, 0]}
    with pytest.raises(InputError, match="each problem has one such node, so there is no index"):
        _solve(case.factors, one)
    turned = paths()
    two = {**turned.arrays, "Heading": np.tile([1.0, 0.0], (8, 2, 1))}
    with pytest.raises(InputError, match="TunableUnique needs one Heading in each problem, got 2"):
        _solve(turned.factors, two)
    fewer = {**turned.arrays, "Heading": turned.arrays["Heading"][:5]}
    with pytest.raises(InputError, match="node type Heading: 5 problems along the first axis"):
        _solve(turned.factors, fewer)


def test_rotations_of_another_length() -> None:
    start, points, pixels = views()
    start = start.copy()
    start[4, :4] *= 1.5
    case = CASES["cameras"]()
    arrays = {"Camera": start, "reprojection": {"point": points, "pixel": pixels}}
    with pytest.raises(InputError, match=r"must have norm 1; problem 4 has 1\.5"):
        _solve(case.factors, arrays)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_time_s": 1.0}, "'max_time_s' is no option of BatchSolver.solve"),
        ({"max_linear_iterations": 3}, "linear systems are factorised"),
        ({"max_iterations": 0}, "max_iterations=0: must be an integer"),
        ({"max_iteration": 5}, "did you mean 'max_iterations'"),
    ],
)
def test_options(options: Change, message: str) -> None:
    case = curves()
    with pytest.raises(OptionError, match=message):
        _solve(case.factors, case.arrays, **options)


def test_precisions() -> None:
    with pytest.raises(OptionError, match="precision='mixed': a BatchSolver computes"):
        caspar.BatchSolver(decay, backend="cpu", precision="mixed")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="must be one of"):
        caspar.BatchSolver(decay, backend="cpu", precision="double")  # type: ignore[arg-type]
