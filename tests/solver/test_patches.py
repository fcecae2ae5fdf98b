"""Tables whose numbers are unknowns: values, derivatives, solves, and wrong arrays."""

from itertools import product
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.optimize import least_squares

import caspar
from caspar.autodiff.call import passed_to_factor
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.errors import FactorError, InputError
from caspar.frontend.factors.trace import TracedFactor
from caspar.frontend.symbolic.derive import gradient
from caspar.frontend.symbolic.lookups import Method
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar
from caspar.memory.array import Binding
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.patterns import ReadRows, WriteRows
from caspar.runtime.cpu.backend import CpuBackend
from caspar.tracing import traced_factor
from tests.codegen.test_lookups import FORMULAS
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend
from tests.solver.solving import ON_BACKENDS

Array = NDArray[Any]

NUM_KNOTS, NUM_SAMPLES = 9, 60
SIZES = (5, 6, 7)


class Curve(caspar.Grid, dims=1, method="bspline3"):
    """A curve whose knots are unknowns."""

    def shifted(self, x: Any, shift: Any) -> Any:
        """A method of the user's class."""
        return self.at(x + shift[0])


class Shift(sf.V1):
    """What is added to all places."""


@caspar.factor
def sample(
    curve: Annotated[Curve, caspar.TunableShared],
    shift: Annotated[Shift, caspar.TunableShared],
    x: Annotated[sf.Scalar, caspar.ConstSequential],
    y: Annotated[sf.Scalar, caspar.ConstSequential],
) -> sf.V1:
    """A sample of the curve."""
    return sf.V1(curve.shifted(x, shift) - y)


@caspar.factor
def known_shift(
    shift: Annotated[Shift, caspar.TunableShared], near: Annotated[Shift, caspar.ConstUnique]
) -> sf.V1:
    """About how large it is."""
    return 3 * (shift - near)


smooth = caspar.factors.between(Curve.Knot, noise="unit", name="smooth")
FACTORS = [sample, smooth, known_shift]


def places() -> Array:
    return np.random.default_rng(0).uniform(1.6, NUM_KNOTS - 2.6, NUM_SAMPLES)


def problem(coordinates: Array | None = None) -> dict[str, Any]:
    """Samples of a sine whose places are off by 0.4."""
    x = places()
    patch = caspar.grid_patch(Curve, (NUM_KNOTS,), x if coordinates is None else coordinates)
    count = NUM_KNOTS - 1
    return {
        "Curve": np.zeros(NUM_KNOTS),
        "Shift": np.array([[0.0]]),
        "sample": {
            "curve": patch,
            "shift": np.zeros(NUM_SAMPLES, int),
            "x": x,
            "y": np.sin(x + 0.4),
        },
        "smooth": {
            "a": np.arange(count),
            "b": np.arange(count) + 1,
            "a_from_b": np.zeros((count, 1)),
        },
        "known_shift": {"shift": [0], "near": np.array([0.35])},
    }


def weight(offset: int, rest: Array) -> Array:
    found: Array = FORMULAS[Method.BSPLINE3][offset](rest)
    return found


def residuals(unknowns: Array, arrays: Any) -> Array:
    """The same by NumPy, with the patches of some arrays."""
    knots, shift = unknowns[:-1], unknowns[-1]
    own = arrays["sample"]
    base = own["curve"].base[:, 0]
    rest = own["x"] + shift - base
    values = sum(weight(k, rest) * knots[base.astype(int) + k] for k in (-1, 0, 1, 2))
    return np.concatenate([values - own["y"], np.diff(knots), [3 * (shift - 0.35)]])


def best_cost(arrays: Any) -> float:
    start = np.zeros(NUM_KNOTS + 1)
    tight = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    return float(least_squares(residuals, start, args=(arrays,), **tight).cost)


