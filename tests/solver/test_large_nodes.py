"""Nodes of many degrees of freedom: blocks in parts, and refusals of what compiles for minutes."""

import time
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import caspar
from caspar.errors import SizeError, UnsuitedError
from caspar.frontend.factors import block_parts
from caspar.frontend.size_refusal import size_refusal
from caspar.options import LinearSolverName
from caspar.tracing import traced_factor
from tests.covering import alternating
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend

Shared, Sequential = caspar.TunableShared, caspar.ConstSequential

DIM = 27
FEW = 7
"""The same parts of a node of less code, where blocks of `FEWER` scalars are the largest whole."""
FEWER = 6


class Shape(sf.Matrix):
    """A node with its blocks in parts."""

    SHAPE = (DIM, 1)


class Large(sf.Matrix):
    """A node whose Jacobian by as many rows is refused."""

    SHAPE = (54, 1)


class ManyRows(sf.Matrix):
    """A residual that is refused."""

    SHAPE = (1000, 1)


@cache
def factors_of(dim: int) -> tuple[caspar.Factor, caspar.Factor]:
    """What is seen of shapes of so many scalars, and that they are smooth."""
    node = Shape if dim == DIM else sf.matrix_type_from_shape((dim, 1))
    matrix = sf.matrix_type_from_shape((2, dim))

    def bent(shape: Any, place: Any, basis: Any, seen: Any) -> sf.V2:
        return sf.V2((basis * shape + place - seen).to_flat_list())

    def smooth(shape: Any, weight: Annotated[sf.V1, Sequential]) -> Any:
        return node([weight[0] * entry for entry in shape.to_flat_list()])

    bent.__annotations__ |= {
        "shape": Annotated[node, Shared],
        "place": Annotated[sf.V2, Shared],
        "basis": Annotated[matrix, Sequential],
        "seen": Annotated[sf.V2, Sequential],
    }
    smooth.__annotations__ |= {"shape": Annotated[node, Shared], "return": node}
    return caspar.factor(bent), caspar.factor(smooth)


@caspar.factor
def full(x: Annotated[Large, Shared], mean: Annotated[Large, Sequential]) -> Large:
    total = sum(x.to_flat_list())
    return Large([sf.sin(x[i]) * total - mean[i] for i in range(54)])


@caspar.factor
def curve(
    x: Annotated[sf.V3, Shared],
    time: Annotated[ManyRows, Sequential],
    seen: Annotated[ManyRows, Sequential],
) -> ManyRows:
    return ManyRows([x[0] * sf.exp(-x[1] * time[i]) + x[2] - seen[i] for i in range(1000)])


@caspar.factor
def link(first: Annotated[Shape, Shared], second: Annotated[Shape, Shared]) -> sf.V2:
    return sf.V2(first[0] - second[0], first[1] - second[26])


def problem(dim: int = DIM) -> tuple[dict[str, Any], NDArray[Any]]:
    """Arrays, and the shapes of least squares by NumPy: the problem is linear."""
    rng = np.random.default_rng(0)
    num_shapes, num_places = 2, 4
    count = 40 * num_shapes
    shape, place = np.arange(count) % num_shapes, np.arange(count) // num_shapes % num_places
    basis, seen = rng.normal(size=(count, 2, dim)), rng.normal(size=(count, 2))
    unknowns = num_shapes * dim + num_places * 2
    matrix = np.zeros((count, 2, unknowns))
    for number in range(count):
        first = shape[number] * dim
        matrix[number, :, first : first + dim] = basis[number]
        first = num_shapes * dim + 2 * place[number]
        matrix[number, :, first : first + 2] = np.eye(2)
    pull = 0.3 * np.eye(num_shapes * dim, unknowns)
    rows = np.concatenate([matrix.reshape(-1, unknowns), pull])
    right = np.concatenate([seen.reshape(-1), np.zeros(len(pull))])
    solved = np.linalg.lstsq(rows, right, rcond=None)[0]
    arrays = {
        name_of(dim): np.zeros((num_shapes, dim)),
        "Matrix21": np.zeros((num_places, 2)),
        "bent": {"shape": shape, "place": place, "basis": basis, "seen": seen},
        "smooth": {"shape": np.arange(num_shapes), "weight": np.full((num_shapes, 1), 0.3)},
    }
    return arrays, solved[: num_shapes * dim].reshape(num_shapes, dim)


