"""Batches of problems that look values up in tables, against solves one by one and formulas."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates

import caspar
from caspar.batch.generate.shape import Team
from caspar.errors import InputError
from caspar.options import BatchPrecisionName
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.covering import alternating, first, usual
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend

PROBLEMS, PIXELS = 6, 20
TRUE = np.array([[12.3, 9.7], [14.0, 8.25], [9.1, 11.6], [16.4, 10.2], [11.5, 12.5], [13.7, 9.0]])
START = TRUE + np.array([[0.5, -0.4]])


class Shift(sf.V2):
    """Where a picture lies in another one."""


class Spot(sf.V4):
    """Place, brightness, background."""


class Way(sf.V2):
    """A place on a path."""


class Smooth(caspar.Grid, dims=2, method="cubic"):
    """Pictures without kinks."""


class Profile(caspar.Grid, dims=2, method="bspline3", border="zero"):
    """A measured point spread function: coefficients of a spline."""


class Distances(caspar.Grid, dims=2, channels=2, method="cubic"):
    """Distance to the nearest obstacle, and a cost of the ground."""


@caspar.factor
def aligned(
    shift: Annotated[Shift, caspar.TunableUnique],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
    intensity: Annotated[sf.Scalar, caspar.ConstSequential],
    picture: Annotated[Smooth, caspar.ConstIndexed],
) -> sf.V1:
    """A pixel shows what another picture shows there."""
    x, y = shift + pixel
    return sf.V1(picture.at(x, y) - intensity)


@caspar.factor
def in_one(
    shift: Annotated[Shift, caspar.TunableUnique],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
    intensity: Annotated[sf.Scalar, caspar.ConstSequential],
    picture: Annotated[Smooth, caspar.ConstUnique],
) -> sf.V1:
    """The same in the picture of the problem."""
    x, y = shift + pixel
    return sf.V1(picture.at(x, y) - intensity)


@caspar.factor
def photometry(
    spot: Annotated[Spot, caspar.TunableUnique],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
    value: Annotated[sf.Scalar, caspar.ConstSequential],
    psf: Annotated[Profile, caspar.ConstUnique],
) -> sf.V1:
    """A pixel of a spot of a known shape."""
    x, y, brightness, background = spot
    shape = psf.at(4 * (pixel[0] - x) + 20, 4 * (pixel[1] - y) + 20)
    return sf.V1(brightness * shape + background - value)


@caspar.factor
def clear(
    way: Annotated[Way, caspar.TunableShared],
    field: Annotated[Distances, caspar.ConstUnique],
) -> sf.V2:
    """A place keeps a distance of 2, on cheap ground."""
    distance, ground = field.at(way[0], way[1])
    return sf.V2(sf.Max(2 - distance, 0), 0.1 * ground)


@caspar.factor
def smooth(
    pair: Annotated[caspar.Pair[Way], caspar.TunablePair],
    scale: Annotated[sf.Scalar, caspar.ConstUnique],
) -> sf.V2:
    """Neighbours are near each other."""
    return scale * (pair[1] - pair[0])


def pictures() -> NDArray[Any]:
    """Three pictures."""
    y, x = np.mgrid[:26, :32]
    return np.stack(
        [
            np.sin(x / 5) + np.cos(y / 4),
            np.cos(x / 6) * np.sin(y / 5),
            np.sin(x / 4 + y / 7) + np.cos(y / 3),
        ]
    )


def alignments() -> dict[str, Any]:
    """Problems whose pixels are in three pictures; intensities are noisy."""
    rng = np.random.default_rng(0)
    pixels = rng.uniform(-6, 6, (PROBLEMS, PIXELS, 2))
    index = rng.integers(0, 3, (PROBLEMS, PIXELS))
    own = {"values": pictures(), "index": index}
    arrays = {"pixel": pixels, "intensity": np.zeros((PROBLEMS, PIXELS)), "picture": own}
    solver = caspar.Solver(aligned, backend="cpu", precision="float64")
    shown = [solver.evaluate(one).residuals("aligned")[:, 0] for one in single(TRUE, arrays)]
    arrays["intensity"] = np.stack(shown) + rng.normal(0, 0.01, (PROBLEMS, PIXELS))
    return arrays


def single(starts: NDArray[Any], own: dict[str, Any]) -> list[dict[str, Any]]:
    """The problems for a `Solver`."""
    return [
        {
            "Shift": starts[[problem]],
            "aligned": {
                "pixel": own["pixel"][problem],
                "intensity": own["intensity"][problem],
                "picture": {**own["picture"], "index": own["picture"]["index"][problem]},
            },
        }
        for problem in range(PROBLEMS)
    ]


def one_by_one(own: dict[str, Any]) -> NDArray[Any]:
    """The solutions of a `Solver`."""
    solver = caspar.Solver(aligned, backend="cpu", precision="float64")
    found = [solver.solve(one, verbose=False).values["Shift"] for one in single(START, own)]
    return np.concatenate(found)


def batch(factor: Any, backend: Any, team: Team | None = None, precision: Any = "auto") -> Any:
    solver = caspar.BatchSolver(factor, backend=backend, precision=precision)
    solver.team = team
    return solver


needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")


@needs_compiler
@pytest.mark.parametrize(("team", "backend"), alternating(Team, ["cpu", "harness"]))
def test_instances_name_their_tables(backend: str, team: Team) -> None:
    own = alignments()
    solver = batch(aligned, "cpu" if backend == "cpu" else HarnessBackend(), team)
    result = solver.solve({"Shift": START, "aligned": own})
    assert result.is_success.all()
    assert_allclose(result.values["Shift"], one_by_one(own), atol=1e-8)
    assert_allclose(result.values["Shift"], TRUE, atol=0.1)


def test_float32_and_ragged_instances() -> None:
    own = alignments()
    problem, place = np.nonzero(np.random.default_rng(1).uniform(size=(PROBLEMS, PIXELS)) < 0.8)
    order = np.random.default_rng(2).permutation(len(problem))
    problem, place = problem[order], place[order]

    def rows(given: Any) -> dict[str, Any]:
        return {"values": given[problem, place], "problem": problem}

    ragged = {name: rows(own[name]) for name in ("pixel", "intensity")}
    ragged["picture"] = {**own["picture"], "index": rows(own["picture"]["index"])}
    weighted = {**own, "weight": np.zeros((PROBLEMS, PIXELS))}
    weighted["weight"][problem, place] = 1.0
    wanted = batch(aligned, "cpu").solve({"Shift": START, "aligned": weighted}).values["Shift"]
    found = batch(aligned, "cpu").solve({"Shift": START, "aligned": ragged})
    assert_allclose(found.values["Shift"], wanted, atol=1e-8)
    narrow = batch(aligned, "cpu", precision="float32")
    found = narrow.solve({"Shift": START.astype(np.float32), "aligned": ragged})
    assert_allclose(found.values["Shift"], wanted, atol=2e-4)


def test_a_table_of_each_problem_or_of_all() -> None:
    own = alignments()
    table = np.arange(PROBLEMS) % 3
    index = np.broadcast_to(table[:, None], (PROBLEMS, PIXELS))
    named = {**own, "picture": {**own["picture"], "index": index}}
    expected = batch(aligned, "cpu").solve({"Shift": START, "aligned": named})
    each = {**own, "picture": own["picture"]["values"][table]}
    found = batch(in_one, "cpu").solve({"Shift": START, "in_one": each})
    assert_array_equal(found.values["Shift"], expected.values["Shift"])
    same = {**named, "picture": {**own["picture"], "index": np.ones_like(index)}}
    expected = batch(aligned, "cpu").solve({"Shift": START, "aligned": same})
    shared = {**own, "picture": own["picture"]["values"][1]}
    found = batch(in_one, "cpu").solve({"Shift": START, "in_one": shared})
    assert_array_equal(found.values["Shift"], expected.values["Shift"])


def test_gradients_are_those_of_single_problems() -> None:
    own = alignments()
    solver, alone = batch(aligned, "cpu"), caspar.Solver(aligned, backend="cpu")
    result = solver.solve({"Shift": START, "aligned": own})
    cotangents = np.random.default_rng(4).normal(size=(PROBLEMS, 2))
    found = solver.gradient(result, {"Shift": cotangents})["aligned"]
    by_tables = np.zeros_like(found["picture"])
    for problem, one in enumerate(single(result.values["Shift"], own)):
        wanted = alone.gradient(one, {"Shift": cotangents[[problem]]})["aligned"]
        for name in ("pixel", "intensity"):
            assert_allclose(found[name][problem], wanted[name], rtol=1e-9, atol=1e-13)
        by_tables += wanted["picture"]
    assert_allclose(found["picture"], by_tables, rtol=1e-9, atol=1e-13)


def test_gradients_by_the_tables_of_problems() -> None:
    own = alignments()
    tables = own["picture"]["values"][np.arange(PROBLEMS) % 3]
    solver = batch(in_one, "cpu")
    result = solver.solve({"Shift": START, "in_one": {**own, "picture": tables}})
    cotangents = {"Shift": np.ones((PROBLEMS, 2))}
    found = solver.gradient(result, cotangents)["in_one"]["picture"]
    index = np.broadcast_to(np.arange(PROBLEMS)[:, None], (PROBLEMS, PIXELS))
    named = {**own, "picture": {"values": tables, "index": index}}
    arrays = {**result.values, "aligned": named}
    wanted = batch(aligned, "cpu").gradient(arrays, cotangents)["aligned"]["picture"]
    assert found.shape == tables.shape
    assert_allclose(found, wanted, rtol=1e-12, atol=1e-15)


def spots() -> tuple[NDArray[Any], dict[str, Any]]:
    """Spots of a measured shape, and what pixels show of them without noise."""
    rng = np.random.default_rng(3)
    true = rng.uniform([3, 3, 50, 1], [5, 5, 90, 3], (8, 4))
    y, x = np.mgrid[:41, :41] / 4 - 5
    samples = np.exp(-(x**2) / 3 - y**2 / 2)
    rows, columns = np.mgrid[:9, :9]
    pixels = np.stack([columns.ravel(), rows.ravel()], axis=1).astype(float)
    own = {"pixel": pixels[None], "psf": Profile.coefficients(samples)}
    return true, own


@pytest.mark.parametrize("team", first(1, Team))
def test_photometry_by_a_spline(team: Team) -> None:
    true, own = spots()
    dx, dy = (own["pixel"] - true[:, None, :2]).transpose(2, 0, 1)
    there = np.stack([4 * dy + 20, 4 * dx + 20])
    shape = map_coordinates(own["psf"], there, order=3, mode="grid-constant", prefilter=False)
    value = true[:, 2:3] * shape + true[:, 3:4]
    start = true * [1, 1, 0.7, 1.5] + [[0.6, -0.5, 0, 0]]
    solver = batch(photometry, "cpu", team)
    result = solver.solve({"Spot": start, "photometry": {**own, "value": value}})
    assert_allclose(result.values["Spot"], true, rtol=1e-9)
    covariance = solver.covariance(result)
    assert_allclose(covariance, numeric_covariance(true, own), rtol=1e-5, atol=1e-9)


def numeric_covariance(true: NDArray[Any], own: dict[str, Any]) -> NDArray[Any]:
    """(J^T J)^-1 by differences."""
    evaluator = caspar.Solver(photometry, backend="cpu", precision="float64")
    pixel = own["pixel"][0]

    def residual(spot: NDArray[Any]) -> NDArray[Any]:
        arrays = {"pixel": pixel, "value": np.zeros(len(pixel)), "psf": own["psf"]}
        found = evaluator.evaluate({"Spot": spot[None], "photometry": arrays})
        shown: NDArray[Any] = np.asarray(found.residuals("photometry"))[:, 0]
        return shown

    made = []
    for spot in true:
        steps = np.eye(4) * 1e-6
        jacobian = np.stack(
            [(residual(spot + step) - residual(spot - step)) / 2e-6 for step in steps], axis=1
        )
        made.append(np.linalg.inv(jacobian.T @ jacobian))
    return np.stack(made)


def paths(num_problems: int, num_places: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Straight paths through a field with obstacles, whose ends are held."""
    rows, columns = np.mgrid[:30, :40]
    discs = [(12, 14, 4.0), (25, 17, 5.0)]
    distance = np.min([np.hypot(columns - x, rows - y) - r for x, y, r in discs], axis=0)
    field = np.stack([distance, 0.02 * (rows - 15.0)], axis=-1)
    along = np.linspace(0, 1, num_places)
    height = np.linspace(12, 18, num_problems)
    start = np.stack(
        [np.broadcast_to(2 + 35 * along, (num_problems, num_places)),
         np.broadcast_to(height[:, None], (num_problems, num_places))], axis=-1,
    ).copy()  # fmt: skip
    index = np.tile(np.arange(num_places), (num_problems, 1))
    arrays = {"Way": start, "clear": {"way": index, "field": field}, "smooth": {"scale": 0.3}}
    held = np.zeros((num_problems, num_places), bool)
    held[:, [0, -1]] = True
    return arrays, {"Way": held.reshape(-1)}


