"""`python -m benchmarks.colmap_speed`: real COLMAP models beside Ceres, and how fast data move.

Whole calls: a folder is read, adjusted with COLMAP's default options and written to another folder,
by `pycolmap.bundle_adjustment` and by `caspar.colmap.bundle_adjustment`, in turns in one process in
which both have done it before. Of solves that took up to 32 MiB caspar keeps the set-up for the
same observations. Times are medians; processor seconds are those of all threads, which other load
changes less. Costs are relative to Ceres'. `moved` models, of up to 50 images, start from poses and
points that were moved at random, which brings the cost to several thousand times the optimum. Then
a reconstruction of pycolmap with 129,000 observations is read from memory and changed in place, and
a model of a million points is written. Needs pycolmap.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pycolmap

import caspar.colmap
from benchmarks.colmap_cases import moved, unpacked
from benchmarks.page import table
from benchmarks.report import environment
from caspar.colmap import BundleAdjustmentOptions, Model, read_model, write_model
from caspar.colmap.pycolmap_objects import model_of, update

DATA = Path(__file__).parents[1] / "data"

NUM_RUNS = 3

HEADINGS = [
    *("model", "images", "observations", "s, Ceres", "s, caspar", "ratio"),
    *("processor s, Ceres", "caspar", "ratio", "iterations, Ceres", "caspar", "initial cost"),
    *("final cost", "linear solver"),
]

MAX_MOVED = 50
"""Images up to which a model is also moved; Ceres takes a minute for more."""


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=DATA, help="folder of packed models")
    parser.add_argument("--folder", type=Path, help="where `colmap_speed_cpu.md` is written")
    parser.add_argument("--backend", default="cpu")
    request = parser.parse_args()
    pycolmap.logging.minloglevel = 2
    warnings.simplefilter("ignore")
    facts = environment(request.backend)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for path in sorted(request.models.glob("*.tar.xz")):
            folder = unpacked(path, Path(place))
            if folder is None:
                continue
            cases, model = [folder], read_model(folder)
            if len(model.images.ids) <= MAX_MOVED:
                cases.append(Path(place) / f"{folder.name}, moved")
                write_model(moved(model), cases[-1])
            for one in cases:
                rows.append(_compared(one, Path(place), request.backend))
                print("  ".join(rows[-1]), flush=True)
        transfers = _transfers(Path(place))
    print(transfers)
    if request.folder is not None:
        shown = ", ".join(f"{name} {value}" for name, value in facts.items())
        assert __doc__ is not None
        about = __doc__.partition("\n\n")[2]
        page = f"# COLMAP models beside Ceres\n\n{shown}, pycolmap {pycolmap.__version__}.\n\n"
        page += f"{about}\n{table(HEADINGS, rows)}\n{transfers}\n"
        request.folder.mkdir(parents=True, exist_ok=True)
        (request.folder / f"colmap_speed_{request.backend}.md").write_text(page)


def _compared(folder: Path, place: Path, backend: str) -> list[str]:
    """A row of the table."""
    options = BundleAdjustmentOptions(backend=backend)
    summaries: list[Any] = []

    def with_caspar() -> None:
        output = place / "caspar"
        summaries.append(caspar.colmap.bundle_adjustment(folder, options, output=output))

    def with_ceres() -> None:
        model = pycolmap.Reconstruction(str(folder))
        pycolmap.bundle_adjustment(model, pycolmap.BundleAdjustmentOptions(print_summary=False))
        output = place / "ceres"
        output.mkdir(exist_ok=True)
        model.write_binary(str(output))

    times = _in_turns((with_ceres, with_caspar))
    ceres = _ceres_summary(folder)
    summary = summaries[-1]
    (ceres_s, ceres_processor_s), (own_s, own_processor_s) = times
    return [
        folder.name,
        f"{summary.num_images}",
        f"{summary.num_residuals // 2:,}",
        *(f"{ceres_s:.3f}", f"{own_s:.3f}", f"{ceres_s / own_s:.2f}"),
        *(f"{ceres_processor_s:.3f}", f"{own_processor_s:.3f}"),
        f"{ceres_processor_s / own_processor_s:.2f}",
        f"{ceres.num_successful_steps + ceres.num_unsuccessful_steps}",
        f"{len(summary.result.iterations)}",
        f"{summary.initial_cost / ceres.initial_cost - 1:.0e}",
        f"{summary.final_cost / ceres.final_cost - 1:.0e}",
        summary.result.linear_solver,
    ]


def _in_turns(calls: tuple[Callable[[], None], ...]) -> list[tuple[float, float]]:
    """Median seconds and processor seconds of each call, after a first one."""
    times: list[list[tuple[float, float]]] = [[] for _ in calls]
    for _ in range(NUM_RUNS + 1):
        for number, call in enumerate(calls):
            start = time.perf_counter(), time.process_time()
            call()
            spent = time.perf_counter() - start[0], time.process_time() - start[1]
            times[number].append(spent)
    return [
        (statistics.median(one[0] for one in of[1:]), statistics.median(one[1] for one in of[1:]))
        for of in times
    ]


def _ceres_summary(folder: Path) -> Any:
    model = pycolmap.Reconstruction(str(folder))
    pycolmap.ObservationManager(model).filter_observations_with_negative_depth()
    config = pycolmap.BundleAdjustmentConfig()
    for image_id in model.reg_image_ids():
        config.add_image(image_id)
    config.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
    options = pycolmap.BundleAdjustmentOptions(print_summary=False)
    return pycolmap.create_default_bundle_adjuster(options, config, model).solve().ceres_summary


def _transfers(place: Path) -> str:
    """How long data take between pycolmap's objects, files and arrays."""
    options = pycolmap.SyntheticDatasetOptions(num_rigs=1, num_frames_per_rig=43, num_points3D=3000)
    made = pycolmap.synthesize_dataset(options)
    model = model_of(made)
    (read_s, _), (back_s, _) = _in_turns((lambda: _ignored(model_of(made)), lambda: _back(made)))
    big = _big(model)
    ((write_s, _),) = _in_turns((lambda: write_model(big, place / "big"),))
    return (
        f"{model.num_observations:,} observations of a reconstruction in memory: read in "
        f"{read_s:.3f} s, values of {len(model.points.ids):,} points and "
        f"{len(model.images.ids)} images changed in place in {back_s:.3f} s. "
        f"{len(big.points.ids):,} points and {len(big.points.image_ids):,} track elements: written "
        f"in {write_s:.2f} s."
    )


