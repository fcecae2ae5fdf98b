"""Priors as a solver takes them, and the model moved to where they say it is.

Input: a `Model` and its priors: positions of cameras, gravity, intrinsics. Output: the model, moved
by a `Similarity`, and more factors in `SolveArrays`. A few passes over the images, once for an
adjustment.

The similarity of the least squares is that of Umeyama (IEEE TPAMI 13(4), 1991); cameras that do
not fit are left out by RANSAC (Fischler and Bolles, 1981), whose samples are the same in each run.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf

from caspar.cameras import MODELS, MODELS_BY_ID
from caspar.colmap.adjust.factors import (
    GROUPS,
    LOSSES,
    ConstantPose,
    Frame,
    Sensor,
    lens_type,
    plain_lens,
    used_lenses,
)
from caspar.colmap.adjust.observations import TO_XYZW, rotation_columns
from caspar.colmap.adjust.options import BundleAdjustmentConfig, LossFunction
from caspar.colmap.adjust.problem import Mask, Problem
from caspar.colmap.adjust.rig_structure import REFERENCE, TO_WXYZ
from caspar.colmap.adjust.solve_arrays import SolveArrays, node_index
from caspar.colmap.model import Floats, Integers, Model, rows_of
from caspar.colmap.priors.priors import CHI_SQUARE_3, IntrinsicsPrior, PosePriorOptions, PosePriors
from caspar.errors import InputError
from caspar.frontend.factors.factor import Factor, factor
from caspar.frontend.markers import ConstSequential, TunableShared
from caspar.io.rotations import conjugate, multiply, rotate

_MOST_SAMPLES = 500
"""Samples of three cameras at most, if a quarter of all fit: (1 - 1/64)^500 is 4e-4."""

_LEAST_CHANCE = 1e-9
"""Samples end once the chance is this small that none of them has three cameras that fit, if as
many cameras fit as for the best sample so far."""

_LEAST_SPREAD = 1e-9
"""Extent of the cameras, relative to their distance from the origin, below which they are one."""


@dataclass(frozen=True, eq=False)
class Similarity:
    """Takes x to scale * rotation * x + translation; the rotation is (4,) qx qy qz qw."""

    scale: float
    rotation: Floats
    translation: Floats

    def points(self, points: Floats) -> Floats:
        """(n, 3) points, moved."""
        moved: Floats = self.scale * rotate(self.rotation, points) + self.translation
        return moved

    def poses(self, poses: Floats) -> Floats:
        """(n, 7) poses b_from_world, qw qx qy qz tx ty tz, in the moved world, b scaled too."""
        rotations = multiply(poses[:, TO_XYZW][:, :4], conjugate(self.rotation))
        translations = self.scale * poses[:, 4:] - rotate(rotations, self.translation)
        moved: Floats = np.concatenate([rotations, translations], axis=1)[:, TO_WXYZ]
        return moved


def moved(model: Model, similarity: Similarity) -> Model:
    """Return a model in another place, of another size."""
    images = replace(model.images, cam_from_world=similarity.poses(model.images.cam_from_world))
    points = replace(model.points, xyz=similarity.points(model.points.xyz))
    model = replace(model, images=images, points=points)
    if model.rigs is None or model.frames is None:
        return model
    sensors = model.rigs.sensor_from_rig.copy()
    sensors[:, 4:] *= similarity.scale
    frames = similarity.poses(model.frames.rig_from_world)
    return replace(
        model,
        rigs=replace(model.rigs, sensor_from_rig=sensors),
        frames=replace(model.frames, rig_from_world=frames),
    )


def centres(model: Model) -> Floats:
    """Return (num_images, 3) positions of the cameras in the world."""
    poses = model.images.cam_from_world[:, TO_XYZW]
    unit = poses[:, :4] / np.linalg.norm(poses[:, :4], axis=1, keepdims=True)
    found: Floats = -rotate(conjugate(unit), poses[:, 4:])
    return found


def similarity_between(source: Floats, target: Floats, max_error: float) -> Similarity | None:
    """Find the similarity that takes (n, 3) points nearest to others.

    Pairs count up to the distance `max_error`. None: there are not three pairs that fit one.
    """
    count = len(source)
    if count < 3 or _is_one_place(source) or _is_one_place(target):
        return None
    rng = np.random.default_rng(0)
    best = _fits(source, target, np.arange(count), max_error)
    number = 0
    while number < _samples_for(best):
        number += 1
        fits = _fits(source, target, rng.choice(count, 3, replace=False), max_error)
        if np.count_nonzero(fits) > np.count_nonzero(best):
            best = fits
    for _ in range(3):
        if np.count_nonzero(best) < 3:
            return None
        best = _fits(source, target, np.flatnonzero(best), max_error)
    chosen = np.flatnonzero(best)
    return None if len(chosen) < 3 else _least_squares(source[chosen], target[chosen])


def _samples_for(fits: Mask) -> float:
    chance = np.mean(fits) ** 3
    if chance >= 1:
        return 0.0
    return (
        min(np.log(_LEAST_CHANCE) / np.log1p(-chance), _MOST_SAMPLES)
        if chance > 0
        else _MOST_SAMPLES
    )


def _is_one_place(points: Floats) -> bool:
    spread = np.ptp(points, axis=0).max()
    return not spread > _LEAST_SPREAD * np.abs(points).max()


def _fits(source: Floats, target: Floats, sample: Integers, max_error: float) -> Mask:
    found = _least_squares(source[sample], target[sample])
    if found is None:
        return np.zeros(len(source), np.bool_)
    fits: Mask = np.linalg.norm(found.points(source) - target, axis=1) <= max_error
    return fits


def _least_squares(source: Floats, target: Floats) -> Similarity | None:
    middle, other = source.mean(axis=0), target.mean(axis=0)
    left, singular, right = np.linalg.svd((target - other).T @ (source - middle))
    signs = np.array([1.0, 1.0, np.linalg.det(left) * np.linalg.det(right)])
    spread = np.sum((source - middle) ** 2)
    if not spread > 0:
        return None
    scale = float(np.sum(singular * signs) / spread)
    if not scale > 0:
        return None
    rotation = quaternion_of((left * signs) @ right)
    return Similarity(scale, rotation, other - scale * rotate(rotation, middle))


def turn_between(source: Floats, target: Floats) -> Similarity:
    """Return the rotation that takes the mean of (n, 3) unit vectors to another one."""
    mean = source.sum(axis=0)
    mean = mean / np.linalg.norm(mean)
    axis, cosine = np.cross(mean, target), float(mean @ target)
    if cosine < -1 + 1e-12:  # any axis across
        axis = np.cross(mean, np.eye(3)[np.argmin(np.abs(mean))])
        quaternion = np.array([*(axis / np.linalg.norm(axis)), 0.0])
    else:
        quaternion = np.array([*axis, 1 + cosine])
        quaternion /= np.linalg.norm(quaternion)
    return Similarity(1.0, quaternion, np.zeros(3))


def quaternion_of(matrix: Floats) -> Floats:
    """Return qx qy qz qw of a rotation matrix: an eigenvector (Bar-Itzhack, 2000)."""
    m = matrix
    square = np.array(
        [
            [m[0, 0] - m[1, 1] - m[2, 2], m[0, 1] + m[1, 0], m[0, 2] + m[2, 0], m[2, 1] - m[1, 2]],
            [m[0, 1] + m[1, 0], m[1, 1] - m[0, 0] - m[2, 2], m[1, 2] + m[2, 1], m[0, 2] - m[2, 0]],
            [m[0, 2] + m[2, 0], m[1, 2] + m[2, 1], m[2, 2] - m[0, 0] - m[1, 1], m[1, 0] - m[0, 1]],
            [m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1], np.trace(m)],
        ]
    )
    quaternion: Floats = np.linalg.eigh(square)[1][:, -1]
    return quaternion


class SensorKind(Enum):
    """The values that place a camera in its rig."""

    NONE = "none"
    CONSTANT = "constant"
    NODE = "node"


@lru_cache
def position_factor(kind: SensorKind, loss: LossFunction) -> Factor:
    """Return the factor of a position.

    Its arguments are `frame`, `sensor` unless there is none, `position` and `root`, the matrix L.

    The loss is of the distance in standard deviations.
    """

    def residual(**arguments: Any) -> sf.V3:
        rotation, translation = _pose(arguments)
        return arguments["root"] * (-(rotation.T * translation) - arguments["position"])

    constants = {"position": sf.V3, "root": sf.M33}
    return _factor(residual, f"position_prior_{kind.value}", kind, constants).with_loss(
        LOSSES[loss]
    )


@lru_cache
def gravity_factor(kind: SensorKind) -> Factor:
    """Return the factor of a direction of gravity.

    Its arguments are `frame`, `sensor` unless there is none, `down` and `gravity`, unit vectors in
    the world and in the camera, and `weight`, 1 / stddev.
    """

    def residual(**arguments: Any) -> sf.V3:
        rotation, _ = _pose(arguments)
        return (rotation * arguments["down"] - arguments["gravity"]) * arguments["weight"]

    constants = {"down": sf.V3, "gravity": sf.V3, "weight": sf.Scalar}
    return _factor(residual, f"gravity_prior_{kind.value}", kind, constants)


@lru_cache
def intrinsics_factor(camera_model: str) -> Factor:
    """Return the factor of the intrinsics of a camera.

    Its arguments are `lens`, `mean` and `weight`, 1 / stddev.
    """
    size = MODELS[camera_model].num_parameters
    vector = sf.matrix_type_from_shape((size, 1))

    def residual(**arguments: Any) -> Any:
        model, lens = MODELS[camera_model], arguments["lens"]
        parameters: list[Any] = [0] * size
        for name in GROUPS:
            for place, value in zip(getattr(model, name), getattr(lens, name, ()), strict=True):
                parameters[place] = value
        mean, weight = arguments["mean"], arguments["weight"]
        return vector([(parameters[i] - mean[i]) * weight[i] for i in range(size)])

    annotations = {
        "lens": Annotated[lens_type(plain_lens(camera_model)), TunableShared],
        "mean": Annotated[vector, ConstSequential],
        "weight": Annotated[vector, ConstSequential],
    }
    return _made(residual, f"intrinsics_prior_{camera_model}", annotations)


def _pose(arguments: dict[str, Any]) -> tuple[Any, Any]:
    frame, sensor = arguments["frame"], arguments.get("sensor")
    rotation, translation = frame.rotation.to_rotation_matrix(), frame.translation
    if sensor is None:
        return rotation, translation
    own = sensor.rotation
    if isinstance(own, sf.Rot3):
        own = own.to_rotation_matrix()
    return own * rotation, own * translation + sensor.translation


def _factor(residual: Any, name: str, kind: SensorKind, constants: dict[str, Any]) -> Factor:
    annotations: dict[str, Any] = {"frame": Annotated[Frame, TunableShared]}
    if kind is SensorKind.CONSTANT:
        annotations["sensor"] = Annotated[ConstantPose, ConstSequential]
    elif kind is SensorKind.NODE:
        annotations["sensor"] = Annotated[Sensor, TunableShared]
    annotations |= {one: Annotated[type_, ConstSequential] for one, type_ in constants.items()}
    return _made(residual, name, annotations)


def _made(residual: Any, name: str, annotations: dict[str, Any]) -> Factor:
    parameters = [
        inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
        for one, annotation in annotations.items()
    ]
    residual.__name__ = name
    residual.__annotations__ = annotations
    vars(residual)["__signature__"] = inspect.Signature(parameters)
    return factor(residual)


@dataclass(frozen=True, eq=False)
class PlacedPriors:
    """Pose priors of images of a model, with what is known of them.

    Attributes:
        positions: (n,) rows of images; (n, 3) positions, less `origin`; (n, 3, 3) roots of the
            inverse covariances.
        gravity: (m,) rows of images; (m, 3) unit vectors in the camera.
        down: (3,) unit vector of gravity in the world.
        options: How they count.
        origin: (3,) what is taken off all coordinates in the world: they keep their digits.
        warnings: What a user should know.
    """

    positions: tuple[Integers, Floats, Floats]
    gravity: tuple[Integers, Floats]
    down: Floats
    options: PosePriorOptions
    origin: Floats
    warnings: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Priors that count."""
        return len(self.positions[0]) + len(self.gravity[0])

    def back(self, model: Model) -> Model:
        """Return a model with its coordinates in the world as they were."""
        if not self.origin.any():
            return model
        return moved(model, Similarity(1.0, np.array([0.0, 0, 0, 1]), self.origin))


