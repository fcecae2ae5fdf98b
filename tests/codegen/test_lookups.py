"""Values looked up in tables, and their derivatives: both targets and NumPy against the formula."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.polynomial import Polynomial
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates

from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.frontend.grids import Grid
from caspar.frontend.symbolic.derive import gradient
from caspar.frontend.symbolic.lookups import Border, Lookup, Method, lower_inside, lower_lookup
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph
from caspar.ir.graph import Graph
from caspar.ir.scalar import Scalar
from caspar.ir.text import parse_graph, print_graph
from caspar.memory.array import Binding
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.patterns import ReadIndexed, ReadRows, WriteRows
from caspar.runtime.backend import Backend
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend
from tests.support_verify import verify_graph

Array = NDArray[Any]

SIZES = (4, 5, 6)
NUM_TABLES = 3
CHANNELS = 2
LOOKUPS = [Lookup(*one, 1, CHANNELS) for one in product(Method, (Border.CLAMP, Border.ZERO))]

FORMULAS: dict[Method, dict[int, Polynomial]] = {
    Method.LINEAR: {0: Polynomial([1, -1]), 1: Polynomial([0, 1])},
    # p(0) = p0 and p(1) = p1 with the slopes (p1 - p_-1) / 2 and (p2 - p0) / 2
    Method.CUBIC: {
        -1: Polynomial([0, -1, 2, -1]) / 2,
        0: Polynomial([2, 0, -5, 3]) / 2,
        1: Polynomial([0, 1, 4, -3]) / 2,
        2: Polynomial([0, 0, -1, 1]) / 2,
    },
    Method.BSPLINE3: {
        -1: Polynomial([1, -1]) ** 3 / 6,
        0: Polynomial([4, 0, -6, 3]) / 6,
        1: Polynomial([1, 3, 3, -3]) / 6,
        2: Polynomial([0, 0, 0, 1]) / 6,
    },
}


@dataclass(frozen=True)
class Problem:
    """Places and tables.

    Attributes:
        places: (n, axes) coordinates, the one along the last axis first.
        tables: (NUM_TABLES, sizes, CHANNELS).
        numbers: (n,) table of each place.
    """

    places: Array
    tables: Array
    numbers: NDArray[np.int32]

    @property
    def memory(self) -> Array:
        """The tables as kernels read them."""
        kind: Any = type("Tables", (Grid,), {}, dims=self.places.shape[1], channels=CHANNELS)
        memory: Array = kind.packed(self.tables)
        return memory

    @property
    def starts(self) -> NDArray[np.int32]:
        """Where the table of each place begins."""
        return self.numbers * np.int32(self.memory.shape[1])

    def truth(self, lookup: Lookup) -> Array:
        """(n, 1 + axes) value and derivatives, in float64."""
        found = np.zeros((len(self.places), 1 + self.places.shape[1]))
        sizes = self.tables.shape[1:-1]
        for row, (place, number) in enumerate(zip(self.places, self.numbers, strict=True)):
            below = np.floor(place[::-1].astype(float))
            rest = place[::-1] - below
            for offsets in product(FORMULAS[lookup.method], repeat=len(sizes)):
                at = below.astype(int) + offsets
                inside = bool(np.all((at >= 0) & (at < sizes)))
                if not inside and lookup.border is Border.ZERO:
                    continue
                nearest = tuple(np.clip(at, 0, np.array(sizes) - 1))
                sample = float(self.tables[(number, *nearest, lookup.channel)])
                weights = [FORMULAS[lookup.method][offset] for offset in offsets]
                for column in range(1 + len(sizes)):
                    # coordinates are in the opposite order of the axes
                    derived = len(sizes) - column if column > 0 else None
                    factors = [
                        (weight.deriv() if axis == derived else weight)(x)
                        for axis, (weight, x) in enumerate(zip(weights, rest, strict=True))
                    ]
                    found[row, column] += sample * float(np.prod(factors))
        return found


def problem(axes: int, dtype: DType) -> Problem:
    """Places inside, at the borders and far outside."""
    rng = np.random.default_rng(axes)
    kind = np.dtype(dtype.value)
    tables = rng.normal(size=(NUM_TABLES, *SIZES[:axes], CHANNELS)).astype(kind)
    # in float32 too a place less its floor is exact
    places = np.round(rng.uniform(-4, 9, (60, axes)) * 1024) / 1024
    places[:10] = np.round(places[:10])
    places[10] = 1000.0
    places[11] = -1000.0
    numbers = rng.integers(0, NUM_TABLES, 60).astype(np.int32)
    return Problem(places.astype(kind), tables, numbers)


def lookup_kernel(axes: int, dtype: DType, lookups: Sequence[Lookup]) -> KernelSpec:
    """Value and derivatives of each lookup, side by side."""
    kernel = KernelBuilder(f"look_up_{axes}", dtype)
    places = kernel.read("places", axes, dtype, ReadRows())
    (first,) = kernel.read("tables", 1, dtype, ReadIndexed())
    coordinates = [place.value for place in places]
    results = []
    for lookup in lookups:
        value = lower_lookup(kernel.graph, lookup, [first.value, *coordinates])
        results += [value, *gradient(kernel.graph, value, coordinates)]
    scalars = [Scalar(kernel.graph, one) for one in results]
    kernel.write("results", scalars, dtype, WriteRows())
    return kernel.build()


def run(backend: Backend, target: str, spec: KernelSpec, given: Problem) -> Array:
    """The results of a kernel."""
    count = len(given.places)
    results = np.full((count, spec.arg("results").dim), np.nan, given.places.dtype)
    memory = given.memory.reshape(-1)
    bindings = {
        "places": Binding(np.ascontiguousarray(given.places), count),
        "tables": Binding(memory, len(memory), fields={"index": given.starts}),
        "results": Binding(results, count),
    }
    kernel = backend.load([compile_kernel(spec, TARGETS[target])])[spec.name]
    with backend.scope():
        backend.sequence([backend.bind(kernel, bindings, count)]).run()
    return results


def check(axes: int, dtype: DType, backend: Backend, target: str) -> None:
    """Compare all lookups with the formula."""
    spec, given = lookup_kernel(axes, dtype, LOOKUPS), problem(axes, dtype)
    truth = np.concatenate([given.truth(lookup) for lookup in LOOKUPS], axis=1)
    tolerance = 1e-14 if dtype is DType.FLOAT64 else 1e-6
    assert_allclose(run(backend, target, spec, given), truth, 0, tolerance)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_processor_agrees_with_the_formula(axes: int) -> None:
    check(axes, DType.FLOAT64, CpuBackend(), "cpu")


def test_float32_agrees_with_the_formula() -> None:
    check(2, DType.FLOAT32, CpuBackend(), "cpu")


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda one: one.value)
def test_cuda_agrees_with_the_formula(dtype: DType) -> None:
    check(2, dtype, HarnessBackend(), "cuda")


def graph_of(axes: int) -> Graph:
    return lookup_kernel(axes, DType.FLOAT64, LOOKUPS).graph


def test_numpy_agrees_with_the_formula() -> None:
    given = problem(3, DType.FLOAT64)
    inputs = {"places": given.places, "tables": given.memory.reshape(1, -1)}
    chunks = {"places": 2, "results": 2}
    found = evaluate_graph(graph_of(3), inputs, chunks, {"tables": given.starts})
    truth = np.concatenate([given.truth(lookup) for lookup in LOOKUPS], axis=1)
    assert_allclose(found["results"], truth, 0, 1e-13)


def inside_kernel() -> KernelSpec:
    """1 for places in their tables."""
    kernel = KernelBuilder("inside", DType.FLOAT64)
    places = kernel.read("places", 2, DType.FLOAT64, ReadRows())
    (first,) = kernel.read("tables", 1, DType.FLOAT64, ReadIndexed())
    flag = lower_inside(kernel.graph, [first.value, *(place.value for place in places)])
    kernel.write("results", [Scalar(kernel.graph, flag)], DType.FLOAT64, WriteRows())
    return kernel.build()


@pytest.mark.parametrize("target", ["cpu", "cuda", "numpy"])
def test_places_in_tables_are_told_apart(target: str) -> None:
    if target == "cuda" and find_compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    spec, given = inside_kernel(), problem(2, DType.FLOAT64)
    given.places[:4] = [[0, 0], [4, 3], [4, 3.0000001], [-1e-9, 1]]
    given.places[4:8] = [[np.inf, 1], [1, -np.inf], [np.nan, 1], [1e300, 1]]
    places = given.places
    truth = ((places >= 0) & (places <= [4, 3])).all(axis=1).astype(float)
    truth[6] = np.nan
    if target == "numpy":
        verify_graph(spec.graph)
        assert print_graph(parse_graph(print_graph(spec.graph))) == print_graph(spec.graph)
        inputs = {"places": places, "tables": given.memory.reshape(1, -1)}
        lengths = {"places": 2, "results": 2}
        found = evaluate_graph(spec.graph, inputs, lengths, {"tables": given.starts})["results"]
    else:
        backend = CpuBackend() if target == "cpu" else HarnessBackend()
        found = run(backend, target, spec, given)
    assert_allclose(found[:, 0], truth, 0, 0)


def test_text_and_rules_know_lookups() -> None:
    graph = graph_of(2)
    verify_graph(graph)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)


def test_places_that_are_no_numbers_give_none_and_read_inside() -> None:
    spec, given = lookup_kernel(2, DType.FLOAT64, LOOKUPS), problem(2, DType.FLOAT64)
    given.places[:3] = [[np.nan, 1.0], [np.inf, 1.0], [1.0, -np.inf]]
    given.places[3:5] = [[1e300, 1.0], [1.0, -1e300]]
    values = run(CpuBackend(), "cpu", spec, given)[:, ::3]
    assert np.isnan(values[:3]).all()
    assert np.isfinite(values[3:]).all()


@pytest.mark.parametrize(
    ("method", "border", "mode"),
    [
        (Method.LINEAR, Border.CLAMP, "nearest"),
        (Method.LINEAR, Border.ZERO, "grid-constant"),
        (Method.BSPLINE3, Border.CLAMP, "nearest"),
        (Method.BSPLINE3, Border.ZERO, "grid-constant"),
    ],
)
def test_agrees_with_scipy(method: Method, border: Border, mode: str) -> None:
    given = problem(2, DType.FLOAT64)
    lookup = Lookup(method, border, 0, CHANNELS)
    results = run(CpuBackend(), "cpu", lookup_kernel(2, DType.FLOAT64, [lookup]), given)
    order = 1 if method is Method.LINEAR else 3
    for number in range(NUM_TABLES):
        mine = given.numbers == number
        places = given.places[mine, ::-1].T
        table = given.tables[number, ..., 0]
        truth = map_coordinates(table, places, order=order, mode=mode, prefilter=False)
        assert_allclose(results[mine, 0], truth, 0, 1e-13)


def test_value_and_derivatives_share_their_loads() -> None:
    spec = lookup_kernel(2, DType.FLOAT32, [Lookup(Method.LINEAR, Border.CLAMP, 0, 1)])
    text = compile_kernel(spec, TARGETS["cuda"]).text
    loads = {line.strip() for line in text.splitlines() if "__ldg(tables" in line}
    assert len(loads) == 4


def test_nvrtc_compiles_a_lookup() -> None:
    spec = lookup_kernel(2, DType.FLOAT32, LOOKUPS)
    compiled = compile_text(compile_kernel(spec, TARGETS["cuda"]).text, "sm_90")
    assert compiled.warnings == ()


def test_coefficients_give_the_samples_back() -> None:
    kind: Any = type("Spline", (Grid,), {}, dims=2, channels=2, method="bspline3")
    given = problem(2, DType.FLOAT64)
    places = np.array([[x, y] for y in range(SIZES[0]) for x in range(SIZES[1])], float)
    coefficients = kind.coefficients(given.tables)
    assert coefficients.shape == given.tables.shape
    at_samples = Problem(places, coefficients, np.zeros(len(places), np.int32))
    found = at_samples.truth(Lookup(Method.BSPLINE3, Border.CLAMP, 1, 2))[:, 0]
    assert_allclose(found.reshape(SIZES[:2]), given.tables[0, ..., 1], 0, 1e-14)
