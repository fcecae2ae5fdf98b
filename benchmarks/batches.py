"""`python -m benchmarks.batches`: many small problems at once, beside others and one by one.

Times are the best of several solves in a process in which the kernel is compiled: `kernel` of the
kernel alone, `solve` from arrays, which are on the device where there is one, to results that are
there. Processor seconds are those of all threads, which other load changes less. Peers run on the
same problems: OpenCV's `solvePnP` from the same starts and SciPy's `least_squares` (`lm`,
derivatives by differences), both one by one on one core, of a sample. *At their minimum* are
problems that end within 1e-4 of the cost that a start at the true values ends at. With
`--peers-python`, optimistix under `jax.vmap` solves the same problems on the same device. Writes
`batches_cpu.md` or `batches_cuda.md` in the folder, and prints it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

import caspar
from benchmarks.page import table
from benchmarks.peers import vmapped_pnp
from benchmarks.report import environment
from caspar.batch.result import on_host
from caspar.options import BackendName, BatchPrecisionName
from examples import localisation, relaxation, tags

Floats = NDArray[np.float64]
Arrays = Mapping[str, Any]
Table = list[list[str]]

POINTS = 12
NUM_RUNS = 5
NUM_SINGLE, NUM_PEER = 300, 500
"""Problems that are solved one by one."""

NUM_VMAPPED = {"cpu": (2_000,), "cuda": (100_000, 1_000_000)}
"""Problems that another library solves at once, on the same device."""

SAME_COST = 1e-4

COLD = """\
import time
start = time.perf_counter()
import caspar, numpy
from examples import tags
poses, start_poses, pixels, weights = tags.make(100)
begun = time.perf_counter()
solver = caspar.BatchSolver(tags.corner, backend={backend!r})
given = {{"point": tags.CORNERS[None], "pixel": pixels, "lens": tags.LENS[None]}}
solver.solve({{"Tag": start_poses, "corner": given}})
print(time.perf_counter() - begun)
"""
"""A process that has nothing in its cache."""


def pnp(count: int, angle: float, shift: float, seed: int = 1) -> tuple[Floats, Floats, Arrays]:
    """True poses, starts, and the arrays of 12 points each, half a pixel of noise."""
    rng = np.random.default_rng(seed)
    poses = np.concatenate(
        [
            Rotation.random(count, random_state=seed).as_quat(),
            rng.uniform([-0.5, -0.5, 3.0], [0.5, 0.5, 6.0], (count, 3)),
        ],
        axis=1,
    )
    points = rng.uniform(-1.0, 1.0, (count, POINTS, 3))
    pixels = tags.seen(poses, points) + rng.normal(0.0, 0.5, (count, POINTS, 2))
    start = tags.moved(poses, angle, shift, rng)
    return poses, start, {"point": points, "pixel": pixels, "lens": tags.LENS[None]}


def on_device(arrays: Any, backend: BackendName, dtype: str) -> Any:
    """Arrays of a type, on the device where there is one."""
    if isinstance(arrays, Mapping):
        return {name: on_device(value, backend, dtype) for name, value in arrays.items()}
    kept = arrays.astype(dtype) if arrays.dtype.kind == "f" else arrays
    return import_module("cupy").asarray(kept) if backend == "cuda" else kept


@dataclass(frozen=True)
class Best:
    """The last result, and the least seconds of several solves.

    Attributes:
        result: Of the last one.
        kernel_s: Of the kernel.
        solve_s: From arrays to results.
        processor_s: Of all threads of the processor, from arrays to results.
    """

    result: caspar.BatchResult
    kernel_s: float
    solve_s: float
    processor_s: float


def best(run: Callable[[], caspar.BatchResult]) -> Best:
    """Solve several times."""
    seconds = []
    result = run()
    for _ in range(NUM_RUNS):
        start, processor = time.perf_counter(), time.process_time()
        result = run()
        spent_s, processor_s = time.perf_counter() - start, time.process_time() - processor
        seconds.append((result.solve_time_s, spent_s, processor_s))
    return Best(result, *map(min, zip(*seconds, strict=True)))


def speed_rows(backend: BackendName, scale: int) -> Table:
    """Problems a second, in both precisions."""
    _, start, views = pnp(10_000 * scale, 0.3, 0.2)
    _, counts = localisation.make(2_000 * scale)
    t1, at, signal, voxel = relaxation.make(int((4_000 * scale) ** 0.5))
    problems: list[tuple[str, Any, Arrays]] = [
        ("PnP, 12 points", tags.corner, {"Tag": start, "corner": views}),
        (
            "spots, 5 parameters, 7 x 7 pixels",
            localisation.pixel,
            {
                "Spot": localisation.start(counts),
                "pixel": {"at": localisation.places()[None], "count": counts},
            },
        ),
        (
            "relaxation, 3 parameters, 5 to 12 samples, ragged",
            relaxation.recovery,
            {
                "Voxel": np.tile([1.0, 2.0, 1.0], (len(t1), 1)),
                "recovery": {
                    "time": {"values": at, "problem": voxel},
                    "signal": {"values": signal, "problem": voxel},
                },
            },
        ),
    ]
    rows = []
    for name, factor, arrays in problems:
        for precision in ("float64", "float32"):
            solver = caspar.BatchSolver(factor, backend=backend, precision=precision)
            given = on_device(arrays, backend, precision)
            found = best(partial(solver.solve, given))
            result, count = found.result, found.result.num_problems
            times = (found.kernel_s, found.solve_s, found.processor_s)
            rows.append(
                [
                    *(name, precision, f"{count:,}"),
                    *(f"{count / seconds:,.0f}" for seconds in times),
                    f"{float(result.iterations.mean()):.1f}",
                    f"{100 * result.is_success.mean():.2f} %",
                ]
            )
    return rows


def hard_rows(backend: BackendName) -> Table:
    """1,000 PnP whose starts are far off: how many end at their own minimum, and singly."""
    rows = []
    for angle, shift in ((1.2, 0.6), (2.2, 1.0), (3.0, 1.5)):
        poses, start, given = pnp(1_000, angle, shift)
        solver = caspar.BatchSolver(tags.corner, backend=backend)
        goal = solver.solve({"Tag": poses, "corner": given}).final_cost
        result = solver.solve({"Tag": start, "corner": given})
        costs, statuses = one_by_one(
            tags.corner, backend, "Tag", start, "corner", given, ("lens",), len(start)
        )
        batch, single = (cost <= goal * (1 + SAME_COST) for cost in (result.final_cost, costs))
        same = np.isclose(result.final_cost, costs, rtol=1e-9, atol=0)
        rows.append(
            [
                f"{angle} rad, {shift} m",
                *(f"{int(found.sum())}" for found in (batch, single, same)),
                f"{int((result.is_success == statuses).sum())}",
            ]
        )
    return rows


def one_by_one(
    factor: Any,
    backend: BackendName,
    node: str,
    start: Floats,
    name: str,
    given: Arrays,
    shared: Sequence[str],
    count: int,
) -> tuple[Floats, NDArray[np.bool_]]:
    """Costs of `Solver` for each problem by itself, and whether it succeeded."""
    solver = caspar.Solver(factor, backend=backend, precision="float64")
    costs, succeeded = [], []
    for number in range(count):
        own = {key: value[0 if key in shared else number] for key, value in given.items()}
        result = solver.solve({node: start[number : number + 1], name: own})
        costs.append(result.final_cost)
        succeeded.append(result.status.is_success)
    return np.array(costs), np.array(succeeded)


def curve_rows(backend: BackendName) -> Table:
    """Curves against single solves: costs, values, statuses."""
    rows = []
    _, counts = localisation.make(NUM_SINGLE)
    spots = localisation.start(counts)
    given = {"at": localisation.places()[None], "count": counts}
    _, at, signal, voxel = relaxation.make(20)
    lengths = np.bincount(voxel)
    kept = lengths[voxel] == np.bincount(lengths).argmax()
    length = int(lengths[voxel[kept]][0])
    equal = {"time": at[kept].reshape(-1, length), "signal": signal[kept].reshape(-1, length)}
    decays = np.tile([1.0, 2.0, 1.0], (len(equal["time"]), 1))
    for name, factor, node, start, key, arrays, shared in (
        ("spots", localisation.pixel, "Spot", spots, "pixel", given, ("at",)),
        ("relaxation", relaxation.recovery, "Voxel", decays, "recovery", equal, ()),
    ):
        batch = caspar.BatchSolver(factor, backend=backend)
        result = batch.solve({node: start, key: arrays})
        single = caspar.Solver(factor, backend=backend, precision="float64")
        costs, values, same = [], [], 0
        for number in range(len(start)):
            own = {one: value[0 if one in shared else number] for one, value in arrays.items()}
            found = single.solve({node: start[number : number + 1], key: own})
            scale = np.abs(found.values[node][0])
            difference = np.abs(found.values[node][0] - result.values[node][number])
            costs.append(abs(found.final_cost / result.final_cost[number] - 1.0))
            values.append((difference / scale).max())
            same += found.status is result.status[number]
        rows.append(
            [
                *(name, f"{len(start):,}", f"{max(costs):.1e}"),
                *(f"{np.quantile(values, share):.1e}" for share in (0.5, 0.99, 1.0)),
                f"{same:,}",
            ]
        )
    return rows


def ragged_row(backend: BackendName, scale: int) -> Table:
    """Problems with 1 to 200 samples, some empty or NaN: the others are as without these."""
    rng = np.random.default_rng(0)
    count = 10_000 * scale
    lengths = rng.integers(1, 201, count)
    voxel = np.repeat(np.arange(count), lengths)
    at = rng.uniform(0.05, 5.0, len(voxel))
    signal = 1.0 - 1.9 * np.exp(-at) + rng.normal(0.0, relaxation.NOISE, len(at))
    start = np.tile([1.0, 2.0, 1.2], (count, 1))
    solver = caspar.BatchSolver(relaxation.recovery, backend=backend)

    def solve(start: Floats, kept: NDArray[np.bool_]) -> caspar.BatchResult:
        problem = voxel[kept]
        samples = {"time": at[kept], "signal": signal[kept]}
        ragged = {name: {"values": values, "problem": problem} for name, values in samples.items()}
        return solver.solve({"Voxel": start, "recovery": ragged})

    whole = solve(start, np.ones(len(voxel), dtype=bool))
    spoilt = start.copy()
    spoilt[::97] = np.nan
    is_empty = np.arange(count) % 101 == 1
    result = solve(spoilt, ~is_empty[voxel])
    others = ~is_empty & np.isfinite(spoilt[:, 0])
    same = (result.values["Voxel"][others] == whole.values["Voxel"][others]).all(axis=1)
    words = ", ".join(f"{number:,} {status.name}" for status, number in result.counts.items())
    return [[f"{count:,}", f"{int(others.sum()):,}", f"{int(same.sum()):,}", words]]


def peer_rows(backend: BackendName) -> Table:
    """PnP a second of the processor's peers, one by one."""
    _, start, given = pnp(NUM_PEER, 0.3, 0.2)
    points, pixels = given["point"], given["pixel"]
    solver = caspar.BatchSolver(tags.corner, backend=backend)
    result = solver.solve({"Tag": start, "corner": given})
    rows = []
    for name, solve in (("cv2.solvePnP", cv2_costs), ("SciPy least_squares", scipy_costs)):
        try:
            begun = time.perf_counter()
            costs = solve(start, points, pixels)
            seconds = time.perf_counter() - begun
        except ModuleNotFoundError as error:
            rows.append([name, f"not installed: {error.name}", "", ""])
            continue
        ours = result.final_cost
        rows.append(
            [
                name,
                f"{len(start) / seconds:,.0f}",
                f"{int((costs <= ours * (1 + SAME_COST)).sum())} of {len(start)}",
                f"{int((ours <= costs * (1 + SAME_COST)).sum())} of {len(start)}",
            ]
        )
    return rows