def place(
    model: Model,
    priors: PosePriors,
    options: PosePriorOptions,
    config: BundleAdjustmentConfig,
    *,
    aligns: bool = True,
) -> tuple[Model, PlacedPriors]:
    """Align a model with its priors: with positions by a similarity, else with gravity by a turn.

    Positions of fewer than three cameras do not count, with a warning, as in COLMAP. Without
    `aligns` the model is where it should be. Priors may be of other images, too.
    """
    rows, warnings = _image_rows(model, priors, config)
    taken = rows >= 0
    has_position = taken & priors.has_position
    found = _similarity(model, priors, options, rows, has_position)
    if found is None and has_position.any():
        warnings.append(
            f"{np.count_nonzero(has_position)} positions of cameras have no effect: there are not "
            "three that fit the model"
        )
    has_positions = found is not None
    has_gravity = taken & priors.has_gravity
    gravity = _units(priors.gravity[has_gravity])
    down = options.down(has_positions=has_positions)
    if found is None and has_gravity.any():
        found = turn_between(_in_world(model, rows[has_gravity], gravity), down)
    if found is not None and not aligns:
        found = Similarity(1.0, np.array([0.0, 0, 0, 1]), np.zeros(3))
    origin = np.zeros(3)
    if has_positions:
        assert found is not None
        origin = np.mean(priors.positions[has_position], axis=0)
        found = replace(found, translation=found.translation - origin)
    positions = (
        rows[has_position],
        priors.positions[has_position] - origin,
        _roots(priors.covariances[has_position], options.prior_position_fallback_stddev),
    )
    nothing = (np.empty(0, np.int64), np.empty((0, 3)), np.empty((0, 3, 3)))
    placed = PlacedPriors(
        positions=positions if has_positions else nothing,
        gravity=(rows[has_gravity], gravity),
        down=down,
        options=options,
        origin=origin,
        warnings=tuple(warnings),
    )
    return (model if found is None else moved(model, found)), placed


