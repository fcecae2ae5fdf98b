# %% [markdown]
# # A point cloud on PyTorch tensors

# %% [markdown]
"""Scans of a moving sensor are laid out in the world, and weighed, on PyTorch tensors.

Tensors are read where they live (DLPack): on a GPU if they are there. Without PyTorch the same runs
on NumPy's arrays.

    python examples/point_cloud.py
"""

# %%
import time
from typing import Annotated, Any, NamedTuple

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar

try:
    import torch  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    torch = None

Array = Any  # a tensor, or without PyTorch an array of NumPy

# %% [markdown]
# ## Kernels
#
# Each point knows its scan, and each scan has a pose. `to_world` moves one point. `weigh` moves it
# too, by calling `to_world`, which inside another kernel is the function as it was written. It adds
# (w x, w y, w z, w) to the sum of the point's scan, and to that of the whole cloud; the moved point
# itself is never stored.


# %%
class Pose(sf.Pose3):
    """Takes sensor to world coordinates. In storage qx qy qz qw x y z."""


@caspar.kernel
def pose_on_circle(
    angle: Annotated[sf.Symbol, caspar.ReadSequential],
) -> Annotated[Pose, caspar.WriteSequential]:
    """Ahead on a circle of 20 m, up and down three times."""
    place = 20 * sf.V3(sf.cos(angle), sf.sin(angle), sf.sin(3 * angle) / 10)
    return Pose(sf.Rot3.from_yaw_pitch_roll(angle + sf.pi / 2, 0, 0), place)


@caspar.kernel
def to_world(
    pose: Annotated[Pose, caspar.ReadShared],
    point: Annotated[sf.V3, caspar.ReadSequential],
) -> Annotated[sf.V3, caspar.WriteSequential]:
    """A point in world coordinates."""
    return pose * point


class Moments(NamedTuple):
    """Sums of weighted positions and of weights.

    Attributes:
        by_scan: Of the points of each scan.
        of_cloud: Of all points.
    """

    by_scan: Annotated[sf.V4, caspar.AddSharedSum]
    of_cloud: Annotated[sf.V4, caspar.WriteSum]


@caspar.kernel
def weigh(
    pose: Annotated[Pose, caspar.ReadShared],
    point: Annotated[sf.V3, caspar.ReadSequential],
    weight: Annotated[sf.Symbol, caspar.ReadSequential],
) -> Moments:
    """The weighted position of a point in world coordinates, and its weight."""
    moment = sf.V4(*(weight * to_world(pose, point)), weight)
    return Moments(by_scan=moment, of_cloud=moment)


# %% [markdown]
# ## A cloud


# %%
class Cloud(NamedTuple):
    """Scans of a sensor.

    Attributes:
        poses: (num_scans, 7) float32.
        points: (num_points, 3) float32, in sensor coordinates.
        weights: (num_points,) float32.
        scan: (num_points,) the scan of each point.
    """

    poses: Array
    points: Array
    weights: Array
    scan: Array


def half_circle(num_scans: int) -> NDArray[np.float32]:
    """(num_scans,) angles of places around half a circle."""
    return np.linspace(0.0, np.pi, num_scans, dtype=np.float32)


def make_cloud(num_scans: int = 50, points_each: int = 4000, seed: int = 0) -> Cloud:
    """Random points around the places of a sensor; far ones weigh less."""
    random = np.random.default_rng(seed)
    num_points = num_scans * points_each
    points = random.normal(0.0, [4.0, 4.0, 1.0], (num_points, 3))
    weights = 1.0 / (1.0 + np.linalg.norm(points, axis=1))
    scan = random.integers(0, num_scans, num_points)
    return Cloud(
        poses=pose_on_circle(as_tensor(half_circle(num_scans))),
        points=as_tensor(points.astype(np.float32)),
        weights=as_tensor(weights.astype(np.float32)),
        scan=as_tensor(scan),
    )


def library() -> str:
    """What the cloud is made of."""
    if torch is None:
        return "NumPy's arrays: PyTorch is not installed (pip install torch)"
    return f"PyTorch's tensors on {as_tensor(np.zeros(1)).device}"


def as_tensor(array: NDArray[Any]) -> Array:
    """A tensor with the values of an array, on the GPU if there is one."""
    if torch is None:
        return array
    return torch.as_tensor(array, device="cuda" if torch.cuda.is_available() else "cpu")


def as_numpy(array: Array) -> NDArray[Any]:
    """The values of a tensor."""
    return np.asarray(array if torch is None else array.cpu())


# %% tags=["active-ipynb"]
# print(library())
# cloud = make_cloud()
# cloud.points[:3]

# %% [markdown]
# ## Into the world, and one centroid for each scan
#
# What comes back is on the tensors' device, and a tensor.


# %%
def centroids(moments: Array) -> Array:
    """(n, 3) weighted means."""
    return moments[:, :3] / moments[:, 3:]


def weigh_cloud(cloud: Cloud) -> Moments:
    """Moments of every scan, and of the cloud."""
    moments: Moments = weigh(
        pose={"values": cloud.poses, "index": cloud.scan},
        point=cloud.points,
        weight=cloud.weights,
        out={"by_scan": {"index": cloud.scan, "size": len(cloud.poses)}},
    )
    return moments


