"""Split a problem into factors in which constant values are constants, and put results back.

Input: a `Problem`. Output: a `Split`: factors and the arrays of a solve. Observations that have the
same things constant are one factor. A few passes over the observations, once for an adjustment.

This is the only place that knows how constant values are held.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from caspar.cameras import MODELS_BY_ID
from caspar.colmap.adjust.factors import (
    ALL_STEPS,
    NO_STEPS,
    Form,
    pose_columns,
    reprojection_factor,
)
from caspar.colmap.adjust.observations import camera_points, reprojections
from caspar.colmap.adjust.problem import Problem
from caspar.colmap.adjust.rig_structure import REFERENCE
from caspar.colmap.model import Floats, Integers
from caspar.frontend.factors.factor import Factor
from caspar.io.rotations import rotate

_STEP_BITS = 1 << np.arange(6)


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Where the instances of a node type are in the arrays of a problem.

    Attributes:
        target: A field of `Values`, or one of its matrices for constants.
        columns: Of each number of an instance.
        rows: (n,) rows of the instances; of parameters their first places.
    """

    target: str
    columns: list[int]
    rows: Integers


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

    @cached_property
    def frame_matrices(self) -> Floats:
        """(num_frames, 12) rotations column by column, then translations."""
        return _matrices(self.frames)

    @cached_property
    def sensor_matrices(self) -> Floats:
        """(num_sensors, 12) the same of sensors."""
        return _matrices(self.sensors)


def _matrices(poses: Floats) -> Floats:
    columns = [rotate(poses[:, :4], axis) for axis in np.eye(3)]
    return np.concatenate([*columns, poses[:, 4:]], axis=1)


@dataclass(eq=False)
class Split:
    """A problem as a solver takes it.

    Attributes:
        start: Start values of everything.
        factors: Factors with instances.
        arrays: As for `Solver.solve`.
        constant_cost: Cost of observations of which nothing is refined.
        nodes: Where node types come from.
    """

    start: Values
    factors: list[Factor] = field(default_factory=list)
    arrays: dict[str, Any] = field(default_factory=dict)
    constant_cost: float = 0.0
    nodes: dict[str, _Nodes] = field(default_factory=dict)

    def values(self, solved: Mapping[str, Any]) -> Values:
        """Put solved nodes in their places.

        Args:
            solved: By node type, (n, storage_dim).

        Returns:
            All values; what is constant has the bits that it had.
        """
        arrays = {one.name: getattr(self.start, one.name).copy() for one in fields(Values)}
        for name, nodes in self.nodes.items():
            places = _places(nodes)
            arrays[nodes.target][places] = np.asarray(solved[name], dtype=np.float64)
        return Values(**arrays)


def split(problem: Problem) -> Split:
    """Split a problem into factors."""
    model = problem.model
    start = Values(
        problem.frame_poses, problem.sensor_poses, model.cameras.parameters, model.points.xyz
    )
    made = Split(start)
    forms = _forms(problem)
    rows = [_rows(problem, form, chosen) for form, chosen in forms]
    for kind, nodes in _all_nodes(rows).items():
        made.nodes[kind] = nodes
        made.arrays[kind] = getattr(start, nodes.target)[_places(nodes)]
    for (form, chosen), arguments in zip(forms, rows, strict=True):
        if form.is_constant:
            made.constant_cost += _cost(problem, chosen)
            continue
        factor = reprojection_factor(form)
        made.factors.append(factor)
        made.arrays[factor.name] = {
            "pixel": problem.pixels[chosen],
            **{name: argument.given(made) for name, argument in arguments.items()},
        }
    return made


@dataclass(frozen=True, eq=False)
class _Argument:
    """An argument of a factor: a node type, or constants.

    Attributes:
        kind: Name of the node type; None: constants.
        target: As of `_Nodes`.
        columns: As of `_Nodes`.
        rows: (m,) rows, one for each instance of the factor.
    """

    kind: str | None
    target: str
    columns: list[int]
    rows: Integers

    def given(self, made: Split) -> Any:
        """What the solver takes for it."""
        if self.kind is not None:
            return np.searchsorted(made.nodes[self.kind].rows, self.rows)
        unique, index = np.unique(self.rows, return_inverse=True)
        places = _places(_Nodes(self.target, self.columns, unique))
        return {"values": getattr(made.start, self.target)[places], "index": index}


def _places(nodes: _Nodes) -> Any:
    """Where the numbers of nodes are: an index of an array."""
    if nodes.target == "parameters":
        return nodes.rows[:, None] + np.array(nodes.columns)
    return nodes.rows[:, None], np.array(nodes.columns)


