"""Solves of residuals that look values up in tables, kernels that do, and what they refuse."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import caspar
from caspar.errors import FactorError, InputError, KernelError
from caspar.options import PrecisionName
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend

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
def test_a_picture_is_aligned(precision: PrecisionName, tolerance: float) -> None:
    assert_allclose(solved("cpu", precision), TRUE, 0, tolerance)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_a_picture_is_aligned_by_cuda_sources() -> None:
    assert_allclose(solved(HarnessBackend()), TRUE, 0, 1e-12)


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
        ({"dims": 2, "border": "refuse"}, "'clamp', 'zero'"),
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


def test_what_does_not_look_up_says_so() -> None:
    refused: list[Any] = [
        lambda: caspar.BatchSolver([aligned], backend="cpu"),
        lambda: caspar.Problem([aligned]),
        lambda: caspar.Solver([aligned], backend="cpu", devices=2),
    ]
    for make in refused:
        with pytest.raises(FactorError, match=r"tables \(Smooth\) are not supported here"):
            make()
    solver = caspar.Solver([aligned], backend="cpu")
    result = solver.solve(problem())
    with pytest.raises(FactorError, match=r"Solver\.gradient"):
        solver.gradient(result, {"Shift": np.ones((1, 2))})


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