def vmapped_rows(backend: BackendName, python: str) -> Table:
    """PnP a second of jax.vmap of optimistix, and of this beside it, on the same device."""
    rows = []
    precisions: tuple[BatchPrecisionName, ...] = ("float64", "float32")
    for count, precision in product(NUM_VMAPPED[backend], precisions):
        _, start, given = pnp(count, 0.3, 0.2)
        solver = caspar.BatchSolver(tags.corner, backend=backend, precision=precision)
        arrays = on_device({"Tag": start, "corner": given}, backend, precision)
        measured = best(partial(solver.solve, arrays))
        solve_s, ours = measured.solve_s, on_host(measured.result.final_cost)
        with tempfile.TemporaryDirectory() as folder:
            asked, answer = Path(folder) / "in.npz", Path(folder) / "out.npz"
            named = {"start": start, "points": given["point"], "pixels": given["pixel"]}
            named = {name: array.astype(precision) for name, array in named.items()}
            np.savez(asked, lens=tags.LENS, **named)
            script = str(Path(vmapped_pnp.__file__))
            subprocess.run([python, script, str(asked), str(answer)], check=True)
            found = dict(np.load(answer))
        slack = SAME_COST if precision == "float64" else 1e-2
        rows.append(
            [
                *(precision, f"{count:,}", f"{count / solve_s:,.0f}"),
                f"{count / float(found['seconds']):,.0f}",
                f"{float(found['seconds']) / solve_s:.1f}",
                f"{int((ours <= found['costs'] * (1 + slack)).sum()):,}",
                f"{int((found['costs'] <= ours * (1 + slack)).sum()):,}",
            ]
        )
    return rows


