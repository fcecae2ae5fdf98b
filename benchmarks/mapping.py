"""`python -m benchmarks.mapping`: COLMAP's incremental mapper with caspar and with Ceres, in turns.

Synthetic scenes by pycolmap, SIMPLE_RADIAL, noise of 0.7 pixels. The course of the mapper is
caspar's in both cases; only the adjuster is exchanged. The first run of a process loads kernels.
Prints, and writes to a folder, a page.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pycolmap

import caspar.colmap
from benchmarks.report import environment
from caspar.colmap import incremental
from caspar.colmap.adjustment import adjust_in_place
from caspar.options import BackendName

SCENES = ((30, 1000), (100, 200))
RUNS = 3
HEADING = (
    "| frames, points a frame | adjuster | images | points | error, pixels | rotation, degrees "
    "| centre | adjustments | s of adjustments | s in all |\n|---|---|" + "--:|" * 8
)

Adjust = Callable[..., Any]


def with_ceres(model: Any, options: Any, config: Any, **priors: Any) -> Any:
    """Adjust with pycolmap's own adjuster, with the options of its pipeline."""
    pipeline = pycolmap.IncrementalPipelineOptions()
    is_local = len(config.variable_points) > 0
    chosen = (
        pipeline.get_local_bundle_adjustment()
        if is_local
        else pipeline.get_global_bundle_adjustment()
    )
    if not is_local and model.num_reg_frames() < incremental.FEW_FRAMES:
        chosen.ceres.solver_options.gradient_tolerance /= 10
        chosen.ceres.solver_options.max_num_iterations *= 2
    loss = options.loss_function_type.name
    chosen.ceres.loss_function_type = getattr(pycolmap.LossFunctionType, loss)
    found = pycolmap.create_default_bundle_adjuster(chosen, config, model).solve()
    return SimpleNamespace(num_residuals=found.num_residuals, result=SimpleNamespace(status=None))


ADJUSTERS: dict[str, Adjust] = {"caspar": adjust_in_place, "Ceres": with_ceres}


def scene(
    path: Path | None, frames: int, points: int, *, noise: float = 0.7, seed: int = 1, **others: Any
) -> Any:
    """The true model of a synthetic scene; a database of what its images show goes to the path.

    Args:
        path: None: no database.
        frames: Of one rig, which has one camera unless others say so.
        points: Every image sees all of them.
        noise: Standard deviation of keypoints in pixels.
        seed: Of the random draws.
        others: Further fields of `pycolmap.SyntheticDatasetOptions`.
    """
    pycolmap.set_random_seed(seed)
    options = pycolmap.SyntheticDatasetOptions()
    fields = {"num_rigs": 1, "num_cameras_per_rig": 1, **others}
    for name, value in {**fields, "num_frames_per_rig": frames, "num_points3D": points}.items():
        setattr(options, name, value)
    of_keypoints = pycolmap.SyntheticNoiseOptions()
    of_keypoints.point2D_stddev = noise
    if path is None:
        truth = pycolmap.synthesize_dataset(options)
        pycolmap.synthesize_noise(of_keypoints, truth)
        return truth
    with pycolmap.Database.open(path) as database:
        truth = pycolmap.synthesize_dataset(options, database)
        pycolmap.synthesize_noise(of_keypoints, truth, database)
    return truth


def once(database: Path, adjust: Adjust, backend: BackendName) -> tuple[Any, float, float, int]:
    """A model, seconds of adjustments and in all (of the processor), and how many there were."""
    spent: list[float] = []

    def timed(*arguments: Any, **others: Any) -> Any:
        begun = time.process_time()
        found = adjust(*arguments, **others)
        spent.append(time.process_time() - begun)
        return found

    vars(incremental)["adjust_in_place"] = timed
    options = pycolmap.IncrementalPipelineOptions()
    options.extract_colors, options.random_seed, options.num_threads = False, 1, 1
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as out:
        models = caspar.colmap.incremental_mapping(
            database, database.parent, out, options, backend=backend
        )
    all_s = time.process_time() - begun
    model = max(models.values(), key=lambda one: one.num_reg_images())
    return model, sum(spent), all_s, len(spent)


def errors(model: Any, truth: Any) -> tuple[float, float]:
    """Median errors of rotations in degrees and of centres in units of the scene."""
    found = pycolmap.compare_reconstructions(
        model,
        truth,
        alignment_error="proj_center",
        min_inlier_observations=0.3,
        max_reproj_error=8.0,
    )["errors"]
    rotation = float(np.median([one.rotation_error_deg for one in found]))
    return rotation, float(np.median([one.proj_center_error for one in found]))


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mapping", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out"))
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    pycolmap.logging.minloglevel = 2
    about = environment("processor" if arguments.backend == "cpu" else "CUDA")
    about["pycolmap"] = pycolmap.__version__
    lines = ["# Incremental mapping", "", *(f"* {key}: {value}" for key, value in about.items())]
    lines += ["", HEADING]
    print(HEADING)
    for frames, points in SCENES:
        with tempfile.TemporaryDirectory() as folder:
            database = Path(folder) / "database.db"
            truth = scene(database, frames, points)
            runs: dict[str, list[tuple[Any, float, float, int]]] = {name: [] for name in ADJUSTERS}
            for _ in range(RUNS):
                for name, adjust in ADJUSTERS.items():
                    runs[name].append(once(database, adjust, arguments.backend))
            for name, found in runs.items():
                model, _, _, count = found[-1]
                adjusting = statistics.median(one[1] for one in found)
                all_s = statistics.median(one[2] for one in found)
                rotation, centre = errors(model, truth)
                lines.append(
                    f"| {frames}, {points:,} | {name} | {model.num_reg_images()} "
                    f"| {model.num_points3D()} | {model.compute_mean_reprojection_error():.4f} "
                    f"| {rotation:.5f} | {centre:.6f} | {count} | {adjusting:.2f} | {all_s:.2f} |"
                )
                print(lines[-1], flush=True)
    lines += ["", f"Seconds of the processor, medians of {RUNS} runs in turns."]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    page = arguments.folder / f"mapping_{arguments.backend}.md"
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
