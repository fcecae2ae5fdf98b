"""`python -m benchmarks.devices 5 29 100`: a problem on one device and on several, in one run.

Millions of observations of a synthetic scene (`devices_scene.py`). On one device and on several:
milliseconds of a PCG iteration, milliseconds until the cost is within 0.1 % of the lowest, set-up
with kernels loaded, memory by the solver's account and by the driver's on each device; and by
itself the time of adding up what an iteration adds up. Prints, and writes to a folder, a page.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import caspar
from benchmarks.devices_scene import cost, ring
from benchmarks.report import environment
from caspar.bundle_adjustment import snavely
from caspar.errors import OutOfMemoryError
from caspar.options import BackendName
from caspar.runtime.select import chosen_backend
from caspar.solver.limits import Limits

FEW, MANY = 20, 220
"""PCG iterations of two steps, whose difference is that of iterations."""

PER_GRAPH = 50
"""Meetings of a graph."""

NEAR = 1.001
"""Times the lowest cost: when a solve has come within 0.1 %."""


@dataclass(frozen=True)
class Row:
    """One problem on some devices.

    Attributes:
        name: Of the way it was solved.
        iteration_ms: A PCG iteration.
        trace: Seconds and cost after each iteration.
        cost: After the solve, in float64 by `devices_scene.cost`.
        setup_s: A solve less its iterations, with kernels loaded, from arrays on the host.
        held_bytes: By the solver, on all devices.
        device_bytes: Free memory lost, by device, when the solve has ended.
        same_bits: Whether two solves gave the same bits.
    """

    name: str
    iteration_ms: float
    trace: tuple[tuple[float, float], ...]
    cost: float
    setup_s: float
    held_bytes: int
    device_bytes: tuple[int, ...]
    same_bits: bool

    def ms_to(self, goal: float) -> float:
        """Milliseconds until the cost is no higher."""
        return next((1e3 * seconds for seconds, found in self.trace if found <= goal), np.nan)


def measure(
    arrays: dict[str, Any],
    devices: int,
    backend: BackendName,
    *,
    deterministic: bool,
    runs: int,
    with_cost: bool = True,
) -> Row:
    """Solve on a number of devices; without `with_cost` the cost is the solver's, in float64."""
    name = f"{devices} {backend}{', deterministic' if deterministic else ''}"
    before = _free(backend)
    solver = caspar.Solver(
        [snavely],
        backend=backend,
        devices=devices,
        deterministic=deterministic,
        linear_solver="schur_pcg",
        precision="mixed",
        limits=Limits(min_instances_of_device=0),
    )
    solver.solve(arrays, max_iterations=2)
    lost = tuple(one - other for one, other in zip(before, _free(backend), strict=True))
    iteration_ms = _iteration_ms(solver, arrays, runs)
    # the same numbers in another order have another plan
    solver.release()
    start = time.perf_counter()
    first = solver.solve(arrays)
    setup_s = time.perf_counter() - start - first.solve_time_s
    second = solver.solve(arrays)
    same = all(np.array_equal(first.values[name], second.values[name]) for name in first.values)
    trace = tuple((record.time_s, record.cost) for record in second.iterations)
    return Row(
        name,
        iteration_ms,
        trace,
        cost(arrays, dict(second.values)) if with_cost else second.final_cost,
        setup_s,
        second.peak_memory_bytes,
        lost,
        same,
    )


def _iteration_ms(solver: caspar.Solver, arrays: dict[str, Any], runs: int) -> float:
    medians = []
    for count in (FEW, MANY):
        times = [
            solver.solve(
                arrays,
                max_iterations=1,
                min_linear_iterations=count,
                max_linear_iterations=count,
            ).solve_time_s
            for _ in range(runs + 1)
        ]
        medians.append(statistics.median(times[1:]))
    return 1e3 * (medians[1] - medians[0]) / (MANY - FEW)


def _free(backend: BackendName) -> list[int]:
    """Free bytes of each device, after what can be given back was."""
    if backend != "cuda":
        return []
    import cupy

    gc.collect()
    found = []
    for number in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(number):
            cupy.cuda.Device().synchronize()
            found.append(int(cupy.cuda.runtime.memGetInfo()[0]))
    return found


