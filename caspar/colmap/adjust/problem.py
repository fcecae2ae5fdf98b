"""A bundle adjustment as arrays: which observations take part, and what is constant.

Input: a `Model`, options and config. Output: a `Problem`, whose masks of constant values do not
know how the solver holds them. A few passes over the observations, once for an adjustment. The
rules are COLMAP's (estimators/bundle_adjustment.cc).

Also here: the gauge is held: the seven directions in which a whole model may move without any
residual. The rule for two cameras is COLMAP's (estimators/bundle_adjustment_ceres.cc).
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from caspar.cameras import MODELS_BY_ID
from caspar.colmap.adjust.observations import Observations, used_rows
from caspar.colmap.adjust.options import BundleAdjustmentConfig, BundleAdjustmentOptions, Gauge
from caspar.colmap.adjust.rig_structure import REFERENCE, RigStructure, rig_structure
from caspar.colmap.model import Floats, Integers, Model
from caspar.errors import InputError
from caspar.io.rotations import conjugate, multiply, rotate

Mask = NDArray[np.bool_]

ROTATION, TRANSLATION = slice(0, 3), slice(3, 6)
"""Components of a pose's step."""


class NothingToAdjustError(InputError):
    """No observation takes part."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A bundle adjustment.

    Attributes:
        model: The model; its poses are not used.
        seen: All its observations.
        written: Frames and sensors of images, as the model has them.
        structure: The same as the solve has them: images that take no part but see points that do
            have poses of their own, behind the other frames, unless theirs are constant anyway.
        observations: Observations that take part.
        is_inside: (num_images,) images of the config that see points; others may see them too.
        frame_poses: (num_frames, 7) start values of the frames of `structure`; of unit quaternions
            where anything is refined.
        sensor_poses: (num_sensors, 7) the same.
        constant_frames: (num_frames, 6) components of steps that are zero: rotation, translation.
        constant_sensors: (num_sensors,).
        constant_cameras: (num_cameras,) cameras none of whose intrinsics are refined.
        constant_points: (num_points, 3) components that are constant.
        refined_intrinsics: Of the other cameras: some of focal, principal and extra.
        intrinsics_bounds: (num_parameters,) lower and upper bounds of the parameters of all
            cameras; None: there are none.
        warnings: What a user should know.
    """

    model: Model
    seen: Observations
    written: RigStructure
    structure: RigStructure
    observations: Observations
    is_inside: Mask
    frame_poses: Floats
    sensor_poses: Floats
    constant_frames: Mask
    constant_sensors: Mask
    constant_cameras: Mask
    constant_points: Mask
    refined_intrinsics: tuple[str, ...]
    intrinsics_bounds: tuple[Floats, Floats] | None
    warnings: tuple[str, ...]

    @cached_property
    def pixels(self) -> Floats:
        """(m, 2) measured pixels of the observations."""
        return self.model.images.keypoints[self.observations.keypoints]

    @cached_property
    def frames(self) -> Integers:
        """(m,) rows of frames of the observations."""
        return self.structure.frames[self.observations.images]

    @cached_property
    def sensors(self) -> Integers:
        """(m,) rows of sensors of the observations, or `REFERENCE`."""
        return self.structure.sensors[self.observations.images]

    @property
    def num_residuals(self) -> int:
        """Two for each observation of which any pose, intrinsics or point is refined.

        Ceres leaves the others out of the problem it solves, and out of this count; their cost
        counts.
        """
        seen = self.observations
        is_refined = self.has_free_pose(seen.images) | ~self.constant_cameras[seen.cameras]
        is_refined |= ~np.all(self.constant_points, axis=1)[seen.points]
        return 2 * int(np.count_nonzero(is_refined))

    def has_free_pose(self, images: Integers) -> Mask:
        """Return whether the frame or the sensor of images, by rows, has anything refined."""
        moves = _moves_with_others(self.structure, self.constant_frames, self.constant_sensors)
        is_free: Mask = moves[images]
        return is_free