def with_new_patches(solver: Any, arrays: dict[str, Any], result: Any) -> dict[str, Any]:
    """The arrays of the next solve."""
    arrays = {**arrays, **result.values}
    coordinates = solver.evaluate(arrays).coordinates("sample", "curve")
    patch = caspar.grid_patch(Curve, (NUM_KNOTS,), coordinates)
    return {**arrays, "sample": {**arrays["sample"], "curve": patch}}


# -- values and derivatives ------------------------------------------------------------------------


SCALES = {1: (1.0, 0.5), 2: (1.0, 0.5), 3: (1.0,)}
"""Multiples of the place at which a table is looked up, by its axes."""


def looked_up(dims: int, method: str, channels: int) -> TracedFactor:
    """A residual that is a table at one place or two."""
    kind: Any = type("Table", (caspar.Grid,), {}, dims=dims, channels=channels, method=method)
    point: Any = [sf.V1, sf.V2, sf.V3][dims - 1]

    @caspar.factor
    def value(
        table: Annotated[kind, caspar.TunableShared],
        place: Annotated[point, caspar.TunableShared],
    ) -> Any:
        found = [table.at(*(scale * place)) for scale in SCALES[dims]]
        return sf.Matrix([one for value in found for one in (value if channels > 1 else [value])])

    return traced_factor(value)


def jacobian_kernel(traced: TracedFactor) -> KernelSpec:
    """Each row of a residual, and its derivatives by all numbers of the storage."""
    kernel = KernelBuilder("jacobian", DType.FLOAT64)
    names = [str(symbol) for one in traced.arguments for symbol in one.symbols]
    given = kernel.read("given", len(names), DType.FLOAT64, ReadRows())
    symbols = [one.value for one in given]
    lowering = Lowering(kernel.graph, dict(zip(names, symbols, strict=True)), "")
    results = []
    for row in traced.residual:
        value = lowering.lower(sf.sympify(row))
        results += [value, *gradient(kernel.graph, value, symbols)]
    scalars = [Scalar(kernel.graph, one) for one in results]
    kernel.write("results", scalars, DType.FLOAT64, WriteRows())
    return kernel.build()


def run(spec: KernelSpec, given: Array) -> Array:
    results = np.full((len(given), spec.arg("results").dim), np.nan)
    bindings = {
        name: Binding(rows, len(rows))
        for name, rows in {"given": np.ascontiguousarray(given), "results": results}.items()
    }
    backend = CpuBackend()
    kernel = backend.load([compile_kernel(spec, TARGETS["cpu"])])[spec.name]
    with backend.scope():
        backend.sequence([backend.bind(kernel, bindings, len(given))]).run()
    return results


def interpolated(method: Method, knots: Array, base: Array, place: Array) -> tuple[Array, ...]:
    """The values of a patch at a place, with derivatives by the place and by the knots.

    Args:
        method: How.
        knots: (knots, channels) in the order of the table.
        base: Coordinates, x first.
        place: Coordinates, x first.
    """
    rest, dims = (place - base)[::-1], len(place)
    value, by_place = np.zeros(knots.shape[1]), np.zeros((knots.shape[1], dims))
    by_knot = []
    for knot, offsets in zip(knots, product(sorted(FORMULAS[method]), repeat=dims), strict=True):
        polynomials = [FORMULAS[method][offset] for offset in offsets]
        weights = np.array([one(x) for one, x in zip(polynomials, rest, strict=True)])
        slopes = [one.deriv()(x) for one, x in zip(polynomials, rest, strict=True)]
        value += knot * weights.prod()
        by_knot.append(weights.prod())
        for axis, slope in enumerate(slopes):
            others = np.delete(weights, axis).prod()
            by_place[:, dims - 1 - axis] += knot * slope * others
    return value, by_place, np.array(by_knot)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("method", list(Method))
