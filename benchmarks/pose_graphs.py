"""Pose graphs of g2o files, and an optimum by another program: SciPy's sparse factorisation.

The residual of an edge is, weighted by the square root of its information, the translation and the
rotation vector of measured^-1 start^-1 end, as in `examples/pose_graph_3d.py`. The first pose is
held by a prior, whose residual is zero at the optimum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from caspar.io import PoseGraph, read_g2o
from caspar.io.graphs.pose_graph import PoseGraphKind
from examples.pose_graph_3d import FACTORS

Float = NDArray[np.float64]

OPTIMA = {
    "smallGrid3D": 231.24126510974864,
    "M3500": 68.95647546801999,
    "sphere2500": 363.61942588392947,
    "parking-garage": 0.6193452989166,
    "kitti_05": 78.55218253855122,
}
"""What `GraphProblem.optimum_near` reaches from the poses of the file, or of `read_g2o`'s tree."""
DATA = Path(__file__).parents[1] / "data"
STEP = 1e-6
"""Of central differences, in metres and radians."""


class PlanarPose(sf.Pose2):
    """Takes body to world coordinates. In storage cos sin x y."""


@caspar.factor
def planar_odometry(
    start: Annotated[PlanarPose, caspar.TunableShared],
    end: Annotated[PlanarPose, caspar.TunableShared],
    motion: Annotated[sf.Pose2, caspar.ConstSequential],
    sqrt_information: Annotated[sf.M33, caspar.ConstSequential],
) -> sf.V3:
    """The motion from start to end against the measured one: translation, then angle."""
    error = motion.inverse() * start.inverse() * end
    return sqrt_information * sf.V3(*error.t, *error.R.to_tangent())


@caspar.factor
def planar_prior(
    pose: Annotated[PlanarPose, caspar.TunableShared],
    expected: Annotated[PlanarPose, caspar.ConstSequential],
) -> sf.V3:
    """Hold a pose where it is."""
    return 1000.0 * sf.V3(*expected.local_coordinates(pose))


