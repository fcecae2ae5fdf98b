"""Reprojection factors of all camera models, with and without a sensor pose.

Input: a `Form`. Output: a `Factor` and the types of its arguments. Traced once for each form in a
process; kernels are compiled once on a machine.

The residual of a keypoint p of a point X, seen by a camera with intrinsics k and the projection
pi_k, in a sensor with the pose sensor_from_rig of a rig with the pose rig_from_world, is

    pi_k(sensor_from_rig(rig_from_world(X))) - p,

zero where the camera cannot see the point (COLMAP's rule).

Also here: lenses as nodes: which camera models share a node type, and which parameters it has.
Principal points that nobody refines are no part of a node: pixels are taken relative to them. A few
camera models in one problem have one node type and one factor, which chooses by a number of each
observation: points that several factors see would need two passes over all observations in a
product, instead of one (docs/design/0012-elimination.md).
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

from caspar.cameras import MODELS, CameraModel
from caspar.colmap.adjust.observations import used_rows
from caspar.colmap.adjust.options import LossFunction
from caspar.colmap.adjust.problem import Mask, Problem
from caspar.colmap.model import Floats, Integers
from caspar.factors.whitening import vector_type
from caspar.frontend.factors.factor import Factor, factor
from caspar.frontend.markers import ConstSequential, ConstShared, TunableShared
from caspar.loss import Cauchy, Huber, Loss, SoftL1

GROUPS = ("focal", "principal", "extra")
"""Groups of intrinsics: fields of `CameraModel` and of lenses."""

NO_PARAMETER = -1
"""A column that a camera model has no parameter for; it is held."""


@dataclass(frozen=True)
class LensForm:
    """The node type of some camera models, perhaps with principal points."""

    camera_models: tuple[str, ...]
    has_principal: bool

    @property
    def name(self) -> str:
        """The names of the camera models."""
        return "_".join(self.camera_models)

    @property
    def models(self) -> tuple[CameraModel, ...]:
        """The camera models."""
        return tuple(MODELS[name] for name in self.camera_models)

    @property
    def sizes(self) -> dict[str, int]:
        """Columns of each group that has any: as many as the model with the most needs."""
        groups = [one for one in GROUPS if one != "principal" or self.has_principal]
        sizes = {one: max(len(getattr(model, one)) for model in self.models) for one in groups}
        return {name: size for name, size in sizes.items() if size > 0}

    def columns(self, model: CameraModel) -> list[int]:
        """Return the model's parameter in each column, or `NO_PARAMETER`."""
        found: list[int] = []
        for name, size in self.sizes.items():
            own = list(getattr(model, name))
            found += own + [NO_PARAMETER] * (size - len(own))
        return found

    def parameters(self, model: CameraModel, values: Sequence[Any]) -> list[Any]:
        """Return a model's parameters, from those of a node; what is not in it is zero."""
        parameters: list[Any] = [0] * model.num_parameters
        for place, value in zip(self.columns(model), values, strict=True):
            if place != NO_PARAMETER:
                parameters[place] = value
        return parameters


def plain_lens(camera_model: str) -> LensForm:
    """Return the node type of all parameters of a camera model, as priors on them need it."""
    return LensForm((camera_model,), has_principal=True)


@lru_cache
def lens_type(lens: LensForm) -> Any:
    """Return the node type: some of the fields focal, principal and extra, in this order.

    None: there is nothing to refine.
    """
    fields = [(name, vector_type(size)) for name, size in lens.sizes.items()]
    return make_dataclass(f"Lens_{lens.name}", fields) if fields else None


@lru_cache
def view_type(lens: LensForm) -> Any:
    """Return the node type of a pose and a lens; in storage the pose comes first."""
    pose = [("rotation", sf.Rot3), ("translation", sf.V3)]
    fields = [*pose, *((name, vector_type(size)) for name, size in lens.sizes.items())]
    return make_dataclass(f"View_{lens.name}", fields)


# -- arrays ----------------------------------------------------------------------------------------