@pytest.mark.parametrize("num_places", first(1, [20, 60]))
def test_paths_through_a_distance_field(num_places: int) -> None:
    arrays, fixed = paths(3, num_places)
    result = batch([clear, smooth], "cpu").solve(arrays, fixed=fixed)
    assert result.is_success.all()
    alone = caspar.Solver([clear, smooth], backend="cpu", precision="float64")
    for problem in range(3):
        own = {
            **arrays,
            "Way": arrays["Way"][problem],
            "clear": {**arrays["clear"], "way": np.arange(num_places)},
        }
        held = {"Way": fixed["Way"].reshape(3, -1)[problem]}
        wanted = alone.solve(own, fixed=held, verbose=False)
        assert_allclose(result.final_cost[problem], wanted.final_cost, rtol=1e-7)
        assert_allclose(result.values["Way"][problem], wanted.values["Way"], atol=1e-3)


def test_large_problems_name_tables_and_rows() -> None:
    arrays, fixed = paths(3, 60)
    fields = np.stack([arrays["clear"]["field"] + shift for shift in (0.0, 0.3, 0.6)])
    each = {**arrays, "clear": {**arrays["clear"], "field": fields}}
    together = batch([clear, smooth], "cpu").solve(each, fixed=fixed)
    for problem in range(3):
        own = {**arrays, "clear": {**arrays["clear"], "field": fields[problem]}}
        alone = batch([clear, smooth], "cpu").solve(own, fixed=fixed)
        assert_array_equal(together.values["Way"][problem], alone.values["Way"][problem])


