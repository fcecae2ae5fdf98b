"""`python -m benchmarks.colmap_solves`: solves of COLMAP models, beside Ceres and beside BAL.

**Beside Ceres**: models of more than 50,000 observations, with COLMAP's default options, solved by
`pycolmap` on two threads and on as many as it takes by itself, and by `caspar.colmap`. `solve` is
the time of the iterations: `minimizer_time_in_seconds` of Ceres, `solve_time_s` of caspar. `call`
also reads a folder and writes another, the second time in a process. Medians; costs are relative to
Ceres'. Left out where pycolmap is not installed.

**Beside BAL**: one synthetic scene, with the nine unknowns of a camera of *Bundle Adjustment in the
Large*, and as COLMAP models whose images share 16 lenses of one or several camera models. Times are
of a PCG iteration in mixed precision, and of a Levenberg-Marquardt iteration without them.
"""

import argparse
import gc
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import caspar
import caspar.colmap
from benchmarks.caspar_side import Variant, linear_iteration
from benchmarks.colmap_cases import made_from, moved, unpacked
from benchmarks.page import table
from benchmarks.report import environment
from benchmarks.synthetic import SyntheticBundle, make_bal
from caspar.bundle_adjustment import snavely
from caspar.colmap import BundleAdjustmentConfig, BundleAdjustmentOptions, read_model, write_model
from caspar.colmap.prepare import Request, prepare
from caspar.options import BackendName

DATA = Path(__file__).parents[1] / "data"

MIN_OBSERVATIONS = 50_000
"""Smaller models are not compared with Ceres."""

MAX_MOVED = 50
"""Images up to which a model is also moved; Ceres takes a minute for more."""

NUM_RUNS = 3

TWO_THREADS, ALL_THREADS = 2, -1

NUM_LENSES = 16

POINTS_OF_AN_OBSERVATION = 156_502 / 678_718
CAMERAS_OF_AN_OBSERVATION = 1_723 / 678_718
"""As in Ladybug-1723."""

