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
from caspar.bundle_adjustment import Cam, Pixel, Point, snavely
from caspar.frontend.markers import Marker


class View(sf.Pose3):
    """Takes world to camera coordinates."""


class Lens(sf.V3):
    """Focal length in pixels, radial distortion k1 and k2."""


def _seen_through(name: str, marker: type[Marker]) -> caspar.Factor:
    """The factor of bundle adjustment, its camera in two parts."""

    def error(
        view: Annotated[View, caspar.TunableShared],
        point: Annotated[Point, caspar.TunableShared],
        pixel: Annotated[Pixel, caspar.ConstSequential],
        lens: Annotated[Lens, marker],
    ) -> sf.V2:
        residual: sf.V2 = snavely.function(Cam(view, lens), point, pixel)
        return residual

    error.__name__ = name
    return caspar.factor(error)


known = _seen_through("known", caspar.ConstUnique)
unique = _seen_through("unique", caspar.TunableUnique)
indexed = _seen_through("indexed", caspar.TunableShared)


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