@dataclass(frozen=True, eq=False)
class GraphProblem:
    """A pose graph to solve.

    Attributes:
        name: As in the tables.
        graph: As read.
        weights: (num_edges, d, d) square roots of the information of translation and rotation
            vector.
    """

    name: str
    graph: PoseGraph
    weights: Float

    @property
    def num_observations(self) -> int:
        """Edges."""
        return len(self.graph.index_a)

    @property
    def num_reduced(self) -> int:
        """Poses."""
        return len(self.graph.poses)

    @property
    def is_planar(self) -> bool:
        """Whether poses are of SE2."""
        return int(self.graph.poses.shape[1]) == 4

    @property
    def factors(self) -> Sequence[Any]:
        """For `Solver`."""
        return (planar_odometry, planar_prior) if self.is_planar else FACTORS

    @property
    def arrays(self) -> dict[str, Any]:
        """For `Solver.solve`."""
        planar = "planar_" if self.is_planar else ""
        return {
            "PlanarPose" if self.is_planar else "Pose": self.graph.poses,
            f"{planar}odometry": {
                "start": self.graph.index_a,
                "end": self.graph.index_b,
                "motion": self.graph.measurement,
                "sqrt_information": self.weights,
            },
            f"{planar}prior": {"pose": [0], "expected": self.graph.poses[:1]},
        }

    def cost_of(self, values: Mapping[str, Any], library: ModuleType) -> float:
        """1/2 sum r^2 of the edges, in float64, on the processor."""
        del library
        poses = np.asarray(values["PlanarPose" if self.is_planar else "Pose"], dtype=np.float64)
        residuals = self._residuals(poses[self.graph.index_a], poses[self.graph.index_b])
        return 0.5 * float((residuals**2).sum())

    def _residuals(self, start: Float, end: Float) -> Float:
        compose, invert, vector = (
            (_compose2, _invert2, _vector2) if self.is_planar else (_compose3, _invert3, _vector3)
        )
        error = compose(invert(self.graph.measurement), compose(invert(start), end))
        weighted: Float = np.einsum("nij,nj->ni", self.weights, vector(error))
        return weighted

    def optimum_near(self, poses: Float, iterations: int = 50) -> float:
        """The cost to which damped Gauss-Newton steps lead, each solved exactly, in float64."""
        dim = 3 if self.is_planar else 6
        moved = _moved2 if self.is_planar else _moved3
        start, end = self.graph.index_a, self.graph.index_b
        residual = self._residuals(poses[start], poses[end])
        cost, damping = 0.5 * float((residual**2).sum()), 1e-6
        for _ in range(iterations):
            jacobian = self._jacobian(poses)
            # the first pose is held: its columns are left out
            normal = (jacobian.T @ jacobian).tocsc()[dim:, dim:]
            gradient = (jacobian.T @ residual.ravel())[dim:]
            scaled = scipy.sparse.diags(damping * normal.diagonal())
            step = -scipy.sparse.linalg.spsolve(normal + scaled, gradient)
            tried = moved(poses, np.concatenate([np.zeros(dim), step]).reshape(-1, dim))
            new = self._residuals(tried[start], tried[end])
            new_cost = 0.5 * float((new**2).sum())
            if new_cost >= cost:
                if -float(gradient @ step) < 1e-12 * cost:
                    break
                damping *= 10.0
                continue
            settled = cost - new_cost < 1e-13 * cost
            poses, residual, cost, damping = tried, new, new_cost, max(damping / 10.0, 1e-14)
            if settled:
                break
        return cost

    def _jacobian(self, poses: Float) -> Any:
        """Sparse (rows, unknowns), by central differences."""
        dim = 3 if self.is_planar else 6
        moved = _moved2 if self.is_planar else _moved3
        edges = len(self.graph.index_a)
        rows = np.arange(edges * dim).reshape(edges, dim)
        data, row, column = [], [], []
        for ends in (0, 1):
            at = [self.graph.index_a, self.graph.index_b]
            for axis in range(dim):
                sides = []
                for sign in (1.0, -1.0):
                    pair = [poses[at[0]], poses[at[1]]]
                    change = np.zeros((edges, dim))
                    change[:, axis] = sign * STEP
                    pair[ends] = moved(pair[ends], change)
                    sides.append(self._residuals(*pair))
                data.append((sides[0] - sides[1]) / (2.0 * STEP))
                row.append(rows)
                column.append(np.broadcast_to(dim * at[ends][:, None] + axis, rows.shape))
        entries = (np.concatenate([np.ravel(one) for one in part]) for part in (data, row, column))
        values, where, which = entries
        return scipy.sparse.csr_matrix(
            (values, (where, which)), shape=(edges * dim, len(poses) * dim)
        )


def read(name: str, folders: Sequence[Path]) -> GraphProblem:
    """The graph from the first folder that has its file.

    Raises:
        FileNotFoundError: None has.
    """
    for folder in folders:
        path = folder / f"{name}.g2o.bz2"
        if path.exists():
            graph = read_g2o(path)
            weights = np.array(graph.sqrt_information)
            if graph.poses.shape[1] == 7:
                weights[:, :, 3:] *= 0.5  # g2o has the quaternion's vector part
            return GraphProblem(name, graph, weights)
    listed = ", ".join(map(str, folders))
    raise FileNotFoundError(f"{name}.g2o.bz2 is in none of: {listed}")


