"""Global positioning: centres of all frames and all points at once, rotations being known.

Input: a `pycolmap.Reconstruction` with rotations and tracks. Output: it has positions and points.
Each observation has an unknown of its own, its depth or scale, which is eliminated inside the
factor (`caspar.TunableSequential`). Two problems are solved:

* *Depths*: point - centre = depth * ray, with a depth of at least 1. The residual is convex in
  centres and points (Ozyesil and Singer, 2015), so any start will do: all are at the origin.
* *Scales*: ray = scale * (point - centre), whose residual is the sine of an angle, as in GLOMAP
  (Pan et al., 2024), from where the first one ended.

Only `caspar.colmap.mapping` and the global mapper import this module: it needs pycolmap.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

from caspar.colmap.adjust.observations import used_rows
from caspar.colmap.adjust.solve_arrays import node_index
from caspar.colmap.arguments import options_given
from caspar.colmap.averaging import sensor_poses
from caspar.colmap.model import NO_POINT, Model, owners_of, rows_of
from caspar.colmap.pycolmap_objects import model_of
from caspar.errors import MissingPackageError, OptionError
from caspar.frontend.factors.factor import Factor, factor
from caspar.frontend.markers import ConstSequential, TunableSequential, TunableShared, TunableUnique
from caspar.io.rotations import rotate
from caspar.loss import Huber
from caspar.options import BackendChoice, BackendName
from caspar.progress import phase
from caspar.solver.solver import Solver

try:
    import pycolmap
except ImportError as error:
    raise MissingPackageError("caspar.colmap's mapper", "pycolmap", "colmap") from error

LEAST_SCALE = 1e-5
"""Lower bound of an observation's scale, as in COLMAP: a point is in front of its camera."""

UNCALIBRATED_WEIGHT = 0.5
"""Weight of observations by cameras whose focal length is a guess, as in COLMAP."""

DEPTHS_TOLERANCE, SCALES_TOLERANCE = 1e-5, 1e-7
"""Relative decreases of the cost at which solves end: the first one only makes a start."""

MAX_ITERATIONS = 200

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Center(sf.V3):
    """Origin of a frame's rig in the world."""


class Landmark(sf.V3):
    """A point."""


class RigScale(sf.V1):
    """Units of the first problem in one unit of the rigs."""


@factor(loss=Huber)
def depths(
    center: Annotated[Center, TunableShared],
    point: Annotated[Landmark, TunableShared],
    ray: Annotated[sf.V3, ConstSequential],
    depth: Annotated[sf.Scalar, TunableSequential(lower=1.0)],
) -> Any:
    """Return the difference of a point and its place on a ray; the nearest point has depth 1."""
    return point - center - depth * ray


@factor(loss=Huber)
def rig_depths(
    center: Annotated[Center, TunableShared],
    point: Annotated[Landmark, TunableShared],
    rig_scale: Annotated[RigScale, TunableUnique],
    ray: Annotated[sf.V3, ConstSequential],
    offset: Annotated[sf.V3, ConstSequential],
    depth: Annotated[sf.Scalar, TunableSequential(lower=1.0)],
) -> Any:
    """The same for a camera that is not at the origin of its rig."""
    return point - center - rig_scale[0] * offset - depth * ray


@factor(loss=Huber)
def scales(
    center: Annotated[Center, TunableShared],
    point: Annotated[Landmark, TunableShared],
    ray: Annotated[sf.V3, ConstSequential],
    offset: Annotated[sf.V3, ConstSequential],
    scale: Annotated[sf.Scalar, TunableSequential(lower=LEAST_SCALE)],
) -> Any:
    """Between a ray of length 1 and the direction of a point."""
    return ray - scale * (point - center - offset)


