"""Reprojection factors of all camera models, with and without a sensor pose.

Input: a `Form`. Output: a `Factor` and the types of its arguments. Traced once for each form in a
process; kernels are compiled once on a machine.

The residual of a keypoint p of a point X, seen by a camera with intrinsics k and the projection
pi_k, in a sensor with the pose sensor_from_rig of a rig with the pose rig_from_world, is

    pi_k(sensor_from_rig(rig_from_world(X))) - p,

zero where the camera cannot see the point (COLMAP's rule).
"""

import inspect
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import symforce.symbolic as sf

from caspar.colmap.adjust.lenses import LensForm, lens_type, view_type
from caspar.colmap.adjust.options import LossFunction
from caspar.factors.whitening import vector_type
from caspar.frontend.factors.factor import Factor, factor
from caspar.frontend.markers import ConstSequential, ConstShared, TunableShared
from caspar.loss import Cauchy, Huber, Loss, SoftL1


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
    """The residual of a number."""
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
