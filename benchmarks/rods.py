"""`python -m benchmarks.rods`: bundle adjustment with known distances between cameras, and without.

A chain of 20 distances between cameras is held by constraints; their values are those of the
adjusted scene, stretched by up to a thousandth. Prints a row for each problem and precision.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from benchmarks.prepare import Preparation
from caspar.bundle_adjustment import Cam, snavely
from caspar.options import BackendName, PrecisionName

NUM_RODS = 20
RUNS = 5
PRECISIONS: tuple[PrecisionName, ...] = ("auto", "float64")


@caspar.constraint(kind="zero")
def rod(
    first: Annotated[Cam, caspar.TunableShared],
    second: Annotated[Cam, caspar.TunableShared],
    length: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    """Distance of two cameras, less the known one."""
    between = first.cam_T_world.inverse().t - second.cam_T_world.inverse().t
    return sf.V1(between.norm(sf.epsilon()) - length[0])


def centres(cameras: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where cameras are, (n, 3)."""
    turn, moved = cameras[:, :3], -cameras[:, 4:7]
    cross = np.cross(moved, turn) + cameras[:, 3:4] * moved
    turned: NDArray[np.float64] = moved + 2.0 * np.cross(cross, turn)
    return turned


def measured(name: str, backend: BackendName, precision: PrecisionName, made: Path) -> str:
    """A row of the table."""
    bundle = Preparation([], made).take(name)
    plain = caspar.Solver([snavely], backend=backend, precision=precision)
    result = plain.solve(bundle.arrays)
    at = centres(np.asarray(result.values["Cam"], np.float64))
    rng = np.random.default_rng(0)
    chain = rng.permutation(len(at))[: NUM_RODS + 1]
    first, second = chain[:-1], chain[1:]
    lengths = np.linalg.norm(at[first] - at[second], axis=1)
    lengths *= 1.0 + 1e-3 * rng.uniform(-1.0, 1.0, NUM_RODS)
    rods = {"first": first, "second": second, "length": lengths[:, None]}
    with_rods: Any = {**bundle.arrays, "rod": rods}
    solver = caspar.Solver([snavely, rod], backend=backend, precision=precision)
    bound = solver.solve(with_rods)
    times: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(RUNS):
        for key, one, arrays in (
            ("without", plain, bundle.arrays),
            ("with", solver, with_rods),
        ):
            begun = time.perf_counter()
            found = one.solve(arrays)
            times[key].append(1e3 * (time.perf_counter() - begun))
            bound, result = (found, result) if key == "with" else (bound, found)
    now = centres(np.asarray(bound.values["Cam"], np.float64))
    error = np.abs(np.linalg.norm(now[first] - now[second], axis=1) - lengths).max()
    without, held = (statistics.median(times[key]) for key in ("without", "with"))
    return (
        f"| {name} | {precision} | {len(result.iterations)} | {without:.1f} "
        f"| {len(bound.iterations)} | {held:.1f} | {held / without:.2f} | {error:.1e} "
        f"| {bound.status.name} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rods", description=__doc__)
    parser.add_argument("problems", nargs="+", help="as `benchmarks.problems.make` takes them")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--made", type=Path, default=Path("out/made"))
    arguments = parser.parse_args()
    Preparation(arguments.problems, arguments.made).wait()
    print(
        "| problem | precision | iterations without | ms | iterations with | ms | ratio "
        "| error of a distance | status |\n|---|---|--:|--:|--:|--:|--:|--:|---|"
    )
    for name in arguments.problems:
        for precision in PRECISIONS:
            print(measured(name, arguments.backend, precision, arguments.made), flush=True)


if __name__ == "__main__":
    main()
