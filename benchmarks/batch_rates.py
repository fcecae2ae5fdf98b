"""`python -m benchmarks.batch_rates`: whether the rates of batches on a GPU are what they seem.

A million different PnP problems of 12 points. *Events* are those of CUDA around the kernel alone;
*first* and *repeated* are seconds on the host from arrays on the device to costs, statuses and
values on the host. The costs of all returned values are computed again, by CuPy in float64. Twice
as many problems should take twice as long. *Operations* are those of the scheduled programs times
the iterations that were made: start, questions about rounding, loads and addresses are left out,
and a division or a square root counts as one, so units do more than that. The limit is what the
device issues at its greatest clock: 64 float64 and 128 float32 operations a multiprocessor and
cycle. Writes `batch_rates_cuda.md` in the folder, and prints it.
"""

import argparse
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import caspar
from benchmarks.batches import POINTS, on_device, pnp
from benchmarks.page import table
from benchmarks.report import environment
from caspar.batch.generate import policy_program, programs, step_program
from caspar.batch.options import checked_options, option_numbers
from caspar.batch.result import on_host
from caspar.codegen.targets import TARGETS
from caspar.ir.ops import Op
from caspar.options import BatchPrecisionName
from caspar.passes.pipeline import compile_graph
from examples import tags

COUNTS = (125_000, 250_000, 500_000, 1_000_000, 2_000_000)
CHECKED = 1_000_000
NUM_RUNS = 10
FLOAT64_OPERATIONS, FLOAT32_OPERATIONS = 64, 128
"""Of a multiprocessor and cycle (sm_80, sm_90)."""


def operations(shape: Any) -> int:
    """Arithmetic of one iteration of a problem."""
    costs = TARGETS["cuda"].costs

    def count(graph: Any) -> int:
        program = compile_graph(graph, costs[graph.dtype])
        moved = (Op.READ, Op.STORE)
        return sum(step.op not in moved for step in program.instructions)

    instance = count(programs.score_graph(shape, 0)) + count(programs.linearize_graph(shape, 0))
    adds = sum(
        step.op is Op.STORE
        for step in compile_graph(
            programs.linearize_graph(shape, 0), costs[shape.storage]
        ).instructions
    )
    once = count(step_program.step_graph(shape)) + count(policy_program.policy_graph(shape.storage))
    return POINTS * (instance + adds) + once


def event_seconds(cupy: Any, solver: Any, arrays: Mapping[str, Any]) -> list[float]:
    """Of the kernel alone, by CUDA events, run after run."""
    with solver.backend.scope():
        batch = solver._read(arrays, None, None, check=True)
        kernel = solver._kernels.solving(batch.shape)
        numbers = option_numbers(checked_options({}), batch.shape)
        run = solver._kernels.run(kernel, batch, numbers)
        stream = cupy.cuda.get_current_stream()
        seconds = []
        for _ in range(NUM_RUNS):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record(stream)
            run.launch()
            end.record(stream)
            end.synchronize()
            seconds.append(1e-3 * cupy.cuda.get_elapsed_time(start, end))
    return seconds


def host_seconds(solver: Any, arrays: Mapping[str, Any]) -> tuple[list[float], Any]:
    """From arrays on the device to everything on the host, run after run."""
    seconds, result = [], None
    for _ in range(NUM_RUNS):
        start = time.perf_counter()
        result = solver.solve(arrays)
        on_host(result.final_cost), on_host(result.status_codes), on_host(result.values["Tag"])
        seconds.append(time.perf_counter() - start)
    return seconds, result


def recomputed(cupy: Any, poses: Any, given: Mapping[str, Any]) -> Any:
    """Costs of poses in float64, apart from generated code."""
    poses, points = poses.astype("float64"), given["point"].astype("float64")
    axis, w, shift = poses[:, None, :3], poses[:, None, 3:4], poses[:, None, 4:]
    moved = points + 2.0 * cupy.cross(axis, cupy.cross(axis, points) + w * points) + shift
    fx, fy, cx, cy = tags.LENS
    u = fx * moved[..., 0] / moved[..., 2] + cx - given["pixel"][..., 0]
    v = fy * moved[..., 1] / moved[..., 2] + cy - given["pixel"][..., 1]
    return 0.5 * (u * u + v * v).sum(axis=1)