def test_values_and_derivatives(dims: int, method: Method) -> None:
    channels = 1 if dims == 3 else 2
    traced = looked_up(dims, method.value, channels)
    num_knots = len(FORMULAS[method]) ** dims
    rng = np.random.default_rng(dims)
    # also outside of the patch's cell
    place = rng.uniform(0.0, 4.0, (7, dims))
    base = np.full((7, dims), 1.0)
    knots = rng.normal(size=(7, num_knots, channels))
    given = np.concatenate([knots.reshape(7, -1), base, place], axis=1)
    rows = run(jacobian_kernel(traced), given).reshape(7, len(SCALES[dims]) * channels, -1)
    for number in range(7):
        for which, scale in enumerate(SCALES[dims]):
            value, by_place, by_knot = interpolated(
                method, knots[number], base[number], scale * place[number]
            )
            found = rows[number, which * channels : (which + 1) * channels]
            kwargs = {"rtol": 1e-13, "atol": 1e-13 * max(1.0, np.abs(by_knot).max())}
            assert_allclose(found[:, 0], value, **kwargs)
            assert_allclose(found[:, -dims:], scale * by_place, **kwargs)
            mine = found[:, 1 : 1 + num_knots * channels].reshape(channels, num_knots, channels)
            truth = np.einsum("k,cd->ckd", by_knot, np.eye(channels))
            assert_allclose(mine, truth, **kwargs)


@pytest.mark.parametrize("method", list(Method))
def test_patches_and_tables_agree(method: Method) -> None:
    kind: Any = type("Same", (caspar.Grid,), {}, dims=3, channels=1, method=method.value)
    rng = np.random.default_rng(1)
    table = rng.normal(size=SIZES)
    least = 0 if method is Method.LINEAR else 1
    coordinates = rng.uniform(least, np.array(SIZES[::-1]) - 1 - least, (20, 3))
    coordinates[0], coordinates[1] = least, np.array(SIZES[::-1]) - 1 - least
    patch = caspar.grid_patch(kind, SIZES, coordinates)

    @caspar.kernel(backend="cpu")
    def constant(
        place: Annotated[sf.V3, caspar.ReadSequential], table: Annotated[kind, caspar.ReadUnique]
    ) -> Annotated[sf.Symbol, caspar.WriteSequential]:
        return table.at(*place)

    for number in range(20):
        knots = np.array([table.reshape(-1)[index[number]] for index in patch.index])
        found = interpolated(method, knots[:, None], patch.base[number], coordinates[number])[0]
        assert_allclose(found, constant(coordinates, table)[number], 0, 1e-13)


# -- solves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float64", "mixed"])
@ON_BACKENDS
def test_the_optimum_is_that_of_scipy(backend: Any, precision: Any) -> None:
    arrays = problem()
    solver = caspar.Solver(FACTORS, backend=backend, precision=precision)
    result = solver.solve(arrays, cost_tolerance=0.0)
    assert result.values["Curve"].shape == (NUM_KNOTS, 1)
    assert_allclose(result.final_cost, best_cost(arrays), 1e-8, 0)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_cuda_sources_find_it() -> None:
    arrays = problem()
    backend: Any = HarnessBackend()
    result = caspar.Solver(FACTORS, backend=backend, precision="float64").solve(arrays)
    assert_allclose(result.final_cost, best_cost(arrays), 1e-8, 0)


def test_instances_that_leave_their_patch_are_told_and_chosen_anew() -> None:
    arrays = problem()
    solver = caspar.Solver(FACTORS, backend="cpu", precision="float64")
    result = solver.solve(arrays)
    found = solver.evaluate({**arrays, **result.values}).coordinates("sample", "curve")
    beyond = found - arrays["sample"]["curve"].base
    num_left = int(((beyond < 0) | (beyond > 1)).sum())
    assert num_left > 0
    (remark,) = [one for one in result.remarks if "patch" in one]
    assert f"factor sample, argument curve: {num_left} of {NUM_SAMPLES} instances" in remark
    for _ in range(5):
        arrays = with_new_patches(solver, arrays, result)
        result = solver.solve(arrays, cost_tolerance=0.0)
    assert not any("patch" in one for one in result.remarks)
    assert_allclose(result.final_cost, best_cost(arrays), 1e-8, 0)