MIXES = (
    ("SIMPLE_RADIAL",),
    ("RADIAL",),
    ("OPENCV",),
    ("SIMPLE_RADIAL", "RADIAL"),
    ("SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "PINHOLE"),
    ("SIMPLE_RADIAL", "RADIAL", "OPENCV", "OPENCV_FISHEYE"),
)
"""Camera models of the synthetic models."""

CERES_HEADINGS = [
    *("model", "images", "observations", "precision", "Ceres, 2 threads: solve, s", "call, s"),
    *("Ceres, all threads: solve, s", "caspar: solve, s", "call, s", "solves, 2 threads"),
    *("solves, all threads", "calls, 2 threads", "iterations, Ceres", "caspar"),
    *("PCG iterations", "final cost", "linear solver"),
]

BAL_HEADINGS = [
    *("cameras", "observations", "factors", "us of a PCG iteration", "beside BAL"),
    *("ms of a step without PCG", "beside BAL"),
]


@dataclass(frozen=True)
class Solve:
    """One way to solve a model.

    Attributes:
        solve_s: Of the iterations.
        call_s: Of everything, from folder to folder.
        num_iterations: Levenberg-Marquardt iterations.
        final_cost: Half the sum of squared residuals.
        details: The summary.
    """

    solve_s: float
    call_s: float
    num_iterations: int
    final_cost: float
    details: Any


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=DATA, help="folder of packed models")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--precisions", nargs="+", default=["float64", "mixed"])
    parser.add_argument("--observations", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--mixes", nargs="+", help="such as SIMPLE_RADIAL+OPENCV")
    parser.add_argument("--folder", type=Path, help="where `colmap_solves_BACKEND.md` is written")
    request = parser.parse_args()
    warnings.simplefilter("ignore")
    facts = environment(_device(request.backend))
    shown = ", ".join(f"{name} {value}" for name, value in facts.items())
    assert __doc__ is not None
    page = f"# Solves of COLMAP models\n\n{shown}.\n\n" + __doc__.partition("\n\n")[2]
    mixes = [tuple(one.split("+")) for one in request.mixes] if request.mixes else MIXES
    sections: list[Callable[[], Iterator[str]]] = [
        lambda: _beside_ceres(request.models, request.backend, request.precisions),
        lambda: _beside_bal(request.observations, mixes, request.backend),
    ]
    for section in sections:
        for text in section():
            print(text, flush=True)
            page += f"\n{text}"
            # what was measured stays if the rest takes too long
            if request.folder is not None:
                request.folder.mkdir(parents=True, exist_ok=True)
                (request.folder / f"colmap_solves_{request.backend}.md").write_text(page)


def _device(backend: BackendName) -> str:
    if backend != "cuda":
        return backend
    import cupy

    return str(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())


def _beside_ceres(models: Path, backend: BackendName, precisions: Sequence[str]) -> Iterator[str]:
    """Yield the table, row by row."""
    try:
        import pycolmap
    except ImportError:
        return
    pycolmap.logging.minloglevel = 2
    yield f"## Beside Ceres of pycolmap {pycolmap.__version__}\n"
    yield table(CERES_HEADINGS, []).rstrip()
    with tempfile.TemporaryDirectory() as place:
        for folder in _large_models(models, Path(place)):
            two = _with_ceres(folder, Path(place), TWO_THREADS)
            every = _with_ceres(folder, Path(place), ALL_THREADS)
            for precision in precisions:
                own = _with_caspar(folder, Path(place), backend, precision)
                yield _line(_ceres_row(folder.name, precision, two, every, own))


def _large_models(models: Path, place: Path) -> Iterator[Path]:
    for path in sorted(models.glob("*.tar.xz")):
        folder = unpacked(path, place)
        if folder is None:
            continue
        model = read_model(folder)
        if model.num_observations < MIN_OBSERVATIONS:
            continue
        yield folder
        if len(model.images.ids) <= MAX_MOVED:
            other = place / f"{folder.name}, moved"
            write_model(moved(model), other)
            yield other


def _ceres_row(name: str, precision: str, two: Solve, every: Solve, own: Solve) -> list[str]:
    summary = own.details
    return [
        *(name, f"{summary.num_images}", f"{summary.num_residuals // 2:,}", precision),
        *(f"{two.solve_s:.3f}", f"{two.call_s:.3f}", f"{every.solve_s:.3f}"),
        *(f"{own.solve_s:.4f}", f"{own.call_s:.3f}"),
        f"{two.solve_s / own.solve_s:.1f}",
        f"{every.solve_s / own.solve_s:.1f}",
        f"{two.call_s / own.call_s:.1f}",
        *(f"{two.num_iterations}", f"{own.num_iterations}"),
        f"{sum(one.linear_iterations for one in summary.result.iterations)}",
        f"{own.final_cost / two.final_cost - 1:.0e}",
        summary.result.linear_solver,
    ]


def _with_ceres(folder: Path, place: Path, num_threads: int) -> Solve:
    import pycolmap

    options = pycolmap.BundleAdjustmentOptions(print_summary=False)
    options.ceres.solver_options.num_threads = num_threads
    output = place / "ceres"
    output.mkdir(exist_ok=True)

    def call() -> Any:
        model = pycolmap.Reconstruction(str(folder))
        pycolmap.ObservationManager(model).filter_observations_with_negative_depth()
        config = pycolmap.BundleAdjustmentConfig()
        for image_id in model.reg_image_ids():
            config.add_image(image_id)
        config.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
        adjuster = pycolmap.create_default_bundle_adjuster(options, config, model)
        found = adjuster.solve().ceres_summary
        model.update_point_3d_errors()
        model.write_binary(str(output))
        return found

    found, call_s = _timed(call)
    last = found[-1]
    return Solve(
        statistics.median(one.minimizer_time_in_seconds for one in found),
        call_s,
        last.num_successful_steps + last.num_unsuccessful_steps,
        last.final_cost,
        last,
    )


def _with_caspar(folder: Path, place: Path, backend: BackendName, precision: str) -> Solve:
    options = BundleAdjustmentOptions(backend=backend, precision=precision)

    def call() -> Any:
        return caspar.colmap.bundle_adjustment(folder, options, output=place / "caspar")

    found, call_s = _timed(call)
    last = found[-1]
    return Solve(
        statistics.median(one.result.solve_time_s for one in found),
        call_s,
        len(last.result.iterations),
        last.final_cost,
        last,
    )


def _timed(call: Callable[[], Any]) -> tuple[list[Any], float]:
    """Results of calls after the first, and the median of their seconds."""
    call()
    found, seconds = [], []
    for _ in range(NUM_RUNS):
        start = time.perf_counter()
        found.append(call())
        seconds.append(time.perf_counter() - start)
    return found, statistics.median(seconds)


def _beside_bal(
    sizes: Sequence[int], mixes: Sequence[Sequence[str]], backend: BackendName
) -> Iterator[str]:
    """Yield the table, row by row."""
    if len(sizes) > 0:
        yield f"## Beside BAL, {NUM_LENSES} lenses\n"
        yield table(BAL_HEADINGS, []).rstrip()
    for size in sizes:
        bundle = make_bal(
            round(CAMERAS_OF_AN_OBSERVATION * size),
            round(POINTS_OF_AN_OBSERVATION * size),
            size,
            "street",
        )
        arrays = {
            "Cam": bundle.cameras,
            "Point": bundle.points,
            "snavely": {
                "cam": bundle.camera_index,
                "point": bundle.point_index,
                "pixel": bundle.pixels,
            },
        }
        first = _iteration([snavely], arrays, {}, backend)
        yield _line(_bal_row("BAL", size, 1, first, first))
        for mix in mixes:
            factors, arrays, fixed = _colmap_arrays(bundle, mix)
            found = _iteration(factors, arrays, fixed, backend)
            yield _line(_bal_row(" + ".join(mix), size, len(factors), found, first))


def _colmap_arrays(
    bundle: SyntheticBundle, mix: Sequence[str]
) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Factors, arrays and what is held, as `caspar.colmap.bundle_adjustment` has them."""
    options = BundleAdjustmentOptions(precision="mixed")
    model = made_from(bundle, mix, NUM_LENSES)
    parts = prepare(model, Request(options, BundleAdjustmentConfig())).parts
    return list(parts.factors), parts.arrays, parts.held


def _iteration(
    factors: list[Any], arrays: dict[str, Any], fixed: dict[str, Any], backend: BackendName
) -> tuple[float, float]:
    """Microseconds of a PCG iteration, milliseconds of the rest of a step."""
    solver = caspar.Solver(factors, backend=backend, linear_solver="schur_pcg", precision="mixed")
    found = linear_iteration(solver, arrays, Variant("mix", options={"fixed": fixed}))
    solver.release()
    gc.collect()
    if found is None:
        raise RuntimeError("conjugate gradients reached the solution; take more observations")
    return 1e3 * found.linear_ms, found.outer_ms


def _bal_row(
    name: str,
    size: int,
    num_factors: int,
    found: tuple[float, float],
    first: tuple[float, float],
) -> list[str]:
    return [
        *(name, f"{size:,}", f"{num_factors}", f"{found[0]:.1f}", f"{found[0] / first[0]:.2f}"),
        *(f"{found[1]:.2f}", f"{found[1] / first[1]:.2f}"),
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