def compile_for_cuda(
    factors: Any, arrays: Any, precision: BatchPrecisionName, fixed: Any = None
) -> None:
    solver = caspar.BatchSolver(factors, backend=HarnessBackend(), precision=precision)
    assert compile_text(solver.source(arrays, fixed=fixed), "sm_90").warnings == ()


def test_a_kernel_of_a_warp_compiles_for_cuda() -> None:
    arrays, fixed = paths(3, 10)
    compile_for_cuda([clear, smooth], arrays, "float64", fixed)


def test_a_kernel_of_a_thread_compiles_for_cuda() -> None:
    _, own = spots()
    own["value"] = np.zeros((8, 81))
    compile_for_cuda(photometry, {"Spot": np.ones((8, 4)), "photometry": own}, "float32")


def test_programs_show_lookups() -> None:
    own = alignments()
    seen = caspar.BatchSolver(aligned, backend="cpu").inspect({"Shift": START, "aligned": own})
    assert "gather" in str(seen["aligned score"].stage("schedule"))


class Strict(caspar.Grid, dims=2, method="cubic", border="refuse"):
    """Pictures of which nothing outside is known."""


@caspar.factor
def strictly(
    shift: Annotated[Shift, caspar.TunableUnique],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
    intensity: Annotated[sf.Scalar, caspar.ConstSequential],
    picture: Annotated[Strict, caspar.ConstUnique],
) -> sf.V1:
    """A pixel shows what a picture shows there, if that is in the picture."""
    x, y = shift + pixel
    return sf.V1(picture.at(x, y) - intensity)