def test_instances_without_weight_are_not_counted() -> None:
    arrays = problem()
    arrays["sample"]["weight"] = np.zeros(NUM_SAMPLES)
    arrays["sample"]["weight"][:2] = 1.0
    arrays["Shift"] = np.array([[50.0]])
    arrays["known_shift"]["near"] = np.array([50.0])
    result = caspar.Solver(FACTORS, backend="cpu").solve(arrays, fixed={"Shift": [0]})
    assert any(f"2 of {NUM_SAMPLES} instances left" in one for one in result.remarks)


def test_what_stands_behind_knows_nothing_of_patches() -> None:
    arrays = problem()
    solver = caspar.Solver(FACTORS, backend="cpu", precision="float64")
    result = solver.solve(arrays)
    cost = result.final_cost
    # parts, devices, live problems and batches
    cuts = [slice(0, 25), slice(25, None)]
    own = arrays["sample"]
    patches = [caspar.grid_patch(Curve, (NUM_KNOTS,), own["x"][cut]) for cut in cuts]
    parts = {name: [own[name][cut] for cut in cuts] for name in ("shift", "x", "y")}
    in_parts = {**arrays, "sample": {"curve": patches, **parts}}
    assert_allclose(solver.solve(in_parts).final_cost, cost, 1e-12, 0)
    shared = caspar.Solver(FACTORS, backend="cpu", precision="float64", devices=2)
    assert_allclose(shared.solve(arrays).final_cost, cost, 1e-9, 0)
    live = caspar.Problem(FACTORS, backend="cpu", precision="float64")
    live.add_nodes("Curve", np.zeros((NUM_KNOTS, 1)))
    live.add_nodes("Shift", np.zeros((1, 1)))
    for name in ("sample", "smooth", "known_shift"):
        live.add_factors(name, arrays[name])
    assert_allclose(live.solve().final_cost, cost, 1e-9, 0)
    # covariances and gradients
    covariance = solver.covariance(result, {"Curve": "all"})
    assert np.isfinite(covariance.standard_errors("Curve")).all()
    derivative = solver.gradient(result, {"Shift": np.ones((1, 1))}).arrays["sample"]
    step = 0.02
    moved = []
    for sign in (1, -1):
        y = own["y"] + sign * step * np.eye(NUM_SAMPLES)[3]
        changed = {**arrays, "sample": {**own, "y": y}}
        moved.append(solver.solve(changed, cost_tolerance=0.0).values["Shift"][0, 0])
    assert_allclose(derivative["y"][3], (moved[0] - moved[1]) / (2 * step), 2e-3, 0)


def test_batches_have_tables_of_their_own() -> None:
    arrays = problem()
    own, count = arrays["sample"], NUM_KNOTS - 1

    def several(rows: Any) -> Array:
        return np.stack([rows, rows])

    batch = {
        "Curve": np.zeros((2, NUM_KNOTS, 1)),
        "Shift": np.zeros((2, 1)),
        "sample": {
            "curve": caspar.grid_patch(Curve, (NUM_KNOTS,), several(own["x"][:, None])),
            "x": several(own["x"]),
            "y": several(own["y"]),
        },
        "smooth": {
            "a": several(np.arange(count)),
            "b": several(np.arange(count) + 1),
            "a_from_b": np.zeros((2, count, 1)),
        },
        "known_shift": {"near": np.full((2, 1), 0.35)},
    }
    found = caspar.BatchSolver(FACTORS, backend="cpu", precision="float64").solve(batch)
    alone = caspar.Solver(FACTORS, backend="cpu", precision="float64").solve(arrays)
    assert_allclose(found.final_cost, alone.final_cost, 1e-9, 0)


def test_residuals_for_torch_and_jax_take_patches() -> None:
    arrays = {**problem(), "Curve": np.arange(NUM_KNOTS)[:, None] / 9.0}
    passed = passed_to_factor(sample, arrays, backend="cpu", check=True)
    (found,) = passed.call.run([np.asarray(one) for one in passed.values])
    evaluated = caspar.Solver(FACTORS, backend="cpu", precision="float64").evaluate(arrays)
    assert_allclose(found, evaluated.residuals("sample"), 0, 1e-14)


