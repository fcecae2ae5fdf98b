import gc
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

from caspar import Solver
from caspar.bundle_adjustment import snavely
from caspar.options import PrecisionName
from tests.solver.bundles import arrays_of, part_of, read
from tests.solver.chain_cases import CHAIN, chain_arrays


def test_lists_every_array_and_what_shares_bytes() -> None:
    solver = Solver([snavely], backend="cpu", linear_solver="schur_pcg")
    assert solver.memory_table() is None
    problem = part_of(read("problem-21-11315"), 50)
    result = solver.solve(arrays_of(problem), max_iterations=1)
    table = solver.memory_table()
    assert table is not None
    lines = {line.split("  ")[0].strip(): line for line in table.splitlines()}
    assert {"Cam.nodes", "Point.block", "snavely.jacobian", "together"} <= set(lines)
    assert "snavely.cam__product" in lines["snavely.cam__gradient"]
    assert "shares" not in lines["Cam.nodes"]
    given = sum(
        array.nbytes
        for array in (
            problem.cameras,
            problem.points,
            problem.pixels,
            problem.camera_index,
            problem.point_index,
        )
    )
    kept = result.peak_memory_bytes - given
    assert f"{kept / 1024:,.0f} KiB" in lines["together"]
    solver.release()
    assert solver.memory_table() is None


def held_bytes(root: object) -> int:
    """Bytes of all NumPy memory that can be reached from an object, each once."""
    seen: set[int] = set()
    todo = [root]
    total = 0
    while todo:
        found = todo.pop()
        while isinstance(found, np.ndarray) and isinstance(found.base, np.ndarray):
            found = found.base
        if id(found) in seen or isinstance(found, type | ModuleType):
            continue
        seen.add(id(found))
        if isinstance(found, np.ndarray):
            total += found.nbytes
        elif isinstance(found, FunctionType):
            todo += [cell.cell_contents for cell in found.__closure__ or ()]
        else:
            todo += gc.get_referents(found)
    return total


@pytest.mark.parametrize(
    "chosen",
    [
        {"linear_solver": "pcg"},
        {"linear_solver": "schur_pcg"},
        {"linear_solver": "schur_dense"},
        {"linear_solver": "sparse"},
    ],
    ids=lambda chosen: next(iter(chosen.values())),
)
def test_reported_is_what_is_held(chosen: dict[str, Any]) -> None:
    assert_reported(Solver([snavely], backend="cpu", **chosen), arrays_of(read("problem-49-7776")))


@pytest.mark.parametrize("precision", ["mixed", "float64"])
def test_reported_is_what_a_sparse_matrix_of_one_type_holds(precision: PrecisionName) -> None:
    solver = Solver(CHAIN, backend="cpu", linear_solver="sparse", precision=precision)
    assert_reported(solver, chain_arrays(6000))


def assert_reported(solver: Solver, arrays: dict[str, Any]) -> None:
    with solver.system(arrays) as system:
        pass
    # the same system: afterwards it holds none of the arrays that were loaded
    solver.solve(arrays, max_iterations=1)
    # tables of parameters, and what steers, are not counted
    assert held_bytes(system) == pytest.approx(system.num_bytes, rel=0.005, abs=30_000)
