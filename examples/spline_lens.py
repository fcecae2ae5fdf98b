"""A lens as a spline: where a wide camera sees a direction is a table whose numbers are unknowns.

As in mrcal's splined models, a pixel is a stereographic projection plus a shift that cubic
B-splines interpolate: 30 x 20 knots of 2 numbers, 1,200 unknowns. Thirteen chessboards of unknown
poses determine them; each corner depends on its board and on the 16 knots around its direction.
Which ones, `caspar.grid_patch` chooses; after a solve they are chosen anew at the corners' new
directions, until none leaves its cell.

    python examples/spline_lens.py
"""

import time
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar

Array = NDArray[np.float64]

FOCAL, CENTER = 1000.0, (1500.0, 1000.0)
"""Of the projection, in pixels. They are known: the spline takes up any difference."""
EXTENT = 1.75
"""How far the table reaches along x, in units of the projection: 82 degrees off the axis."""
NOISE = 0.2
"""Standard deviation of a corner, in pixels."""
SMOOTHNESS = 0.02
"""The same of the difference of neighbouring knots."""


class Lens(caspar.Grid, dims=2, channels=2, method="bspline3"):
    """Shifts of the projection, along x and y."""


class Board(sf.Pose3):
    """Takes places on the board to camera coordinates."""


@caspar.factor
def corner(
    lens: Annotated[Lens, caspar.TunableShared],
    board: Annotated[Board, caspar.TunableShared],
    place: Annotated[sf.V2, caspar.ConstSequential],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
    knots_per_unit: Annotated[sf.Scalar, caspar.ConstUnique],
    middle: Annotated[sf.V2, caspar.ConstUnique],
) -> sf.V2:
    """Predicted minus seen position of a corner, in standard deviations."""
    ray = board * sf.V3(place[0], place[1], 0)
    projected = 2 * sf.V2(ray[0], ray[1]) / (ray.norm() + ray[2])
    shift = lens.at(*(knots_per_unit * projected + middle))
    return (FOCAL * (projected + shift) + sf.V2(*CENTER) - pixel) / NOISE


@caspar.factor
def smooth(
    knot: Annotated[Lens.Knot, caspar.TunableShared],
    neighbour: Annotated[Lens.Knot, caspar.TunableShared],
) -> sf.V2:
    """Neighbouring knots differ little: so knots that no corner depends on are determined."""
    return sf.V2((knot - neighbour) / SMOOTHNESS)


FACTORS = [corner, smooth]


def true_shift(projected: Array) -> Array:
    """How the real lens differs from the projection: no common model of lenses has such terms."""
    x, y = projected.T
    bent = 0.02 * (x**2 + y**2)[:, None] * projected
    found: Array = bent + 0.004 * np.column_stack([np.sin(3.0 * y), np.cos(2.0 * x + y)])
    return found


def stereographic(rays: Array) -> Array:
    """The projection of rays: (m, 2)."""
    lengths = np.linalg.norm(rays, axis=1)
    found: Array = 2.0 * rays[:, :2] / (lengths + rays[:, 2])[:, None]
    return found


def simulate(sizes: tuple[int, int] = (20, 30), num_boards: int = 13, side: int = 10) -> Any:
    """The arrays for `caspar.Solver.solve`.

    Args:
        sizes: Rows and columns of knots.
        num_boards: Boards, one a picture.
        side: Corners along a side of a board, which is half a metre long.
    """
    random = np.random.default_rng(1)
    rows, columns = sizes
    knots_per_unit = (columns - 1) / (2.0 * EXTENT)
    middle = np.array([columns - 1, rows - 1]) / 2.0
    # boards are spread over the picture, and tilted
    across = np.column_stack(
        [np.linspace(-1.3, 1.3, num_boards), 0.6 * np.sin(2.4 * np.arange(num_boards))]
    )
    bearings = Rotation.from_rotvec(
        np.column_stack([-across[:, 1], across[:, 0], across[:, 0] * 0])
    )
    centers = bearings.apply([0.0, 0.0, 0.6])
    turned = bearings * Rotation.from_rotvec(random.normal(0.0, 0.35, (num_boards, 3)))
    line = np.linspace(-0.25, 0.25, side)
    places = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    board = np.repeat(np.arange(num_boards), len(places))
    places = np.tile(places, (num_boards, 1))
    rays = turned[board].apply(np.pad(places, ((0, 0), (0, 1)))) + centers[board]
    projected = stereographic(rays)
    seen = FOCAL * (projected + true_shift(projected)) + CENTER
    pixels = seen + random.normal(0.0, NOISE, seen.shape)
    coordinates = knots_per_unit * (pixels - CENTER) / FOCAL + middle
    # corners beyond the table are not used
    used = ((coordinates > 1.5) & (coordinates < [columns - 2.5, rows - 2.5])).all(axis=1)
    off = Rotation.from_rotvec(random.normal(0.0, 0.03, (num_boards, 3)))
    start = np.hstack([(off * turned).as_quat(), centers + random.normal(0.0, 0.02, centers.shape)])
    number = np.arange(rows * columns).reshape(sizes)
    neighbours = [(number[:, :-1], number[:, 1:]), (number[:-1], number[1:])]
    first, second = (np.concatenate([pair[k].ravel() for pair in neighbours]) for k in (0, 1))
    return {
        "Lens": np.zeros((rows, columns, 2)),
        "Board": start,
        "corner": {
            "lens": caspar.grid_patch(Lens, sizes, coordinates[used]),
            "board": board[used],
            "place": places[used],
            "pixel": pixels[used],
            "knots_per_unit": np.array([knots_per_unit]),
            "middle": middle,
        },
        "smooth": {"knot": first, "neighbour": second},
    }


HELD = {"Board": {"rotation": [0]}}
"""A lens that can be anything may be turned together with the camera: one board must not turn."""


def solve(
    arrays: Mapping[str, Any], max_rounds: int = 5
) -> tuple[Mapping[str, Any], caspar.SolveResult]:
    """Solve, choose patches at the directions that were found, and solve again.

    Returns:
        The arrays with the values and patches of the last solve, and its result.
    """
    solver = caspar.Solver(FACTORS, precision="float64")
    for _ in range(max_rounds):
        start = time.perf_counter()
        result = solver.solve(arrays, fixed=HELD)
        time_s = time.perf_counter() - start
        arrays = {**arrays, **result.values}
        before = arrays["corner"]["lens"]
        coordinates = solver.evaluate(arrays).coordinates("corner", "lens")
        patch = caspar.grid_patch(Lens, before.sizes, coordinates)
        num_left = int((patch.base != before.base).any(axis=1).sum())
        print(f"cost {result.final_cost:.6f}, {time_s:.2f} s, {num_left} corners left their cell")
        if num_left == 0:
            break
        arrays = {**arrays, "corner": {**arrays["corner"], "lens": patch}}
    return arrays, result


def main(*, sizes: tuple[int, int] = (20, 30)) -> caspar.SolveResult:
    """Calibrate, and print how well the corners are explained."""
    _, result = solve(simulate(sizes))
    print(result)
    errors = NOISE * result.residuals("corner")
    print(f"RMS of corners: {np.sqrt(np.mean(errors**2)):.3f} pixels, with noise of {NOISE}")
    return result


if __name__ == "__main__":
    main()
