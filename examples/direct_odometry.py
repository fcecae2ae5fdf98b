"""Direct visual odometry: where a camera with a depth sensor is, from intensities alone.

A camera flies through a room and takes pictures with depths. Pixels of a key frame become points in
space; the pose of each later frame is the one at which its picture has the intensities of these
points, looked up where they are seen (a `caspar.Image`). No features are matched. What falls
outside of the picture is left out: `border="refuse"`. A frame starts where the last motion leads,
and every few frames the newest one becomes the key frame.

    python examples/direct_odometry.py
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar

Array = NDArray[Any]

WIDTH, HEIGHT, FOCAL = 160, 120, 130.0
ROOM = np.array([4.0, 3.0, 2.5])
"""Half of its length, width and height, in metres."""
NOISE = 0.02
"""Standard deviation of intensities, which go from about -2 to 2."""
NUM_POINTS = 3000
"""Pixels of a key frame that are used, those with the largest gradients."""
FRAMES_OF_KEY = 5


class Picture(caspar.Grid, dims=2, method="cubic", border="refuse"):
    """Intensities of a frame: rows along y, columns along x."""


@caspar.factor
def photometric(
    frame: Annotated[sf.Pose3, caspar.TunableShared],
    point: Annotated[sf.V3, caspar.ConstSequential],
    intensity: Annotated[sf.Scalar, caspar.ConstSequential],
    picture: Annotated[Picture, caspar.ConstUnique],
) -> sf.V1:
    """Intensity of a point of the key frame in the picture of a frame, less that in its own.

    `frame` is the pose of the frame in the key frame.
    """
    x, y, z = frame.inverse() * point
    seen = picture.at(FOCAL * x / z + WIDTH / 2, FOCAL * y / z + HEIGHT / 2)
    return sf.V1((seen - intensity) / NOISE)


# -- the room --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """A picture with depths.

    Attributes:
        picture: (HEIGHT, WIDTH) intensities.
        depth: (HEIGHT, WIDTH) metres along the optical axis.
    """

    picture: Array
    depth: Array


def true_poses(count: int) -> Array:
    """(count, 7) poses of the camera in the room: qx qy qz qw, then metres; z looks ahead."""
    time = 0.05 * np.arange(count)
    ahead = Rotation.from_euler("yx", [90.0, -90.0], degrees=True)
    turns = np.stack([0.1 * np.sin(time), 0.3 * np.sin(0.8 * time), 0.1 * np.sin(0.6 * time)], 1)
    places = np.stack([np.sin(0.5 * time), np.cos(0.6 * time) - 1.0, 0.3 * np.sin(time)], 1)
    return np.concatenate([(Rotation.from_rotvec(turns) * ahead).as_quat(), places], axis=1)


def rays() -> Array:
    """(HEIGHT, WIDTH, 3) points of all pixels at a depth of one metre."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    unit = np.ones_like(x, float)
    return np.stack([(x - WIDTH / 2) / FOCAL, (y - HEIGHT / 2) / FOCAL, unit], axis=2)


def texture(points: Array) -> Array:
    """Intensity of points of the walls: a sum of waves in all directions."""
    rng = np.random.default_rng(3)
    value = np.zeros(points.shape[:-1])
    for length in (0.35, 0.5, 0.8, 1.3, 2.0):
        direction = rng.normal(size=3)
        wave = 2.0 * np.pi / length * direction / np.linalg.norm(direction)
        value += 0.6 * np.sin(points @ wave + rng.uniform(0.0, 2.0 * np.pi))
    return value


def rendered(pose: Array, rng: np.random.Generator) -> Frame:
    """The picture and the depths of a camera in the room, with noise."""
    directions = Rotation.from_quat(pose[:4]).apply(rays().reshape(-1, 3))
    place = pose[4:]
    with np.errstate(divide="ignore"):
        to_walls = (ROOM - np.sign(directions) * place) / np.abs(directions)
    depth = to_walls.min(axis=1)
    picture = texture(place + depth[:, None] * directions)
    picture += rng.normal(scale=NOISE, size=picture.shape)
    return Frame(picture.reshape(HEIGHT, WIDTH), depth.reshape(HEIGHT, WIDTH))


# -- odometry --------------------------------------------------------------------------------------


def points_of(key: Frame) -> dict[str, Array]:
    """Constants of the factor for the pixels of a key frame whose intensities change most."""
    down, across = np.gradient(key.picture)
    strength = np.hypot(across, down)
    rows, columns = np.unravel_index(np.argsort(-strength, axis=None)[:NUM_POINTS], strength.shape)
    points = rays()[rows, columns] * key.depth[rows, columns, None]
    return {"point": points, "intensity": key.picture[rows, columns]}


def chained(first: Array, second: Array) -> Array:
    """The product of two poses, each (7,)."""
    turn = Rotation.from_quat(first[:4])
    place = turn.apply(second[4:]) + first[4:]
    return np.concatenate([(turn * Rotation.from_quat(second[:4])).as_quat(), place])


def inverse(pose: Array) -> Array:
    """The inverse of a pose, (7,)."""
    turn = Rotation.from_quat(pose[:4]).inv()
    return np.concatenate([turn.as_quat(), -turn.apply(pose[4:])])


def track(frames: list[Frame], first: Array) -> tuple[Array, caspar.SolveResult]:
    """(frames, 7) poses, from that of the first frame; and what the last solve tells."""
    solver = caspar.Solver([photometric], precision="float64")
    key, constants = first, points_of(frames[0])
    found = [first]
    for number, frame in enumerate(frames[1:], start=1):
        before = found[-2] if number > 1 else found[-1]
        guess = chained(found[-1], chained(inverse(before), found[-1]))
        arrays = {
            "Pose3": chained(inverse(key), guess)[None],
            "photometric": {
                "frame": np.zeros(NUM_POINTS, np.int32),
                "picture": frame.picture,
                **constants,
            },
        }
        result = solver.solve(arrays)
        found.append(chained(key, np.asarray(result.values["Pose3"])[0]))
        if number % FRAMES_OF_KEY == 0:
            key, constants = found[-1], points_of(frame)
    return np.array(found), result


def main(num_frames: int = 60) -> tuple[Array, Array]:
    """Follow a camera; its poses, and those that were found, each (num_frames, 7)."""
    rng, truth = np.random.default_rng(0), true_poses(num_frames)
    frames = [rendered(pose, rng) for pose in truth]
    found, result = track(frames, truth[0])
    print(result)
    way = np.linalg.norm(np.diff(truth[:, 4:], axis=0), axis=1).sum()
    away = np.linalg.norm(found[-1, 4:] - truth[-1, 4:])
    print(
        f"After {way:.2f} m the camera is {1e3 * away:.1f} mm away from where it is thought to be."
    )
    return truth, found


if __name__ == "__main__":
    main()
