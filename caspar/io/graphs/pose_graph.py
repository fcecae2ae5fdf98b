"""`PoseGraph`: poses, landmarks, and what was measured of them, as plain arrays.

What the file formats have in common, in one convention. Nothing is computed here.

**Order of rows and columns.** The root of an information matrix has the *translation first, then
the rotation*, as g2o. With ``delta = inverse(measurement) * inverse(a) * b``, the whitened residual
of an edge is ``sqrt_information @ error``, where ``error`` is

* SE3: ``[delta.t.x, delta.t.y, delta.t.z, delta.q.x, delta.q.y, delta.q.z]`` with ``delta.q.w``
  made non-negative: the quaternion's vector part, for small errors *half* the rotation vector;
* SE2: ``[delta.t.x, delta.t.y, angle of delta]``, the angle from -pi to pi.

g2o prints chi2, the sum of squares of these; caspar's cost is half of it. SymForce's tangent
space has the rotation first: a residual that lists the rotation first takes
``sqrt_information[:, :, [3, 4, 5, 0, 1, 2]]`` (SE3) or ``sqrt_information[:, :, [2, 0, 1]]``
(SE2), a square root of the same information, though no longer triangular. If it has the rotation
vector instead of the quaternion's vector part, halve the three rotation columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray


class PoseGraphKind(Enum):
    """The group that the poses of a graph belong to; the value is its name in g2o's tags."""

    SE2 = "SE2"
    SE3 = "SE3:QUAT"

    @property
    def storage_dim(self) -> int:
        """Numbers that store a pose: 4 in the plane, 7 in space."""
        return 4 if self is PoseGraphKind.SE2 else 7

    @property
    def tangent_dim(self) -> int:
        """Degrees of freedom of a pose: 3 in the plane, 6 in space."""
        return 3 if self is PoseGraphKind.SE2 else 6

    @property
    def dim(self) -> int:
        """Coordinates of a point: 2 in the plane, 3 in space."""
        return 2 if self is PoseGraphKind.SE2 else 3

    @property
    def identity(self) -> tuple[float, ...]:
        """The pose that moves nothing, in storage order."""
        if self is PoseGraphKind.SE2:
            return (1.0, 0.0, 0.0, 0.0)
        return (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)


Floats = NDArray[np.float64]
Indices = NDArray[np.int32]


@dataclass(frozen=True, eq=False, repr=False)
class Landmarks:
    """Points that were seen from poses.

    Attributes:
        ids: (n,) int64, the number that the file gives each landmark.
        points: (n, dim) float64, world coordinates; dim is 2 in the plane, 3 in space.
        fixed: (n,) bool, True where a FIX line names the landmark.
    """

    ids: NDArray[np.int64]
    points: Floats
    fixed: NDArray[np.bool_]


@dataclass(frozen=True, eq=False, repr=False)
class SensorEdges:
    """Motions between sensors of two poses, such as the cameras of a rig.

    The sensors are at ``a * offset_a`` and ``b * offset_b``; the error is that of an edge between
    these.

    Attributes:
        index_a: (n,) int32, the row of `PoseGraph.poses` where each edge begins.
        index_b: (n,) int32, the row of `PoseGraph.poses` where each edge ends.
        offset_a: (n, storage_dim) float64, a_T_sensor.
        offset_b: (n, storage_dim) float64, b_T_sensor.
        measurement: (n, storage_dim) float64, the motion from sensor to sensor.
        sqrt_information: (n, tangent_dim, tangent_dim) float64, upper triangular.
    """

    index_a: Indices
    index_b: Indices
    offset_a: Floats
    offset_b: Floats
    measurement: Floats
    sqrt_information: Floats

    @property
    def ends(self) -> Indices:
        """(n, 2) rows of both poses."""
        return np.stack([self.index_a, self.index_b], axis=1)


@dataclass(frozen=True, eq=False, repr=False)
class Sightings:
    """Landmarks as sensors saw them.

    A sensor is at ``world_T_pose * offset``. The error is what the sensor should have seen, less
    the measurement; of an angle it is brought into -pi to pi.

    Attributes:
        pose: (n,) int32, rows of `PoseGraph.poses`.
        landmark: (n,) int32, rows of `Landmarks.points`.
        offset: (n, storage_dim) float64, pose_T_sensor; the identity if the file has none.
        measurement: (n, dim) float64, the landmark in the sensor's axes; of bearings (n, 1), the
            angle from the x axis in radians.
        sqrt_information: (n, dim, dim) float64, upper triangular; (n, 1, 1) of bearings.
    """

    pose: Indices
    landmark: Indices
    offset: Floats
    measurement: Floats
    sqrt_information: Floats


@dataclass(frozen=True, eq=False, repr=False)
class Priors:
    """Priors on single poses or landmarks.

    Attributes:
        index: (n,) int32, rows of `PoseGraph.poses` or `Landmarks.points`.
        offset: (n, storage_dim) float64, pose_T_sensor; the identity if the measurement is not
            a pose.
        measurement: (n, storage_dim) world_T_sensor, or (n, dim) world coordinates.
        sqrt_information: (n, tangent_dim, tangent_dim) or (n, dim, dim) float64, upper triangular.
    """

    index: Indices
    offset: Floats
    measurement: Floats
    sqrt_information: Floats


