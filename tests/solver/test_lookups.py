"""Solves of residuals that look values up in tables, kernels that do, and what they refuse."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import caspar
from caspar.errors import FactorError, InputError, KernelError
from caspar.options import PrecisionName
from caspar.runtime.nvidia.nvrtc import compile_text
from caspar.solver.lm.normal_equations import NormalEquations
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend
from tests.solver.solving import ON_BACKENDS

ROWS, COLUMNS, COUNT = 30, 40, 60
TRUE = np.array([[12.3, 9.7]])
START = TRUE + np.array([[0.8, -0.6]])


class Shift(sf.V2):
    """Where a picture lies in another one."""


class Smooth(caspar.Grid, dims=2, method="cubic"):
    """Pictures without kinks."""


class Field(caspar.Grid, dims=3, channels=2):
    """Two numbers in space."""


@caspar.factor
def aligned(
    shift: Annotated[Shift, caspar.TunableShared],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
    intensity: Annotated[sf.V1, caspar.ConstSequential],
    picture: Annotated[Smooth, caspar.ConstIndexed],
) -> sf.V1:
    """A pixel of a picture shows what another picture shows there."""
    x, y = shift + pixel
    return sf.V1(picture.at(x, y) - intensity[0])


@caspar.factor
def in_one(
    shift: Annotated[Shift, caspar.TunableShared],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
    intensity: Annotated[sf.V1, caspar.ConstSequential],
    picture: Annotated[Smooth, caspar.ConstUnique],
) -> sf.V1:
    """The same in a single picture."""
    x, y = shift + pixel
    return sf.V1(picture.at(x, y) - intensity[0])


def weights(rest: float) -> NDArray[Any]:
    """Of Catmull-Rom's spline, by its matrix."""
    matrix = [[0, 2, 0, 0], [-1, 0, 1, 0], [2, -5, 4, -1], [-1, 3, -3, 1]]
    found: NDArray[Any] = np.array([1, rest, rest**2, rest**3]) @ np.array(matrix) * 0.5
    return found


def shown(picture: Any, x: float, y: float) -> float:
    """What a picture shows at a place well inside."""
    left, top = int(np.floor(x)), int(np.floor(y))
    patch = picture[top - 1 : top + 3, left - 1 : left + 3]
    return float(weights(y - top) @ patch @ weights(x - left))


def problem() -> dict[str, Any]:
    """Two pictures and pixels that are in one of them."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:ROWS, :COLUMNS]
    pictures = np.stack([np.sin(x / 5) + np.cos(y / 4), np.cos(x / 6) * np.sin(y / 5)])
    pixels = rng.uniform(-6, 6, (COUNT, 2))
    index = rng.integers(0, 2, COUNT)
    there = TRUE + pixels
    values = [shown(pictures[k], *place) for k, place in zip(index, there, strict=True)]
    return {
        "Shift": START,
        "aligned": {
            "shift": np.zeros(COUNT, int),
            "pixel": pixels,
            "intensity": np.array(values),
            "picture": {"values": pictures, "index": index},
        },
    }


def solved(backend: Any, precision: PrecisionName = "float64") -> Any:
    solver = caspar.Solver([aligned], backend=backend, precision=precision)
    return solver.solve(problem(), cost_tolerance=0.0, max_iterations=30).values["Shift"]


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("float64", 1e-12), ("mixed", 1e-9), ("float32", 1e-4)]
)
@ON_BACKENDS
def test_a_picture_is_aligned(backend: str, precision: PrecisionName, tolerance: float) -> None:
    assert_allclose(solved(backend, precision), TRUE, 0, tolerance)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_a_picture_is_aligned_by_cuda_sources() -> None:
    assert_allclose(solved(HarnessBackend()), TRUE, 0, 1e-12)


def test_roundings_leave_tables_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A size of a table that is moved by a rounding would be another layout."""
    asked: list[float] = []
    usual = NormalEquations.rounded_costs

    def noted(system: NormalEquations) -> tuple[float, ...]:
        costs = usual(system)
        asked.extend(costs)
        return costs

    monkeypatch.setattr(NormalEquations, "rounded_costs", noted)
    arrays = problem()
    arrays["aligned"]["intensity"] += 0.1 * np.random.default_rng(0).normal(size=COUNT)
    solver = caspar.Solver([aligned], backend="cpu", precision="float64")
    result = solver.solve(arrays, cost_tolerance=0.0)
    assert len(asked) > 0
    assert_allclose(asked, result.final_cost, rtol=1e-6)


