"""Whatever things are called, solutions are the same, on the processor and as CUDA."""

import dataclasses
import keyword
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import caspar
from caspar.codegen.source import KernelSource
from caspar.errors import FactorError, InputError
from caspar.runtime.backend import Kernel
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.covering import alternating
from tests.harness_backend import HarnessBackend
from tests.support_kernels import one_text

Array = NDArray[np.float64]

NUM_CAMERAS, NUM_POINTS = 5, 12
MAX_ITERATIONS = 4

TOLERANCE = 1e-7
"""SymEngine puts the terms of a sum in an order that depends on the names of its symbols."""

ROUNDED_TOLERANCE = 1e-4
"""With entries in 16 bits, which that order may round the other way."""

WORDS = (
    # arguments and parts of caspar's own kernels
    *("residual", "cost", "jacobian", "curvature", "tiles", "count", "damping", "done", "alpha"),
    *("pair_block", "pair_order", "square", "values"),
    # what is made of an argument called `point`, `cam` or `p`
    *("point", "point_sum", "point_sum1", "point_spread1", "point_gradient", "point_value"),
    *("cam", "cam_square", "cam_index", "cam_data", "cam_segment"),
    *("p", "p_first", "p_second", "p_first_value", "score", "score_kernel", "run_score"),
    # words of C, CUDA, Python, NumPy and of generated text
    *("float", "int", "double", "register", "template", "this", "new", "typename", "extern"),
    *("threadIdx", "blockDim", "float4", "min", "max", "sqrt", "printf", "NULL", "BLOCK_SIZE"),
    *("np", "numba", "math", "range", "print", "lambda_", "self", "match", "nan", "inf", "out"),
    *("item", "tile", "lane", "group", "active", "is_done", "own", "shared", "k0", "v0", "r0"),
    *("epsilon", "x", "X", "_", "_x", "x0", "x_", "Cam", "Point", "nodes", "all", "clear", "copy"),
    # other letters, and names that differ little or are long
    *("größe", "Größe", "θ", "λ", "λ_x", "Kamera_ä", "kamera_ä", "点", "переменная", "µ"),
    *("a" * 41, "A" * 41, "a" * 120, "ä" * 120, "b" * 300, "c" * 3000),
)
VOCABULARY = sorted({unicodedata.normalize("NFKC", word) for word in WORDS})


@dataclass(frozen=True)
class Names:
    """What everything is called.

    Attributes:
        outer: Of the two factors and the two node types.
        inner: Of the arguments of the first factor: a camera, a point, a constant of each
            instance and one for all; of the second: a pair, and a constant for all.
        fields: Of a camera.
    """

    outer: tuple[str, ...]
    inner: tuple[str, ...]
    fields: tuple[str, ...]


PLAIN = Names(
    ("seen", "moved", "Camera", "Landmark"),
    ("camera", "landmark", "pixel", "factor", "pair", "step"),
    ("centre", "scale"),
)

KERNELS = Names(
    ("reprojection", "reprojection_score", "Cam", "Cam_step"),
    ("cam", "point", "point_sum1", "point_spread1", "p", "p_second"),
    ("c", "cam_c"),
)
GENERATED = Names(
    ("score", "run_score", "k0", "clear"),
    ("cam", "pair_block", "cam_index", "cam_data", "cam_square", "residual"),
    ("epsilon", "x0"),
)
LETTERS = Names(
    ("c" * 3000, "größe", "Kamera_ä", "kamera_ä"),
    ("θ", "λ", "a" * 120, "A" * 41, "ä" * 120, "epsilon"),
    ("λ", "点"),
)


def distinct(count: int) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(VOCABULARY), min_size=count, max_size=count, unique=True).map(
        tuple
    )


names_drawn = st.builds(Names, distinct(4), distinct(6), distinct(2))


