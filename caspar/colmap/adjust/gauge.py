"""Hold the gauge: the seven directions in which a whole model may move without any residual.

Input: a `Problem`. Output: the same with more constant values. Once for an adjustment. The rules
are COLMAP's (estimators/bundle_adjustment.cc).
"""

from dataclasses import replace

import numpy as np

from caspar.colmap.adjust.options import Gauge
from caspar.colmap.adjust.problem import TRANSLATION, Problem
from caspar.colmap.adjust.rig_structure import REFERENCE
from caspar.colmap.model import Floats
from caspar.io.rotations import conjugate, multiply, rotate

_LEAST_BASELINE = 1e-9
"""Of two cameras, relative to the scene, below which they are in one place."""


def with_gauge(problem: Problem, gauge: Gauge) -> Problem:
    """Hold the gauge of a problem.

    Args:
        problem: What is constant already may hold the gauge, or a part of it.
        gauge: How; two cameras that are not there are replaced by three points, with a warning.
    """
    if gauge is Gauge.UNSPECIFIED or not _has_free_frames(problem):
        return problem
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
        return problem
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
    """Translation of the frame's pose relative to the reference frame."""
    pose, other = problem.frame_poses[frame], problem.frame_poses[reference]
    rotation = multiply(pose[:4], conjugate(other[:4]))
    baseline: Floats = pose[4:] - rotate(rotation, other[4:])
    return baseline


def _size(problem: Problem) -> float:
    points = problem.model.points.xyz[problem.observations.used_points]
    return float(np.linalg.norm(np.ptp(points, axis=0)))


def _with_three_points(problem: Problem) -> Problem:
    """Hold three points that are not in a plane with the origin, so that they are on no line."""
    points = problem.observations.used_points
    points = points[np.argsort(problem.model.points.ids[points])]
    is_held = problem.constant_points[points]
    constant_points = problem.constant_points.copy()
    chosen = np.empty((0, 3))
    for row in (*points[is_held].tolist(), *points[~is_held].tolist()):
        more = np.concatenate([chosen, problem.model.points.xyz[row : row + 1]])
        if np.linalg.matrix_rank(more) == len(more):
            chosen = more
            constant_points[row] = True
        if len(chosen) == 3:
            return replace(problem, constant_points=constant_points)
    warning = "there are no three points on no line, so that nothing holds the gauge"
    return replace(problem, warnings=(*problem.warnings, warning))