def name_of(dim: int) -> str:
    """What a shape is called."""
    return Shape.__name__ if dim == DIM else f"Matrix{dim}1"


@pytest.fixture
def cut(dim: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small shapes are in parts as the others are."""
    if dim == FEW:
        monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(block_parts, "MAX_WHOLE_BLOCK", FEWER)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize(
    ("linear_solver", "dim"),
    alternating(["schur_dense", "pcg", "sparse", "schur_pcg"], [FEW, DIM]),
)
def test_solutions_are_those_of_numpy(linear_solver: LinearSolverName, dim: int) -> None:
    arrays, expected = problem(dim)
    solver = caspar.Solver(
        factors_of(dim), backend="cpu", precision="float64", linear_solver=linear_solver
    )
    result = solver.solve(arrays, linear_tolerance=1e-10, max_linear_iterations=500)
    assert result.linear_solver == linear_solver
    assert_allclose(result.values[name_of(dim)], expected, atol=1e-7)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("dim", [FEW, pytest.param(DIM, marks=pytest.mark.reliability)])
@pytest.mark.parametrize(
    ("linear_solver", "deterministic"),
    alternating(["pcg", "schur_dense"], [False, True]),
)
def test_cuda_text_finds_them_too(
    linear_solver: LinearSolverName, deterministic: bool, dim: int
) -> None:
    arrays, expected = problem(dim)
    solver = caspar.Solver(
        factors_of(dim),
        precision="float64",
        linear_solver=linear_solver,
        deterministic=deterministic,
        backend=HarnessBackend(128),
    )
    result = solver.solve(
        arrays, max_iterations=5, linear_tolerance=1e-10, max_linear_iterations=500
    )
    assert_allclose(result.values[name_of(dim)], expected, atol=1e-6)


def test_parts_change_what_pcg_takes_only_in_iterations() -> None:
    """A node of which each scalar is seen by itself: the parts are the whole block."""
    arrays, _ = problem()
    only = {Shape.__name__: np.ones((2, DIM)), "smooth": arrays["smooth"]}
    solver = caspar.Solver(
        factors_of(DIM)[1], backend="cpu", precision="float64", linear_solver="pcg"
    )
    result = solver.solve(only)
    assert_allclose(result.values[Shape.__name__], 0.0, atol=1e-9)


class TestRefusals:
    @pytest.mark.parametrize("linear_solver", ["auto", "pcg"])
    def test_a_full_jacobian_of_many_rows(self, linear_solver: LinearSolverName) -> None:
        solver = caspar.Solver([full], backend="cpu", linear_solver=linear_solver)
        start = time.perf_counter()
        with pytest.raises(SizeError) as caught:
            solver.compile()
        assert time.perf_counter() - start < 10.0  # 0.5 s on an idle machine
        said = str(caught.value)
        assert "factor full (" in said
        assert "a residual of 54 rows by x of 54 degrees of freedom" in said
        assert "at most 55,000 are compiled" in said
        assert "split the residual into several factors" in said

    def test_many_rows(self) -> None:
        with pytest.raises(SizeError, match=r"1000 rows by x of 3 degrees.* pass more instances"):
            caspar.Solver([curve], backend="cpu").compile()

    def test_many_arguments_are_not_all_listed(self) -> None:
        names = [f"argument_{number}" for number in range(50)]
        scope: dict[str, Any] = {"V1": sf.V1}
        exec(f"def wide({', '.join(names)}):\n    return V1({'[0] + '.join(names)}[0])\n", scope)
        wide = scope["wide"]
        wide.__annotations__ = dict.fromkeys(names, Annotated[sf.V3, Shared])
        wide.__annotations__["argument_7"] = Annotated[sf.V5, Shared]
        factor = traced_factor(caspar.factor(wide))
        said = size_refusal([factor], [], "wide__score", "it is large")
        assert "1 rows by argument_7 of 5, argument_0 of 3, argument_1 of 3 and 47 others, " in said
        assert "47 others, 152 degrees of freedom in all; it is large" in said

    def test_a_thousand_arguments_are_refused_at_once(self) -> None:
        names = [f"c{number}" for number in range(1000)]
        scope: dict[str, Any] = {}
        exec(
            f"def wide(x, {', '.join(names)}):\n    return x * ({'[0] + '.join(names)}[0])\n", scope
        )
        wide = scope["wide"]
        wide.__annotations__ = dict.fromkeys(names, Annotated[sf.V1, Sequential])
        wide.__annotations__["x"] = Annotated[sf.V1, Shared]
        start = time.perf_counter()
        with pytest.raises(SizeError, match=r"factor wide .* has 1,001 arguments; at most 500"):
            caspar.Solver(caspar.factor(wide), backend="cpu")
        assert time.perf_counter() - start < 1.0  # milliseconds on an idle machine

    def test_a_node_that_is_too_large(self) -> None:
        huge = sf.matrix_type_from_shape((400, 1))

        def pull(x: Any) -> sf.V1:
            return sf.V1(x[0])

        pull.__annotations__["x"] = Annotated[huge, Shared]
        with pytest.raises(SizeError, match=r"node type Matrix400_1 is too large: it has 400"):
            caspar.Solver([caspar.factor(pull)], backend="cpu").compile()

    def test_a_kernel(self) -> None:
        outer = sf.matrix_type_from_shape((120, 120))
        column = sf.matrix_type_from_shape((120, 1))

        def square(x: Any) -> Any:
            return outer((x * x.T).to_flat_list())

        square.__annotations__ = {
            "x": Annotated[column, caspar.ReadSequential],
            "return": Annotated[outer, caspar.WriteSequential],
        }
        kernel = caspar.kernel(backend="cpu")(square)
        with pytest.raises(SizeError, match=r"kernel square.* has .* operations; at most"):
            kernel(np.zeros((2, 120)))

    def test_a_matrix_that_is_too_large_gives_way_to_pcg(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
    ) -> None:
        monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path))
        # above the kernels of every solver, below those with a matrix
        monkeypatch.setattr("caspar.memory.kernel.MAX_SIZE", 10_500)
        arrays, _ = problem()
        only = {Shape.__name__: np.ones((2, DIM)), "smooth": arrays["smooth"]}
        result = caspar.Solver(factors_of(DIM)[1], backend="cpu").solve(only)
        assert result.linear_solver == "pcg"
        assert any("at most 10,500 are compiled" in remark for remark in result.remarks)
        assert_allclose(result.values[Shape.__name__], 0.0, atol=1e-9)
        with pytest.raises(SizeError, match=r"at most 10,500.*or use linear_solver=.pcg."):
            caspar.Solver(factors_of(DIM)[1], backend="cpu", linear_solver="sparse").compile()

    def test_large_nodes_are_not_eliminated(self) -> None:
        sixteen = sf.matrix_type_from_shape((16, 1))

        def pair(x: Any, y: Any) -> sf.V1:
            return sf.V1(x[0] - y[0])

        pair.__annotations__ = {
            "x": Annotated[sixteen, Shared],
            "y": Annotated[Shape, Shared],
        }
        with pytest.raises(UnsuitedError, match="at most 15 degrees of freedom"):
            caspar.Solver([caspar.factor(pair)], backend="cpu", linear_solver="schur_pcg")