def make_problem(
    model: Model,
    seen: Observations,
    options: BundleAdjustmentOptions,
    config: BundleAdjustmentConfig,
) -> Problem:
    """Choose observations, and say what is constant; the gauge is left open.

    Raises an `InputError` if the model contradicts itself, or an id of the config is not in it, a
    `NothingToAdjustError` if no observation takes part.
    """
    structure = rig_structure(model)
    _check_ids(model, structure, config)
    is_inside, is_chosen = _chosen(model, seen, options, config)
    inside, taken = seen.part(is_inside), seen.part(is_chosen)
    if len(taken.points) == 0:
        raise NothingToAdjustError(
            "no observation takes part: no image of the config sees a point of at least "
            f"{max(2, options.min_track_length)} observations"
        )
    constant_frames = np.zeros((len(structure.frame_ids), 6), np.bool_)
    is_refined = _named(structure.frames, inside.images, len(structure.frame_ids))
    is_held = ~is_refined | _is_in(structure.frame_ids, config.constant_rig_from_world_poses)
    constant_frames[is_held | (not options.refine_rig_from_world)] = True
    constant_frames[:, ROTATION] |= options.constant_rig_from_world_rotation
    constant_sensors = _constant_sensors(structure, inside, options, config)
    is_alone = _moves_with_others(structure, constant_frames, constant_sensors)
    is_named = _named(np.arange(len(model.images.ids)), inside.images, len(model.images.ids))
    is_alone &= ~is_named
    alone = used_rows(taken.images[is_alone[taken.images]])
    written, structure = structure, structure.with_own_frames(alone)
    constant_frames = np.concatenate([constant_frames, np.ones((len(alone), 6), np.bool_)])
    is_frame_refined: Mask = np.any(~constant_frames, axis=1)
    return Problem(
        model=model,
        seen=seen,
        written=written,
        structure=structure,
        observations=taken,
        is_inside=is_named,
        frame_poses=_unit_where(is_frame_refined, structure.frame_poses),
        sensor_poses=_unit_where(~constant_sensors, structure.sensor_poses),
        constant_frames=constant_frames,
        constant_sensors=constant_sensors,
        constant_cameras=_constant_cameras(model, inside, options, config),
        constant_points=_constant_points(model, taken, options, config),
        refined_intrinsics=options.refined_intrinsics,
        intrinsics_bounds=_intrinsics_bounds(model, options) if options.has_bounds else None,
        warnings=_warnings(model, seen, taken),
    )


def _intrinsics_bounds(model: Model, options: BundleAdjustmentOptions) -> tuple[Floats, Floats]:
    """Bounds of all parameters, wide enough for the start values."""
    cameras = model.cameras
    lower = np.full(len(cameras.parameters), -np.inf)
    upper = np.full(len(cameras.parameters), np.inf)
    sides = np.maximum(cameras.widths, cameras.heights).astype(np.float64)
    for row, model_id in enumerate(cameras.model_ids.tolist()):
        known, first = MODELS_BY_ID[model_id], int(cameras.offsets[row])
        focal = first + np.array(known.focal, np.int64)
        lower[focal] = options.min_focal_length_ratio * sides[row]
        upper[focal] = options.max_focal_length_ratio * sides[row]
        extra = first + np.array(known.extra, np.int64)
        lower[extra], upper[extra] = -options.max_extra_param, options.max_extra_param
    start = cameras.parameters
    return np.minimum(lower, start), np.maximum(upper, start)


def _check_ids(model: Model, structure: RigStructure, config: BundleAdjustmentConfig) -> None:
    for name, wanted, there in (
        ("images", config.images or frozenset(), model.images.ids),
        ("constant_cam_intrinsics", config.constant_cam_intrinsics, model.cameras.ids),
        (
            "constant_rig_from_world_poses",
            config.constant_rig_from_world_poses,
            structure.frame_ids,
        ),
        (
            "constant_sensor_from_rig_poses",
            config.constant_sensor_from_rig_poses,
            structure.sensor_cameras,
        ),
        ("constant_points", config.constant_points, model.points.ids),
        ("variable_points", config.variable_points, model.points.ids),
    ):
        missing = sorted(wanted.difference(there.tolist()))
        if missing:
            shown = ", ".join(map(str, missing[:5]))
            raise InputError(f"config, {name}: the model has no {shown}")


def _chosen(
    model: Model,
    seen: Observations,
    options: BundleAdjustmentOptions,
    config: BundleAdjustmentConfig,
) -> tuple[Mask, Mask]:
    lengths = np.diff(model.points.offsets)
    is_tracked = (lengths >= max(2, options.min_track_length))[seen.points]
    if config.images is None:
        return is_tracked, is_tracked
    is_inside = is_tracked & _is_in(model.images.ids, config.images)[seen.images]
    whole = config.variable_points | config.constant_points
    return is_inside, is_inside | (is_tracked & _is_in(model.points.ids, whole)[seen.points])


def _constant_sensors(
    structure: RigStructure,
    inside: Observations,
    options: BundleAdjustmentOptions,
    config: BundleAdjustmentConfig,
) -> Mask:
    num_sensors = len(structure.sensor_cameras)
    is_held = _is_in(structure.sensor_cameras, config.constant_sensor_from_rig_poses)
    images = inside.used_images
    sensors = structure.sensors[images]
    own = np.where(sensors == REFERENCE, structure.reference_sensors[images], sensors)
    is_used = np.zeros(num_sensors, np.bool_)
    is_used[own[own != REFERENCE]] = True
    # the pose of a rig is then that of its other sensors, of which one must stay
    has_reference = is_used[structure.sensor_references]
    return is_held | ~is_used | ~has_reference | (not options.refine_sensor_from_rig)


