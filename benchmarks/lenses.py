"""`python -m benchmarks.lenses`: what a shared lens costs a PCG iteration.

The poses of a synthetic problem are cameras of six unknowns, and its lens (focal length and two
coefficients) is a constant, one for all observations, one of a few by an index, or one for each
camera. Needs a GPU. Prints microseconds of a PCG iteration, and of all else in an iteration of
Levenberg-Marquardt.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf

import caspar
from benchmarks.caspar_side import Variant, linear_iteration
from benchmarks.problems import Bundle, make


class View(sf.Pose3):
    """Takes world to camera coordinates."""


class Lens(sf.V3):
    """Focal length in pixels, radial distortion k1 and k2."""


class Point(sf.V3):
    """A point in world coordinates."""


class Pixel(sf.V2):
    """A measured position relative to the image centre, in pixels."""


def _error(view: View, point: Point, pixel: Pixel, lens: Lens) -> sf.V2:
    x, y, depth = view * point
    safe_depth = depth + sf.epsilon() ** 2 * sf.sign_no_zero(depth)
    plane = sf.V2(-x / safe_depth, -y / safe_depth)
    radius_squared = plane.squared_norm()
    return lens[0] * (1 + lens[1] * radius_squared + lens[2] * radius_squared**2) * plane - pixel


@caspar.factor
def known(
    view: Annotated[View, caspar.TunableShared],
    point: Annotated[Point, caspar.TunableShared],
    pixel: Annotated[Pixel, caspar.ConstSequential],
    lens: Annotated[Lens, caspar.ConstUnique],
) -> sf.V2:
    """The lens is a constant."""
    return _error(view, point, pixel, lens)


@caspar.factor
def unique(
    view: Annotated[View, caspar.TunableShared],
    point: Annotated[Point, caspar.TunableShared],
    pixel: Annotated[Pixel, caspar.ConstSequential],
    lens: Annotated[Lens, caspar.TunableUnique],
) -> sf.V2:
    """One lens took all pictures."""
    return _error(view, point, pixel, lens)


@caspar.factor
def indexed(
    view: Annotated[View, caspar.TunableShared],
    point: Annotated[Point, caspar.TunableShared],
    pixel: Annotated[Pixel, caspar.ConstSequential],
    lens: Annotated[Lens, caspar.TunableShared],
) -> sf.V2:
    """Each picture names its lens."""
    return _error(view, point, pixel, lens)


@dataclass(frozen=True)
class Case:
    """A problem.

    Attributes:
        name: In the table.
        factor: One of the three.
        arrays: Of a solve.
    """

    name: str
    factor: caspar.Factor
    arrays: Mapping[str, Any]


def cases(bundle: Bundle) -> Sequence[Case]:
    """The same observations with each kind of lens."""
    views = np.ascontiguousarray(bundle.cameras[:, :7])
    lenses = bundle.cameras[:, 7:]
    nodes = {"View": views, "Point": bundle.points}
    seen = {"view": bundle.camera_index, "point": bundle.point_index, "pixel": bundle.pixels}
    mean = lenses.mean(axis=0, keepdims=True)
    made = [
        Case("known", known, {**nodes, "known": {**seen, "lens": mean[0]}}),
        Case("one, unique", unique, {**nodes, "Lens": mean, "unique": seen}),
    ]
    for count in sorted({1, 4, min(64, len(views)), len(views)}):
        given = lenses if count == len(views) else np.repeat(mean, count, axis=0)
        index = (bundle.camera_index % count).astype(np.int32)
        arrays = {**nodes, "Lens": given, "indexed": {**seen, "lens": index}}
        made.append(Case(f"{count} by an index", indexed, arrays))
    return made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lenses", description=__doc__)
    parser.add_argument("--problem", default="synthetic ladybug-1723", metavar="NAME")
    parser.add_argument("--jacobians", nargs="+", default=["recompute", "stored"])
    arguments = parser.parse_args()
    print(f"{'lens':20} {'Jacobians':10} {'deterministic':13} {'PCG, us':>8} {'rest, us':>8}")
    for case in cases(make(arguments.problem)):
        for jacobian in arguments.jacobians:
            for deterministic in (False, True):
                choices = {"jacobian": jacobian, "deterministic": deterministic}
                solver = caspar.Solver(
                    case.factor, backend="cuda", linear_solver="schur_pcg", **choices
                )
                time = linear_iteration(solver, case.arrays, Variant("lens"))
                assert time is not None, "conjugate gradients reached the solution"
                figures = f"{1e3 * time.linear_ms:8.1f} {1e3 * time.outer_ms:8.0f}"
                print(f"{case.name:20} {jacobian:10} {deterministic!s:13} {figures}", flush=True)


if __name__ == "__main__":
    main()
