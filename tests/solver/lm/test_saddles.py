"""Ends at saddle points and maxima, which have no slope: the solve goes on beside them."""

from typing import Annotated

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.options import BackendName, LinearSolverName, PrecisionName
from caspar.solver.lm.checks import table
from tests.solver.solving import ON_BACKENDS, Arrays
from tests.support_cudss import require_library


class Decays(sf.V6):
    """Rates and amounts of three decays, as in Biggs (1971): problem 18 of More et al. (1981)."""


class Number(sf.V1):
    """A number."""


@caspar.factor
def three_decays(
    decays: Annotated[Decays, caspar.TunableUnique],
    time: Annotated[sf.Scalar, caspar.ConstSequential],
    seen: Annotated[sf.Scalar, caspar.ConstSequential],
) -> sf.V1:
    rates, amounts = (decays[0], decays[1], decays[4]), (decays[2], -decays[3], decays[5])
    terms = (amount * sf.exp(-time * rate) for rate, amount in zip(rates, amounts, strict=True))
    return sf.V1(sum(terms) - seen)


@caspar.factor
def square(number: Annotated[Number, caspar.TunableShared]) -> sf.V1:
    return sf.V1(number[0] ** 2 - 2)


class Other(sf.V1):
    """Another number."""


@caspar.factor
def other_square(other: Annotated[Other, caspar.TunableShared]) -> sf.V1:
    return sf.V1(other[0] ** 2 - 3)


@caspar.factor
def product(
    one: Annotated[Number, caspar.TunableShared], other: Annotated[Number, caspar.TunableShared]
) -> sf.V1:
    return sf.V1(one[0] * other[0] - 6)


@caspar.factor
def difference(
    one: Annotated[Number, caspar.TunableShared],
    other: Annotated[Number, caspar.TunableShared],
    seen: Annotated[sf.Scalar, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1(sf.sin(3 * (one[0] - other[0])) - seen)


def decays() -> Arrays:
    """The first and the third decay start equal, so each step keeps them equal."""
    time = 0.1 * np.arange(1, 14)
    seen = np.exp(-time) - 5 * np.exp(-10 * time) + 3 * np.exp(-4 * time)
    start = [[1.0, 2.0, 1.0, 1.0, 1.0, 1.0]]
    return {"Decays": start, "three_decays": {"time": time[:, None], "seen": seen[:, None]}}


@ON_BACKENDS
@pytest.mark.parametrize("precision", ["mixed", "float64"])
def test_two_terms_that_start_equal(precision: PrecisionName, backend: BackendName) -> None:
    """The best fit of equal terms has a cost of 0.0028278; SciPy and Ceres may end there."""
    solver = caspar.Solver(three_decays, backend=backend, precision=precision)
    result = solver.solve(decays())
    assert result.status.is_success
    assert result.final_cost < 1e-20


@ON_BACKENDS
@pytest.mark.parametrize("linear_solver", ["auto", "sparse", "qr", "pcg"])
def test_a_maximum_is_left(linear_solver: LinearSolverName, backend: BackendName) -> None:
    """Of three numbers one starts where its residual has no slope."""
    require_library(linear_solver, backend)
    solver = caspar.Solver(
        square, backend=backend, precision="float64", linear_solver=linear_solver
    )
    result = solver.solve({"Number": [[1.0], [0.0], [-3.0]], "square": {"number": [0, 1, 2]}})
    assert result.status.is_success
    assert result.final_cost < 1e-20
    assert np.abs(result.values["Number"]) == pytest.approx(np.sqrt(2), rel=1e-9)


@ON_BACKENDS
def test_a_saddle_of_two_nodes_is_left(backend: BackendName) -> None:
    """Neither alone lowers the cost: it takes a step of both."""
    solver = caspar.Solver(product, backend=backend, precision="float64")
    result = solver.solve({"Number": np.zeros((2, 1)), "product": {"one": [0], "other": [1]}})
    assert result.status.is_success
    assert result.final_cost < 1e-20
    assert np.prod(result.values["Number"]) == pytest.approx(6.0, rel=1e-9)


@ON_BACKENDS
def test_directions_of_different_types(backend: BackendName) -> None:
    """A number of each of two types starts at a maximum, in one solve."""
    factors = [square, other_square]
    solver = caspar.Solver(factors, backend=backend, precision="float64", linear_solver="qr")
    arrays: Arrays = {"Number": [[0.0]], "square": {"number": [0]}}
    arrays |= {"Other": [[0.0], [1.0]], "other_square": {"other": [0, 1]}}
    result = solver.solve(arrays)
    assert result.status.is_success
    assert result.final_cost < 1e-20


def without_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solves end as if there were no such check."""
    kept = tuple(one for one in table.MAY_GO_ON if one is not table.saddle)
    monkeypatch.setattr("caspar.solver.lm.minimize.MAY_GO_ON", kept)


@ON_BACKENDS
def test_what_nothing_holds_is_no_saddle(
    backend: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of both numbers is free, and the cost is the same whatever it is."""
    solver = caspar.Solver(difference, backend=backend, precision="float64", linear_solver="qr")
    seen = {"one": [0, 0], "other": [1, 1], "seen": [[0.1], [0.3]]}
    arrays = {"Number": [[0.1], [0.9]], "difference": seen}
    result = solver.solve(arrays)
    assert result.status.is_success
    assert result.final_cost == pytest.approx(0.01)
    assert "do not determine Number 0" in " ".join(result.remarks)
    without_the_check(monkeypatch)
    assert np.array_equal(solver.solve(arrays).values["Number"], result.values["Number"])


def test_a_maximum_is_an_end_without_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    without_the_check(monkeypatch)
    solver = caspar.Solver(square, backend="cpu", precision="float64")
    result = solver.solve({"Number": [[0.0]], "square": {"number": [0]}})
    assert result.status.is_success
    assert result.final_cost == 2.0