def _moves_with_others(
    structure: RigStructure, constant_frames: Mask, constant_sensors: Mask
) -> Mask:
    """Return (num_images,) whether the frame or the sensor of an image is refined."""
    has_sensor = structure.sensors != REFERENCE
    moves: Mask = ~np.all(constant_frames, axis=1)[structure.frames]
    moves[has_sensor] |= ~constant_sensors[structure.sensors[has_sensor]]
    return moves


def _constant_cameras(
    model: Model,
    inside: Observations,
    options: BundleAdjustmentOptions,
    config: BundleAdjustmentConfig,
) -> Mask:
    is_held = _is_in(model.cameras.ids, config.constant_cam_intrinsics)
    is_used = np.zeros(len(is_held), np.bool_)
    is_used[inside.cameras] = True
    can_refine = np.array(
        [
            any(getattr(MODELS_BY_ID[number], name) for name in options.refined_intrinsics)
            for number in model.cameras.model_ids.tolist()
        ],
        dtype=np.bool_,
    )
    return is_held | ~is_used | ~can_refine


def _constant_points(
    model: Model,
    taken: Observations,
    options: BundleAdjustmentOptions,
    config: BundleAdjustmentConfig,
) -> Mask:
    counts = np.bincount(taken.points, minlength=len(model.points.ids))
    is_partial = counts < np.diff(model.points.offsets)
    is_held = _is_in(model.points.ids, config.constant_points)
    is_constant = is_held | is_partial | (not options.refine_points3D)
    return np.repeat(is_constant[:, None], 3, axis=1)


def _unit_where(is_refined: Mask, poses: Floats) -> Floats:
    """Scale quaternions to unit length; those of constant poses stay, as COLMAP leaves them."""
    lengths = np.linalg.norm(poses[:, :4], axis=1, keepdims=True)
    if not (lengths[is_refined] > 0).all():
        raise InputError("a pose that is to be refined has a quaternion of length zero, or NaN")
    scaled = poses.copy()
    scaled[is_refined, :4] = poses[is_refined, :4] / lengths[is_refined]
    return scaled


def _warnings(model: Model, seen: Observations, taken: Observations) -> tuple[str, ...]:
    found = []
    lengths = np.diff(model.points.offsets)
    num_single = int(np.count_nonzero(lengths[seen.used_points] == 1))
    if num_single > 0:
        found.append(
            f"{num_single} points of one observation take no part: they fit whatever the camera "
            "does"
        )
    num_empty = len(model.images.ids) - len(seen.used_images)
    if num_empty > 0:
        found.append(f"{num_empty} images see no points, so that their poses stay as they are")
    # fewer residuals than a pose has unknowns
    counts = np.bincount(taken.images)
    weak = np.flatnonzero((counts > 0) & (counts < 3)).tolist()
    if weak:
        names = ", ".join(model.images.names[row] for row in weak[:3])
        more = ", ..." if len(weak) > 3 else ""
        found.append(
            f"{len(weak)} images see fewer than 3 points ({names}{more}), which does not determine "
            "their poses"
        )
    return tuple(found)


def _is_in(ids: Integers, wanted: Collection[int]) -> Mask:
    return np.isin(ids, np.array(sorted(wanted), dtype=np.int64))


def _named(rows_of_images: Integers, images: Integers, count: int) -> Mask:
    is_named = np.zeros(count, np.bool_)
    is_named[rows_of_images[images]] = True
    return is_named


_LEAST_BASELINE = 1e-9
"""Two cameras that are less apart, relative to the scene, are in one place."""


def with_gauge(problem: Problem, gauge: Gauge) -> Problem:
    """Hold the gauge of a problem.

    Two cameras that are not there are replaced by three points, with a warning.
    """
    if gauge is Gauge.UNSPECIFIED:
        return problem
    if not _has_free_frames(problem):
        rows = problem.observations.used_points
        num_held = np.count_nonzero(np.all(problem.constant_points[rows], axis=1))
        if gauge is Gauge.TWO_CAMS_FROM_WORLD or num_held >= 3:
            return problem
        warning = "constant poses hold the gauge; COLMAP makes three points constant as well"
        return replace(problem, warnings=(*problem.warnings, warning))
    if gauge is Gauge.TWO_CAMS_FROM_WORLD:
        held = _with_two_cameras(problem)
        if held is not None:
            return held
        warning = "no two cameras with a distance between them: three points hold the gauge instead"
        problem = replace(problem, warnings=(*problem.warnings, warning))
    return _with_three_points(problem)


