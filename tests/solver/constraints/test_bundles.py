"""Known distances between the views of a bundle, by every linear solver, precision and backend."""

from functools import cache
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.options import BackendName, PrecisionName
from tests.covering import alternating
from tests.solver.shards.sharing import sharing
from tests.solver.solving import ON_BACKENDS
from tests.solver.test_fixed import MARKS, METHODS, SIGHTINGS, VIEWS, View, sighting
from tests.support_cudss import require_library

FIRST, SECOND = np.array([0, 1, 2]), np.array([1, 2, 4])


@caspar.constraint(kind="zero")
def rod(
    first: Annotated[View, caspar.TunableShared],
    second: Annotated[View, caspar.TunableShared],
    length: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1((first.pose.t - second.pose.t).norm(sf.epsilon()) - length[0])


def between(views: Any) -> Any:
    """Distances of the views that rods connect."""
    return np.linalg.norm(views[FIRST, 4:7] - views[SECOND, 4:7], axis=1)


@cache
def arrays() -> dict[str, Any]:
    """Rods a little longer than what pictures say, and noise in these."""
    random = np.random.default_rng(5)
    pixel = SIGHTINGS["pixel"] + 0.3 * random.normal(size=SIGHTINGS["pixel"].shape)
    lengths = np.array([1.01, 0.98, 1.02]) * between(VIEWS)
    return {
        "View": VIEWS,
        "Mark": MARKS,
        "sighting": {**SIGHTINGS, "pixel": pixel},
        "rod": {"first": FIRST, "second": SECOND, "length": lengths[:, None]},
    }


FIXED = {"View": {"pose": [0], "lens": True}}


@cache
def best() -> caspar.SolveResult:
    solver = caspar.Solver([sighting, rod], backend="cpu", precision="float64")
    result = solver.solve(arrays(), fixed=FIXED)
    assert result.status.is_success
    return result


def test_rods_as_heavy_residuals_come_near() -> None:
    known = {name: rows for name, rows in arrays().items() if name != "rod"}

    @caspar.factor
    def heavy(
        first: Annotated[View, caspar.TunableShared],
        second: Annotated[View, caspar.TunableShared],
        length: Annotated[sf.V1, caspar.ConstSequential],
    ) -> sf.V1:
        return sf.V1(1e5 * ((first.pose.t - second.pose.t).norm(sf.epsilon()) - length[0]))

    solver = caspar.Solver([sighting, heavy], backend="cpu", precision="float64")
    heavy_result = solver.solve({**known, "heavy": arrays()["rod"]}, fixed=FIXED)
    assert best().final_cost == pytest.approx(heavy_result.final_cost, rel=1e-6)


@ON_BACKENDS
@pytest.mark.parametrize(("method", "precision"), alternating(METHODS, ["float64", "mixed"]))
def test_every_way_ends_there(method: str, precision: PrecisionName, backend: BackendName) -> None:
    require_library(method, backend)
    solver = caspar.Solver([sighting, rod], backend=backend, precision=precision, **METHODS[method])
    result = solver.solve(arrays(), fixed=FIXED)
    assert result.status.is_success
    assert result.final_cost == pytest.approx(best().final_cost, rel=1e-10)
    lengths = between(result.values["View"])
    assert lengths == pytest.approx(arrays()["rod"]["length"][:, 0], rel=1e-12)
    assert np.array_equal(result.values["View"][:, 7:], VIEWS[:, 7:])
    multipliers = best().multipliers["rod"]
    assert result.multipliers["rod"] == pytest.approx(multipliers, rel=1e-5)
    assert result.problem.factors["rod"] == 3
    assert "constraints  " in str(result)


@ON_BACKENDS
def test_the_loop_alone_ends_there(backend: BackendName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Newton's method, as in problems that are too large for it."""
    from caspar.solver.constraints.lagrangian import Lagrangian

    monkeypatch.setattr(Lagrangian, "suits", lambda *_: False)
    solver = caspar.Solver([sighting, rod], backend=backend, eliminate=("Mark",))
    seen: list[Any] = []
    result = solver.solve(
        arrays(), fixed=FIXED, on_iteration=lambda record: seen.append(record.values())
    )
    assert result.status.is_success
    assert all(type(rows) is np.ndarray for rows in result.values.values())
    assert all(type(rows) is np.ndarray for values in seen for rows in values.values())
    assert result.final_cost == pytest.approx(best().final_cost, rel=1e-8)
    lengths = between(result.values["View"])
    assert lengths == pytest.approx(arrays()["rod"]["length"][:, 0], rel=1e-13)
    multipliers = best().multipliers["rod"]
    assert result.multipliers["rod"] == pytest.approx(multipliers, rel=1e-4)


ON_TWO = pytest.mark.parametrize(
    ("backend", "devices"), [("cpu", 2), pytest.param("cuda", 2, marks=pytest.mark.gpu)]
)


def halves(rows: Any) -> list[Any]:
    """An array in two parts."""
    return [rows[: len(rows) // 2], rows[len(rows) // 2 :]]


@pytest.mark.parametrize("is_small", [True, False])
@ON_TWO
def test_several_devices_end_there(
    backend: BackendName, devices: int, is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Newton's method, and by the loop alone; arrays may be in parts."""
    from caspar.solver.constraints.lagrangian import Lagrangian

    if not is_small:
        monkeypatch.setattr(Lagrangian, "suits", lambda *_: False)
    solver = sharing((sighting, rod), devices, backend, precision="float64")
    own = arrays()
    parts = {
        "View": own["View"],
        "Mark": halves(own["Mark"]),
        "sighting": {name: halves(rows) for name, rows in own["sighting"].items()},
        "rod": {name: halves(rows) for name, rows in own["rod"].items()},
    }
    for given in (own, parts):
        result = solver.solve(given, fixed=FIXED)
        assert result.status.is_success
        assert result.device.startswith(f"{devices} x")
        assert result.final_cost == pytest.approx(best().final_cost, rel=1e-8)
        lengths = between(result.values["View"])
        assert lengths == pytest.approx(own["rod"]["length"][:, 0], rel=1e-13)
        assert result.multipliers["rod"] == pytest.approx(best().multipliers["rod"], rel=1e-4)
        assert np.abs(solver.evaluate({**given, **result.values}).residuals("rod")).max() < 1e-13
    assert [len(rows) for rows in result.values["Mark"]] == [20, 20]


@ON_TWO
def test_covariances_and_gradients_of_several_devices(backend: BackendName, devices: int) -> None:
    ones = {"View": np.ones(VIEWS.shape)}
    found = []
    for solver in (
        caspar.Solver([sighting, rod], backend="cpu", precision="float64"),
        sharing((sighting, rod), devices, backend, precision="float64"),
    ):
        result = solver.solve(arrays(), fixed=FIXED)
        covariance = solver.covariance(result, {"View": [1]})["View"]
        found.append((covariance, solver.gradient(result, ones)["rod"]["length"]))
    (wanted, wanted_gradient), (covariance, gradient) = found
    assert covariance == pytest.approx(wanted, rel=1e-6, abs=1e-10)
    assert gradient == pytest.approx(wanted_gradient, rel=1e-4)


def test_few_rods_make_no_chain() -> None:
    """Rods between few of the views leave precision and linear solver to the bundle."""
    solver = caspar.Solver([sighting, rod], backend="cpu")
    own = arrays()
    few = {name: rows[:1] for name, rows in own["rod"].items()}
    assert solver.prepare({**own, "rod": few}, fixed=FIXED).precision == "mixed"
    assert solver.prepare(own, fixed=FIXED).precision == "float64"
    result = solver.solve({**own, "rod": few}, fixed=FIXED)
    assert result.status.is_success
    assert between(result.values["View"])[0] == pytest.approx(few["length"][0, 0], rel=1e-10)
