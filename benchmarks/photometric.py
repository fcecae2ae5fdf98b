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


def differences(
    host: sf.Pose3,
    target: sf.Pose3,
    inverse_depth: InverseDepth,
    corner: sf.V2,
    intensity: sf.M44,
    image: caspar.Image,
) -> list[sf.Symbol]:
    """Intensities of a patch in another image, less those in its own."""
    target_from_host = target.inverse() * host
    rotation, moved = target_from_host.R.to_rotation_matrix(), target_from_host.t
    rows = []
    for u, v in OFFSETS:
        ray = sf.V3((corner[0] + u - WIDTH / 2) / FOCAL, (corner[1] + v - HEIGHT / 2) / FOCAL, 1.0)
        x, y, z = rotation * ray + inverse_depth[0] * moved
        at = image.at(FOCAL * x / z + WIDTH / 2, FOCAL * y / z + HEIGHT / 2)
        rows.append(at - intensity[u, v])
    return rows


@caspar.factor
def photometric(
    host: Annotated[sf.Pose3, caspar.TunableShared],
    target: Annotated[sf.Pose3, caspar.TunableShared],
    inverse_depth: Annotated[InverseDepth, caspar.TunableShared],
    corner: Annotated[sf.V2, caspar.ConstSequential],
    intensity: Annotated[sf.M44, caspar.ConstSequential],
    image: Annotated[caspar.Image, caspar.ConstIndexed],
) -> sf.Matrix:
    """The differences are the residual."""
    return sf.Matrix(differences(host, target, inverse_depth, corner, intensity, image))


@caspar.kernel
def patch_differences(
    host: Annotated[sf.Pose3, caspar.ReadIndexed],
    target: Annotated[sf.Pose3, caspar.ReadIndexed],
    inverse_depth: Annotated[InverseDepth, caspar.ReadIndexed],
    corner: Annotated[sf.V2, caspar.ReadSequential],
    intensity: Annotated[sf.M44, caspar.ReadSequential],
    image: Annotated[caspar.Image, caspar.ReadIndexed],
) -> Annotated[sf.M44, caspar.WriteSequential]:
    """The differences are written: little else than lookups."""
    return sf.M44(*differences(host, target, inverse_depth, corner, intensity, image))


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


def gather_bytes(arrays: dict[str, Any]) -> int:
    """Bytes of the 32-byte sectors that patches read, each once for each patch in each image."""
    given, poses = arrays["photometric"], arrays["Pose3"]
    u_of, v_of = np.array(OFFSETS).T
    corner = given["corner"][:, :, None]
    ray_x = (corner[:, 0] + u_of - WIDTH / 2) / FOCAL
    ray_y = (corner[:, 1] + v_of - HEIGHT / 2) / FOCAL
    depth = 1.0 / arrays["InverseDepth"][given["inverse_depth"]]
    # all cameras look along z
    moved = poses[given["host"], 4:] - poses[given["target"], 4:]
    z = depth + moved[:, 2:]
    x = FOCAL * (ray_x * depth + moved[:, :1]) / z + WIDTH / 2
    y = FOCAL * (ray_y * depth + moved[:, 1:2]) / z + HEIGHT / 2
    left = np.clip(np.floor(x).astype(np.int64), 0, WIDTH - 2)
    top = np.clip(np.floor(y).astype(np.int64), 0, HEIGHT - 2)
    first = given["target"][:, None] * (HEIGHT * WIDTH) + top * WIDTH + left
    texels = np.concatenate([first, first + 1, first + WIDTH, first + WIDTH + 1], axis=1)
    sectors = np.sort(texels // 8, axis=1)
    return 32 * int((1 + (np.diff(sectors, axis=1) > 0).sum(axis=1)).sum())


def gathered(num_images: int, num_patches: int, backend: BackendName) -> str:
    """A row of the table of lookups."""
    arrays = scene(num_images, num_patches)
    given, poses = arrays["photometric"], arrays["Pose3"]
    if backend == "cuda":
        import cupy as xp
    else:
        import numpy as xp

    def indexed(values: Rows, index: Rows) -> dict[str, Any]:
        return {"values": xp.asarray(values, xp.float32), "index": xp.asarray(index)}

    profile = patch_differences.profile(
        indexed(poses, given["host"]),
        indexed(poses, given["target"]),
        indexed(arrays["InverseDepth"], given["inverse_depth"]),
        xp.asarray(given["corner"], xp.float32),
        xp.asarray(given["intensity"].reshape(-1, 4, 4), xp.float32),
        indexed(**given["image"]),
    )
    others = sum(one.total for one in profile.traffic if one.name != "image") * profile.count
    needed = gather_bytes(arrays)
    rate = (needed + others) / profile.time_s
    share = 100 * rate / profile.copy_bytes_per_s
    return (
        f"| {num_images} | {16 * profile.count:,} | {1e6 * profile.time_s:.1f} "
        f"| {needed / 1e6:.0f} | {others / 1e6:.0f} | {rate / 1e9:,.0f} | {share:.0f} % |"
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
        "",
        "## A kernel that only looks up",
        "",
        "| images | lookups | us | MB of sectors | MB of other arrays | GB/s | of a copy |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for size in SIZES[1:] if arguments.small else SIZES:
        lines.append(gathered(*size, arguments.backend))
        print(lines[-1], flush=True)
    lines += [
        "",
        "It writes the residual of each patch in each image. Sectors are the 32 bytes that memory "
        "is read by; each counts once for a patch in an image. A copy of a large array in the same "
        "run is what the last column compares with.",
    ]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    page = arguments.folder / f"photometric_{arguments.backend}.md"
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