def used_lenses(problem: Problem, lens: LensForm) -> Integers:
    """Return rows of the cameras of some models that see points: those of all their factors."""
    lenses = used_rows(problem.observations.cameras)
    numbers = [-1 if model.model_id is None else model.model_id for model in lens.models]
    found: Integers = lenses[np.isin(problem.model.cameras.model_ids[lenses], numbers)]
    return found


def lens_places(problem: Problem, lens: LensForm, lenses: Integers) -> tuple[Integers, Mask]:
    """Return where the columns of nodes come from, and what of them is held, (n, k) each.

    Places are among the parameters of all cameras, behind the last one where a model has no
    parameter; `lenses` are rows of cameras, (n,).
    """
    cameras = problem.model.cameras
    size = sum(lens.sizes.values())
    places = np.full((len(lenses), size), len(cameras.parameters), np.int64)
    is_held = np.ones((len(lenses), size), np.bool_)
    for model in lens.models:
        rows = np.flatnonzero(cameras.model_ids[lenses] == model.model_id)
        refined = [place for name in problem.refined_intrinsics for place in getattr(model, name)]
        for column, place in enumerate(lens.columns(model)):
            if place != NO_PARAMETER:
                places[rows, column] = cameras.offsets[lenses[rows]] + place
                is_held[rows, column] = place not in refined
    is_held[problem.constant_cameras[lenses]] = True
    return places, is_held


def lens_bounds(
    problem: Problem, lens: LensForm, places: Integers
) -> dict[str, tuple[Floats, Floats]]:
    """Return lower and upper bounds of nodes by group, each (n, size); nothing without bounds.

    `places` are those of `lens_places`, (n, k).
    """
    if problem.intrinsics_bounds is None:
        return {}
    lower, upper = problem.intrinsics_bounds
    lows, highs = np.append(lower, -np.inf)[places], np.append(upper, np.inf)[places]
    ends = np.cumsum([0, *lens.sizes.values()]).tolist()
    return {
        name: (lows[:, first:end], highs[:, first:end])
        for name, (first, end) in zip(lens.sizes, pairwise(ends), strict=True)
    }


def from_principal_points(
    problem: Problem, lens: LensForm, cameras: Integers, pixels: Floats
) -> Floats:
    """Return (m, 2) pixels relative to principal points, if these are not parts of nodes.

    `cameras` are rows, (m,).
    """
    if lens.has_principal:
        return pixels
    known = problem.model.cameras
    principal = np.zeros((len(known.ids), 2))
    for model in lens.models:
        rows = np.flatnonzero(known.model_ids == model.model_id)
        for axis, place in enumerate(model.principal):
            principal[rows, axis] = known.parameters[known.offsets[rows] + place]
    moved = principal[cameras]
    return np.subtract(pixels, moved, out=moved)


def model_numbers(problem: Problem, lens: LensForm, cameras: Integers) -> NDArray[np.float64]:
    """Return (m, 1) the number of each camera's model among those of a node type."""
    numbers = np.zeros((len(cameras), 1))
    for number, model in enumerate(lens.models):
        numbers[problem.model.cameras.model_ids[cameras] == model.model_id] = number
    return numbers


@dataclass
class Frame:
    """The pose of a rig, rig_from_world; in storage qx qy qz qw tx ty tz."""

    rotation: sf.Rot3
    translation: sf.V3


@dataclass
class Sensor:
    """The pose of a camera in its rig, sensor_from_rig; in storage qx qy qz qw tx ty tz."""

    rotation: sf.Rot3
    translation: sf.V3


@dataclass
class ConstantPose:
    """A pose that is constant, as a matrix: its quaternion may have any length, as in COLMAP."""

    rotation: sf.M33
    translation: sf.V3


class Point(sf.V3):
    """A point in world coordinates."""