def _image_rows(
    model: Model, priors: PosePriors, config: BundleAdjustmentConfig
) -> tuple[Integers, list[str]]:
    """Return rows of the priors' images, -1 for images that take no part, and warnings."""
    taken = np.isin(priors.image_ids, model.images.ids)
    warnings = []
    num_unknown = int(np.count_nonzero(~taken))
    if num_unknown > 0:
        warnings.append(f"{num_unknown} pose priors are of images that the model does not have")
    if config.images is not None:
        taken &= np.isin(priors.image_ids, sorted(config.images))
    rows = np.full(len(taken), -1)
    rows[taken] = rows_of(model.images.ids, priors.image_ids[taken])
    return rows, warnings


def _in_world(model: Model, images: Integers, directions: Floats) -> Floats:
    poses = model.images.cam_from_world[images][:, TO_XYZW]
    columns = [np.sum(one * directions, axis=1) for one in rotation_columns(poses)]
    return np.stack(columns, axis=1)


def _units(vectors: Floats) -> Floats:
    units: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units


def _similarity(
    model: Model, priors: PosePriors, options: PosePriorOptions, rows: Integers, has_position: Any
) -> Similarity | None:
    if np.count_nonzero(has_position) < 3:
        return None
    max_error = options.alignment_max_error
    if max_error is None:
        traces = np.trace(priors.covariances[has_position], axis1=1, axis2=2) / 3
        known = traces[np.isfinite(traces)]
        fallback = options.prior_position_fallback_stddev**2
        variance = float(np.median(known)) if len(known) > 0 else fallback
        max_error = (CHI_SQUARE_3 * variance) ** 0.5
    source, target = centres(model)[rows[has_position]], priors.positions[has_position]
    return similarity_between(source, target, max_error)


