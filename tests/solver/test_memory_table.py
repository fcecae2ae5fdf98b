import numpy as np

from caspar import Solver
from caspar.frontend.bundle_adjustment import snavely
from tests.solver.bundles import arrays_of, part_of, read


def test_lists_every_array_and_what_shares_bytes() -> None:
    solver = Solver([snavely], backend="cpu", linear_solver="schur_pcg")
    assert solver.memory_table() is None
    problem = part_of(read("problem-21-11315"), 50)
    result = solver.solve(arrays_of(problem), max_iterations=1)
    table = solver.memory_table()
    assert table is not None
    lines = {line.split("  ")[0].strip(): line for line in table.splitlines()}
    assert {"Cam.nodes", "Point.block", "snavely.jacobian", "together"} <= set(lines)
    assert "snavely.cam_product" in lines["snavely.cam_gradient"]
    assert "shares" not in lines["Cam.nodes"]
    given = sum(
        array.nbytes
        for array in (
            np.asarray(problem.cameras, np.float32),
            np.asarray(problem.points, np.float32),
            np.asarray(problem.pixels, np.float32),
            problem.camera_index,
            problem.point_index,
        )
    )
    kept = result.peak_memory_bytes - given
    assert f"{kept / 1024:,.0f} KiB" in lines["together"]
    solver.release()
    assert solver.memory_table() is None