def all_reduce_us(num_scalars: int, devices: int, runs: int = 500) -> float:
    """Microseconds of adding up float32 numbers over CUDA devices, in a captured graph."""
    import cupy

    from caspar.runtime.cuda.launch.launch import captured
    from caspar.runtime.cuda.nccl import NcclGroup
    from caspar.solver.shards.devices import Team, chosen_devices

    _, found = chosen_devices(devices, "cuda")
    assert found is not None
    group = NcclGroup([*range(devices)])
    team = Team(found.members, group)

    def add_up(rank: int) -> float:
        array, stream = cupy.zeros(num_scalars, np.float32), cupy.cuda.get_current_stream()
        stream.synchronize()
        graph = captured(lambda: group.add_up(rank, [array]), PER_GRAPH)
        graph.launch(stream=stream)
        stream.synchronize()
        start = time.perf_counter()
        for _ in range(runs // PER_GRAPH):
            graph.launch(stream=stream)
        stream.synchronize()
        return time.perf_counter() - start

    return 1e6 * max(team.each(add_up)) / (runs // PER_GRAPH * PER_GRAPH)


def page(millions: float, num_cameras: int, rows: Sequence[Row]) -> str:
    """A table of one problem."""
    lowest = min(min(found for _, found in row.trace) for row in rows)
    lines = [
        f"## {millions:g} million observations, {num_cameras:,} cameras",
        "",
        "| devices | ms a PCG iteration | ms to 0.1 % | iterations | final cost, above the lowest "
        "| set-up s | GB held, on all | GB by the driver, on each | same bits twice |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    best = min(row.cost for row in rows)
    for row in rows:
        driver = ", ".join(f"{size / 1e9:.2f}" for size in row.device_bytes)
        lines.append(
            f"| {row.name} | {row.iteration_ms:.4f} | {row.ms_to(NEAR * lowest):.1f} "
            f"| {len(row.trace)} | {row.cost:.9g}, {row.cost / best - 1.0:.1e} "
            f"| {row.setup_s:.2f} | {row.held_bytes / 1e9:.2f} | {driver} | {row.same_bits} |"
        )
    one = rows[0]
    lines += [""]
    lines += [
        f"{row.name} against {one.name}: PCG iterations {one.iteration_ms / row.iteration_ms:.2f} "
        f"times as fast, to 0.1 % {one.ms_to(NEAR * lowest) / row.ms_to(NEAR * lowest):.2f} times."
        for row in rows[1:]
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("millions", nargs="*", type=float, default=[5.0, 29.0])
    parser.add_argument("--devices", nargs="+", type=int, default=[2], help="beside one")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--deterministic", action="store_true", help="also with that option")
    parser.add_argument("--quick", action="store_true", help="costs as the solver reports them")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    found = chosen_backend(arguments.backend)
    lines = "\n".join(f"* {name}: {text}" for name, text in environment(found.device).items())
    numbers = ", ".join(map(str, (1, *arguments.devices)))
    parts = [f"# One problem on {numbers} devices\n\n{lines}\n"]
    print(parts[0], flush=True)
    for millions in arguments.millions:
        start = time.perf_counter()
        arrays = ring(round(1e6 * millions))
        print(f"{millions:g} million made in {time.perf_counter() - start:.1f} s", flush=True)
        rows = []
        for deterministic in (False, True) if arguments.deterministic else (False,):
            for devices in (1, *arguments.devices):
                try:
                    made = measure(
                        arrays,
                        devices,
                        arguments.backend,
                        deterministic=deterministic,
                        runs=arguments.runs,
                        with_cost=not arguments.quick,
                    )
                except OutOfMemoryError as error:
                    print(f"{millions:g} million on {devices}: {error}", flush=True)
                    continue
                rows.append(made)
                gc.collect()
        if arguments.backend == "cuda":
            scalars = 9 * len(arrays["Cam"])
            for devices in arguments.devices:
                spent = all_reduce_us(scalars, devices)
                on = f"adding up {scalars:,} float32 numbers on {devices}"
                print(f"{on}: {spent:.1f} us", flush=True)
        parts.append(page(millions, len(arrays["Cam"]), rows))
        print(parts[-1], flush=True)
    if arguments.folder is not None:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        (arguments.folder / "devices.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
