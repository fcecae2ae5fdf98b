"""`python -m benchmarks.photometric`: photometric adjustment of many images, with values looked up.

A slanted plane with a known texture is seen by cameras on a grid. Patches of 16 pixels of one image
are looked up in five others; poses and the inverse depth of each patch are unknown. Prints, and
writes to a folder, a page.
"""

import argparse
import math
import statistics
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from benchmarks.report import environment
from caspar.options import BackendName

WIDTH, HEIGHT, FOCAL = 640, 480, 500.0
OFFSETS = [(u, v) for v in range(4) for u in range(4)]
VIEWS = 5
SIZES = ((200, 50_000), (50, 5_000))
ITERATIONS = 10

Rows = NDArray[Any]


class InverseDepth(sf.V1):
    """One over the depth of a patch in its own image."""


@caspar.factor
def photometric(
    host: Annotated[sf.Pose3, caspar.TunableShared],
    target: Annotated[sf.Pose3, caspar.TunableShared],
    inverse_depth: Annotated[InverseDepth, caspar.TunableShared],
    corner: Annotated[sf.V2, caspar.ConstSequential],
    intensity: Annotated[sf.M44, caspar.ConstSequential],
    image: Annotated[caspar.Image, caspar.ConstIndexed],
) -> sf.Matrix:
    """Intensities of a patch in another image, less those in its own."""
    target_from_host = target.inverse() * host
    rotation, moved = target_from_host.R.to_rotation_matrix(), target_from_host.t
    rows = []
    for u, v in OFFSETS:
        ray = sf.V3((corner[0] + u - WIDTH / 2) / FOCAL, (corner[1] + v - HEIGHT / 2) / FOCAL, 1.0)
        x, y, z = rotation * ray + inverse_depth[0] * moved
        at = image.at(FOCAL * x / z + WIDTH / 2, FOCAL * y / z + HEIGHT / 2)
        rows.append(at - intensity[u, v])
    return sf.Matrix(rows)


def texture(x: Rows, y: Rows) -> Rows:
    """Intensity at points of the plane: waves of 8 to 40 pixels."""
    rng = np.random.default_rng(1)
    value = np.zeros_like(x)
    for wavelength in (0.1, 0.14, 0.2, 0.28, 0.4):
        angle, phase = rng.uniform(0.0, math.tau, 2)
        value += np.sin(math.tau / wavelength * (math.cos(angle) * x + math.sin(angle) * y) + phase)
    return value


def depths(centre: Rows, u: Rows, v: Rows) -> tuple[Rows, Rows, Rows]:
    """Depth and place on the plane z = 5 + x / 10 of pixels of a camera that looks along z."""
    x, y = (u - WIDTH / 2) / FOCAL, (v - HEIGHT / 2) / FOCAL
    depth = (5.0 + 0.1 * centre[0] - centre[2]) / (1.0 - 0.1 * x)
    return depth, centre[0] + depth * x, centre[1] + depth * y


def scene(num_images: int, num_patches: int) -> dict[str, Any]:
    """Arrays of a problem whose poses and depths are a little off."""
    rng = np.random.default_rng(0)
    side = math.ceil(math.sqrt(num_images))
    row, column = np.divmod(np.arange(num_images), side)
    centres = np.stack([0.15 * column, 0.15 * row, np.zeros(num_images)], axis=1)
    centres += rng.uniform(-0.05, 0.05, centres.shape)
    v, u = np.mgrid[:HEIGHT, :WIDTH] * 1.0
    images = np.empty((num_images, HEIGHT, WIDTH), np.float32)
    for image, centre in zip(images, centres, strict=True):
        image[:] = texture(*depths(centre, u, v)[1:])
    host = rng.integers(num_images, size=num_patches)
    corner = rng.integers((80, 80), (WIDTH - 84, HEIGHT - 84), (num_patches, 2))
    near = np.argsort(np.linalg.norm(centres[:, None] - centres, axis=2), axis=1)[:, 1 : VIEWS + 1]
    u_of, v_of = np.array(OFFSETS).T
    intensity = images[host[:, None], corner[:, 1:] + v_of, corner[:, :1] + u_of]
    depth = depths(centres[host].T, corner[:, 0] + 1.5, corner[:, 1] + 1.5)[0]
    poses = np.zeros((num_images, 7))
    poses[:, 3], poses[:, 4:] = 1.0, centres
    poses[2:, 4:] += rng.normal(scale=0.002, size=(num_images - 2, 3))
    patch = np.repeat(np.arange(num_patches), VIEWS)
    target = near[host].ravel()
    return {
        "Pose3": poses,
        "InverseDepth": (1.0 / depth * rng.normal(1.0, 0.01, num_patches))[:, None],
        "photometric": {
            "host": host[patch],
            "target": target,
            "inverse_depth": patch,
            "corner": corner[patch].astype(float),
            "intensity": intensity[patch],
            "image": {"values": images, "index": target},
        },
    }


def measured(num_images: int, num_patches: int, backend: BackendName) -> str:
    """A row of the table."""
    arrays = scene(num_images, num_patches)
    solver = caspar.Solver([photometric], backend=backend)
    fixed = {"Pose3": np.arange(2)}
    options: Any = {"fixed": fixed, "max_iterations": ITERATIONS}
    result = solver.solve(arrays, **options)
    again = []
    for _ in range(3):
        result = solver.solve(arrays, **options)
        again.append(1e3 * result.solve_time_s / max(len(result.iterations), 1))
    num = len(arrays["photometric"]["host"])
    fallen = result.initial_cost / result.final_cost
    return (
        f"| {num_images} | {num_patches:,} | {16 * num:,} | {statistics.median(again):.2f} "
        f"| {len(result.iterations)} | {fallen:.1f} | {result.linear_solver} |"
    )


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.photometric", description=__doc__)
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--folder", type=Path, default=Path("out"))
    parser.add_argument("--small", action="store_true", help="only the smaller problem")
    arguments = parser.parse_args()
    machine = environment("processor")
    if arguments.backend == "cuda":
        from caspar.options import BackendChoice
        from caspar.runtime.select import select_backend

        machine = environment(select_backend(BackendChoice.CUDA).device)
    lines = [
        "# Photometric adjustment",
        "",
        *(f"* {key}: {value}" for key, value in machine.items()),
    ]
    lines += [
        "",
        "| images | patches | residuals | ms an iteration | iterations | cost fell by "
        "| linear solver |",
        "|--:|--:|--:|--:|--:|--:|---|",
    ]
    for size in SIZES[1:] if arguments.small else SIZES:
        lines.append(measured(*size, arguments.backend))
        print(lines[-1], flush=True)
    lines += [
        "",
        f"Images of {WIDTH} x {HEIGHT}, patches of 16 pixels looked up in {VIEWS} images, linear "
        "interpolation. Time of a solve over its iterations of Levenberg-Marquardt, medians of 3.",
    ]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    page = arguments.folder / f"photometric_{arguments.backend}.md"
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
