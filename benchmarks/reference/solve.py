"""Run the reference on a bundle adjustment problem, and record what its API shows.

Input: a library from `build.load` and NumPy arrays. Output: one `ReferenceRun` per solve. Cost:
`prepare` uploads everything and sorts the indices once per problem; `solve` uploads the start.

    library = load(Path("generated"))
    prepared = prepare(library, problem)
    solve(prepared, EXAMPLE)  # warm-up: loads the kernels
    run = solve(prepared, EXAMPLE)
    run.cameras, run.points  # for the caller to evaluate the cost in float64

What to know about the reference (all seen in its sources of version 0.12):

* A solve moves the node values; indices and measurements stay. So the start is set again before
  each solve, and the same solver object serves all of them. Its damping starts anew by itself.
* It reports costs as 1/2 sum r^2, like us, but summed in its own precision with atomics: they
  differ from run to run. Rows of the trace may be NaN (the step was not finite; it counts as
  rejected). Recompute the last cost from the values before quoting it.
* `pcg_iter` of its records is the number of the last PCG iteration, one less than their count;
  `dt_inc` is not an increment unless it prints; `step_accepted` is never set. All three are mended
  here, from `pcg_iter`, `dt_tot` and the best cost.
* A row is missing when it ends because the damping exceeds its limit.
* The last LM iteration that `solver_iter_max` allows does not linearise. Ask for one more.
* PCG's tolerance compares squared norms of the residual: 1e-2 is a tenth.
* CUDA errors are not checked there: without a device, or with a library for another architecture,
  a solve "converges" to a cost of zero. `prepare` checks the memory and a round trip of the values.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.reference.build import ReferenceLibrary

try:
    from cupy.cuda import runtime as cuda_runtime
except ImportError:  # Without CuPy everything works but the reading of the free memory.
    cuda_runtime = None

Float = NDArray[np.float64]
Floating = NDArray[np.floating[Any]]


class BundleArrays(Protocol):
    """Arrays of a bundle adjustment problem, as in `benchmarks.synthetic` and `caspar.io`."""

    @property
    def cameras(self) -> Float:
        """(num_cameras, 10): qx qy qz qw tx ty tz f k1 k2."""

    @property
    def points(self) -> Float:
        """(num_points, 3)."""

    @property
    def camera_index(self) -> NDArray[np.int32]:
        """(num_observations,)."""

    @property
    def point_index(self) -> NDArray[np.int32]:
        """(num_observations,)."""

    @property
    def pixels(self) -> Float:
        """(num_observations, 2)."""


@dataclass(frozen=True)
class ReferenceSettings:
    """The reference's own parameters, by their own names and with their own defaults."""

    solver_iter_max: int = 100
    pcg_iter_max: int = 20
    pcg_rel_error_exit: float = 1e-4
    """PCG stops when |r|^2 falls below this times |r_0|^2."""
    diag_init: float = 1.0
    """Damping, relative to the diagonal: one over the radius of a trust region."""
    diag_exit_value: float = 1e3
    solver_rel_decrease_min: float = 1.0


EXAMPLE = ReferenceSettings(solver_iter_max=50, pcg_iter_max=20, pcg_rel_error_exit=1e-2)
"""Its example `bal`."""

PAPER = replace(EXAMPLE, diag_init=1e-2, pcg_rel_error_exit=1e-3)
"""As its paper says: trust region 100, tolerance 1e-3. It gives no iterations: as the example."""

LONG = ReferenceSettings(
    solver_iter_max=300, pcg_iter_max=20, pcg_rel_error_exit=1e-6, diag_exit_value=1e12
)
"""For its best final cost: no early exit. Of several settings that were tried in a NumPy model of
its algorithm, short PCG and many LM iterations came closest to the optimum, because its PCG loses
conjugacy as it goes on: on Trafalgar-21, 0.0 % above it, against 0.003 % with LONG_PCG."""

LONG_PCG = replace(LONG, solver_iter_max=150, pcg_iter_max=200, pcg_rel_error_exit=1e-8)
"""For its best final cost where steps must be exact to make progress."""


@dataclass(frozen=True)
class ReferenceIteration:
    """One LM iteration."""

    num_pcg_iterations: int
    tried_cost: float
    """1/2 sum r^2 at the tried step; may be NaN."""
    best_cost: float
    """1/2 sum r^2 at the values kept after this iteration."""
    accepted: bool
    gain_ratio: float
    damping: float
    """Damping with which the step was computed."""
    time_s: float
    """This iteration; the first includes the first linearisation."""
    total_time_s: float
    """Since the start of the solve, to the end of this iteration; the device has finished."""