@dataclass(frozen=True)
class Form:
    """The properties on which the code of a factor depends.

    Attributes:
        lens: Which camera models it is for, and which of their parameters are in nodes.
        has_sensor: Whether the camera is not the reference sensor of its rig.
        has_constant_frame: Whether the poses of rigs are constants rather than nodes.
        has_constant_sensor: Whether the poses of sensors are; False without sensor.
        is_view: Whether the pose of a frame and a lens are one node, for frames of one image.
    """

    lens: LensForm
    has_sensor: bool
    has_constant_frame: bool
    has_constant_sensor: bool
    is_view: bool = False

    @property
    def name(self) -> str:
        """The name of the factor: the camera models, and in a rig `sensor`."""
        return f"{self.lens.name}_sensor" if self.has_sensor else self.lens.name


LOSSES: dict[LossFunction, type[Loss] | None] = {
    LossFunction.TRIVIAL: None,
    LossFunction.SOFT_L1: SoftL1,
    LossFunction.CAUCHY: Cauchy,
    LossFunction.HUBER: Huber,
}
"""caspar's losses by COLMAP's names; their scales mean the same."""


@lru_cache
def reprojection_factor(form: Form, loss: LossFunction) -> Factor:
    """Return the factor of a form with a loss.

    Its arguments are `frame`, `sensor` if it has one, `lens`, `point` and `pixel`, or `view` in
    place of frame and lens, and `model` if it is for several camera models: the number of each
    observation's. A pixel is one for each factor, relative to the principal point if that is no
    part of the lens; the others are shared nodes, or shared constants as the form says. A lens
    whose parameters are never refined is a constant too.
    """
    models = form.lens.models

    def residual(**arguments: Any) -> sf.V2:
        view = arguments.get("view")
        frame = arguments["frame"] if view is None else view
        lens = arguments["lens"] if view is None else view
        pixel = arguments["pixel"]
        point = frame.rotation * arguments["point"] + frame.translation
        if form.has_sensor:
            point = arguments["sensor"].rotation * point + arguments["sensor"].translation
        values = [one for name in form.lens.sizes for one in getattr(lens, name)]
        found = [
            model.residual(form.lens.parameters(model, values) if values else lens, point, pixel)
            for model in models
        ]
        return found[0] if len(found) == 1 else _chosen(found, arguments["model"][0])

    annotations = _annotations(form)
    # the arguments depend on the form
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
        for name, annotation in annotations.items()
    ]
    residual.__name__ = form.name
    residual.__annotations__ = annotations
    vars(residual)["__signature__"] = inspect.Signature(parameters)
    return factor(residual).with_loss(LOSSES[loss])


def _chosen(residuals: list[sf.V2], number: Any) -> sf.V2:
    found = residuals[-1]
    for place in range(len(residuals) - 2, -1, -1):
        pairs = zip(residuals[place], found, strict=True)
        is_this = number < place + sf.Rational(1, 2)
        found = sf.V2(*(sf.Piecewise((this, is_this), (other, True)) for this, other in pairs))
    return found


def _annotations(form: Form) -> dict[str, Any]:
    constant = Annotated[ConstantPose, ConstShared]
    lens = lens_type(form.lens)
    if form.is_view:
        return {
            "view": Annotated[view_type(form.lens), TunableShared],
            "point": Annotated[Point, TunableShared],
            "pixel": Annotated[sf.V2, ConstSequential],
        }
    annotations: dict[str, Any] = {
        "frame": constant if form.has_constant_frame else Annotated[Frame, TunableShared]
    }
    if form.has_sensor:
        annotations["sensor"] = (
            constant if form.has_constant_sensor else Annotated[Sensor, TunableShared]
        )
    annotations["lens"] = (
        Annotated[vector_type(form.lens.models[0].num_parameters), ConstShared]
        if lens is None
        else Annotated[lens, TunableShared]
    )
    annotations["point"] = Annotated[Point, TunableShared]
    annotations["pixel"] = Annotated[sf.V2, ConstSequential]
    if len(form.lens.models) > 1:
        annotations["model"] = Annotated[sf.V1, ConstSequential]
    return annotations