def _has_free_frames(problem: Problem) -> bool:
    frames = problem.structure.frames[problem.observations.used_images]
    return not bool(problem.constant_frames[frames].all())


def _with_two_cameras(problem: Problem) -> Problem | None:
    """Hold a pose and a component of another translation; None: there are no two such cameras."""
    images = problem.observations.used_images
    images = images[np.argsort(problem.model.images.ids[images])]
    sensors = problem.structure.sensors[images]
    is_reference = sensors == REFERENCE
    fits = is_reference.copy()
    fits[~is_reference] = problem.constant_sensors[sensors[~is_reference]]
    _, first = np.unique(problem.structure.frames[images[fits]], return_index=True)
    frames = problem.structure.frames[images[fits]][np.sort(first)]
    if len(frames) == 0:
        return None
    is_held = problem.constant_frames[frames].all(axis=1)
    if np.count_nonzero(is_held) >= 2:
        inside = problem.structure.frames[images[problem.is_inside[images]]]
        if np.count_nonzero(is_held[np.isin(frames, inside)]) >= 2:
            return problem
        warning = (
            "constant poses of images that are not in the config hold the gauge; COLMAP holds two "
            "more cameras"
        )
        return replace(problem, warnings=(*problem.warnings, warning))
    reference = int(frames[np.argmax(is_held)])
    constant_frames = problem.constant_frames.copy()
    constant_frames[reference] = True
    for frame in frames.tolist():
        baseline = _baseline(problem, frame, reference)
        if frame != reference and np.abs(baseline).max() > _LEAST_BASELINE * _size(problem):
            component = TRANSLATION.start + int(np.argmax(np.abs(baseline)))
            constant_frames[frame, component] = True
            return replace(problem, constant_frames=constant_frames)
    return None


def _baseline(problem: Problem, frame: int, reference: int) -> Floats:
    pose, other = problem.frame_poses[frame], problem.frame_poses[reference]
    rotation = multiply(other[:4], conjugate(pose[:4]))
    baseline: Floats = other[4:] - rotate(rotation, pose[4:])
    return baseline


def _size(problem: Problem) -> float:
    points = problem.model.points.xyz[problem.observations.used_points]
    return float(np.linalg.norm(np.ptp(points, axis=0)))


def _with_three_points(problem: Problem) -> Problem:
    """Hold a point, a second one, and a component of a third across the plane of the three.

    These are the seven directions of the gauge and no more, so that the cost of the optimum is that
    of a free gauge, however noisy the points are. Points that are constant are taken first.
    """
    points = _best_points_first(problem)
    xyz = problem.model.points.xyz[points]
    is_held: Mask = np.all(problem.constant_points[points], axis=1)
    least = _LEAST_BASELINE * _size(problem)
    first = int(np.argmax(is_held))
    arms = xyz - xyz[first]
    second = _far_point(np.linalg.norm(arms, axis=1), is_held, least)
    third = None
    if second is not None:
        across = np.cross(arms[second] / np.linalg.norm(arms[second]), arms)
        third = _far_point(np.linalg.norm(across, axis=1), is_held, least)
    if second is None or third is None:
        warning = "there are no three points on no line, so that nothing holds the gauge"
        return replace(problem, warnings=(*problem.warnings, warning))
    if is_held[third]:
        return problem
    component = int(np.argmax(np.abs(across[third])))
    constant_points = problem.constant_points.copy()
    constant_points[points[[first, second]]] = True
    constant_points[points[third], component] = True
    ids = problem.model.points.ids[points[[first, second, third]]].tolist()
    warning = (
        f"points {ids[0]} and {ids[1]} and {'xyz'[component]} of point {ids[2]} hold the gauge; "
        "COLMAP holds three whole points, which may end at a higher cost"
    )
    return replace(problem, constant_points=constant_points, warnings=(*problem.warnings, warning))


def _best_points_first(problem: Problem) -> Integers:
    """Return rows of points that take part: the most observations first, then the least error.

    Errors are those that the model has; points without one come last.
    """
    points = problem.observations.used_points
    counts = np.bincount(problem.observations.points)[points]
    errors = problem.model.points.errors[points]
    errors = np.where(errors < 0, np.inf, errors)
    order = np.lexsort((problem.model.points.ids[points], errors, -counts))
    return points[order]


def _far_point(distances: Floats, is_held: Mask, least: float) -> int | None:
    """Return a point that is far from a point or line; None: all are on it.

    That is the farthest constant point (`is_held`), or the first point, in the order of preference,
    with at least the median of the distances that count, `least` or more.
    """
    held = np.where(is_held, distances, 0.0)
    if held.max() > least:
        return int(np.argmax(held))
    far = (distances >= np.median(distances)) & (distances > least)
    return int(np.argmax(far)) if far.any() else None