def test_residuals_are_those_of_a_single_picture() -> None:
    arrays = problem()
    first = arrays["aligned"]["picture"]["values"][0]
    own = {**arrays["aligned"], "picture": first}
    alone = caspar.Solver([in_one], backend="cpu").evaluate({"Shift": START, "in_one": own})
    places = START + own["pixel"]
    truth = np.array([shown(first, *place) for place in places]) - own["intensity"]
    assert_allclose(np.asarray(alone.residuals("in_one"))[:, 0], truth, 0, 1e-12)


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (np.zeros((3, 4)), "expected a mapping"),
        ({"values": np.zeros(5), "index": np.zeros(COUNT, int)}, r"expected \(rows, columns\)"),
        ({"values": np.zeros((2, 3, 4)), "index": np.full(COUNT, 2)}, "out of range"),
        ({"values": np.full((1, 3, 4), np.nan), "index": np.zeros(COUNT, int)}, "finite"),
        ({"values": np.zeros((1, 0, 4)), "index": np.zeros(COUNT, int)}, "1 to 16,777,216"),
    ],
)
def test_wrong_tables_are_refused(picture: Any, message: str) -> None:
    arrays = problem()
    arrays["aligned"]["picture"] = picture
    with pytest.raises(InputError, match=message) as caught:
        caspar.Solver([aligned], backend="cpu").solve(arrays)
    assert "factor aligned, argument picture" in str(caught.value)