def problem(names: Names, kinds: str) -> tuple[list[caspar.Factor], dict[str, Any]]:
    """Factors of the `kinds`, and their arrays: `seen` joins both types, `moved` pairs cameras."""
    seen, moved, camera_type, point_type = names.outer
    camera, point, pixel, factor, pair, step = names.inner
    centre, scale = names.fields
    camera_class = dataclasses.make_dataclass(camera_type, [(centre, sf.V2), (scale, sf.Scalar)])
    visible: dict[str, Any] = {
        "Marked": Annotated,
        "Camera": camera_class,
        "Point": type(point_type, (sf.V2,), {}),
        "Library": caspar,
        "Symbolic": sf,
    }

    def made(name: str, header: str, body: str) -> caspar.Factor:
        exec(f"def function({header}) -> Symbolic.V2:\n    return {body}", visible)
        visible["function"].__name__ = name
        return caspar.factor(visible["function"])

    sees = made(
        seen,
        f"{camera}: Marked[Camera, Library.TunableShared], "
        f"{point}: Marked[Point, Library.TunableShared], "
        f"{pixel}: Marked[Symbolic.V2, Library.ConstSequential], "
        f"{factor}: Marked[Symbolic.Scalar, Library.ConstUnique]",
        f"{factor} * ({camera}.{centre} + {camera}.{scale} * {point} - {pixel})",
    )
    moves = made(
        moved,
        f"{pair}: Marked[Library.Pair[Camera], Library.TunablePair], "
        f"{step}: Marked[Symbolic.V2, Library.ConstUnique]",
        f"{pair}[1].{centre} - {pair}[0].{centre} * {pair}[1].{scale} - {step}",
    )
    rng = np.random.default_rng(0)
    cameras, points = np.divmod(np.arange(NUM_CAMERAS * NUM_POINTS, dtype=np.int32), NUM_POINTS)
    arrays: dict[str, Any] = {camera_type: 1.0 + 0.1 * rng.normal(size=(NUM_CAMERAS, 3))}
    factors = []
    landmarks, pixels = rng.normal(size=(NUM_POINTS, 2)), rng.normal(size=(len(points), 2))
    if "seen" in kinds:
        arrays[point_type] = landmarks
        arrays[seen] = {camera: cameras, point: points, pixel: pixels, factor: [[1.5]]}
        factors.append(sees)
    if "moved" in kinds:
        arrays[moved] = {step: [[0.3, -0.1]]}
        factors.append(moves)
    return factors, arrays


def solved(names: Names, kinds: str, **options: Any) -> list[Array]:
    """The values of the node types, in the order in which the arrays name them."""
    factors, arrays = problem(names, kinds)
    result = caspar.Solver(factors, precision="float64", **options).solve(
        arrays, max_iterations=MAX_ITERATIONS
    )
    return [np.asarray(result.values[name]) for name in arrays if name in result.values]


WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "pcg": ("seen moved", {"linear_solver": "pcg"}),
    "pcg-float16": ("seen moved", {"linear_solver": "pcg", "jacobian": "float16"}),
    "schur_pcg": ("seen", {"linear_solver": "schur_pcg"}),
    "schur_pcg-recompute": ("seen moved", {"linear_solver": "schur_pcg", "jacobian": "recompute"}),
    "inner": ("seen", {"linear_solver": "schur_pcg", "jacobian": "recompute"}),
    "schur_dense": ("seen moved", {"linear_solver": "schur_dense"}),
    "schur_dense-recompute": ("seen", {"linear_solver": "schur_dense", "jacobian": "recompute"}),
    "sparse": ("seen moved", {"linear_solver": "sparse"}),
}


@cache
def plain_solution(way: str) -> list[Array]:
    """The values with plain names, solved once on the processor."""
    kinds, options = WAYS[way]
    return solved(PLAIN, kinds, backend="cpu", **options)


def assert_same(names: Names, way: str, backend: str | HarnessBackend = "cpu") -> None:
    """Names change nothing but the order of sums."""
    kinds, options = WAYS[way]
    if options["linear_solver"] == "sparse":
        pytest.importorskip("qdldl")
    expected = plain_solution(way)
    found = solved(names, kinds, backend=backend, **options)
    tolerance = ROUNDED_TOLERANCE if options.get("jacobian") == "float16" else TOLERANCE
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("way", "names"),
    alternating(WAYS, [KERNELS, GENERATED, LETTERS]),
    ids=lambda one: one if isinstance(one, str) else one.outer[0][:12],
)
def test_every_linear_solver(way: str, names: Names) -> None:
    assert_same(names, way)


