"""Jacobians stored, stored in 16 bits or recomputed: the same optimum."""

from functools import cache
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import caspar
from caspar.bundle_adjustment import snavely
from caspar.equations.parts import FactorPart
from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec
from caspar.memory.patterns import ReadSequential
from caspar.options import JacobianName, LinearSolverName, PrecisionName
from caspar.runtime.cpu.backend import CpuBackend
from tests.covering import alternating
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend
from tests.problems import EXAMPLES, Offset, Place, anchor
from tests.solver.bundles import arrays_of, part_of, read
from tests.solver.solving import Arrays, Poisoned, assert_same_values, solve_example
from tests.support_memory import place

STORAGES = ("stored", "float16", "recompute")
LINEAR_SOLVERS = ("pcg", "schur_pcg", "schur_dense")
LARGEST_ROUNDING = 2.0**-11
SMALLEST_HALF = 2.0**-24


@cache
def part() -> Arrays:
    return arrays_of(part_of(read("problem-21-11315"), 400))


@cache
def solver(
    jacobian: JacobianName, linear_solver: LinearSolverName, precision: PrecisionName = "mixed"
) -> caspar.Solver:
    return caspar.Solver(
        snavely,
        backend="cpu",
        precision=precision,
        jacobian=jacobian,
        linear_solver=linear_solver,
    )


@cache
def optimum() -> float:
    return solver("stored", "schur_pcg", "float64").solve(part(), cost_tolerance=1e-10).final_cost


CHOICES = pytest.mark.parametrize(
    ("jacobian", "linear_solver"), alternating(STORAGES, LINEAR_SOLVERS)
)


@CHOICES
def test_all_reach_the_optimum(jacobian: str, linear_solver: str) -> None:
    result = solver(jacobian, linear_solver).solve(part())
    assert result.status.is_success
    assert result.final_cost == pytest.approx(optimum(), rel=1e-4)


@caspar.factor
def switched_off(
    place: Annotated[Place, caspar.TunableShared],
    known: Annotated[Offset, caspar.ConstSequential],
) -> sf.V2:
    """A weight of zero: there is no Jacobian to keep."""
    return 0 * place - known


@pytest.mark.parametrize(
    ("jacobian", "backend"),
    alternating(STORAGES, [CpuBackend(), HarnessBackend(128)]),
    ids=lambda one: one if isinstance(one, str) else one.name,
)
def test_a_residual_that_depends_on_no_node(jacobian: JacobianName, backend: Any) -> None:
    places, known = np.arange(8.0).reshape(4, 2), np.ones((3, 2))
    with pytest.warns(UserWarning, match="switched_off, argument place: .* does not depend on it"):
        made = caspar.Solver(
            [switched_off, anchor], backend=backend, precision="float64", jacobian=jacobian
        )
    result = made.solve(
        {
            "Place": places,
            "switched_off": {"place": [0, 1, 1], "known": known},
            "anchor": {"place": np.arange(4), "known": places + 1.0},
        }
    )
    assert result.status.is_success
    assert result.final_cost == pytest.approx(3.0)
    assert_allclose(result.values["Place"], places + 1.0, atol=1e-6)


def test_halves_beside_float64() -> None:
    result = solver("float16", "schur_pcg", "float64").solve(part())
    assert result.status.is_success
    assert result.final_cost == pytest.approx(optimum(), rel=1e-6)


@pytest.mark.parametrize("name", ["grid", "vehicle"])
def test_examples_end_where_they_do_with_exact_storage(name: str) -> None:
    """Pairs, unique nodes, several factors, constant Jacobians."""
    factors, arrays = EXAMPLES[name].factors, EXAMPLES[name].arrays()
    rounded = caspar.Solver(factors, backend="cpu", precision="float64", jacobian="float16")
    result, exact = rounded.solve(arrays), solve_example(name, arrays)
    assert result.status.is_success
    assert result.final_cost == pytest.approx(exact.final_cost, rel=1e-4, abs=1e-12)