def _ignored(_: Model) -> None:
    """What is read is not used."""


def _back(made: Any) -> None:
    model = _BACK.setdefault(id(made), model_of(made))
    update(made, model, model)


_BACK: dict[int, Model] = {}


def _big(model: Model) -> Model:
    """A million points of four observations each."""
    num_points, num_images, length = 1_000_000, len(model.images.ids), 4
    images = np.tile(np.arange(length), num_points) + np.repeat(np.arange(num_points), length) * 5
    images %= num_images
    order = np.argsort(images, kind="stable")
    counts = np.bincount(images, minlength=num_images)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    index = np.empty(len(images), np.int64)
    index[order] = np.arange(len(images)) - offsets[images[order]]
    rng = np.random.default_rng(0)
    points = dataclasses.replace(
        model.points,
        ids=np.arange(1, num_points + 1),
        xyz=rng.normal(size=(num_points, 3)),
        colors=np.zeros((num_points, 3), np.uint8),
        errors=np.ones(num_points),
        offsets=np.arange(num_points + 1) * length,
        image_ids=model.images.ids[images],
        keypoint_index=index,
    )
    keypoints = dataclasses.replace(
        model.images,
        offsets=offsets,
        keypoints=rng.uniform(0, 1000, size=(len(images), 2)),
        point_ids=np.repeat(np.arange(1, num_points + 1), length)[order],
    )
    return dataclasses.replace(model, images=keypoints, points=points)


if __name__ == "__main__":
    main()
