"""`python -m benchmarks.spot_fits`: spots of a measured point-spread function, in batches.

Each spot has 13 x 13 pixels and five unknowns: place in the plane, focus, brightness, background.
Its shape is a table in three dimensions, a cubic spline (`bspline3`) that is sampled twice as
finely as the pixels, and all spots look up the same one. Noise is that of counted photons, and all
pixels have weight 1. A sample is fitted by SciPy's `least_squares` on the same interpolant, by
NumPy, from caspar's values: the costs must agree to 1e-8. Times are the best of three solves with
compiled kernels, from arrays to results. Writes `spot_fits_cpu.md` or `spot_fits_cuda.md` in the
folder, and prints it.
"""

import argparse
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates
from scipy.optimize import least_squares

import caspar
from benchmarks.page import table
from benchmarks.report import environment
from caspar.options import BackendName, BatchPrecisionName

Floats = NDArray[np.float64]

PIXELS = 13
FINE = 2
SIZES = (25, 41, 41)
"""Samples of the table along focus, y and x."""

NUM_RUNS = 3


class Spot(sf.V5):
    """Place x and y in pixels, focus in samples, brightness, background."""


class Shape(caspar.Grid, dims=3, method="bspline3"):
    """Coefficients of the image of a point: focus, y, x."""


@caspar.factor
def pixel(
    spot: Annotated[Spot, caspar.TunableUnique],
    place: Annotated[sf.V2, caspar.ConstSequential],
    count: Annotated[sf.Scalar, caspar.ConstSequential],
    shape: Annotated[Shape, caspar.ConstUnique],
) -> sf.V1:
    """A pixel of the image."""
    x, y, focus, brightness, background = spot
    column, row = FINE * (place[0] - x) + SIZES[2] // 2, FINE * (place[1] - y) + SIZES[1] // 2
    return sf.V1(brightness * shape.at(column, row, focus) + background - count)


def shapes() -> Floats:
    """A Gaussian that is wide in x on one side of the focus, and wide in y on the other."""
    focus, y, x = np.meshgrid(*(np.arange(size) - size // 2 for size in SIZES), indexing="ij")
    wide_x, wide_y = 1.3 + 0.06 * (focus + 4) ** 2 / 8, 1.3 + 0.06 * (focus - 4) ** 2 / 8
    made: Floats = np.exp(-((x / FINE / wide_x) ** 2) - (y / FINE / wide_y) ** 2)
    made *= FINE**2 / made.sum(axis=(1, 2), keepdims=True)
    return made


def model(coefficients: Floats, values: Floats, places: Floats) -> Floats:
    """(..., pixels) expected counts of spots (..., 5), by SciPy's interpolation."""
    x, y, focus, brightness, background = np.moveaxis(values[..., None], -2, 0)
    column = FINE * (places[:, 0] - x) + SIZES[2] // 2
    row = FINE * (places[:, 1] - y) + SIZES[1] // 2
    at = np.stack([np.broadcast_to(focus, row.shape), row, column])
    looked_up = map_coordinates(coefficients, at, order=3, prefilter=False, mode="nearest")
    found: Floats = brightness * looked_up + background
    return found


def scene(num_spots: int) -> dict[str, Any]:
    """Arrays of a solve: noisy images, and start values beside the true ones."""
    rng = np.random.default_rng(0)
    coefficients = np.asarray(Shape.coefficients(shapes()), np.float64)
    rows, columns = np.mgrid[:PIXELS, :PIXELS]
    places = np.stack([columns, rows], axis=-1).reshape(-1, 2).astype(float)
    middle = PIXELS // 2
    low = [middle - 0.8, middle - 0.8, SIZES[0] // 2 - 6, 3000, 5]
    high = [middle + 0.8, middle + 0.8, SIZES[0] // 2 + 6, 9000, 20]
    true = rng.uniform(low, high, (num_spots, 5))
    counts = np.concatenate(
        [
            rng.poisson(np.maximum(model(coefficients, part, places), 0.0))
            for part in np.array_split(true, max(num_spots // 5000, 1))
        ]
    ).astype(float)
    start = true + rng.uniform(-1, 1, true.shape) * [0.4, 0.4, 1.5, 500, 3]
    return {
        "Spot": start,
        "pixel": {"place": places[None], "count": counts, "shape": coefficients},
    }


def worst_of_scipy(arrays: dict[str, Any], found: Floats, num_spots: int) -> float:
    """The largest share by which SciPy lowers the cost of a spot, starting at caspar's values."""
    given = arrays["pixel"]
    shares = []
    for number in range(num_spots):

        def residual(values: Floats, number: int = number) -> Floats:
            found: Floats = model(given["shape"], values, given["place"][0])
            return found - np.asarray(given["count"][number], np.float64)

        scales = np.array([1.0, 1.0, 1.0, 1000.0, 10.0])
        mine = found[number].astype(float)
        best = least_squares(residual, mine, x_scale=scales, xtol=1e-15, ftol=1e-15, gtol=1e-15)
        cost = 0.5 * float(np.sum(residual(mine) ** 2))
        shares.append(cost / float(best.cost) - 1.0)
    return max(shares)


def on_host(array: Any) -> NDArray[Any]:
    """A NumPy array of one of either backend."""
    found: NDArray[Any] = array.get() if hasattr(array, "get") else np.asarray(array)
    return found


def measured(num_spots: int, precision: BatchPrecisionName, backend: BackendName) -> list[str]:
    """A row of the table."""
    host = arrays = scene(num_spots)
    solver = caspar.BatchSolver(pixel, precision=precision, backend=backend)
    if backend == "cuda":
        import cupy

        arrays = {
            "Spot": cupy.asarray(arrays["Spot"]),
            "pixel": {name: cupy.asarray(rows) for name, rows in arrays["pixel"].items()},
        }
    result, seconds = solver.solve(arrays), []
    for _ in range(NUM_RUNS):
        start_s = time.perf_counter()
        result = solver.solve(arrays)
        seconds.append(time.perf_counter() - start_s)
    share = worst_of_scipy(host, on_host(result.values["Spot"]), 50)
    done = float(np.mean(on_host(result.is_success)))
    rate = num_spots / min(seconds)
    return [precision, f"{num_spots:,}", f"{100 * done:.2f} %", f"{rate:,.0f}", f"{share:.1e}"]


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spot_fits", description=__doc__)
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--spots", type=int, default=2000)
    parser.add_argument("--folder", type=Path, default=Path("out"))
    given = parser.parse_args()
    machine = environment("processor")
    if given.backend == "cuda":
        from caspar.options import BackendChoice
        from caspar.runtime.select import select_backend

        machine = environment(select_backend(BackendChoice.CUDA).device)
    heads = ["precision", "spots", "success", "fits a second", "cost above SciPy's, of 50"]
    precisions: tuple[BatchPrecisionName, ...] = ("float64", "float32")
    lines = [
        "# Fits of spots by a spline in three dimensions",
        "",
        *(f"* {name}: {value}" for name, value in machine.items()),
        "",
        table(heads, [measured(given.spots, one, given.backend) for one in precisions]),
        "",
        f"Spots of {PIXELS} x {PIXELS} pixels with 5 unknowns, a table of "
        f"{' x '.join(map(str, SIZES))} coefficients. Method: `benchmarks/spot_fits.py`.",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / f"spot_fits_{given.backend}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