def rows_of(
    cupy: Any, precision: BatchPrecisionName, counts: tuple[int, ...]
) -> tuple[list[Any], list[Any]]:
    """Rates by number, and checks of the results of one number."""
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    units = FLOAT64_OPERATIONS if precision == "float64" else FLOAT32_OPERATIONS
    limit = units * properties["multiProcessorCount"] * 1e3 * properties["clockRate"]
    _, start, given = pnp(max(counts), 0.3, 0.2)
    solver = caspar.BatchSolver(tags.corner, backend="cuda", precision=precision)
    rates, checks = [], []
    for count in counts:
        kept = {"point": given["point"][:count], "pixel": given["pixel"][:count]}
        arrays = {"Tag": start[:count], "corner": {**kept, "lens": given["lens"]}}
        arrays = on_device(arrays, "cuda", precision)
        seconds, result = host_seconds(solver, arrays)
        events = event_seconds(cupy, solver, arrays)
        with solver.backend.scope():
            shape = solver._read(arrays, None, None, check=True).shape
        done = operations(shape) * float(result.iterations.sum()) / min(events)
        rates.append(
            [
                *(precision, f"{count:,}", f"{1e3 * events[0]:.3f}", f"{1e3 * min(events):.3f}"),
                *(f"{1e3 * np.median(events):.3f}", f"{count / np.median(events):,.0f}"),
                *(f"{1e3 * seconds[0]:.1f}", f"{1e3 * np.median(seconds):.2f}"),
                *(f"{count / np.median(seconds):,.0f}", f"{1e-12 * done:.2f}"),
                f"{100 * done / limit:.0f} %",
            ]
        )
        if count == min(CHECKED, max(counts)):
            costs = recomputed(cupy, result.values["Tag"], arrays["corner"])
            apart = cupy.abs(costs / result.final_cost - 1.0)
            again = solver.solve(arrays).values["Tag"]
            checks.append(
                [
                    *(precision, f"{count:,}", f"{float(cupy.median(apart)):.1e}"),
                    f"{float(apart.max()):.1e}",
                    f"{int((again == result.values['Tag']).all(axis=1).sum()):,}",
                    f"{len(np.unique(on_host(result.final_cost))):,}",
                    f"{float(result.iterations.mean()):.2f}, {int(result.iterations.max())}",
                    f"{100 * result.is_success.mean():.3f} %",
                ]
            )
    return rates, checks


def main() -> None:
    """Measure, write the page, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out"))
    parser.add_argument("--scale", type=float, default=1.0, help="times as many problems")
    chosen = parser.parse_args()
    cupy = import_module("cupy")
    counts = tuple(int(chosen.scale * count) for count in COUNTS)
    rates: list[Any] = []
    checks: list[Any] = []
    for precision in ("float64", "float32"):
        more = rows_of(cupy, precision, counts)
        rates += more[0]
        checks += more[1]
    device = caspar.BatchSolver(tags.corner, backend="cuda").backend.device
    facts = ", ".join(f"{key} {value}" for key, value in environment(device).items())
    head = ["precision", "problems", "first ms, events", "least ms", "median ms", "a second"]
    head += ["first ms, host", "median ms, host", "a second, host"]
    head += ["10^12 operations a second", "of the limit"]
    about = (__doc__ or "").split(chr(10), 2)[2]
    parts = [
        f"# Whether the rates of batches are true\n\n{facts}.\n\n{about}",
        f"## Rates\n\n{table(head, rates)}",
        "## Results\n\n"
        + table(
            [
                *("precision", "problems", "cost and its recomputation, median", "worst"),
                *("same bits in another run", "different costs", "iterations, mean and most"),
                "converged",
            ],
            checks,
        ),
    ]
    text = "\n".join(parts)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    (chosen.folder / "batch_rates_cuda.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