def _forms(problem: Problem) -> list[tuple[Form, Integers]]:
    """Return the forms of the observations, each with the rows that have it."""
    seen, sensors = problem.observations, problem.sensors
    has_sensor = sensors != REFERENCE
    is_sensor_constant = np.ones(len(sensors), np.bool_)
    is_sensor_constant[has_sensor] = problem.constant_sensors[sensors[has_sensor]]
    keys = np.stack(
        [
            problem.model.cameras.model_ids[seen.cameras],
            problem.constant_cameras[seen.cameras],
            (problem.constant_frames @ _STEP_BITS)[problem.frames],
            has_sensor,
            is_sensor_constant,
            problem.constant_points[seen.points],
        ]
    )
    # one number for each: unique columns would be sorted slowly
    packed = np.ravel_multi_index(tuple(keys.astype(np.int64)), (1 << 8, 2, 1 << 6, 2, 2, 2))
    inverse = np.unique(packed, return_inverse=True)[1]
    order = np.argsort(inverse, kind="stable")
    chosen = np.split(order, np.cumsum(np.bincount(inverse))[:-1])
    first = keys[:, [rows[0] for rows in chosen]].T.tolist()
    return [(_form(problem, key), rows) for key, rows in zip(first, chosen, strict=True)]


def _form(problem: Problem, key: list[int]) -> Form:
    model_id, is_lens_constant, steps, has_sensor, is_sensor_constant, is_point_constant = key
    model = MODELS_BY_ID[model_id]
    refined = () if is_lens_constant else problem.refined_intrinsics
    return Form(
        camera_model=model.name,
        refined=tuple(name for name in refined if getattr(model, name)),
        constant_steps=tuple(bool(steps & bit) for bit in _STEP_BITS.tolist()),
        has_sensor=bool(has_sensor),
        is_sensor_constant=bool(is_sensor_constant),
        is_point_constant=bool(is_point_constant),
    )


def _rows(problem: Problem, form: Form, chosen: Integers) -> dict[str, _Argument]:
    """Return the arguments of a form, but for the pixels."""
    seen = problem.observations.part(chosen)
    frames, points = problem.frames[chosen], seen.points
    cameras = problem.model.cameras.offsets[seen.cameras]
    pose, matrix = list(range(7)), list(range(12))
    arguments: dict[str, _Argument] = {}
    if form.constant_steps != ALL_STEPS:
        columns = pose_columns(tuple(not is_constant for is_constant in form.constant_steps))
        arguments["frame"] = _Argument(form.frame_type.__name__, "frames", columns, frames)
    if form.constant_steps == ALL_STEPS:
        arguments["constant_frame"] = _Argument(None, "frame_matrices", matrix, frames)
    elif form.constant_steps != NO_STEPS:
        columns = pose_columns(form.constant_steps)
        arguments["constant_frame"] = _Argument(None, "frames", columns, frames)
    if form.has_sensor:
        rows = problem.sensors[chosen]
        arguments["sensor"] = (
            _Argument(None, "sensor_matrices", matrix, rows)
            if form.is_sensor_constant
            else _Argument("Sensor", "sensors", pose, rows)
        )
    if form.refined:
        kind = form.lens_type.__name__
        arguments["lens"] = _Argument(kind, "parameters", form.refined_places, cameras)
    if form.constant_places:
        columns = form.constant_places
        arguments["constant_lens"] = _Argument(None, "parameters", columns, cameras)
    kind = None if form.is_point_constant else "Point"
    arguments["point"] = _Argument(kind, "points", [0, 1, 2], points)
    return arguments


def _all_nodes(rows: list[dict[str, _Argument]]) -> dict[str, _Nodes]:
    """Return all node types, each with the rows that any factor touches."""
    found: dict[str, list[_Argument]] = {}
    for arguments in rows:
        for argument in arguments.values():
            if argument.kind is not None:
                found.setdefault(argument.kind, []).append(argument)
    return {
        kind: _Nodes(
            ones[0].target, ones[0].columns, np.unique(np.concatenate([one.rows for one in ones]))
        )
        for kind, ones in found.items()
    }


def _cost(problem: Problem, chosen: Integers) -> float:
    """Cost of some observations at the start values; those that no camera can see are zero."""
    seen = problem.observations.part(chosen)
    poses = problem.frame_poses[problem.frames[chosen]]
    points = camera_points(poses, problem.model.points.xyz[seen.points])
    sensors = problem.sensors[chosen]
    has_sensor = sensors != REFERENCE
    sensor_poses = problem.sensor_poses[sensors[has_sensor]]
    points[has_sensor] = camera_points(sensor_poses, points[has_sensor])
    cameras = problem.model.cameras
    differences = reprojections(cameras, seen.cameras, points, problem.pixels[chosen])
    return 0.5 * float(np.nansum(differences**2))
