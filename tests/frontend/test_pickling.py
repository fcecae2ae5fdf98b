"""Factors are pickled as functions are: by where they stand."""

import copy
import multiprocessing
import pickle
from typing import Annotated

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from examples import pose_graph, robust_losses


class Number(sf.V1):
    """What is looked for."""


EXPECTED = [[0.6, 0.8, 1.0, 2.0]]


def moved_by(prior: caspar.Factor) -> list[list[float]]:
    """One pose, which goes where it is expected."""
    arrays = {
        "Pose2": np.array([[1.0, 0.0, 0.0, 0.0]]),
        prior.name: {"pose": [0], "expected": np.array(EXPECTED)},
    }
    result = caspar.Solver(prior, backend="cpu").solve(arrays)
    found: list[list[float]] = result.values["Pose2"].tolist()
    return found


def test_the_same_object_comes_back() -> None:
    for factor in pose_graph.FACTORS:
        assert pickle.loads(pickle.dumps(factor)) is factor
        assert copy.deepcopy(factor) is factor


def test_another_process_finds_it() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(moved_by, (pose_graph.prior,))
    np.testing.assert_allclose(found, EXPECTED, atol=1e-9)


def test_one_that_has_no_place_in_a_module_is_refused() -> None:
    @caspar.factor
    def here(number: Annotated[Number, caspar.TunableShared]) -> sf.V1:
        return sf.V1(number[0])

    assert copy.copy(here) == here
    with pytest.raises((AttributeError, pickle.PicklingError), match="here"):
        pickle.dumps(here)


def test_one_whose_name_another_has_taken_is_refused() -> None:
    loss_of = robust_losses.point_with(robust_losses.huber)
    with pytest.raises((AttributeError, pickle.PicklingError), match="point"):
        pickle.dumps(loss_of)
