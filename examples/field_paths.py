"""Paths of robots through a field with obstacles: smooth, and at some distance from all of them.

A path is a cubic B-spline of 14 knots in the plane, which are the unknowns, and is looked at in 50
points. In each of them the distance to the nearest obstacle is looked up in a table, a
`caspar.Grid`; what is less than the wanted clearance costs. Bends cost too, and the ends are where
they have to be. Straight lines are good starts, unless they run through an obstacle's middle. All
paths are solved at once by a `caspar.BatchSolver`, each by a thread or a warp of its own.

    python examples/field_paths.py
"""

import time
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar

Array = NDArray[np.float64]

KNOTS, POINTS = 14, 50
CLEARANCE = 0.5
"""Wanted distance from obstacles, in metres."""
CELLS_PER_METRE = 8.0
EXTENT = 10.0
"""The field is a square of so many metres."""
STIFFNESS = 0.5
"""Cost of a bend, relative to that of a missing metre of clearance."""
END = 100.0
"""Weight of the ends, likewise."""
OPTIONS: dict[str, Any] = {"cost_tolerance": 1e-3, "max_iterations": 50}
"""Paths need no more digits; the last ones would take several times as many iterations."""


class Way(caspar.Grid, dims=1, channels=2, method="bspline3"):
    """A path: x and y in metres along it."""


class Field(caspar.Grid, dims=2, method="cubic"):
    """Distance to the nearest obstacle, negative inside of it: rows along y, columns along x."""


@caspar.factor
def clear(
    way: Annotated[Way, caspar.TunableShared],
    along: Annotated[sf.Scalar, caspar.ConstSequential],
    field: Annotated[Field, caspar.ConstUnique],
) -> sf.V1:
    """A point of the path keeps its distance from obstacles."""
    x, y = way.at(along)
    distance = field.at(CELLS_PER_METRE * x, CELLS_PER_METRE * y)
    return sf.V1(sf.Max(CLEARANCE - distance, 0))


@caspar.factor
def straight(
    before: Annotated[Way.Knot, caspar.TunableShared],
    knot: Annotated[Way.Knot, caspar.TunableShared],
    behind: Annotated[Way.Knot, caspar.TunableShared],
) -> sf.V2:
    """A path bends little."""
    return sf.V2(STIFFNESS * (before - 2 * knot + behind))


@caspar.factor
def ends(
    way: Annotated[Way, caspar.TunableShared],
    along: Annotated[sf.Scalar, caspar.ConstSequential],
    place: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A path begins and ends at given places."""
    return sf.V2(END * (way.at(along) - place))


@dataclass(frozen=True)
class World:
    """Round obstacles, and the paths that are asked for.

    Attributes:
        centers: (k, 2) of the obstacles, in metres.
        radii: (k,) of the obstacles.
        targets: (P, 2, 2) first and last place of each path.
    """

    centers: Array
    radii: Array
    targets: Array

    def distances(self, places: Array) -> Array:
        """Return the distance of each of (..., 2) places to the nearest obstacle."""
        lengths = np.linalg.norm(places[..., None, :] - self.centers, axis=-1)
        found: Array = (lengths - self.radii).min(axis=-1)
        return found

    def field(self) -> Array:
        """The table: rows along y, columns along x."""
        axis = np.arange(int(EXTENT * CELLS_PER_METRE) + 1) / CELLS_PER_METRE
        return self.distances(np.stack(np.meshgrid(axis, axis), axis=-1))


def simulate(num_paths: int, num_obstacles: int = 20) -> World:
    """Obstacles at random places; ends that keep the clearance, at two sides of the field."""
    rng = np.random.default_rng(0)
    centers = rng.uniform([1.5, 0.5], [EXTENT - 1.5, EXTENT - 0.5], (num_obstacles, 2))
    radii = rng.uniform(0.2, 0.5, num_obstacles)
    heights = rng.uniform(0.6, EXTENT - 0.6, (2, num_paths))
    targets = np.stack(
        [
            np.stack([np.full(num_paths, x), heights[side]], axis=-1)
            for side, x in enumerate((0.4, EXTENT - 0.4))
        ],
        axis=1,
    )
    return World(centers, radii, targets)


def places_along(num_points: int = POINTS) -> Array:
    """The places of points on a path, counted in knots; the first and last knot lie outside."""
    return np.linspace(1.0, KNOTS - 2.0, num_points)


def arrays_of(world: World) -> dict[str, Any]:
    """Arrays of a solve, which starts with straight lines.

    The patches of points, which knots each depends on, are the same for all paths.
    """
    along, knot = places_along(), np.arange(KNOTS - 2)[None]
    fractions = (np.arange(KNOTS) - 1.0) / (KNOTS - 3.0)
    first, last = world.targets[:, :1], world.targets[:, 1:]
    end_places = along[[0, -1]]
    return {
        "Way": first + fractions[:, None] * (last - first),
        "clear": {
            "way": caspar.grid_patch(Way, (KNOTS,), along[None, :, None]),
            "along": along[None],
            "field": world.field(),
        },
        "straight": {"before": knot, "knot": knot + 1, "behind": knot + 2},
        "ends": {
            "way": caspar.grid_patch(Way, (KNOTS,), end_places[None, :, None]),
            "along": end_places[None],
            "place": world.targets,
        },
    }


def spline_weights() -> Array:
    """(50, 14) how the points of a path depend on its knots."""
    along = places_along()
    below = np.minimum(along.astype(int), KNOTS - 3)
    t = along - below
    parts = [(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3]
    weights = np.zeros((POINTS, KNOTS))
    for offset, part in enumerate(parts):
        weights[np.arange(POINTS), below + offset - 1] = part / 6
    return weights


def points_of(knots: Array) -> Array:
    """(..., 50, 2) points of paths, from their knots (..., 14, 2)."""
    found: Array = spline_weights() @ knots
    return found


def main() -> None:
    """Find 10,000 paths, and say how many keep their distance."""
    world = simulate(10_000)
    arrays = arrays_of(world)
    solver = caspar.BatchSolver([clear, straight, ends])
    solver.solve(arrays, **OPTIONS)  # compiles
    start_s = time.perf_counter()
    result = solver.solve(arrays, **OPTIONS)
    seconds = time.perf_counter() - start_s
    print(result)
    nearest = world.distances(points_of(result.values["Way"])).min(axis=1)
    before = world.distances(points_of(arrays["Way"])).min(axis=1)
    print(f"{len(nearest) / seconds:,.0f} paths a second")
    print(f"straight lines that touch no obstacle: {100 * np.mean(before > 0):.1f} %")
    print(f"paths that touch no obstacle: {100 * np.mean(nearest > 0):.1f} %")
    print(f"half of them keep {np.median(nearest):.2f} m or more of the wanted {CLEARANCE} m")


if __name__ == "__main__":
    main()