def _roots(covariances: Floats, fallback_stddev: float) -> Floats:
    """Return (n, 3, 3) L with L^T L the inverse of each covariance."""
    filled = covariances.copy()
    is_unknown = ~np.isfinite(filled).all(axis=(1, 2))
    filled[is_unknown] = fallback_stddev**2 * np.eye(3)
    roots: Floats = np.linalg.inv(np.linalg.cholesky(filled))
    return roots


def add_pose_priors(parts: SolveArrays, problem: Problem, placed: PlacedPriors) -> tuple[str, ...]:
    """Add the factors of pose priors, and return warnings."""
    if placed.count == 0:
        return placed.warnings
    frames = parts.rows("Frame")
    if frames is None:
        return (*placed.warnings, "pose priors have no effect: no pose is refined")
    is_used = np.zeros(len(problem.frame_poses), np.bool_)
    is_used[frames] = True
    structure, options = problem.structure, placed.options
    rows, positions, roots = placed.positions
    for kind, chosen in _by_kind(parts, problem, rows[is_used[structure.frames[rows]]]).items():
        at = np.isin(rows, chosen)
        loss = LossFunction(options.prior_position_loss_function_type)
        factor = position_factor(kind, loss)
        arguments = _pose_arguments(parts, problem, kind, rows[at])
        arguments["position"] = positions[at]
        # by columns, as matrices are stored
        arguments["root"] = roots[at].transpose(0, 2, 1).reshape(-1, 9)
        if loss is not LossFunction.TRIVIAL:
            arguments["loss_scale"] = options.prior_position_loss_scale
        num_free = int(np.count_nonzero(problem.has_free_pose(rows[at])))
        parts.add_prior(factor, arguments, 3 * num_free)
    rows, directions = placed.gravity
    weight = 1 / np.radians(options.prior_gravity_stddev)
    for kind, chosen in _by_kind(parts, problem, rows[is_used[structure.frames[rows]]]).items():
        at = np.isin(rows, chosen)
        arguments = _pose_arguments(parts, problem, kind, rows[at])
        count = len(directions[at])
        arguments["down"] = np.tile(placed.down, (count, 1))
        arguments["gravity"] = directions[at]
        arguments["weight"] = np.full((count, 1), weight)
        num_free = int(np.count_nonzero(problem.has_free_pose(rows[at])))
        parts.add_prior(gravity_factor(kind), arguments, 3 * num_free)
    return placed.warnings