@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
@given(names_drawn, st.sampled_from(sorted(WAYS)))
def test_any_names_on_the_processor(names: Names, way: str) -> None:
    assert_same(names, way)


class CompilingBackend(HarnessBackend):
    """Runs CUDA sources on the host, after NVRTC has compiled them."""

    def load(
        self,
        sources: Sequence[KernelSource],
        block_size: int | None = None,
        *,
        is_settled: bool = False,
    ) -> Mapping[str, Kernel]:
        if len(sources) > 0:
            compiled = compile_text(one_text(list(sources)), "sm_90")
            assert set(compiled.resources) == {source.name for source in sources}
        return super().load(sources, block_size)


COMPILING = CompilingBackend(128)
CUDA_WAYS = ("pcg", "schur_pcg", "inner", "schur_dense-recompute")


@pytest.mark.parametrize(
    ("names", "way"),
    [(KERNELS, "inner"), (GENERATED, "pcg"), (LETTERS, "schur_dense-recompute")],
    ids=lambda one: one if isinstance(one, str) else one.outer[0][:12],
)
def test_names_as_cuda(names: Names, way: str) -> None:
    assert_same(names, way, COMPILING)


@pytest.mark.reliability
@settings(max_examples=3, suppress_health_check=list(HealthCheck))
@given(names_drawn, st.sampled_from(CUDA_WAYS))
@example(GENERATED, "schur_pcg")
def test_any_names_as_cuda(names: Names, way: str) -> None:
    assert_same(names, way, COMPILING)


def test_fields_whose_symbols_would_be_one() -> None:
    """SymForce calls the x of the field `turn` like the field `turn_x`."""

    def found(field: str) -> Array:
        node = dataclasses.make_dataclass("Node", [("turn", sf.Rot3), (field, sf.Scalar)])

        def residual(a: Any, m: Annotated[sf.V3, caspar.ConstSequential]) -> sf.V3:
            return a.turn * sf.V3(getattr(a, field), 0.5, 1.0) - m

        residual.__annotations__["a"] = Annotated[node, caspar.TunableShared]
        solver = caspar.Solver(caspar.factor(residual), backend="cpu", precision="float64")
        measured = np.random.default_rng(0).normal(size=(3, 3))
        arrays = {"a": [0, 0, 1], "m": measured}
        result = solver.solve(
            {"Node": np.tile([0.0, 0.6, 0.0, 0.8, 2.0], (2, 1)), "residual": arrays}
        )
        assert result.final_cost < 0.9 * result.initial_cost
        return np.asarray(result.values["Node"])

    assert_allclose(found("turn_x"), found("other"), atol=1e-6)


# -- keys ------------------------------------------------------------------------------------------


def test_no_word_is_refused() -> None:
    assert not any(keyword.iskeyword(word) for word in VOCABULARY)
    assert len(VOCABULARY) >= 100


def test_a_key_that_is_not_normalised_is_explained() -> None:
    names = dataclasses.replace(PLAIN, inner=("größe", *PLAIN.inner[1:]))
    factors, arrays = problem(names, "seen")
    arrays["seen"][unicodedata.normalize("NFD", "größe")] = arrays["seen"].pop("größe")
    with pytest.raises(InputError, match=r"unicodedata.normalize\('NFKC', 'gro\\u0308\\xdfe'\)"):
        caspar.Solver(factors, backend="cpu").solve(arrays)


def test_a_factor_like_a_node_type() -> None:
    names = dataclasses.replace(PLAIN, outer=("Camera", *PLAIN.outer[1:]))
    with pytest.raises(FactorError, match=r"'Camera' names a factor and a node type.*rename one"):
        caspar.Solver(problem(names, "seen")[0], backend="cpu")


def test_two_factors_of_one_name() -> None:
    factors, _ = problem(PLAIN, "seen")
    with pytest.raises(FactorError, match=r"two factors are named 'seen'.*rename one"):
        caspar.Solver([*factors, *factors], backend="cpu")


def test_two_classes_of_one_name() -> None:
    one, other = problem(PLAIN, "seen")[0], problem(PLAIN, "moved")[0]
    with pytest.raises(FactorError, match=r"two node types are named 'Camera'.*another name"):
        caspar.Solver([*one, *other], backend="cpu")
