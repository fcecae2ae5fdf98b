"""`python -m benchmarks.global_mapping`: COLMAP's global mapper with caspar and as it is, in turns.

Synthetic scenes by pycolmap with noise of 0.7 pixels. First whole mappings from databases, then
global positioning alone with true rotations. The first run of a process loads kernels and is not
counted. `--large` measures one model of five million observations instead: seconds of a clock, on
all cores; positions, then the adjustments that follow. Prints, and writes to a folder, a page.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pycolmap

import caspar.colmap
from benchmarks.mapping import errors, scene
from benchmarks.report import environment
from caspar.colmap.global_mapper import GlobalMapping
from caspar.options import BackendName

MAPPINGS = ((30, 1, 1000, 1.0), (30, 2, 1000, 0.9), (100, 1, 300, 1.0), (200, 1, 300, 1.0))
"""Frames, cameras a rig, points, share of right matches."""

POSITIONINGS = ((50, 1000), (100, 2000))
"""Frames, points; every frame sees every point."""

LARGE = (1000, 5000)

RUNS = 3
MAPPING_HEADING = (
    "| frames, cameras, points, right matches | by | images | points | error, pixels "
    "| rotation, degrees | centre | s | times caspar's |\n|---|---|" + "--:|" * 7
)
LARGE_HEADING = "| | centre, median | centre, largest | error, pixels | s |\n|---|" + "--:|" * 4
POSITIONING_HEADING = (
    "| frames, points | by | centre, median | centre, largest | s | times caspar's |\n|---|---|"
    + "--:|" * 4
)


def in_turns(calls: dict[str, Callable[[], Any]]) -> dict[str, tuple[Any, float]]:
    """What calls return, and median seconds of the processor of several runs after the first."""
    found: dict[str, Any] = {}
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(RUNS + 1):
        for name, call in calls.items():
            begun = time.process_time()
            found[name] = call()
            spent[name].append(time.process_time() - begun)
    return {name: (found[name], statistics.median(spent[name][1:])) for name in calls}


def mapping_options() -> Any:
    """One thread, and tracks through all images."""
    options = pycolmap.GlobalPipelineOptions()
    options.num_threads, options.random_seed = 1, 1
    options.mapper.track_max_num_views_per_track = 1000
    return options


def mapping_rows(size: tuple[int, int, int, float], backend: BackendName) -> list[str]:
    """Rows of whole mappings."""
    frames, cameras, points, right = size
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "database.db"
        truth = scene(
            path,
            frames,
            points,
            num_cameras_per_rig=cameras,
            inlier_match_ratio=right,
            camera_has_prior_focal_length=True,
        )
        found = in_turns(
            {
                "caspar": lambda: caspar.colmap.global_mapping(
                    path, "", Path(folder) / "own", mapping_options(), backend=backend
                ),
                "COLMAP": lambda: pycolmap.global_mapping(
                    path, folder, Path(folder) / "theirs", mapping_options()
                ),
            }
        )
    rows = []
    for name, (models, seconds) in found.items():
        model = max(models.values(), key=lambda one: one.num_reg_images())
        rotation, centre = errors(model, truth)
        rows.append(
            f"| {', '.join(map(str, size))} | {name} | {model.num_reg_images()} "
            f"| {model.num_points3D()} | {model.compute_mean_reprojection_error():.4f} "
            f"| {rotation:.5f} | {centre:.6f} | {seconds:.2f} "
            f"| {seconds / found['caspar'][1]:.2f} |"
        )
    return rows


def unplaced(truth: Any) -> Any:
    """A model with true rotations, and without positions."""
    model = pycolmap.Reconstruction(truth)
    nowhere = np.full(3, np.nan)
    for frame_id in model.reg_frame_ids():
        turn = model.frame(frame_id).rig_from_world.rotation
        model.frame(frame_id).rig_from_world = pycolmap.Rigid3d(turn, nowhere)
    for point in model.points3D.values():
        point.xyz = np.zeros(3)
    return model


def centre_errors(model: Any, truth: Any) -> tuple[float, float]:
    """Median and largest distance of centres after the best shift and scale; axes are the same."""
    ids = sorted(model.reg_image_ids())
    found, true = (
        np.array([one.image(image).projection_center() for image in ids]) for one in (model, truth)
    )
    found, true = found - found.mean(axis=0), true - true.mean(axis=0)
    gaps = np.linalg.norm(found * np.sum(found * true) / np.sum(found**2) - true, axis=1)
    return float(np.median(gaps)), float(gaps.max())


def positioning_rows(size: tuple[int, int], backend: BackendName) -> list[str]:
    """Rows of positioning alone."""
    frames, points = size
    truth = scene(None, frames, points, camera_has_prior_focal_length=True)
    options = pycolmap.GlobalPositionerOptions()
    options.random_seed, options.use_parameter_block_ordering = 1, True

    def positioned(position: Callable[..., bool], **chosen: Any) -> Any:
        model = unplaced(truth)
        if not position(options, pycolmap.PoseGraph(), model, **chosen):
            raise RuntimeError("no positions")
        return model

    found = in_turns(
        {
            "caspar": lambda: positioned(caspar.colmap.global_positioning, backend=backend),
            "COLMAP": lambda: positioned(pycolmap.run_global_positioning),
        }
    )
    rows = []
    for name, (model, seconds) in found.items():
        median, largest = centre_errors(model, truth)
        rows.append(
            f"| {frames}, {points:,} | {name} | {median:.6f} | {largest:.6f} | {seconds:.2f} "
            f"| {seconds / found['caspar'][1]:.2f} |"
        )
    return rows


def large_rows(backend: BackendName, is_beside: bool) -> Iterator[str]:
    """Rows of one large model, one as soon as it is measured."""
    frames, points = LARGE
    truth = scene(None, frames, points, camera_has_prior_focal_length=True)
    options = pycolmap.GlobalPositionerOptions()
    options.random_seed = 1

    def row(name: str, begun: float, model: Any) -> str:
        seconds = time.perf_counter() - begun
        median, largest = centre_errors(model, truth)
        model.update_point_3d_errors()
        error = model.compute_mean_reprojection_error()
        return f"| {name} | {median:.6f} | {largest:.6f} | {error:.4f} | {seconds:.2f} |"

    mapping = GlobalMapping(pycolmap.DatabaseCache(), mapping_options(), backend)
    for run in ("first", "again"):
        model = unplaced(truth)
        begun = time.perf_counter()
        caspar.colmap.global_positioning(options, pycolmap.PoseGraph(), model, backend=backend)
        yield row(f"caspar, positions, {run}", begun, model)
        begun = time.perf_counter()
        mapping.adjust(model)
        yield row(f"caspar, adjustments, {run}", begun, model)
    if is_beside:
        model = unplaced(truth)
        begun = time.perf_counter()
        pycolmap.run_global_positioning(options, pycolmap.PoseGraph(), model)
        yield row("COLMAP, positions", begun, model)


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.global_mapping")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--alone", action="store_true", help="large: without COLMAP")
    parser.add_argument("--folder", type=Path, default=Path("out"))
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    pycolmap.logging.minloglevel = 2
    about = environment("processor" if arguments.backend == "cpu" else "CUDA")
    about["pycolmap"] = pycolmap.__version__
    lines = ["# Global mapping", "", *(f"* {key}: {value}" for key, value in about.items())]
    name = f"global_mapping_{arguments.backend}"
    if arguments.large:
        name += "_large"
        lines += ["", f"{LARGE[0]:,} frames that see {LARGE[1]:,} points each.", "", LARGE_HEADING]
        for line in large_rows(arguments.backend, not arguments.alone):
            lines.append(line)
            print(line, flush=True)
        write(arguments.folder, name, lines)
        return
    lines += ["", "## From a database", "", MAPPING_HEADING]
    for mapping in MAPPINGS:
        lines += mapping_rows(mapping, arguments.backend)
        print(*lines[-2:], sep="\n", flush=True)
    lines += ["", "## Positions alone, true rotations", "", POSITIONING_HEADING]
    for positioning in POSITIONINGS:
        lines += positioning_rows(positioning, arguments.backend)
        print(*lines[-2:], sep="\n", flush=True)
    lines += [
        "",
        f"Seconds of the processor, medians of {RUNS} runs in turns after one that loads.",
    ]
    write(arguments.folder, name, lines)


def write(folder: Path, name: str, lines: list[str]) -> None:
    """Write a page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