def test_several_tables_for_one_are_refused() -> None:
    own = {**problem()["aligned"], "picture": np.zeros((2, 3, 4))}
    with pytest.raises(InputError, match="2 tables; ConstUnique is one"):
        caspar.Solver([in_one], backend="cpu").solve({"Shift": START, "in_one": own})


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"dims": 4}, "1 to 3 axes"),
        ({}, "1 to 3 axes"),
        ({"dims": 2, "channels": 0}, "1 number or more"),
        ({"dims": 2, "method": "nearest"}, "'linear', 'cubic', 'bspline3'"),
        ({"dims": 2, "border": "wrap"}, "'clamp', 'zero', 'refuse'"),
    ],
)
def test_wrong_classes_are_refused(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(FactorError, match=message):
        type("Wrong", (caspar.Grid,), {}, **wanted)


def test_wrong_arguments_are_refused() -> None:
    @caspar.factor
    def moves(
        shift: Annotated[Shift, caspar.TunableShared],
        picture: Annotated[Smooth, caspar.ConstSequential],
    ) -> sf.V1:
        return sf.V1(picture.at(*shift))

    @caspar.factor
    def one_place(
        shift: Annotated[Shift, caspar.TunableShared],
        picture: Annotated[Smooth, caspar.ConstUnique],
    ) -> sf.V1:
        return sf.V1(picture.at(shift[0]))

    with pytest.raises(FactorError, match=r"ConstUnique \(one table\) or ConstIndexed"):
        caspar.Solver([moves], backend="cpu")
    with pytest.raises(FactorError, match="1 coordinates; its tables have 2 axes"):
        caspar.Solver([one_place], backend="cpu")


class Strict(caspar.Grid, dims=2, method="cubic", border="refuse"):
    """Pictures of which nothing outside is known."""


@caspar.factor
def strictly(
    shift: Annotated[Shift, caspar.TunableShared],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
    intensity: Annotated[sf.V2, caspar.ConstSequential],
    picture: Annotated[Strict, caspar.ConstIndexed],
) -> sf.V2:
    """A pixel and its neighbour, which is left out with it."""
    x, y = shift + pixel
    return sf.V2(picture.at(x, y), picture.at(x + 1, y + 1)) - intensity


def strict_problem() -> tuple[dict[str, Any], NDArray[np.bool_]]:
    """Pixels that are partly outside by whole pixels, at the solution too."""
    arrays = problem()
    own = arrays.pop("aligned")
    rng = np.random.default_rng(5)
    pixels = rng.integers(-20, 36, (COUNT, 2)) + 0.5
    places = TRUE + pixels
    last = np.array([COLUMNS, ROWS]) - 1
    is_outside = ((places < 0) | (places + 1 > last)).any(axis=1)
    pictures, index = own["picture"]["values"], own["picture"]["index"]
    intensity = np.zeros((COUNT, 2))
    for row in np.flatnonzero(~is_outside):
        padded = np.pad(pictures[index[row]], 2, "edge")
        for column in range(2):
            intensity[row, column] = shown(padded, *(places[row] + 2 + column))
    intensity += 0.01 * rng.normal(size=intensity.shape)
    own = {**own, "pixel": pixels, "intensity": intensity}
    return {**arrays, "Shift": TRUE + np.array([[0.05, -0.04]]), "strictly": own}, is_outside


@pytest.mark.parametrize("backend", ["cpu", "harness", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_instances_outside_are_left_out_and_counted(backend: str) -> None:
    if backend == "harness" and find_compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    arrays, is_outside = strict_problem()
    own = arrays["strictly"]
    assert 10 < is_outside.sum() < COUNT - 10
    chosen: Any = HarnessBackend() if backend == "harness" else backend
    solver = caspar.Solver(strictly, backend=chosen, precision="float64")
    found = solver.solve(arrays, cost_tolerance=0.0)
    # as if they were not there
    rows = np.flatnonzero(~is_outside)
    kept = {name: own[name][rows] for name in ("shift", "pixel", "intensity")}
    kept["picture"] = {**own["picture"], "index": own["picture"]["index"][rows]}
    wanted = solver.solve({**arrays, "strictly": kept}, cost_tolerance=0.0)
    assert_allclose(found.values["Shift"], wanted.values["Shift"], atol=1e-9)
    assert_allclose(found.final_cost, wanted.final_cost, rtol=1e-12)
    told = f"factor strictly: {is_outside.sum()} of {COUNT} instances look up outside"
    assert any(told in remark for remark in found.remarks)
    assert not any("look up outside" in remark for remark in wanted.remarks)
    evaluation = solver.evaluate({**arrays, **found.values})
    assert_array_equal(evaluation.refused("strictly"), is_outside)
    assert not evaluation.residuals("strictly")[is_outside].any()
    cotangents = {"Shift": [[1.0, -2.0]]}
    gradient = solver.gradient({**arrays, **wanted.values}, cotangents)["strictly"]
    of_kept = solver.gradient(wanted, cotangents)["strictly"]
    assert_allclose(gradient["pixel"][rows], of_kept["pixel"], atol=1e-12)
    assert not gradient["pixel"][is_outside].any()
    assert_allclose(gradient["picture"], of_kept["picture"], atol=1e-12)


def test_a_solve_that_leaves_all_out_is_no_success() -> None:
    arrays, _ = strict_problem()
    arrays["Shift"] = np.array([[500.0, 0.0]])
    result = caspar.Solver(strictly, backend="cpu").solve(arrays)
    assert result.status is caspar.SolveStatus.NO_RESIDUALS
    assert any(f"{COUNT} of {COUNT} instances" in remark for remark in result.remarks)


def test_a_place_that_is_no_number_is_not_left_out() -> None:
    arrays, _ = strict_problem()
    arrays["Shift"] = np.array([[np.nan, 1.0]])
    result = caspar.Solver(strictly, backend="cpu").solve(arrays, check=False)
    assert result.status is caspar.SolveStatus.INITIAL_COST_NOT_FINITE


@caspar.kernel(backend="cpu")
def strict(
    place: Annotated[sf.V2, caspar.ReadSequential], image: Annotated[Strict, caspar.ReadUnique]
) -> Annotated[sf.V2, caspar.WriteSequential]:
    """A picture at a place, and a number that it has no part in."""
    return sf.V2(image.at(*place), place[0])


def test_kernels_give_nan_outside() -> None:
    places = np.array([[0.0, 0.0], [3.0, 2.0], [3.001, 2.0], [1.0, -0.001], [1.5, 1.25]])
    image = np.arange(12.0).reshape(3, 4)
    found = strict(places, image)
    assert_array_equal(np.isnan(found[:, 0]), [False, False, True, True, False])
    assert_allclose(found[[0, 1], 0], [0.0, 11.0], atol=1e-14)
    assert_array_equal(found[:, 1], places[:, 0])
    assert compile_text(strict.inspect().source.text, "sm_90").warnings == ()


@caspar.kernel(backend="cpu")
def looked_up(
    place: Annotated[sf.V3, caspar.ReadSequential], field: Annotated[Field, caspar.ReadIndexed]
) -> Annotated[sf.V2, caspar.WriteSequential]:
    """Two numbers at a place."""
    return field.at(*place)


@caspar.kernel(backend="cpu")
def interpolated(
    x: Annotated[sf.Symbol, caspar.ReadSequential],
    image: Annotated[caspar.Image, caspar.ReadUnique],
) -> Annotated[sf.Symbol, caspar.WriteSequential]:
    """Along the diagonal of a picture."""
    return image.at(x, x)


def test_kernels_look_up() -> None:
    z, y, x = np.mgrid[:3, :4, :5]
    # linear functions are interpolated exactly
    first = np.stack([x + 10.0 * y + 100.0 * z, 1.0 * x - y + z], axis=-1)
    places = np.array([[0.5, 1.25, 1.5], [3.75, 2.0, 0.25], [-7.0, 1.0, 9.0]])
    inside = places.clip(0, [4, 3, 2])
    index = np.array([0, 1, 1])
    found = looked_up(places, {"values": np.stack([first, 2 * first]), "index": index})
    truth = np.stack([inside @ [1, 10, 100], inside @ [1, -1, 1]], axis=1)
    assert_allclose(found, truth * (1 + index)[:, None], 0, 1e-12)
    # what is passed is read anew by every call
    again = looked_up(places, {"values": np.stack([first, first]), "index": index})
    assert_allclose(again, truth, 0, 1e-12)


def test_kernels_check_tables() -> None:
    x, image = np.array([0.25, 1.0]), np.array([[0.0, 1.0], [2.0, 3.0]])
    assert_allclose(interpolated(x, image), [0.75, 3.0], 0, 1e-15)
    with pytest.raises(InputError, match="2 tables, but ReadUnique reads one"):
        interpolated(x, np.zeros((2, 3, 4)))
    with pytest.raises(InputError, match=r"expected \(rows, columns\)"):
        interpolated(x, np.zeros(4))
    fields = np.zeros((2, 3, 4, 5, 2))
    with pytest.raises(InputError, match="index 2 at entry 1 is out of range"):
        looked_up(np.zeros((2, 3)), {"values": fields, "index": np.array([0, 2])})


def test_kernels_refuse_other_accesses() -> None:
    @caspar.kernel(backend="cpu")
    def wrong(
        image: Annotated[caspar.Image, caspar.ReadSequential],
    ) -> Annotated[sf.Symbol, caspar.WriteSequential]:
        return image.at(0.5, 0.5)

    with pytest.raises(KernelError, match=r"ReadUnique \(one table\) or ReadIndexed"):
        wrong(np.zeros((3, 4)))


class Distance(caspar.Grid, dims=2, method="cubic"):
    """Metres to the nearest obstacle."""


class Spot(sf.V2):
    """A place."""


@caspar.constraint(kind="positive")
def keeps_away(
    spot: Annotated[Spot, caspar.TunableShared],
    field: Annotated[Distance, caspar.ConstUnique],
) -> sf.V1:
    """A place is at least one metre from an obstacle."""
    return sf.V1(field.at(spot[0], spot[1]) - 1)


def test_constraints_look_up() -> None:
    """In a `Solver` and in a batch: a place near a disc goes straight out of its margin."""
    near = caspar.factors.prior(Spot, noise="unit", name="near")
    rows, columns = np.mgrid[:20, :20]
    field = np.hypot(columns - 10.0, rows - 10.0) - 3.0
    wanted = np.array([[9.0, 8.5]])
    arrays = {
        "Spot": [[9.0, 8.0]],
        "near": {"value": [0], "expected": wanted},
        "keeps_away": {"spot": [0], "field": field},
    }
    factors = [near, keeps_away]
    result = caspar.Solver(factors, backend="cpu", precision="float64").solve(arrays)
    (spot,) = result.values["Spot"]
    assert result.status.is_success
    assert result.violation.unscaled <= 1e-9
    out = (wanted[0] - 10.0) / np.linalg.norm(wanted[0] - 10.0)
    assert_allclose(spot, 10.0 + 4.0 * out, atol=0.05)  # the field is interpolated
    assert result.multipliers["keeps_away"][0, 0] == pytest.approx(
        np.linalg.norm(spot - wanted[0]), rel=0.05
    )
    batch = caspar.BatchSolver(factors, backend="cpu")
    found = batch.solve(
        {
            "Spot": np.array([[9.0, 8.0]]),
            "near": {"expected": wanted[None]},
            "keeps_away": {"field": field[None]},
        }
    )
    assert found.is_success.all()
    assert_allclose(np.asarray(found.values["Spot"]).reshape(2), spot, atol=1e-6)
