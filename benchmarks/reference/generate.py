"""Generate the reference's solver for bundle adjustment from our residual, and build it.

Input: an output directory and a precision. Output: C++/CUDA sources, a CMake project and, unless
`--no-build` is given, a Python extension (see `build`). Cost: half a minute of symbolic work.

Usage: `python -m benchmarks.reference.generate DIRECTORY [--double] [--no-build]
[--architecture 90] [--jobs 8]`. The sources do not depend on the machine: generate where SymForce
is, and run `python -m benchmarks.reference.build DIRECTORY` where the GPU is.
"""
# No `from __future__ import annotations` here: the reference evaluates annotations in the
# function's module scope, where classes that are local to a function are not found.

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from benchmarks.reference.build import (
    Manifest,
    Precision,
    add_build_arguments,
    build,
    extension_path,
    write_manifest,
)

EPSILON = {Precision.FLOAT32: 1e-6, Precision.FLOAT64: 1e-15}
"""Guard of divisions and of rotations near the identity: the values of the reference's example."""


def snavely_library(precision: Precision) -> Any:
    """Return the reference's library object with one factor, `snavely`.

    Node types: `Cam` (pose of the world in the camera; focal length in pixels, k1, k2) and
    `Point`. Model: p = -P.xy / P.z, uv = f (1 + k1 |p|^2 + k2 |p|^4) p (Agarwal et al., ECCV 2010).

    SymForce is imported inside, because its epsilon is one global per process which must be set
    before the first import of `symforce.symbolic`: one precision per process.
    """
    import symforce

    symforce.set_epsilon_to_number(EPSILON[precision])
    import symforce.symbolic as sf
    from symforce.caspar import CasparLibrary
    from symforce.caspar import memory as mem

    dtypes = {Precision.FLOAT32: mem.DType.FLOAT, Precision.FLOAT64: mem.DType.DOUBLE}
    library = CasparLibrary(dtype=dtypes[precision])

    @dataclass
    class Cam:
        cam_T_world: sf.Pose3
        calibration: sf.V3

    class Point(sf.V3): ...

    class Pixel(sf.V2): ...

    @library.add_factor  # type: ignore[untyped-decorator]
    def snavely(
        cam: Annotated[Cam, mem.TunableShared],
        point: Annotated[Point, mem.TunableShared],
        pixel: Annotated[Pixel, mem.ConstantSequential],
    ) -> sf.V2:
        x, y, depth = cam.cam_T_world * point
        depth_safe = depth + sf.epsilon() * sf.sign_no_zero(depth)
        p = sf.V2(-x / depth_safe, -y / depth_safe)
        focal, k1, k2 = cam.calibration
        radius2 = p.squared_norm()
        return focal * (1 + k1 * radius2 + k2 * radius2**2) * p - pixel

    return library


def generate(
    directory: Path, precision: Precision, declare: Callable[[Precision], Any] = snavely_library
) -> Manifest:
    """Write sources and manifest into `directory` (created when missing); once per process."""
    start = time.perf_counter()
    declare(precision).generate(directory)
    manifest = Manifest(
        precision=precision.value,
        symforce_version=version("symforce"),
        epsilon=EPSILON[precision],
        generate_time_s=time.perf_counter() - start,
    )
    write_manifest(directory, manifest)
    return manifest


def main(declare: Callable[[Precision], Any] = snavely_library) -> None:
    """Generate what `declare` returns, and unless told otherwise build, from the command line."""
    parser = argparse.ArgumentParser(description="Generate and build the reference library.")
    add_build_arguments(parser)
    parser.add_argument("--double", action="store_true", help="float64 instead of float32")
    parser.add_argument("--no-build", action="store_true", help="write the sources only")
    arguments = parser.parse_args()
    directory: Path = arguments.directory.resolve()
    precision = Precision.FLOAT64 if arguments.double else Precision.FLOAT32
    manifest = generate(directory, precision, declare)
    print(f"generated in {manifest.generate_time_s:.1f} s: {directory}")
    if not arguments.no_build:
        time_s = build(directory, arguments.architecture, arguments.jobs)
        print(f"built in {time_s:.1f} s: {extension_path(directory)}")


if __name__ == "__main__":
    main()
