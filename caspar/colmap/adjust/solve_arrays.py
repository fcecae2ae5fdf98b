"""A problem as a solver takes it, and its results put back.

Input: a `Problem`. Output: `SolveArrays`: factors, the arrays of a solve and what it holds. The
observations of a camera model are a factor, those of cameras that are not the reference sensors of
their rigs another. A few passes over the observations, once for an adjustment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caspar.cameras import MODELS_BY_ID, CameraModel
from caspar.colmap.adjust.factors import GROUPS, Form, lens_type, reprojection_factor
from caspar.colmap.adjust.observations import rotation_columns, used_rows
from caspar.colmap.adjust.options import LossFunction
from caspar.colmap.adjust.problem import Mask, Problem
from caspar.colmap.adjust.rig_structure import REFERENCE
from caspar.colmap.model import Floats, Integers
from caspar.frontend.factors.factor import Factor


@dataclass(frozen=True, eq=False)
class Values:
    """What an adjustment refines.

    Attributes:
        frames: (num_frames, 7) rig_from_world, qx qy qz qw tx ty tz.
        sensors: (num_sensors, 7) sensor_from_rig.
        parameters: Intrinsics of all cameras, flat.
        points: (num_points, 3).
    """

    frames: Floats
    sensors: Floats
    parameters: Floats
    points: Floats


@dataclass(eq=False)
class SolveArrays:
    """A problem as a solver takes it.

    Attributes:
        start: Start values of everything.
        factors: Factors with instances.
        arrays: As for `Solver.solve`.
        fixed: The same: components that are held, by node type.
        places: For each node type, which field of `Values` it comes from, and where.
        num_prior_residuals: Residuals of priors.
    """

    start: Values
    factors: list[Factor] = field(default_factory=list)
    arrays: dict[str, Any] = field(default_factory=dict)
    fixed: dict[str, Mask] = field(default_factory=dict)
    places: dict[str, tuple[str, Any]] = field(default_factory=dict)
    num_prior_residuals: int = 0

    def add_nodes(self, kind: str, target: str, places: Any, constant: Mask) -> None:
        """Take nodes from start values.

        Args:
            kind: Name of the node type.
            target: The field of `Values`.
            places: Where they are, an index of an (n, storage_dim) part.
            constant: (n,) nodes or (n, tangent_dim) components that are held.
        """
        self.arrays[kind] = getattr(self.start, target)[places]
        self.fixed[kind] = constant
        self.places[kind] = (target, places)

    def add_prior(self, prior: Factor, arguments: dict[str, Any], num_residuals: int) -> None:
        """Add a factor of what is known besides pixels."""
        self.factors.append(prior)
        self.arrays[prior.name] = arguments
        self.num_prior_residuals += num_residuals

    @property
    def camera_types(self) -> list[str]:
        """Node types but points: frames, sensors, lenses."""
        return [kind for kind in self.fixed if kind != "Point"]

    def values(self, solved: Mapping[str, Any]) -> Values:
        """Put solved nodes in their places.

        Args:
            solved: By node type, (n, storage_dim).

        Returns:
            All values; what is constant has the bits that it had.
        """
        arrays = {name: array.copy() for name, array in vars(self.start).items()}
        for kind, (target, places) in self.places.items():
            arrays[target][places] = np.asarray(solved[kind], dtype=np.float64)
        return Values(**arrays)


def solve_arrays(problem: Problem, loss: LossFunction, loss_scale: float) -> SolveArrays:
    """Make the arrays of a solve.

    Args:
        problem: What takes part, and what is constant.
        loss: The loss of each observation.
        loss_scale: Its scale in pixels.
    """
    model, seen = problem.model, problem.observations
    made = SolveArrays(
        Values(
            problem.frame_poses, problem.sensor_poses, model.cameras.parameters, model.points.xyz
        )
    )
    frames, points = used_rows(problem.frames), seen.used_points
    sensors = used_rows(problem.sensors[problem.sensors != REFERENCE])
    # Poses that are constant throughout are used as they are stored: see `ConstantPose`.
    has_constant_frames = bool(problem.constant_frames[frames].all())
    has_constant_sensors = bool(problem.constant_sensors[sensors].all())
    if not has_constant_frames:
        made.add_nodes("Frame", "frames", frames, problem.constant_frames[frames])
    if not has_constant_sensors:
        made.add_nodes("Sensor", "sensors", sensors, problem.constant_sensors[sensors])
    made.add_nodes("Point", "points", points, problem.constant_points[points])
    for camera_model, has_sensor, chosen in _factors(problem):
        form = Form(
            camera_model.name, has_sensor, has_constant_frames, has_sensor and has_constant_sensors
        )
        factor = reprojection_factor(form, loss)
        made.factors.append(factor)
        arguments = {
            "frame": _pose(
                problem.frame_poses, frames, problem.frames[chosen], has_constant_frames
            ),
            "lens": _lenses(made, problem, camera_model, seen.cameras[chosen]),
            "point": node_index(points, seen.points[chosen]),
            "pixel": problem.pixels[chosen],
        }
        if has_sensor:
            rows = problem.sensors[chosen]
            arguments["sensor"] = _pose(problem.sensor_poses, sensors, rows, has_constant_sensors)
        if loss is not LossFunction.TRIVIAL:
            arguments["loss_scale"] = loss_scale
        made.arrays[factor.name] = arguments
    return made


def _factors(problem: Problem) -> list[tuple[CameraModel, bool, Integers]]:
    """Return camera models, with and without sensors, and the observations of each."""
    model_ids = problem.model.cameras.model_ids[problem.observations.cameras]
    has_sensor = problem.sensors != REFERENCE
    keys = 2 * model_ids + has_sensor
    return [
        (MODELS_BY_ID[key // 2], bool(key % 2), np.flatnonzero(keys == key))
        for key in np.unique(keys).tolist()
    ]


def node_index(nodes: Integers, rows: Integers) -> Integers:
    """Return where each row stands among ascending rows that contain it."""
    places = np.zeros(int(nodes[-1]) + 1, np.int64)
    places[nodes] = np.arange(len(nodes))
    index: Integers = places[rows]
    return index


def _pose(poses: Floats, nodes: Integers, rows: Integers, is_constant: bool) -> Any:
    """Return indices of nodes, or constants: rotations column by column, and translations."""
    index = node_index(nodes, rows)
    if not is_constant:
        return index
    used = poses[nodes]
    values = np.concatenate([*rotation_columns(used), used[:, 4:]], axis=1)
    return {"values": values, "index": index}


def used_lenses(problem: Problem, camera_model: CameraModel) -> Integers:
    """Return rows of the cameras of a model that see points: those of all its factors."""
    lenses = used_rows(problem.observations.cameras)
    is_of_model = problem.model.cameras.model_ids[lenses] == camera_model.model_id
    found: Integers = lenses[is_of_model]
    return found


def _lenses(made: SolveArrays, problem: Problem, camera_model: CameraModel, rows: Integers) -> Any:
    """Return indices of nodes, which are added, or constants if there is nothing to refine."""
    cameras = problem.model.cameras
    kind = lens_type(camera_model.name)
    lenses = used_lenses(problem, camera_model)
    places = cameras.offsets[lenses, None] + np.arange(camera_model.num_parameters)
    index = node_index(lenses, rows)
    if kind is None:
        return {"values": cameras.parameters[places], "index": index}
    constant = np.zeros(places.shape, np.bool_)
    constant[problem.constant_cameras[lenses]] = True
    for name in GROUPS:
        if name not in problem.refined_intrinsics:
            constant[:, list(getattr(camera_model, name))] = True
    made.add_nodes(kind.__name__, "parameters", places, constant)
    return index