@dataclass(frozen=True)
class Sights:
    """Observations that take part, and what they are of.

    Attributes:
        frames: Ids of the frames that see something.
        rotations: (n, 4) of these frames' rigs from the world, x y z w.
        centers: (n, 3) the start.
        points: Ids of points.
        xyz: (k, 3) the start.
        center_of: (m,) rows of frames.
        point_of: (m,) rows of points.
        rays: (m, 3) in the world, of length 1.
        offsets: (m, 3) the camera's centre less the rig's, in the world.
        weights: (m,).
    """

    frames: Integers
    rotations: Floats
    centers: Floats
    points: Integers
    xyz: Floats
    center_of: Integers
    point_of: Integers
    rays: Floats
    offsets: Floats
    weights: Floats


def position(
    options: Any, pose_graph: Any, reconstruction: Any, backend: BackendName | BackendChoice
) -> bool:
    """See `caspar.colmap.global_positioning`."""
    chosen = options_given(options, pycolmap.GlobalPositionerOptions)
    if not chosen.optimize_scales:
        raise OptionError("optimize_scales=False: scales are eliminated, and cannot be held")
    sensors = sensor_poses(reconstruction)
    if any(pose is None or np.isnan(pose.translation).any() for pose in sensors):
        return bool(pycolmap.run_global_positioning(chosen, pose_graph, reconstruction))
    seen = sights_of(reconstruction, chosen.min_num_view_per_track)
    if len(seen.rays) == 0:
        return False
    centers, xyz = _solved(seen, chosen, backend)
    by_id = reconstruction.points3D
    for point_id, place in zip(seen.points.tolist(), xyz, strict=True):
        by_id[point_id].xyz = place
    translations = -rotate(seen.rotations, centers)
    for frame_id, rotation, translation in zip(
        seen.frames.tolist(), seen.rotations, translations, strict=True
    ):
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(rotation), translation)
        reconstruction.frame(frame_id).rig_from_world = pose
    for frame_id in set(reconstruction.reg_frame_ids()).difference(seen.frames.tolist()):
        reconstruction.deregister_frame(frame_id)
    return True


def sights_of(reconstruction: Any, min_views: int) -> Sights:
    """Collect observations of points that `min_views` registered images or more see.

    Positions of the reconstruction's frames may be NaN.
    """
    model = model_of(reconstruction)
    images = model.images
    owners = owners_of(images.offsets)
    poses = {
        row: _pose(reconstruction.image(one))
        for row, one in enumerate(images.ids.tolist())
        if reconstruction.image(one).has_pose
    }
    is_posed = np.zeros(len(images.ids), bool)
    is_posed[list(poses)] = True
    rows = np.flatnonzero((images.point_ids != NO_POINT) & is_posed[owners])
    rays = _rays(reconstruction, model, owners[rows], rows, poses)
    point_of = rows_of(model.points.ids, images.point_ids[rows])
    is_finite = np.isfinite(rays).all(axis=1)
    counts = np.bincount(point_of[is_finite], minlength=len(model.points.ids))
    taken = np.flatnonzero(is_finite & (counts[point_of] >= min_views))
    rows, rays, point_of = rows[taken], rays[taken], point_of[taken]
    points, used = used_rows(point_of), used_rows(owners[rows])
    point_of, image_of = node_index(points, point_of), node_index(used, owners[rows])
    at = [poses[one] for one in used.tolist()]
    frames, first, frame_of = np.unique(
        [one.frame_id for one in at], return_index=True, return_inverse=True
    )
    return Sights(
        frames=frames,
        rotations=np.array([at[one].rig_from_world for one in first]).reshape(-1, 4),
        centers=np.array([at[one].center for one in first]).reshape(-1, 3),
        points=model.points.ids[points],
        xyz=model.points.xyz[points],
        center_of=frame_of[image_of],
        point_of=point_of,
        rays=rays,
        offsets=np.array([one.offset for one in at]).reshape(-1, 3)[image_of],
        weights=np.array([one.weight for one in at])[image_of],
    )


@dataclass(frozen=True)
class _Pose:
    """The pose of one image; see `Sights`."""

    frame_id: int
    rig_from_world: Floats
    camera_from_world: Floats
    center: Floats
    offset: Floats
    weight: float


