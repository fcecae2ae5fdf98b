"""Hold the gauge: the seven directions in which a whole model may move without any residual.

Input: a `Problem`. Output: the same with more constant values. Once for an adjustment. The rule for
two cameras is COLMAP's (estimators/bundle_adjustment_ceres.cc).
"""

from dataclasses import replace

import numpy as np

from caspar.colmap.adjust.options import Gauge
from caspar.colmap.adjust.problem import TRANSLATION, Mask, Problem
from caspar.colmap.adjust.rig_structure import REFERENCE
from caspar.colmap.model import Floats, Integers
from caspar.io.rotations import conjugate, multiply, rotate

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
    """Return the place of a frame in the axes of the reference frame."""
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

    Args:
        distances: (n,), of points in the order of preference.
        is_held: (n,) points that are constant: of these the farthest is taken.
        least: The smallest distance that counts.

    Returns:
        The farthest constant point, or the first point with at least the median distance.
    """
    held = np.where(is_held, distances, 0.0)
    if held.max() > least:
        return int(np.argmax(held))
    far = (distances >= np.median(distances)) & (distances > least)
    return int(np.argmax(far)) if far.any() else None
