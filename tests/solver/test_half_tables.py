"""Tables that are kept in float16: the same bits as of tables of the same numbers that are not.

The numbers of every table here are those of float16, so both have the same values and derivatives.
"""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import caspar
from caspar.batch.generate.shape import Team
from caspar.errors import FactorError, InputError
from caspar.frontend.grids import Grid
from caspar.options import BatchPrecisionName, PrecisionName
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.covering import covering
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend

COUNT, PROBLEMS = 40, 3
TRUE = np.array([[12.3, 9.7]])
rng = np.random.default_rng(0)
ROW, COLUMN = np.mgrid[:23, :27]
TABLES = np.stack(
    [
        np.stack([np.sin(COLUMN / 5 + k) + np.cos(ROW / 4), COLUMN * ROW / 90.0], axis=-1)
        for k in range(3)
    ]
).astype(np.float16)
PIXELS, INDEX = rng.uniform(-6, 6, (COUNT, 2)), rng.integers(0, 3, COUNT)


class Shift(sf.V2):
    """Where pixels lie in pictures."""


class Full(Grid, dims=2, channels=2):
    """Pictures in the type of values."""


class Half(Full, dtype="float16"):
    """The same in float16."""


def factor(kind: Any, marker: Any, tunable: Any = caspar.TunableShared) -> Any:
    @caspar.factor
    def aligned(
        shift: Annotated[Shift, tunable],
        pixel: Annotated[sf.V2, caspar.ConstSequential],
        value: Annotated[sf.V2, caspar.ConstSequential],
        picture: Annotated[kind, marker],
    ) -> sf.V2:
        return picture.at(*(shift + pixel)) - value

    return aligned


def tables(kind: Any) -> NDArray[Any]:
    return TABLES if kind is Half else TABLES.astype(float)


def results(kind: Any, marker: Any, backend: Any, precision: PrecisionName) -> list[NDArray[Any]]:
    """Everything that a solver finds."""
    one = tables(kind)
    own = {
        "shift": np.zeros(COUNT, int),
        "pixel": PIXELS,
        "value": np.full((COUNT, 2), 0.5),
        "picture": {"values": one, "index": INDEX} if marker is caspar.ConstIndexed else one[0],
    }
    solver = caspar.Solver(factor(kind, marker), backend=backend, precision=precision)
    result = solver.solve({"Shift": TRUE, "aligned": own}, max_iterations=6)
    evaluation = solver.evaluate({**result.values, "aligned": own})
    gradient = solver.gradient(result, {"Shift": [[0.7, -1.3]]})["aligned"]
    found = [result.values["Shift"], evaluation.residuals("aligned"), gradient["pixel"]]
    return [*found, gradient["picture"]]


@pytest.mark.parametrize(
    ("backend", "marker", "precision"),
    [
        ("cpu", caspar.ConstIndexed, "float64"),
        ("cpu", caspar.ConstUnique, "mixed"),
        ("cpu", caspar.ConstIndexed, "float32"),
        pytest.param("cpu", caspar.ConstIndexed, "mixed", marks=pytest.mark.reliability),
        pytest.param("cpu", caspar.ConstUnique, "float64", marks=pytest.mark.reliability),
        ("harness", caspar.ConstIndexed, "mixed"),
        pytest.param("cuda", caspar.ConstIndexed, "mixed", marks=pytest.mark.gpu),
    ],
)
def test_solves_have_the_same_bits(backend: str, marker: Any, precision: PrecisionName) -> None:
    if backend == "harness" and find_compiler() is None:
        pytest.skip("no C++ compiler on this machine")
    chosen: Any = HarnessBackend() if backend == "harness" else backend
    found = results(Half, marker, chosen, precision)
    for one, other in zip(found, results(Full, marker, chosen, precision), strict=True):
        assert one.shape == other.shape
        assert one.any()
        if backend == "cuda":  # whose sums have any order
            assert_allclose(one, other, rtol=1e-4, atol=1e-6)
        else:
            assert_array_equal(one, other)


@caspar.kernel(backend="cpu")
def looked_up(
    place: Annotated[sf.V2, caspar.ReadSequential], picture: Annotated[Half, caspar.ReadIndexed]
) -> Annotated[sf.V2, caspar.WriteSequential]:
    return picture.at(*place)


def test_values_are_those_of_the_formula() -> None:
    places = 12 + PIXELS
    truth = []
    for (x, y), number in zip(places, INDEX, strict=True):
        left, top = int(x), int(y)
        patch = TABLES[number, top : top + 2, left : left + 2].astype(float)
        rests = ([1 - rest, rest] for rest in (y - top, x - left))
        truth.append(np.einsum("r,c,rcd->d", *rests, patch))
    # the type of a table in float16 does not say what is computed in
    for passed in (TABLES, TABLES.astype(np.float32), TABLES.astype(float)):
        found = looked_up(places, {"values": passed, "index": INDEX})
        assert found.dtype == float
        assert_allclose(found, truth, 0, 1e-13)
    narrow = looked_up(places.astype(np.float32), {"values": TABLES, "index": INDEX})
    assert narrow.dtype == np.float32
    assert_allclose(narrow, truth, 0, 3e-5)