def stored_entries(jacobian: JacobianName, dtype: DType) -> NDArray[np.float64]:
    """(observations and holes, 24): the entries at the start values."""
    made = caspar.Solver(
        snavely,
        backend="cpu",
        precision="float64",
        jacobian=jacobian,
        linear_solver="schur_pcg",
        inner_iterations=0,
    )
    with made.system(part()) as system:
        system.score()
        system.linearize(1e-14)
        plan = system.plan
        arg = ArgSpec("jacobian", 24, dtype, read=ReadSequential())
        placement = place(arg, plan.factors[0].count)
        memory: Any = plan.memory[plan.factors[0].key(FactorPart.JACOBIAN)]
        tiles = plan.factors[0].order.node_tiles
        assert tiles is not None
        used = (np.arange(plan.library.tile_size) < tiles.tile_items[:, None]).reshape(-1)
        rows: NDArray[np.float64] = memory.view(dtype.value)[placement.where][used].astype(float)
        return rows


def test_entries_are_rounded_once() -> None:
    exact = stored_entries("stored", DType.FLOAT64)
    rounded = stored_entries("float16", DType.FLOAT16)
    assert np.abs(exact).max() <= 1.0
    assert_allclose(rounded, exact, rtol=LARGEST_ROUNDING, atol=SMALLEST_HALF)
    assert np.abs(rounded - exact).max() > 0.1 * LARGEST_ROUNDING


def test_columns_have_unit_length() -> None:
    """Each column belongs to one node in every row: squares sum to one for each node and scalar."""
    problem = part_of(read("problem-21-11315"), 400)
    exact = stored_entries("stored", DType.FLOAT64)
    num_scalars = 9 * len(problem.cameras) + 3 * len(problem.points)
    assert np.sum(exact**2) == pytest.approx(num_scalars, rel=1e-12)


def test_half_takes_half_the_bytes() -> None:
    sizes = {}
    for jacobian in STORAGES:
        prepared = solver(jacobian, "schur_pcg").prepare(part())
        assert prepared.jacobians == {"snavely": jacobian}
        region = prepared.regions["snavely.jacobian"]
        num_bytes = region.num_scalars * region.dtype.itemsize
        sizes[jacobian] = num_bytes / prepared.num_slots["snavely"]
    assert sizes == {"stored": 96.0, "float16": 48.0, "recompute": 0.0}


@CHOICES
def test_nothing_is_read_that_was_not_written(
    jacobian: JacobianName, linear_solver: LinearSolverName
) -> None:
    """With an arena full of NaN the solve is the same to the bit."""
    usual, again = (
        caspar.Solver(
            snavely, backend=backend, jacobian=jacobian, linear_solver=linear_solver
        ).solve(part(), max_iterations=5)
        for backend in (CpuBackend(), Poisoned(0xFF))
    )
    assert [record.cost for record in again.iterations] == [
        record.cost for record in usual.iterations
    ]
    assert_same_values(again.values, usual.values)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize(
    "jacobian",
    [
        *(pytest.param(one, marks=pytest.mark.reliability) for one in ("stored", "recompute")),
        "float16",
    ],
)
def test_cuda_text_takes_the_same_steps(jacobian: JacobianName) -> None:
    arrays = arrays_of(part_of(read("problem-21-11315"), 40))
    costs = {}
    for backend in (CpuBackend(), HarnessBackend(128)):
        made = caspar.Solver(
            snavely,
            jacobian=jacobian,
            linear_solver="schur_pcg",
            deterministic=True,
            backend=backend,
        )
        result = made.solve(arrays, max_iterations=3)
        costs[backend.name] = [record.cost for record in result.iterations]
    assert costs["cuda"] == pytest.approx(costs["cpu"], rel=1e-3)
    assert len(costs["cuda"]) == 3
