"""Covariances of an adjusted model: how well pixels and priors determine poses, lenses and points.

Input: a model and what was asked of its adjustment. Output: a `Covariance`. One factorisation, of
the size of a step of the solve.

A pose's step is a turn in radians and a shift, both in the axes of the target: R becomes
exp(turn) R, and t becomes t + shift. COLMAP and Ceres have the same order; their turns are half as
large, as they step in the entries of the quaternion.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caspar.cameras import MODELS_BY_ID
from caspar.colmap.adjust.factors import NO_PARAMETER, lens_type
from caspar.colmap.adjust.observations import rotation_columns
from caspar.colmap.adjust.rig_structure import REFERENCE
from caspar.colmap.adjust.solving import solver_for
from caspar.colmap.arguments import model_given, request_given
from caspar.colmap.model import Floats, Integers
from caspar.colmap.prepare import Prepared, prepare
from caspar.colmap.priors.priors import IntrinsicsPrior
from caspar.errors import InputError
from caspar.options import GaugeName


@dataclass(frozen=True, eq=False)
class Covariance:
    """Covariances of poses, intrinsics and points, marginal over everything else that is refined.

    Made by `caspar.colmap.covariance`. What is constant has a covariance of zero.

    Attributes:
        estimate: The same by node types; see `caspar.Solver.covariance`.
    """

    estimate: Any
    _prepared: Prepared = field(repr=False)

    def rig_from_world(self, frame_id: int) -> Floats:
        """(6, 6) of the pose of a frame, without frames of an image: turn in radians, then shift.

        Raises:
            InputError: There is no such frame, or it was not asked for.
        """
        structure = self._prepared.problem.structure
        return self._frame(_row("frame", structure.frame_ids, frame_id))

    def sensor_from_rig(self, camera_id: int) -> Floats:
        """(6, 6) of the pose of a camera in its rig: turn in radians, then shift.

        Raises:
            InputError: There is no such camera in a rig.
        """
        structure = self._prepared.problem.structure
        return self._sensor(_row("sensor", structure.sensor_cameras, camera_id))

    def cam_from_world(self, image_id: int) -> Floats:
        """(6, 6) of the pose of an image: turn in radians, then shift, in camera coordinates.

        Raises:
            InputError: There is no such image, or it was not asked for.
        """
        problem = self._prepared.problem
        row = _row("image", problem.model.images.ids, image_id)
        frame, sensor = (int(part[row]) for part in _frames_and_sensors(self._prepared))
        if sensor == REFERENCE:
            return self._frame(frame)
        # cam = sensor * rig: turns and shifts of the rig, seen in the camera's axes
        turn = _rotation(problem.sensor_poses[sensor])
        by_frame = _diagonal(turn, turn)
        arm = turn @ problem.frame_poses[frame, 4:]
        by_sensor = np.eye(6)
        by_sensor[3:, :3] = -_cross_matrix(arm)
        cross = by_frame @ self._between(frame, sensor) @ by_sensor.T
        total: Floats = by_frame @ self._frame(frame) @ by_frame.T
        total = total + by_sensor @ self._sensor(sensor) @ by_sensor.T + cross + cross.T
        return total

    def intrinsics(self, camera_id: int) -> Floats:
        """(k, k) of the parameters of a camera, in the order of its model.

        Raises:
            InputError: There is no such camera, or it was not asked for.
        """
        cameras = self._prepared.problem.model.cameras
        row = _row("camera", cameras.ids, camera_id)
        model = MODELS_BY_ID[int(cameras.model_ids[row])]
        total: Floats = np.zeros((model.num_parameters, model.num_parameters))
        lens = self._prepared.parts.lenses.get(int(cameras.model_ids[row]))
        kind = None if lens is None else lens_type(lens)
        if lens is None or kind is None:
            return total
        block = self._block(kind.__name__, int(cameras.offsets[row]), "camera", camera_id)
        places = np.array(lens.columns(model))
        own = np.flatnonzero(places != NO_PARAMETER)
        total[np.ix_(places[own], places[own])] = block[np.ix_(own, own)]
        return total

    def point(self, point_id: int) -> Floats:
        """(3, 3) of a point in world coordinates.

        Raises:
            InputError: There is no such point, or it was not asked for.
        """
        row = _row("point", self._prepared.problem.model.points.ids, point_id)
        return self._block("Point", row, "point", point_id)

    def _frame(self, row: int) -> Floats:
        if "Frame" not in self._prepared.parts.places:
            return np.zeros((6, 6))
        ids = self._prepared.problem.structure.frame_ids
        block = self._block("Frame", row, "frame", int(ids[row]))
        return _turned(block, self._prepared.problem.frame_poses[row])

    def _sensor(self, row: int) -> Floats:
        if "Sensor" not in self._prepared.parts.places:
            return np.zeros((6, 6))
        structure = self._prepared.problem.structure
        if row not in self._prepared.parts.rows("Sensor"):  # reference sensors, and unused ones
            return np.zeros((6, 6))
        block = self._block("Sensor", row, "sensor", int(structure.sensor_cameras[row]))
        return _turned(block, self._prepared.problem.sensor_poses[row])

    def _between(self, frame: int, sensor: int) -> Floats:
        parts, problem = self._prepared.parts, self._prepared.problem
        if "Frame" not in parts.places or "Sensor" not in parts.places:
            return np.zeros((6, 6))
        places = _place(parts.rows("Frame"), frame), _place(parts.rows("Sensor"), sensor)
        block = np.asarray(self.estimate.cross("Frame", places[0], "Sensor", places[1]))
        left, right = (
            _diagonal(_rotation(pose), np.eye(3))
            for pose in (problem.frame_poses[frame], problem.sensor_poses[sensor])
        )
        turned: Floats = left @ block @ right.T
        return turned

    def _block(self, kind: str, row: int, name: str, number: int) -> Floats:
        rows = self._prepared.parts.rows(kind)
        first = None if rows is None else rows if rows.ndim == 1 else rows[:, 0]
        known = self.estimate.instances.get(kind, np.empty(0, np.int64))
        place = -1 if first is None else _place(first, row)
        found = np.flatnonzero(known == place)
        if place < 0 or len(found) == 0:
            raise InputError(
                f"{name} {number}: it takes no part, or its covariance was not asked for; name it "
                "in caspar.colmap.covariance(...)"
            )
        block: Floats = np.asarray(self.estimate[kind][int(found[0])], np.float64)
        return block


def covariance(
    model: Any,
    options: Any = None,
    config: Any = None,
    *,
    images: Iterable[int] | None = None,
    cameras: Iterable[int] | None = None,
    points: Iterable[int] = (),
    pose_priors: Any = None,
    pose_prior_options: Any = None,
    intrinsics_priors: Mapping[int, IntrinsicsPrior] | None = None,
    gauge: GaugeName | None = None,
) -> Covariance:
    """Find covariances of an adjusted model, at its values.

    Residuals are taken to have a standard deviation of 1 pixel, divided by their loss. Pass what
    the adjustment got: what was constant there is known exactly here, such as the two cameras that
    hold the gauge.

    Args:
        model: As of `bundle_adjustment`; mostly `summary.model`.
        options: The same.
        config: The same.
        images: Ids of images whose poses are asked for, with those of their frames and sensors.
            None: all.
        cameras: Ids of cameras whose intrinsics are. None: all.
        points: Ids of points.
        pose_priors: As of `bundle_adjustment`; the model is not aligned again.
        pose_prior_options: The same.
        intrinsics_priors: The same.
        gauge: As of `caspar.Solver.covariance`: `minimum_norm` if nothing holds the gauge.

    Raises:
        InputError: As of `bundle_adjustment`; or an id that takes no part.
        RankDeficiencyError: Residuals do not determine what is asked for.
    """
    request = request_given(options, config, pose_priors, pose_prior_options, intrinsics_priors)
    prepared = prepare(model_given(model), request, merges_views=False, aligns=False)
    problem, parts = prepared.problem, prepared.parts
    all_frames, all_sensors = _frames_and_sensors(prepared)
    ids = problem.model.images.ids
    wanted = np.arange(len(ids)) if images is None else _rows("image", ids, images)
    frames, sensors = np.unique(all_frames[wanted]), np.unique(all_sensors[wanted])
    asked = {
        "Frame": _asked(parts.rows("Frame"), frames),
        "Sensor": _asked(parts.rows("Sensor"), sensors),
        "Point": _asked(parts.rows("Point"), _rows("point", problem.model.points.ids, points)),
    }
    rows = problem.model.cameras
    lenses = np.arange(len(rows.ids)) if cameras is None else _rows("camera", rows.ids, cameras)
    for kind in parts.places:
        if kind.startswith("Lens_"):
            asked[kind] = _asked(parts.rows(kind)[:, 0], rows.offsets[lenses])
    solver = solver_for(tuple(parts.factors), request.options)
    try:
        blocks = {kind: places for kind, places in asked.items() if len(places) > 0}
        estimate = solver.covariance(parts.arrays, blocks, fixed=parts.held, gauge=gauge)
    finally:
        solver.release()
    return Covariance(estimate, prepared)


def _frames_and_sensors(prepared: Prepared) -> tuple[Integers, Integers]:
    structure = prepared.problem.structure
    return structure.frames, structure.sensors


def _asked(nodes: Any, rows: Integers) -> Integers:
    if nodes is None:
        return np.empty(0, np.int64)
    places: Integers = np.flatnonzero(np.isin(nodes, rows))
    return places


def _rows(name: str, ids: Integers, wanted: Iterable[int]) -> Integers:
    return np.array([_row(name, ids, number) for number in wanted], np.int64)


def _row(name: str, ids: Integers, number: int) -> int:
    place = _place(ids, number)
    if place < 0:
        raise InputError(f"the model has no {name} {number}")
    return place


def _place(rows: Integers, row: int) -> int:
    found = np.flatnonzero(rows == row)
    return int(found[0]) if len(found) > 0 else -1


def _rotation(pose: Floats) -> Floats:
    rotation: Floats = np.stack(rotation_columns(pose[None]), axis=2)[0]
    return rotation


def _diagonal(first: Floats, second: Floats) -> Floats:
    made = np.zeros((6, 6))
    made[:3, :3], made[3:, 3:] = first, second
    return made


def _turned(block: Floats, pose: Floats) -> Floats:
    """Return a pose's block with turns in the axes of the target: caspar's are in the source's."""
    by_turn = _diagonal(_rotation(pose), np.eye(3))
    turned: Floats = by_turn @ block @ by_turn.T
    return turned


def _cross_matrix(vector: Floats) -> Floats:
    x, y, z = vector
    return np.array([[0, -z, y], [z, 0, -x], [-y, x, 0.0]])