@dataclass(frozen=True, eq=False)
class ReferenceRun:
    """One solve."""

    settings: ReferenceSettings
    exit_reason: str
    initial_cost: float
    """As reported by the reference, in its precision."""
    final_cost: float
    """As reported by the reference, in its precision."""
    iterations: tuple[ReferenceIteration, ...]
    total_time_s: float
    """Wall time of its `solve` call: no upload, no index set-up, no download."""
    upload_time_s: float
    """Wall time to set the start."""
    setup_time_s: float
    """Wall time of `prepare`: allocation, all uploads and index set-up; the same in all runs."""
    cameras: Float
    """(num_cameras, 10), final values."""
    points: Float
    """(num_points, 3), final values."""
    allocation_bytes: int
    """Size of the reference's one allocation, by its own account: its peak of device memory."""
    device_bytes: int | None
    """Free memory lost since before `prepare` (cudaMemGetInfo): adds the kernels' code."""

    @property
    def num_pcg_iterations(self) -> int:
        """PCG iterations of all recorded LM iterations."""
        return sum(iteration.num_pcg_iterations for iteration in self.iterations)


@dataclass(frozen=True, eq=False)
class PreparedReference:
    """A solver of the reference that holds one problem on the device."""

    solver: Any
    library: ReferenceLibrary
    cameras: Floating
    """(num_cameras, 10), the start in the library's precision."""
    points: Floating
    """(num_points, 3), the start in the library's precision."""
    allocation_bytes: int
    free_bytes_before: int | None
    setup_time_s: float


def free_device_bytes() -> int | None:
    """Return the free memory of the current device, or None without CuPy or without a device."""
    if cuda_runtime is None:
        return None
    try:
        free, _ = cuda_runtime.memGetInfo()
    except cuda_runtime.CUDARuntimeError:
        return None
    return int(free)


def prepare(library: ReferenceLibrary, problem: BundleArrays) -> PreparedReference:
    """Allocate a solver and give it the problem.

    Raises ValueError when an index is out of range (the reference would not notice), MemoryError
    when the device is too small, and RuntimeError when values do not survive a round trip.
    """
    _check_indices(problem.camera_index, len(problem.cameras), "camera_index")
    _check_indices(problem.point_index, len(problem.points), "point_index")
    dtype = np.dtype(library.precision.value)
    cameras = np.ascontiguousarray(problem.cameras, dtype)
    points = np.ascontiguousarray(problem.points, dtype)
    pixels = np.ascontiguousarray(problem.pixels, dtype)
    free_bytes = free_device_bytes()
    start = time.perf_counter()
    solver = library.module.GraphSolver(
        _solver_parameters(library, EXAMPLE),
        Cam_num_max=len(cameras),
        Point_num_max=len(points),
        snavely_num_max=len(pixels),
    )
    allocation_bytes = int(solver.get_allocation_size())
    if free_bytes is not None and allocation_bytes > free_bytes:
        raise MemoryError(f"the reference needs {allocation_bytes} bytes, free are {free_bytes}")
    solver.set_snavely_cam_indices_from_host(np.ascontiguousarray(problem.camera_index, np.int32))
    solver.set_snavely_point_indices_from_host(np.ascontiguousarray(problem.point_index, np.int32))
    solver.set_snavely_pixel_data_from_stacked_host(pixels)
    solver.finish_indices()
    prepared = PreparedReference(
        solver=solver,
        library=library,
        cameras=cameras,
        points=points,
        allocation_bytes=allocation_bytes,
        free_bytes_before=free_bytes,
        setup_time_s=math.nan,
    )
    _set_start(prepared)
    setup_time_s = time.perf_counter() - start
    _check_round_trip(prepared)
    return replace(prepared, setup_time_s=setup_time_s)


def solve(prepared: PreparedReference, settings: ReferenceSettings) -> ReferenceRun:
    """Solve from the start and return the run; the first solve of a process is a warm-up."""
    solver = prepared.solver
    solver.set_params(_solver_parameters(prepared.library, settings))
    upload_time_s = _set_start(prepared)
    start = time.perf_counter()
    result = solver.solve(print_progress=False, verbose_logging=True)
    total_time_s = time.perf_counter() - start
    free_bytes = free_device_bytes()
    cameras, points = _values(prepared)
    device_bytes = None
    if free_bytes is not None and prepared.free_bytes_before is not None:
        device_bytes = prepared.free_bytes_before - free_bytes
    return ReferenceRun(
        settings=settings,
        exit_reason=result.exit_reason.name,
        initial_cost=result.initial_score,
        final_cost=result.final_score,
        iterations=_iterations(result),
        total_time_s=total_time_s,
        upload_time_s=upload_time_s,
        setup_time_s=prepared.setup_time_s,
        cameras=cameras.astype(np.float64),
        points=points.astype(np.float64),
        allocation_bytes=prepared.allocation_bytes,
        device_bytes=device_bytes,
    )