def _pose(image: Any) -> _Pose:
    rig_from_world = image.frame.rig_from_world
    turn = np.asarray(rig_from_world.rotation.quat, np.float64)
    back = rig_from_world.rotation.inverse()
    offset, camera_from_world = np.zeros(3), rig_from_world.rotation
    if not image.is_ref_in_frame():
        sensor = image.frame.rig.sensor_from_rig(image.camera.sensor_id)
        offset = -(back * (sensor.rotation.inverse() * sensor.translation))
        camera_from_world = sensor.rotation * camera_from_world
    weight = 1.0 if image.camera.has_prior_focal_length else UNCALIBRATED_WEIGHT
    center = -(back * rig_from_world.translation)
    return _Pose(image.frame_id, turn, camera_from_world.matrix(), center, offset, weight)


def _rays(
    reconstruction: Any, model: Model, owners: Integers, rows: Integers, poses: dict[int, _Pose]
) -> Floats:
    """Return (m, 3) rays of keypoints in the world, of length 1; NaN if the lens has no ray."""
    rays = np.empty((len(rows), 3))
    cuts = np.flatnonzero(np.diff(owners)) + 1
    for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True):
        if start == end:
            continue
        image = int(owners[start])
        camera = reconstruction.image(int(model.images.ids[image])).camera
        pixels = np.ascontiguousarray(model.images.keypoints[rows[start:end]])
        found = camera.cam_ray_from_img(pixels)
        rays[start:end] = found @ poses[image].camera_from_world
    return rays


def _solved(
    seen: Sights, options: Any, backend: BackendName | BackendChoice
) -> tuple[Floats, Floats]:
    fixed = {}
    if not options.optimize_positions:
        fixed["Center"] = np.ones(len(seen.centers), bool)
    if not options.optimize_points:
        fixed["Landmark"] = np.ones(len(seen.xyz), bool)
    arrays: dict[str, Any] = {
        "Center": seen.centers,
        "Landmark": seen.xyz,
        "scales": {
            "center": seen.center_of,
            "point": seen.point_of,
            "ray": seen.rays,
            "offset": seen.offsets,
            "weight": seen.weights,
            "loss_scale": options.loss_function_scale,
        },
    }
    sizes = f"{len(seen.centers)} frames and {len(seen.xyz)} points"
    is_free = options.optimize_positions and options.optimize_points
    if is_free and (options.generate_random_positions or options.generate_random_points):
        with phase(f"positioning {sizes}: depths"):
            arrays |= _start(seen, options.loss_function_scale, backend)
    with phase(f"positioning {sizes}: scales"):
        result = _solver(scales, backend).solve(
            arrays,
            fixed=fixed or None,
            max_iterations=MAX_ITERATIONS,
            cost_tolerance=SCALES_TOLERANCE,
            verbose=False,
        )
    return np.asarray(result.values["Center"]), np.asarray(result.values["Landmark"])


def _start(
    seen: Sights, loss_scale: float, backend: BackendName | BackendChoice
) -> dict[str, Floats]:
    arrays: dict[str, Any] = {
        "Center": np.zeros_like(seen.centers),
        "Landmark": np.zeros_like(seen.xyz),
    }
    data = {
        "center": seen.center_of,
        "point": seen.point_of,
        "ray": seen.rays,
        "weight": seen.weights,
        "loss_scale": loss_scale,
    }
    has_offsets = bool(np.any(seen.offsets))
    if has_offsets:
        arrays |= {"RigScale": np.ones((1, 1)), "rig_depths": {**data, "offset": seen.offsets}}
    else:
        arrays["depths"] = data
    result = _solver(rig_depths if has_offsets else depths, backend).solve(
        arrays, max_iterations=MAX_ITERATIONS, cost_tolerance=DEPTHS_TOLERANCE, verbose=False
    )
    rig_scale = float(result.values["RigScale"][0, 0]) if has_offsets else 1.0
    unit = rig_scale if rig_scale > 0.0 else 1.0
    return {name: np.asarray(result.values[name]) / unit for name in ("Center", "Landmark")}


@lru_cache(maxsize=6)
def _solver(one: Factor, backend: BackendName | BackendChoice) -> Solver:
    return Solver(one, backend=backend, precision="float64")
