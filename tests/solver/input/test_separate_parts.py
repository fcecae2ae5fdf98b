"""A solve says where it is many small ones, and names what is made for these."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar


class Place(sf.V2):
    """Where something is."""


class Offset(sf.V1):
    """A part of another type."""


@caspar.factor
def seen(
    place: Annotated[Place, caspar.TunableShared], at: Annotated[sf.V2, caspar.ConstSequential]
) -> sf.V2:
    """A place."""
    return place - at


@caspar.factor
def shifted(
    place: Annotated[Place, caspar.TunableShared],
    offset: Annotated[Offset, caspar.TunableShared],
    at: Annotated[sf.Scalar, caspar.ConstSequential],
) -> sf.V1:
    """A place and what it is off by."""
    return sf.V1(place[0] + offset[0] - at)


@caspar.factor
def near(
    first: Annotated[Place, caspar.TunableShared],
    second: Annotated[Place, caspar.TunableShared],
    apart: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """Two places."""
    return second - first - apart


def remarked(factors: list[Any], arrays: dict[str, Any]) -> str:
    """The remark, if there is one."""
    remarks = caspar.Solver(factors, backend="cpu").solve(arrays).remarks
    found = [remark for remark in remarks if "BatchSolver" in remark]
    assert len(found) <= 1
    return found[0] if found else ""


def _seen(number: int) -> dict[str, Any]:
    return {"place": np.arange(number), "at": np.ones((number, 2))}


def test_nodes_that_nothing_couples() -> None:
    text = remarked([seen], {"Place": np.zeros((30, 2)), "seen": _seen(30)})
    assert text.startswith("This problem consists of 30 parts that share no unknown")
    few = {"Place": np.zeros((9, 2)), "seen": _seen(9)}
    assert remarked([seen], few) == ""


def test_nodes_without_instances_are_no_parts() -> None:
    arrays = {"Place": np.zeros((40, 2)), "seen": _seen(12)}
    with pytest.warns(UserWarning, match="28 of 40 instances are touched by no factor"):
        assert "12 parts" in remarked([seen], arrays)


def test_parts_of_several_types() -> None:
    """Each place has an offset of its own; then all have the same one."""
    own = np.random.default_rng(0).permutation(50)
    arrays = {
        "Place": np.zeros((50, 2)),
        "Offset": np.zeros((50, 1)),
        "seen": _seen(50),
        "shifted": {"place": np.arange(50), "offset": own, "at": np.ones(50)},
    }
    assert "50 parts" in remarked([seen, shifted], arrays)
    shared = {"place": np.arange(50), "offset": np.zeros(50, int), "at": np.ones(50)}
    one = {**arrays, "Offset": np.zeros((1, 1)), "shifted": shared}
    assert remarked([seen, shifted], one) == ""


@pytest.mark.parametrize(("length", "expected"), [(5, "20 parts"), (50, "")])
def test_chains(length: int, expected: str) -> None:
    """Many short ones, or few long ones, in any order."""
    rng = np.random.default_rng(1)
    names = rng.permutation(100)
    first = np.array([number for number in range(99) if number % length < length - 1])
    arrays = {
        "Place": np.zeros((100, 2)),
        "near": {
            "first": names[first],
            "second": names[first + 1],
            "apart": np.ones((len(first), 2)),
        },
        "seen": _seen(100),
    }
    found = remarked([near, seen], arrays)
    assert expected in found
    assert (found == "") == (expected == "")