def strict_problems() -> tuple[dict[str, Any], NDArray[np.bool_]]:
    """Problems of which pixels are partly outside, by half a pixel or more; of the last one all."""
    own = alignments()
    rng = np.random.default_rng(7)
    picture = own["picture"]["values"][0]
    start = TRUE.round() + np.array([[0.2, 0.3]])
    pixel = rng.integers(-20, 36, (PROBLEMS, PIXELS, 2)) + 0.5
    start[-1] = 500.0
    places = start.round()[:, None] + pixel
    is_outside = ((places < 0) | (places > np.array(picture.shape)[::-1] - 1)).any(axis=2)
    weight = np.ones((PROBLEMS, PIXELS))
    weight[:, ::6] = 0.0
    own = {"pixel": pixel, "picture": picture, "weight": weight}
    aside = caspar.Solver(strictly, backend="cpu", precision="float64")
    own["intensity"] = np.zeros((PROBLEMS, PIXELS))
    for problem in range(PROBLEMS):
        given = {name: one[problem] for name, one in own.items() if name != "picture"}
        values = {"Shift": start.round()[problem, None], "strictly": {**given, "picture": picture}}
        own["intensity"][problem] = aside.evaluate(values).residuals("strictly")[:, 0]
    return {"Shift": start, "strictly": own}, is_outside