def test_coordinates_of_several_places_and_of_unknowns_that_are_eliminated() -> None:
    kind: Any = type("Straight", (caspar.Grid,), {}, dims=1)

    @caspar.factor
    def crossing(
        curve: Annotated[kind, caspar.TunableShared],
        x: Annotated[sf.Scalar, caspar.TunableSequential],
        near: Annotated[sf.Scalar, caspar.ConstSequential],
    ) -> sf.V2:
        return sf.V2(x - near, curve.at(x) + curve.at(near))

    near = np.array([0.2, 1.4, 2.5])
    patch = caspar.grid_patch(kind, (4,), near)
    arrays = {
        "Straight": np.array([0.0, 0.5, 2.0, 1.0]),
        "crossing": {"curve": patch, "near": near},
    }
    found = caspar.Solver(crossing, backend="cpu", precision="float64").evaluate(arrays)
    places = found.coordinates("crossing", "curve")
    assert places.shape == (3, 2, 1)
    assert_allclose(places[:, 0], found.unknowns("crossing", "x"), 0, 1e-14)
    assert_allclose(places[:, 1, 0], near, 0, 1e-15)
    with pytest.raises(InputError, match="table of unknowns of factor crossing"):
        found.coordinates("crossing", "near")


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("coordinates", "message"),
    [
        (np.zeros((3, 2)), r"shape \(3, 2\); expected \(m, 1\)"),
        (np.zeros((3, 2, 2)), r"expected \(m, 1\)"),
        (["a", "b"], "must be numbers"),
        ([2.0, np.nan], "coordinate 0 of instance 1 is nan"),
        ([2.0, np.inf], "coordinate 0 of instance 1 is inf"),
        ([2.0, 0.5, 0.25], "is 0.5, and those of 2 instances are outside 1 to 7"),
        ([7.5], "outside 1 to 7, where all knots that are needed exist"),
        ([[1.0], [2.0, 3.0]], "cannot be read as an array"),
    ],
)
def test_wrong_coordinates_are_refused(coordinates: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        caspar.grid_patch(Curve, (NUM_KNOTS,), coordinates)
    assert "grid_patch(Curve)" in str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((4, 5), "expected one for each of 1 axes"), ((3,), "'bspline3' needs 4 knots or more")],
)
def test_wrong_sizes_are_refused(sizes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        caspar.grid_patch(Curve, sizes, [1.5])


def test_wrong_arrays_are_refused() -> None:
    other: Any = type("Other", (caspar.Grid,), {}, dims=1)
    solver = caspar.Solver(FACTORS, backend="cpu")
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, r"missing; pass caspar\.grid_patch\(Curve, sizes, coordinates\)"),
        ({"curve": places()}, "got ndarray"),
        ({"curve": caspar.grid_patch(other, (9,), places())}, "got a patch of Other"),
        ({"curve": caspar.grid_patch(Curve, (10,), places())}, r"10 knots, but node type Curve"),
    ]
    for passed, message in cases:
        arrays = problem()
        del arrays["sample"]["curve"]
        arrays["sample"] |= passed
        with pytest.raises(InputError, match=message) as caught:
            solver.solve(arrays)
        assert "factor sample, argument curve" in str(caught.value)
    arrays = problem()
    for name in ("shift", "x", "y", "curve"):
        arrays["sample"][name] = []
    arrays["Curve"] = np.zeros((NUM_KNOTS, 1))
    assert solver.solve(arrays).status.is_success


def test_a_wrong_number_of_coordinates_is_refused() -> None:
    @caspar.factor
    def wrong(curve: Annotated[Curve, caspar.TunableShared]) -> sf.V1:
        return sf.V1(curve.at(1.5, 2.5))

    with pytest.raises(FactorError, match="2 coordinates; its tables have 1 axis"):
        caspar.Solver(wrong, backend="cpu")