def _by_kind(parts: SolveArrays, problem: Problem, images: Integers) -> dict[SensorKind, Integers]:
    """Return rows of images by what places their cameras in their rigs."""
    sensors = problem.structure.sensors[images]
    is_node = np.zeros(len(problem.sensor_poses) + 1, np.bool_)
    if "Sensor" in parts.places:
        is_node[parts.rows("Sensor")] = True
    is_reference = sensors == REFERENCE
    masks = {
        SensorKind.NONE: is_reference,
        SensorKind.CONSTANT: ~is_reference & ~is_node[sensors],
        SensorKind.NODE: ~is_reference & is_node[sensors],
    }
    return {kind: images[mask] for kind, mask in masks.items() if mask.any()}


def _pose_arguments(
    parts: SolveArrays, problem: Problem, kind: SensorKind, images: Integers
) -> dict[str, Any]:
    structure = problem.structure
    arguments: dict[str, Any] = {"frame": node_index(parts.rows("Frame"), structure.frames[images])}
    sensors = structure.sensors[images]
    if kind is SensorKind.NODE:
        arguments["sensor"] = node_index(parts.rows("Sensor"), sensors)
    elif kind is SensorKind.CONSTANT:
        poses = problem.sensor_poses[sensors]
        columns = rotation_columns(poses)
        arguments["sensor"] = np.concatenate([*columns, poses[:, 4:]], axis=1)
    return arguments


def add_intrinsics_priors(
    parts: SolveArrays, problem: Problem, priors: Mapping[int, IntrinsicsPrior]
) -> tuple[str, ...]:
    """Add the factors of priors on intrinsics, by ids of cameras, and return warnings.

    Raises an `InputError` if a camera is not in the model, or has another number of parameters.
    """
    cameras, warnings = problem.model.cameras, []
    missing = sorted(set(priors).difference(cameras.ids.tolist()))
    if missing:
        raise InputError(f"intrinsics_priors: the model has no camera {missing[0]}")
    given = np.array(sorted(priors), np.int64)
    rows = rows_of(cameras.ids, given)
    for row, camera_id in zip(rows.tolist(), given.tolist(), strict=True):
        count, wanted = len(priors[camera_id].mean), int(np.diff(cameras.offsets)[row])
        if count != wanted:
            raise InputError(
                f"intrinsics_priors of camera {camera_id}: {count} parameters; its model has "
                f"{wanted}"
            )
    used = []
    for model_id in np.unique(cameras.model_ids[rows]).tolist():
        model = MODELS_BY_ID[model_id]
        lens = plain_lens(model.name)
        lenses = used_lenses(problem, lens)
        chosen = rows[(cameras.model_ids[rows] == model_id) & np.isin(rows, lenses)]
        kind = lens_type(lens)
        if len(chosen) == 0 or kind is None:
            continue
        used += chosen.tolist()
        of_camera = [priors[number] for number in cameras.ids[chosen].tolist()]
        arguments = {
            "lens": node_index(lenses, chosen),
            "mean": np.stack([one.mean for one in of_camera]),
            "weight": np.stack([1 / one.stddev for one in of_camera]),
        }
        is_free = ~problem.constant_cameras[chosen]
        num_known = int(np.count_nonzero(arguments["weight"][is_free]))
        parts.add_prior(intrinsics_factor(model.name), arguments, num_known)
    if len(used) < len(rows):
        warnings.append(
            f"{len(rows) - len(used)} priors on intrinsics have no effect: no observation of their "
            "cameras takes part, or they have nothing to refine"
        )
    return tuple(warnings)