def pcg_iteration_ms(
    prepared: PreparedReference, *, few: int = 10, many: int = 60, repeats: int = 5
) -> float:
    """Return the milliseconds of one PCG iteration, without anything around PCG.

    One LM iteration is run with exactly `few` and with exactly `many` PCG iterations, each
    `repeats` times after a warm-up; the result is the difference of the median times over
    `many - few`. Linearisation, cost and the read of the result are in both and cancel; the host's
    read of the residual after every PCG iteration stays in, as it is part of its algorithm. The
    tolerance is set so low that PCG does not stop early; that the values may overflow after the
    solution is reached does not change the time.
    """
    medians = []
    for count in (few, many):
        settings = ReferenceSettings(
            solver_iter_max=1, pcg_iter_max=count, pcg_rel_error_exit=1e-300, diag_exit_value=1e30
        )
        runs = [solve(prepared, settings) for _ in range(repeats + 1)][1:]
        if any(run.num_pcg_iterations != count for run in runs):
            raise RuntimeError(f"the reference did not run {count} PCG iterations")
        medians.append(float(np.median([run.iterations[0].total_time_s for run in runs])))
    return 1e3 * (medians[1] - medians[0]) / (many - few)


def _check_indices(index: NDArray[np.int32], size: int, name: str) -> None:
    """Raise ValueError when an index lies outside 0 to size - 1."""
    if len(index) > 0 and not 0 <= int(index.min()) <= int(index.max()) < size:
        raise ValueError(f"{name} must lie in 0 to {size - 1}")


def _solver_parameters(library: ReferenceLibrary, settings: ReferenceSettings) -> Any:
    """Return the reference's parameter object."""
    parameters = library.module.SolverParams()
    parameters.solver_iter_max = settings.solver_iter_max
    parameters.pcg_iter_max = settings.pcg_iter_max
    parameters.pcg_rel_error_exit = settings.pcg_rel_error_exit
    parameters.diag_init = settings.diag_init
    parameters.diag_exit_value = settings.diag_exit_value
    parameters.solver_rel_decrease_min = settings.solver_rel_decrease_min
    return parameters


def _set_start(prepared: PreparedReference) -> float:
    """Upload the start values; return the seconds taken."""
    start = time.perf_counter()
    prepared.solver.set_Cam_nodes_from_stacked_host(prepared.cameras)
    prepared.solver.set_Point_nodes_from_stacked_host(prepared.points)
    return time.perf_counter() - start


def _values(prepared: PreparedReference) -> tuple[Floating, Floating]:
    """Download cameras (num_cameras, 10) and points (num_points, 3)."""
    cameras, points = np.zeros_like(prepared.cameras), np.zeros_like(prepared.points)
    prepared.solver.get_Cam_nodes_to_stacked_host(cameras)
    prepared.solver.get_Point_nodes_to_stacked_host(points)
    return cameras, points


def _check_round_trip(prepared: PreparedReference) -> None:
    """Raise RuntimeError when the start does not come back: the reference checks no CUDA error."""
    cameras, points = _values(prepared)
    if not (np.array_equal(cameras, prepared.cameras) and np.array_equal(points, prepared.points)):
        raise RuntimeError(
            "the reference's kernels do not run: no CUDA device, too little memory, or a library "
            "that was built for another architecture (see build --architecture)"
        )


def _iterations(result: Any) -> tuple[ReferenceIteration, ...]:
    """Translate the reference's records; see the module docstring for what is mended."""
    iterations = []
    previous_time_s, previous_best = 0.0, result.initial_score
    for record in result.iterations:
        iterations.append(
            ReferenceIteration(
                num_pcg_iterations=record.pcg_iter + 1,
                tried_cost=record.score_current,
                best_cost=record.score_best,
                accepted=record.score_best < previous_best,
                gain_ratio=record.step_quality,
                damping=record.diag,
                time_s=record.dt_tot - previous_time_s,
                total_time_s=record.dt_tot,
            )
        )
        previous_time_s, previous_best = record.dt_tot, record.score_best
    return tuple(iterations)