def check(cloud: Cloud) -> float:
    """Print how far off NumPy's results ours are, in metres; return the largest."""
    world = to_world(pose={"values": cloud.poses, "index": cloud.scan}, point=cloud.points)
    moments = weigh_cloud(cloud)
    poses, points, weights, scan = (as_numpy(array) for array in cloud)
    moved = Rotation.from_quat(poses[scan, :4]).apply(points) + poses[scan, 4:]
    weighted = np.column_stack([weights[:, None] * moved, weights])
    sums = np.zeros((len(poses), 4))
    np.add.at(sums, scan, weighted)
    worst = 0.0
    for name, found, expected in (
        ("points in the world", world, moved),
        ("centroids of scans", centroids(moments.by_scan), centroids(sums)),
        ("centroid of the cloud", centroids(moments.of_cloud), centroids(weighted.sum(0)[None])),
    ):
        error = np.abs(as_numpy(found) - expected).max()
        print(f"{name:<22} {len(found):>7,} {type(found).__module__:<6} error {error:.1e} m")
        worst = max(worst, float(error))
    return worst


# %% tags=["active-ipynb"]
# check(cloud);

# %% [markdown]
# The cloud from the side: the colour is the scan, black dots are the centroids of all scans.


# %%
def draw(cloud: Cloud, every: int = 8) -> Figure:
    """A part of the points in the world, and the centroids."""
    scan = as_numpy(cloud.scan)[::every]
    world = to_world(pose={"values": cloud.poses, "index": cloud.scan}, point=cloud.points)
    places = as_numpy(centroids(weigh_cloud(cloud).by_scan))
    figure = plt.figure(figsize=(8.0, 3.8), layout="constrained")
    axis = figure.add_subplot(projection="3d", elev=28, azim=-75)
    points = as_numpy(world)[::every]
    axis.scatter(*points.T, c=scan, s=2.0, alpha=0.5, cmap="turbo", linewidths=0)
    axis.plot(*places.T, "k.-", ms=5, lw=1.0)
    axis.set_box_aspect(np.ptp(points, axis=0), zoom=2.0)
    axis.set_axis_off()
    return figure


# %% tags=["active-ipynb"]
# draw(cloud);

# %% [markdown]
# ## Many times
#
# A call has to look at what it was given, to convert it to the layout that kernels read (chunks of
# 16 bytes), and to find for `scan` which points share a pose. All that is done once if the arrays
# are kept as `BlockedArray`, the index as `SharedIndices`, and the kernel is bound to them: what
# remains is the launch. Here the half circle of poses turns, step by step: 50 angles are written,
# a first kernel makes poses of them, and a second one moves all points.


# %%
class Carousel:
    """A cloud whose poses turn about the vertical axis.

    Attributes:
        angles: (num_scans,) where the poses are on their circle.
        make_poses: Makes poses of the angles.
        move_points: Moves all points by the poses.
        world: (num_points, 3) the moved points.
    """

    def __init__(self, cloud: Cloud) -> None:
        self.angles = caspar.BlockedArray.from_rows(as_tensor(half_circle(len(cloud.poses))))
        self.make_poses = pose_on_circle.bind(self.angles)
        scan = caspar.SharedIndices(cloud.scan, size=len(cloud.poses))
        self.move_points = to_world.bind(
            pose={"values": self.make_poses.result, "index": scan},
            point=caspar.BlockedArray.from_rows(cloud.points),
        )
        self.world: caspar.BlockedArray = self.move_points.result

    def turn(self, angle: float) -> None:
        """Move all points for poses that are turned by an angle."""
        self.angles[:] = as_tensor(half_circle(len(self.angles)) + np.float32(angle))
        self.make_poses()
        self.move_points()

    def centre(self) -> NDArray[np.float32]:
        """(3,) mean of the moved points: a tensor looks at their memory, without a copy."""
        points = np.asarray(self.world) if torch is None else torch.from_dlpack(self.world)
        return as_numpy(points.mean(0))


def time_launches(carousel: Carousel, repeat: int = 200) -> float:
    """Seconds of a launch and its work, on average."""
    start = time.perf_counter()
    for _ in range(repeat):
        carousel.move_points()
    carousel.world.to_numpy()  # on a GPU this waits for all of them
    return (time.perf_counter() - start) / repeat


# %% tags=["active-ipynb"]
# carousel = Carousel(cloud)
# for step in range(4):
#     carousel.turn(0.5 * np.pi * step)
#     print(" ".join(f"{x:7.3f}" for x in carousel.centre()))


# %% tags=["active-py"]
def main() -> float:
    """Move and weigh a cloud, then move it again and again; the largest error, in metres."""
    print(library())
    cloud = make_cloud()
    worst = check(cloud)
    carousel = Carousel(cloud)
    print("\nmean of the points, as the poses turn")
    for step in range(4):
        carousel.turn(0.5 * np.pi * step)
        print(f"  {90 * step:>3} degrees", " ".join(f"{x:7.3f}" for x in carousel.centre()))
    time_s = time_launches(carousel)
    print(f"\n{carousel.move_points}: {1e6 * time_s:.0f} us a launch")
    return worst


if __name__ == "__main__":
    main()