def batch_results(kind: Any, marker: Any, team: Team, precision: BatchPrecisionName) -> list[Any]:
    one = tables(kind)
    pool = {"values": one, "index": np.resize(INDEX, (PROBLEMS, COUNT))}
    own = {
        "pixel": PIXELS[None],
        "value": np.full((1, COUNT, 2), 0.5),
        "picture": pool if marker is caspar.ConstIndexed else one,
    }
    solver = caspar.BatchSolver(
        factor(kind, marker, caspar.TunableUnique), backend="cpu", precision=precision
    )
    solver.team = team
    start = TRUE + np.arange(PROBLEMS)[:, None] / 4
    result = solver.solve({"Shift": start, "aligned": own}, max_iterations=6)
    gradient = solver.gradient(result, {"Shift": start})["aligned"]["picture"]
    return [result.values["Shift"], result.final_cost, gradient]


@covering(
    precision=["float64", "float32"],
    team=Team,
    marker=[caspar.ConstIndexed, caspar.ConstUnique],
)
def test_batches_have_the_same_bits(marker: Any, team: Team, precision: BatchPrecisionName) -> None:
    found = batch_results(Half, marker, team, precision)
    for one, other in zip(found, batch_results(Full, marker, team, precision), strict=True):
        assert_array_equal(one, other)


@pytest.mark.parametrize("team", Team)
def test_kernels_of_batches_compile_for_cuda(team: Team) -> None:
    solver = caspar.BatchSolver(
        factor(Half, caspar.ConstUnique, caspar.TunableUnique), backend=HarnessBackend()
    )
    solver.team = team
    own = {"pixel": PIXELS[None], "value": np.zeros((1, COUNT, 2)), "picture": TABLES[0]}
    text = solver.source({"Shift": np.repeat(TRUE, PROBLEMS, axis=0), "aligned": own})
    assert "float_of_half" in text
    assert compile_text(text, "sm_90").warnings == ()


def test_kernels_compile_for_cuda() -> None:
    text = looked_up.inspect(dtype="float64").source.text
    assert "float_of_half(__ldg(" in text
    assert compile_text(text, "sm_90").warnings == ()


def test_live_problems_keep_each_table_once() -> None:
    found = []
    for kind in (Half, Full):
        problem = caspar.Problem([factor(kind, caspar.ConstIndexed)])
        (node,) = problem.add_nodes("Shift", TRUE)
        for part in (slice(0, 25), slice(25, None)):
            shift = np.full(len(PIXELS[part]), node)
            picture = {"values": tables(kind), "index": INDEX[part]}
            value = np.zeros((len(shift), 2))
            own = {"shift": shift, "pixel": PIXELS[part], "value": value, "picture": picture}
            problem.add_factors("aligned", own)
        problem.solve(max_iterations=4)
        kept = problem.arrays()["aligned"]["picture"]["values"]
        assert kept.dtype == (np.float16 if kind is Half else float)
        assert len(kept) == len(TABLES)
        assert {one.tobytes() for one in kept} == {one.tobytes() for one in tables(kind)}
        found.append(problem.values["Shift"])
    assert_array_equal(found[0], found[1])


def test_sizes_take_two_words() -> None:
    class Long(Grid, dims=1, dtype="float16"):
        """A curve of more samples than a word counts."""

    @caspar.kernel(backend="cpu")
    def at(
        x: Annotated[sf.Symbol, caspar.ReadSequential], curve: Annotated[Long, caspar.ReadUnique]
    ) -> Annotated[sf.Symbol, caspar.WriteSequential]:
        return curve.at(x)

    curve = np.arange(70_000) % 2000
    assert_array_equal(at(np.array([69_998.0, 66_001.0, 1e9]), curve), [1998.0, 1.0, 1999.0])
    memory = Long.packed(curve)
    assert memory.dtype == np.uint16
    assert Long.sizes(memory[0]) == [70_000]
    assert_array_equal(Long.unpacked(memory)[0], curve)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.array([[1.0, -7e4]]), r"-70000 is too large for dtype='float16'.* 65,504; scale"),
        (np.array([[1.0, np.nan]]), "values must be finite"),
        (np.array([[1.0, np.inf]]), "values must be finite"),
    ],
)
def test_numbers_that_float16_has_not_are_refused(wrong: NDArray[Any], message: str) -> None:
    class Picture(Grid, dims=2, dtype="float16"):
        """One channel."""

    @caspar.factor
    def shown(
        shift: Annotated[Shift, caspar.TunableUnique],
        picture: Annotated[Picture, caspar.ConstUnique],
    ) -> sf.V1:
        return sf.V1(picture.at(*shift))

    with pytest.raises(InputError, match=message) as caught:
        caspar.Solver(shown, backend="cpu").solve({"Shift": TRUE, "shown": {"picture": wrong}})
    assert "factor shown, argument picture" in str(caught.value)


def test_other_types_are_refused() -> None:
    with pytest.raises(FactorError, match="class Wrong: dtype='float32'; allowed is 'float16'"):
        type("Wrong", (Grid,), {}, dims=1, dtype="float32")
