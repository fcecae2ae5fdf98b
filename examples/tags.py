# %% [markdown]
# # A thousand poses at once

# %% [markdown]
"""A thousand poses at once: square tags, each seen by a camera that knows its lens.

A tag is 16 cm wide. What is known of it are the pixels of its four corners, to a fifth of a pixel,
and a rough pose, as a detector gives it. Each tag is a problem of its own with six unknowns; some
have a corner that was not seen.

    python examples/tags.py
"""

# %%
from typing import Annotated

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar

Floats = NDArray[np.float64]

CORNERS = 0.08 * np.array([[-1.0, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]])
"""Metres."""

LENS = np.array([600.0, 600.0, 320.0, 240.0])
"""Focal lengths and centre of the camera, pixels."""


class Tag(sf.Pose3):
    """A tag in the frame of the camera: qx qy qz qw, then metres."""


@caspar.factor
def corner(
    tag: Annotated[Tag, caspar.TunableUnique],
    point: Annotated[sf.V3, caspar.ConstSequential],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
    lens: Annotated[sf.V4, caspar.ConstUnique],
) -> sf.V2:
    """Predicted minus measured position of a point of a tag, in pixels."""
    x, y, depth = tag * point
    fx, fy, cx, cy = lens
    return sf.V2(fx * x / depth + cx, fy * y / depth + cy) - pixel


def seen(poses: Floats, points: Floats) -> Floats:
    """(P, m, 2) pixels of (P, m, 3) points, or (1, m, 3), of tags at (P, 7) poses."""
    rotations = Rotation.from_quat(poses[:, :4]).as_matrix()
    x, y, depth = np.moveaxis(points @ rotations.transpose(0, 2, 1) + poses[:, None, 4:], 2, 0)
    return np.stack([LENS[0] * x / depth + LENS[2], LENS[1] * y / depth + LENS[3]], axis=2)


def moved(poses: Floats, angle: float, shift: float, rng: np.random.Generator) -> Floats:
    """Poses that are wrong by up to an angle, radians, and by a shift, metres."""
    axes = rng.normal(size=(len(poses), 3))
    axes *= rng.uniform(0.0, angle, (len(poses), 1)) / np.linalg.norm(axes, axis=1, keepdims=True)
    rotations = Rotation.from_rotvec(axes) * Rotation.from_quat(poses[:, :4])
    places = poses[:, 4:] + rng.normal(0.0, shift, (len(poses), 3))
    return np.concatenate([rotations.as_quat(), places], axis=1)


def make(num_tags: int) -> tuple[Floats, Floats, Floats, Floats]:
    """True poses, rough ones, pixels, and weights: 0 for corners that were not seen."""
    rng = np.random.default_rng(0)
    tilt = Rotation.from_euler("xyz", rng.uniform(-0.8, 0.8, (num_tags, 3)))
    # tags face the camera, which looks along its z axis
    facing = (Rotation.from_euler("x", np.pi) * tilt).as_quat()
    places = rng.uniform([-0.4, -0.3, 0.8], [0.4, 0.3, 2.0], (num_tags, 3))
    poses = np.concatenate([facing, places], axis=1)
    pixels = seen(poses, CORNERS[None]) + rng.normal(0.0, 0.2, (num_tags, 4, 2))
    weights = np.ones((num_tags, 4))
    weights[rng.uniform(size=num_tags) < 0.1, 2] = 0.0
    return poses, moved(poses, 0.2, 0.03, rng), pixels, weights


# %% [markdown]
# ## Solved at once


# %%
def main() -> caspar.BatchResult:
    """Solve, and say how far off the tags are."""
    poses, start, pixels, weights = make(1000)
    solver = caspar.BatchSolver(corner)
    result = solver.solve(
        {
            "Tag": start,
            "corner": {
                "point": CORNERS[None],  # a first axis of 1: the same for all tags
                "pixel": pixels,
                "lens": LENS[None],
                "weight": weights,
            },
        }
    )
    print(result)
    found = result.values["Tag"]
    away = np.linalg.norm(found[:, 4:] - poses[:, 4:], axis=1)
    print(f"median distance from the true place: {1e3 * np.median(away):.1f} mm")
    return result


# %% tags=["active-ipynb"]
# main();

# %% tags=["active-py"]
if __name__ == "__main__":
    main()