def torus(
    rings: int = 100, poses_of_ring: int = 50, *, seed: int = 0, noise: float = 0.05
) -> GraphProblem:
    """A robot that winds round a torus, in the manner of g2o's torus3D.

    Each pose sees the next one, and four of five see one of the next ring, at most three places off
    their own. The last ring sees the first.

    Args:
        rings: Turns about the tube.
        poses_of_ring: Poses of one turn.
        seed: Of noise and closures.
        noise: Standard deviation of measurements, in metres and radians. Start values drift by a
            tenth of it from pose to pose.
    """
    rng = np.random.default_rng(seed)
    count = rings * poses_of_ring
    number = np.arange(count)
    poses = _round_torus(2.0 * np.pi * number / count, 2.0 * np.pi * number / poses_of_ring)
    beside = (number + poses_of_ring + rng.integers(-3, 4, count)) % count
    closes = (rng.random(count) < 0.8) & (np.abs(beside - number) > 1)
    start = np.concatenate([number[:-1], number[closes]])
    end = np.concatenate([number[1:], beside[closes]])
    motion = _compose3(_invert3(poses[start]), poses[end])
    measured = _moved3(motion, noise * rng.standard_normal((len(start), 6)))
    begin = _moved3(poses, np.cumsum(0.1 * noise * rng.standard_normal((count, 6)), axis=0))
    weights = np.broadcast_to(np.eye(6) / noise, (len(start), 6, 6)).copy()
    graph = PoseGraph(
        kind=PoseGraphKind.SE3,
        ids=number,
        poses=begin,
        fixed=np.zeros(count, dtype=bool),
        index_a=start.astype(np.int32),
        index_b=end.astype(np.int32),
        measurement=measured,
        sqrt_information=weights,
        poses_from_edges=False,
    )
    return GraphProblem(f"torus {count}", graph, weights)


def _round_torus(along: Float, around: Float) -> Float:
    """Poses (n, 7) that look along their path and have the surface below them."""
    out = np.stack(
        [np.cos(around) * np.cos(along), np.cos(around) * np.sin(along), np.sin(around)], axis=1
    )
    centre = np.stack([np.cos(along), np.sin(along), np.zeros_like(along)], axis=1)
    position = 10.0 * centre + 3.0 * out
    ahead = np.gradient(position, axis=0)
    ahead /= np.linalg.norm(ahead, axis=1, keepdims=True)
    up = out - ahead * (out * ahead).sum(axis=1, keepdims=True)
    up /= np.linalg.norm(up, axis=1, keepdims=True)
    axes = np.stack([ahead, np.cross(up, ahead), up], axis=2)
    return np.hstack([Rotation.from_matrix(axes).as_quat(), position])


def _compose3(one: Float, other: Float) -> Float:
    turn = Rotation.from_quat(one[:, :4])
    rotation = (turn * Rotation.from_quat(other[:, :4])).as_quat()
    return np.hstack([rotation, one[:, 4:] + turn.apply(other[:, 4:])])


def _invert3(pose: Float) -> Float:
    back = Rotation.from_quat(pose[:, :4]).inv()
    return np.hstack([back.as_quat(), -back.apply(pose[:, 4:])])


def _vector3(pose: Float) -> Float:
    return np.hstack([pose[:, 4:], Rotation.from_quat(pose[:, :4]).as_rotvec()])


def _moved3(pose: Float, step: Float) -> Float:
    change = np.hstack([Rotation.from_rotvec(step[:, 3:]).as_quat(), step[:, :3]])
    return _compose3(pose, change)


def _turned(cos_sin: Float, vector: Float) -> Float:
    cosine, sine = cos_sin[:, :1], cos_sin[:, 1:2]
    x, y = vector[:, :1], vector[:, 1:2]
    return np.hstack([cosine * x - sine * y, sine * x + cosine * y])


def _compose2(one: Float, other: Float) -> Float:
    rotation = _turned(one[:, :2], other[:, :2])
    return np.hstack([rotation, one[:, 2:] + _turned(one[:, :2], other[:, 2:])])


def _invert2(pose: Float) -> Float:
    back = pose[:, :2] * np.array([1.0, -1.0])
    return np.hstack([back, -_turned(back, pose[:, 2:])])


def _vector2(pose: Float) -> Float:
    return np.hstack([pose[:, 2:], np.arctan2(pose[:, 1:2], pose[:, :1])])


def _moved2(pose: Float, step: Float) -> Float:
    angle = step[:, 2:]
    return _compose2(pose, np.hstack([np.cos(angle), np.sin(angle), step[:, :2]]))