def cv2_costs(start: Floats, points: Floats, pixels: Floats) -> Floats:
    """OpenCV's iterative solver from the same starts; half its squared errors."""
    cv2 = import_module("cv2")
    fx, fy, cx, cy = tags.LENS
    lens = np.array([[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]])
    vectors = Rotation.from_quat(start[:, :4]).as_rotvec()
    costs = []
    for number, row in enumerate(start):
        _, turn, place = cv2.solvePnP(
            *(points[number], pixels[number], lens, None),
            *(vectors[number].copy(), row[4:].copy(), True),
            flags=cv2.SOLVEPNP_ITERATIVE,
        )
        pose = np.concatenate([Rotation.from_rotvec(turn[:].ravel()).as_quat(), place.ravel()])
        error = tags.seen(pose[None], points[number][None])[0] - pixels[number]
        costs.append(0.5 * (error**2).sum())
    return np.array(costs)


def scipy_costs(start: Floats, points: Floats, pixels: Floats) -> Floats:
    """SciPy's MINPACK over a rotation vector; derivatives by differences."""
    costs = []
    for number, row in enumerate(start):
        turn = Rotation.from_quat(row[:4])

        def errors(step: Floats, number: int = number, turn: Any = turn) -> Floats:
            quaternion = (Rotation.from_rotvec(step[:3]) * turn).as_quat()
            pose = np.concatenate([quaternion, step[3:]])[None]
            return np.ravel(tags.seen(pose, points[number][None])[0] - pixels[number])

        found = least_squares(errors, np.concatenate([np.zeros(3), row[4:]]), method="lm")
        costs.append(found.cost)
    return np.array(costs)