@pytest.mark.parametrize(
    ("team", "is_ragged"),
    usual([(Team.THREAD, False), (Team.WARP, True)], [*Team, None], [False, True]),
)
def test_instances_outside_are_left_out_and_counted(team: Team | None, is_ragged: bool) -> None:
    arrays, is_outside = strict_problems()
    assert (is_outside.sum(axis=1)[:-1] > 2).all()
    assert (is_outside.sum(axis=1)[:-1] <= PIXELS - 3).all()
    given, own = arrays, arrays["strictly"]
    if is_ragged:
        problem = np.repeat(np.arange(PROBLEMS), PIXELS)
        order = np.random.default_rng(0).permutation(len(problem))
        rows = {
            name: {
                "values": own[name].reshape(len(problem), -1)[order],
                "problem": problem[order],
            }
            for name in ("pixel", "intensity", "weight")
        }
        given = {**arrays, "strictly": {**rows, "picture": own["picture"]}}
    solver = batch(strictly, "cpu", team)
    result = solver.solve(given)
    assert_array_equal(result.num_refused["strictly"], is_outside.sum(axis=1))
    assert result.is_success[:-1].all()
    assert result.status[-1] is caspar.SolveStatus.NO_RESIDUALS
    assert_allclose(result.values["Shift"][:-1], TRUE.round()[:-1], atol=1e-6)
    told = f"factor strictly: {is_outside.sum()} instances of {PROBLEMS} problems look up outside"
    assert told in str(result)
    assert solver.solve(given).status_codes.dtype == np.int32


def test_large_problems_count_what_is_left_out() -> None:
    arrays, fixed = paths(2, 60)

    class Known(caspar.Grid, dims=2, channels=2, border="refuse"):
        """The part of the field that is known."""

    @caspar.factor
    def known(
        way: Annotated[Way, caspar.TunableShared], field: Annotated[Known, caspar.ConstUnique]
    ) -> sf.V1:
        return sf.V1(field.at(*way)[1])

    near = caspar.factors.prior(Way, noise="unit")
    way = arrays["clear"]["way"]
    given = {
        "Way": arrays["Way"],
        "known": {"way": way, "field": arrays["clear"]["field"][:, :20]},
        "prior": {"value": way, "expected": arrays["Way"]},
    }
    result = batch([known, near], "cpu").solve(given, fixed=fixed)
    is_outside = np.asarray(result.values["Way"])[..., 0] > 19
    assert_array_equal(result.num_refused["known"], is_outside.sum(axis=1))
    assert result.is_success.all()


def test_places_that_are_no_numbers_end_their_problem_only() -> None:
    own = alignments()
    start = START.copy()
    start[2] = np.nan
    start[3] = 1e300
    result = batch(aligned, "cpu").solve({"Shift": start, "aligned": own})
    assert result.status[2] is caspar.SolveStatus.INITIAL_COST_NOT_FINITE
    assert_allclose(result.values["Shift"][[0, 1, 4, 5]], one_by_one(own)[[0, 1, 4, 5]], atol=1e-8)


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (np.zeros((3, 4)), "expected values, index|expected a mapping"),
        ({"values": np.zeros(5)}, "'index' is missing"),
        ({"values": np.zeros(5), "index": 1}, r"expected \(rows, columns\)"),
        ({"values": np.zeros((2, 3, 4)), "index": 2}, "index 2 is out of range; a problem has 2"),
        ({"values": np.zeros((0, 3, 4)), "index": 0}, "0 tables; expected one or more"),
    ],
)
def test_wrong_tables_are_refused(picture: Any, message: str) -> None:
    own = alignments()
    if isinstance(picture, dict) and "index" in picture:
        picture["index"] = np.full((PROBLEMS, PIXELS), picture["index"])
    with pytest.raises(InputError, match=message) as caught:
        batch(aligned, "cpu").solve({"Shift": START, "aligned": {**own, "picture": picture}})
    assert "factor aligned" in str(caught.value)


def test_another_number_of_tables_than_problems_is_refused() -> None:
    own = {**alignments(), "picture": np.zeros((4, 5, 5))}
    with pytest.raises(InputError, match="4 tables; expected 1, or 6: each problem's"):
        batch(in_one, "cpu").solve({"Shift": START, "in_one": own})
