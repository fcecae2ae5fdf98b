"""A problem as a solver takes it, and its results put back.

Input: a `Problem`. Output: `SolveArrays`: factors, the arrays of a solve and what it holds. The
observations of all camera models are a factor if these are few, else each model has one; those of
cameras that are not the reference sensors of their rigs have factors of their own. Where each image
has a lens of its own, pose and lens are one node: conjugate gradients see how they depend on each
other then, and the matrix has fewer, larger blocks. A few passes over the observations, once for an
adjustment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caspar.cameras import MODELS_BY_ID
from caspar.colmap.adjust.factors import (
    Form,
    LensForm,
    from_principal_points,
    lens_bounds,
    lens_places,
    lens_type,
    model_numbers,
    reprojection_factor,
    used_lenses,
    view_type,
)
from caspar.colmap.adjust.observations import rotation_columns, used_rows
from caspar.colmap.adjust.options import LossFunction
from caspar.colmap.adjust.problem import Mask, Problem
from caspar.colmap.adjust.rig_structure import REFERENCE
from caspar.colmap.model import Floats, Integers, rows_of
from caspar.frontend.factors.factor import Factor

MIN_VIEWS = 16
"""Images with lenses of their own from which on pose and lens are one node: another factor is
compiled for it."""

MAX_JOINT = 4
"""Camera models up to which all of a problem are one factor: it evaluates each for every
observation when it linearises."""


@dataclass(frozen=True, eq=False)
class Values:
    """The values that an adjustment refines.

    Attributes:
        frames: (num_frames, 7) rig_from_world, qx qy qz qw tx ty tz.
        sensors: (num_sensors, 7) sensor_from_rig.
        parameters: Intrinsics of all cameras, flat; in start values a zero behind them stands for
            parameters that a camera does not have.
        points: (num_points, 3).
    """

    frames: Floats
    sensors: Floats
    parameters: Floats
    points: Floats


@dataclass(frozen=True, eq=False)
class Place:
    """The field of `Values` that columns of nodes come from, and an index of its (n, k) part."""

    target: str
    index: Any


@dataclass(eq=False)
class SolveArrays:
    """A problem as a solver takes it.

    Attributes:
        arrays: As for `Solver.solve`.
        fixed: Components that are held, by node type, of all types.
        bounds: As for `Solver.solve`.
        places: For each node type, which fields of `Values` its columns come from, and where.
        lenses: By COLMAP's numbers of camera models, the node types of their lenses.
        keypoints: For each reprojection factor, its instances' places among all keypoints.
    """

    start: Values
    factors: list[Factor] = field(default_factory=list)
    arrays: dict[str, Any] = field(default_factory=dict)
    fixed: dict[str, Mask] = field(default_factory=dict)
    bounds: dict[str, Any] = field(default_factory=dict)
    places: dict[str, tuple[Place, ...]] = field(default_factory=dict)
    lenses: dict[int, LensForm] = field(default_factory=dict)
    num_prior_residuals: int = 0
    keypoints: dict[str, Integers] = field(default_factory=dict)

    def add_nodes(self, kind: str, places: Place | tuple[Place, ...], constant: Mask) -> None:
        """Take nodes of a type from start values; several places have columns side by side.

        `constant` are (n,) nodes or (n, tangent_dim) components that are held.
        """
        parts = places if isinstance(places, tuple) else (places,)
        columns = [getattr(self.start, one.target)[one.index] for one in parts]
        self.arrays[kind] = np.concatenate(columns, axis=1)
        self.fixed[kind] = constant
        self.places[kind] = parts

    def add_bounds(self, kind: str, bounds: Mapping[str, Any]) -> None:
        """Bound fields of nodes of a type; nothing if there are none."""
        if len(bounds) > 0:
            self.bounds[kind] = bounds

    def rows(self, kind: str) -> Any:
        """Return the rows that nodes of one place come from; None: there are no such nodes."""
        return self.places[kind][0].index if kind in self.places else None

    def add_prior(self, prior: Factor, arguments: dict[str, Any], num_residuals: int) -> None:
        """Add a factor of what is known besides pixels."""
        self.factors.append(prior)
        self.arrays[prior.name] = arguments
        self.num_prior_residuals += num_residuals

    @property
    def held(self) -> dict[str, Mask]:
        """Masks for `Solver.solve(fixed=...)`, for the node types of which anything is held."""
        return {kind: mask for kind, mask in self.fixed.items() if mask.any()}

    @property
    def camera_types(self) -> list[str]:
        """Node types but points: frames, sensors, lenses."""
        return [kind for kind in self.fixed if kind != "Point"]

    @property
    def has_views(self) -> bool:
        """True if poses and lenses are nodes together."""
        return any(len(places) > 1 for places in self.places.values())

    def values(self, solved: Mapping[str, Any]) -> Values:
        """Put solved nodes, (n, storage_dim) by type, in their places.

        What is constant has the bits that it had.
        """
        arrays = {name: array.copy() for name, array in vars(self.start).items()}
        for kind, places in self.places.items():
            columns = np.asarray(solved[kind], dtype=np.float64)
            first = 0
            for place in places:
                width = arrays[place.target][place.index].shape[1]
                arrays[place.target][place.index] = columns[:, first : first + width]
                first += width
        arrays["parameters"] = arrays["parameters"][:-1]
        return Values(**arrays)


def solve_arrays(
    problem: Problem,
    loss: LossFunction,
    loss_scale: float,
    *,
    merges_views: bool = True,
    has_plain_lenses: bool = False,
) -> SolveArrays:
    """Make the arrays of a solve, whose loss has a scale in pixels.

    With `merges_views` pose and lens are one node where each image has a lens of its own; with
    `has_plain_lenses` each camera model has a node type of its own, with all parameters.
    """
    model, seen = problem.model, problem.observations
    made = SolveArrays(_start_values(problem))
    frames, points = used_rows(problem.frames), seen.used_points
    viewed = _viewed_models(problem) if merges_views else frozenset()
    sensors = used_rows(problem.sensors[problem.sensors != REFERENCE])
    # Poses that are constant throughout are used as they are stored: see `ConstantPose`.
    has_constant_frames = bool(problem.constant_frames[frames].all())
    has_constant_sensors = bool(problem.constant_sensors[sensors].all())
    viewed = frozenset() if has_constant_frames else viewed
    is_viewed = np.isin(model.cameras.model_ids, sorted(viewed))
    own = used_rows(problem.frames[~is_viewed[seen.cameras]]) if viewed else frames
    if not has_constant_frames and len(own) > 0:
        made.add_nodes("Frame", Place("frames", own), problem.constant_frames[own])
    if not has_constant_sensors:
        made.add_nodes("Sensor", Place("sensors", sensors), problem.constant_sensors[sensors])
    made.add_nodes("Point", Place("points", points), _whole(problem.constant_points[points]))
    made.lenses |= _lens_forms(problem, viewed, is_plain=has_plain_lenses)
    for lens, has_sensor, chosen in _factors(problem, made.lenses):
        form = Form(
            lens,
            has_sensor,
            has_constant_frames,
            has_sensor and has_constant_sensors,
            is_view=lens.models[0].model_id in viewed,
        )
        factor = reprojection_factor(form, loss)
        made.factors.append(factor)
        made.keypoints[factor.name] = seen.keypoints[chosen]
        rows, cameras = problem.frames[chosen], seen.cameras[chosen]
        arguments = _seen(problem, lens, points, chosen)
        if form.is_view:
            arguments["view"] = _views(made, problem, lens, rows, cameras)
        else:
            nodes = frames if has_constant_frames else own
            arguments["frame"] = _pose(problem.frame_poses, nodes, rows, has_constant_frames)
            arguments["lens"] = _lenses(made, problem, lens, cameras)
        if has_sensor:
            rows = problem.sensors[chosen]
            arguments["sensor"] = _pose(problem.sensor_poses, sensors, rows, has_constant_sensors)
        if loss is not LossFunction.TRIVIAL:
            arguments["loss_scale"] = loss_scale
        made.arrays[factor.name] = arguments
    return made


def _whole(constant: Mask) -> Mask:
    """Return a mask of nodes instead of one of their components, if no node is held in part."""
    is_held: Mask = np.all(constant, axis=1)
    return is_held if (is_held == np.any(constant, axis=1)).all() else constant


def _start_values(problem: Problem) -> Values:
    cameras, points = problem.model.cameras, problem.model.points
    parameters = np.append(cameras.parameters, 0.0)
    return Values(problem.frame_poses, problem.sensor_poses, parameters, points.xyz)


def _seen(
    problem: Problem, lens: LensForm, points: Integers, chosen: Integers | slice
) -> dict[str, Any]:
    seen = problem.observations
    cameras = seen.cameras[chosen]
    arguments = {
        "point": node_index(points, seen.points[chosen]),
        "pixel": from_principal_points(problem, lens, cameras, problem.pixels[chosen]),
    }
    if len(lens.models) > 1:
        arguments["model"] = model_numbers(problem, lens, cameras)
    return arguments


def _lens_forms(problem: Problem, viewed: frozenset[int], *, is_plain: bool) -> dict[int, LensForm]:
    """Return node types of lenses by numbers of camera models; a few models have one."""
    used = problem.model.cameras.model_ids[used_rows(problem.observations.cameras)]
    model_ids = np.unique(used).tolist()
    has_principal = is_plain or "principal" in problem.refined_intrinsics
    forms = {
        number: LensForm((MODELS_BY_ID[number].name,), has_principal=has_principal)
        for number in model_ids
    }
    joint = [
        number
        for number in model_ids
        if number not in viewed and lens_type(forms[number]) is not None
    ]
    if 1 < len(joint) <= MAX_JOINT and not is_plain:
        names = tuple(MODELS_BY_ID[number].name for number in joint)
        forms |= dict.fromkeys(joint, LensForm(names, has_principal=has_principal))
    return forms


def _factors(
    problem: Problem, forms: Mapping[int, LensForm]
) -> list[tuple[LensForm, bool, Integers | slice]]:
    images = problem.model.images
    cameras = rows_of(problem.model.cameras.ids, images.camera_ids)
    used = problem.observations.used_images
    # the number of the first model that has the same node type
    numbers = np.zeros(max(forms) + 1, np.int64)
    for number, lens in forms.items():
        numbers[number] = next(other for other in forms if forms[other] == lens)
    model_ids = problem.model.cameras.model_ids[cameras[used]]
    keys = np.empty(len(images.ids), np.int64)
    keys[used] = 2 * numbers[model_ids] + (problem.structure.sensors[used] != REFERENCE)
    found = np.unique(keys[used]).tolist()
    if len(found) == 1:
        return [(forms[found[0] // 2], bool(found[0] % 2), slice(None))]
    of_observations = keys[problem.observations.images]
    return [
        (forms[key // 2], bool(key % 2), np.flatnonzero(of_observations == key)) for key in found
    ]


def node_index(nodes: Integers, rows: Integers) -> Integers:
    """Return where each row stands among ascending rows that contain it."""
    places = np.zeros(int(nodes.max(initial=-1)) + 1, np.int64)
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


def _lenses(made: SolveArrays, problem: Problem, lens: LensForm, rows: Integers) -> Any:
    """Return indices of nodes, which are added, or constants if there is nothing to refine."""
    cameras = problem.model.cameras
    kind = lens_type(lens)
    lenses = used_lenses(problem, lens)
    index = node_index(lenses, rows)
    if kind is None:
        places = cameras.offsets[lenses, None] + np.arange(lens.models[0].num_parameters)
        return {"values": cameras.parameters[places], "index": index}
    places, is_held = lens_places(problem, lens, lenses)
    made.add_nodes(kind.__name__, Place("parameters", places), is_held)
    made.add_bounds(kind.__name__, lens_bounds(problem, lens, places))
    return index


def _viewed_models(problem: Problem) -> frozenset[int]:
    """Return ids of camera models of which each frame has one camera and each camera one frame."""
    model, images = problem.model, problem.observations.used_images
    frames = problem.structure.frames[images]
    cameras = rows_of(model.cameras.ids, model.images.camera_ids[images])
    has_sensor = problem.structure.sensors[images] != REFERENCE
    lone = _alone(frames, cameras) & _alone(cameras, frames) & ~has_sensor
    model_ids = model.cameras.model_ids[cameras]
    found = [
        number
        for number in np.unique(model_ids[lone]).tolist()
        for lens in (LensForm((MODELS_BY_ID[number].name,), has_principal=False),)
        if lens_type(lens) is not None
        and lone[model_ids == number].all()
        and len(used_lenses(problem, lens)) >= MIN_VIEWS
    ]
    return frozenset(found)


def _alone(rows: Integers, others: Integers) -> Mask:
    """Return, for each image, whether all of its row have the same other row."""
    least, most = np.full(rows.max() + 1, others.max()), np.zeros(rows.max() + 1, np.int64)
    np.minimum.at(least, rows, others)
    np.maximum.at(most, rows, others)
    is_alone: Mask = (least == most)[rows]
    return is_alone


def _views(
    made: SolveArrays, problem: Problem, lens: LensForm, frames: Integers, cameras: Integers
) -> Integers:
    lenses = used_lenses(problem, lens)
    index = node_index(lenses, cameras)
    of_lens = np.empty(len(lenses), np.int64)
    of_lens[index] = frames
    places, is_held = lens_places(problem, lens, lenses)
    constant = np.concatenate([problem.constant_frames[of_lens], is_held], axis=1)
    kind = view_type(lens).__name__
    made.add_nodes(kind, (Place("frames", of_lens), Place("parameters", places)), constant)
    made.add_bounds(kind, lens_bounds(problem, lens, places))
    return index