def cold_seconds(backend: BackendName) -> float:
    """From factors to the first results, in a process with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        process = {**os.environ, "CASPAR_CACHE_DIR": folder}
        command = [sys.executable, "-c", COLD.format(backend=backend)]
        done = subprocess.run(command, env=process, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write the page, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out"))
    parser.add_argument("--backend", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--peers-python", help="an interpreter that has jax and optimistix")
    parser.add_argument("--scale", type=int, help="10,000 PnP times this; 5 or 100 by default")
    given = parser.parse_args(arguments)
    backend = given.backend
    scale = given.scale or (100 if backend == "cuda" else 5)
    speeds = ["problems", "precision", "number", "a second, kernel", "a second, solve"]
    speeds.append("a processor second, solve")
    sections: list[tuple[str, list[str], Table]] = [
        ("Problems a second", [*speeds, "iterations", "converged"], speed_rows(backend, scale)),
        (
            "PnP on one core of the processor, one by one",
            ["peer", "a second", "not above caspar's cost", "caspar not above its cost"],
            peer_rows(backend),
        ),
        (
            "1,000 PnP from hard starts: at their minimum",
            ["errors of the start", "batch", "one by one", "same cost", "same success"],
            hard_rows(backend),
        ),
        (
            "Against single solves, largest relative differences",
            [
                *("problems", "number", "cost", "value, median", "value, 99 %", "value, worst"),
                "same status",
            ],
            curve_rows(backend),
        ),
        (
            "Ragged problems, some of them spoilt",
            ["problems", "neither empty nor NaN", "of these bit for bit as without", "statuses"],
            ragged_row(backend, scale),
        ),
        (
            "Compile time, cold",
            ["problem", "s from factors to results"],
            [["four corners of a tag", f"{cold_seconds(backend):.2f}"]],
        ),
    ]
    if given.peers_python is not None:
        head = ["precision", "number", "a second", "jax.vmap of optimistix", "times as fast"]
        head += ["not above its cost", "its cost not above"]
        rows = vmapped_rows(backend, given.peers_python)
        sections.insert(1, ("PnP of 12 points beside jax.vmap, on the same device", head, rows))
    device = caspar.BatchSolver(tags.corner, backend=backend).backend.device
    facts = ", ".join(f"{key} {value}" for key, value in environment(device).items())
    about = __doc__.split(chr(10), 2)[2].strip()
    parts = [f"# Many small problems\n\n{facts}.\n\n{about}\n"]
    parts += [f"## {title}\n\n{table(head, rows)}" for title, head, rows in sections]
    text = "\n".join(parts)
    given.folder.mkdir(parents=True, exist_ok=True)
    path = given.folder / f"batches_{backend}.md"
    path.write_text(text, encoding="utf-8")
    print(text)
    print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