@dataclass(frozen=True, eq=False, repr=False)
class PoseGraph:
    """Poses, and measurements between pairs of them; perhaps landmarks and priors.

    In space (SE3) storage_dim is 7, tangent_dim 6 and dim 3, in the plane (SE2) they are 4, 3
    and 2. Poses and measurements are stored as SymForce does: ``Pose3`` qx qy qz qw tx ty tz (unit
    quaternion), ``Pose2`` cos sin x y. Roots of information are W with transpose(W) @ W =
    information, in the order that the module's text explains.

    Attributes:
        kind: SE2 or SE3.
        ids: (num_poses,) int64, the vertex number that the file gives each pose.
        poses: (num_poses, storage_dim) float64, world_T_pose, the start of the optimisation.
        fixed: (num_poses,) bool, True where a FIX line names the pose. Often none is: then the
            position of the whole graph is free.
        index_a: (num_edges,) int32, the row of `poses` where each edge begins.
        index_b: (num_edges,) int32, the row of `poses` where each edge ends.
        measurement: (num_edges, storage_dim) float64, measured a_T_b.
        sqrt_information: (num_edges, tangent_dim, tangent_dim) float64, upper triangular.
        poses_from_edges: True if the file has no vertices and `poses` were chained along edges.
        skipped: how many lines of each unknown kind were passed over, by their tag.
        landmarks: points that were seen from poses.
        sensor_edges: motions between sensors of poses.
        sightings: positions of landmarks in the axes of sensors.
        bearings: directions of landmarks; only in the plane.
        pose_priors: poses of sensors in the world. The error is that of an edge from the world to
            the sensor.
        position_priors: positions of poses in the world, such as GPS. The error is the position
            less the measurement, in world axes.
        landmark_priors: positions of landmarks in the world.
    """

    kind: PoseGraphKind
    ids: NDArray[np.int64]
    poses: Floats
    fixed: NDArray[np.bool_]
    index_a: Indices
    index_b: Indices
    measurement: Floats
    sqrt_information: Floats
    poses_from_edges: bool
    skipped: Mapping[str, int] = field(default_factory=dict)
    landmarks: Landmarks = field(default_factory=lambda: no_landmarks(0))
    sensor_edges: SensorEdges = field(default_factory=lambda: no_sensor_edges(0, 0))
    sightings: Sightings = field(default_factory=lambda: no_sightings(0, 0))
    bearings: Sightings = field(default_factory=lambda: no_sightings(0, 1))
    pose_priors: Priors = field(default_factory=lambda: no_priors(0, 0, 0))
    position_priors: Priors = field(default_factory=lambda: no_priors(0, 0, 0))
    landmark_priors: Priors = field(default_factory=lambda: no_priors(0, 0, 0))

    def __post_init__(self) -> None:
        """Give groups that have nothing in them the shapes of the graph's kind."""
        dim, tangent_dim = self.kind.dim, self.kind.tangent_dim
        storage_dim = self.kind.storage_dim
        nothing = {
            "landmarks": no_landmarks(dim),
            "sensor_edges": no_sensor_edges(storage_dim, tangent_dim),
            "sightings": no_sightings(storage_dim, dim),
            "bearings": no_sightings(storage_dim, 1),
            "pose_priors": no_priors(storage_dim, storage_dim, tangent_dim),
            "position_priors": no_priors(storage_dim, dim, dim),
            "landmark_priors": no_priors(storage_dim, dim, dim),
        }
        counts = self.counts()
        for name, empty in nothing.items():
            if name.replace("_", " ") not in counts:
                object.__setattr__(self, name, empty)

    @property
    def num_poses(self) -> int:
        """Number of poses."""
        return int(self.poses.shape[0])

    @property
    def num_edges(self) -> int:
        """Number of edges between poses."""
        return int(self.measurement.shape[0])

    @property
    def num_landmarks(self) -> int:
        """Number of landmarks."""
        return int(self.landmarks.points.shape[0])

    def counts(self) -> dict[str, int]:
        """Number of poses, edges, landmarks, and so on, by name; what there is none of is left out.

        Poses and edges are always there.
        """
        found = {
            "poses": self.num_poses,
            "edges": self.num_edges,
            "sensor edges": len(self.sensor_edges.index_a),
            "landmarks": self.num_landmarks,
            "sightings": len(self.sightings.pose),
            "bearings": len(self.bearings.pose),
            "pose priors": len(self.pose_priors.index),
            "position priors": len(self.position_priors.index),
            "landmark priors": len(self.landmark_priors.index),
        }
        return {
            name: count for name, count in found.items() if count > 0 or name in ("poses", "edges")
        }

    def __repr__(self) -> str:
        """Return kind and sizes; the arrays are too large to be shown."""
        sizes = ", ".join(f"{count} {name}" for name, count in self.counts().items())
        return f"PoseGraph({self.kind.name}, {sizes})"


def no_landmarks(dim: int) -> Landmarks:
    """Return landmarks of a graph that has none."""
    return Landmarks(np.empty(0, np.int64), np.empty((0, dim)), np.empty(0, np.bool_))


def no_sensor_edges(storage_dim: int, tangent_dim: int) -> SensorEdges:
    """Return edges between sensors of a graph that has none."""
    none, poses = np.empty(0, np.int32), np.empty((0, storage_dim))
    return SensorEdges(none, none, poses, poses, poses, np.empty((0, tangent_dim, tangent_dim)))


def no_sightings(storage_dim: int, dim: int) -> Sightings:
    """Return sightings of a graph that has none."""
    none = np.empty(0, np.int32)
    return Sightings(
        none, none, np.empty((0, storage_dim)), np.empty((0, dim)), np.empty((0, dim, dim))
    )


def no_priors(storage_dim: int, measured_dim: int, dim: int) -> Priors:
    """Return priors of a graph that has none."""
    return Priors(
        np.empty(0, np.int32),
        np.empty((0, storage_dim)),
        np.empty((0, measured_dim)),
        np.empty((0, dim, dim)),
    )
