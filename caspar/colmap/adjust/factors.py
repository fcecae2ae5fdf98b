"""Reprojection factors of all camera models, with and without a sensor pose.

Input: a `Form`. Output: a `Factor` and the types of its arguments. Traced once for each form in a
process; kernels are compiled once on a machine.

The residual of a keypoint p of a point X, seen by a camera with intrinsics k and the projection
pi_k, in a sensor with the pose sensor_from_rig of a rig with the pose rig_from_world, is

    pi_k(sensor_from_rig(rig_from_world(X))) - p,

zero where the camera cannot see the point (COLMAP's rule).
"""

import inspect
from dataclasses import dataclass, make_dataclass
from functools import lru_cache
from typing import Annotated, Any

import symforce.symbolic as sf

from caspar.cameras import MODELS, CameraModel
from caspar.colmap.adjust.options import LossFunction
from caspar.frontend.factors.factor import Factor, factor
from caspar.frontend.markers import ConstSequential, ConstShared, TunableShared
from caspar.loss import Cauchy, Huber, Loss, SoftL1

GROUPS = ("focal", "principal", "extra")
"""Groups of intrinsics: fields of `CameraModel` and of lenses."""


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
    """What a factor depends on.

    Attributes:
        camera_model: Name of the camera model.
        has_sensor: Whether the camera is not the reference sensor of its rig.
        has_constant_frame: Whether the poses of rigs are constants rather than nodes.
        has_constant_sensor: Whether the poses of sensors are; False without sensor.
        is_view: Whether the pose of a frame and a lens are one node, for frames of one image.
    """

    camera_model: str
    has_sensor: bool
    has_constant_frame: bool
    has_constant_sensor: bool
    is_view: bool = False

    @property
    def name(self) -> str:
        """The name of the factor: the camera model, and in a rig `sensor`."""
        return f"{self.camera_model}_sensor" if self.has_sensor else self.camera_model

    @property
    def model(self) -> CameraModel:
        """The camera model."""
        return MODELS[self.camera_model]


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
    place of frame and lens. A pixel is one
    for each factor; the others are shared nodes, or shared constants as the form says. A lens whose
    parameters are never refined is a constant too.
    """
    model = form.model

    def residual(**arguments: Any) -> sf.V2:
        view = arguments.get("view")
        frame = arguments["frame"] if view is None else view
        lens = arguments["lens"] if view is None else view
        point = frame.rotation * arguments["point"] + frame.translation
        if form.has_sensor:
            point = arguments["sensor"].rotation * point + arguments["sensor"].translation
        fields = [name for name in GROUPS if getattr(model, name)]
        parameters = [one for name in fields for one in getattr(lens, name)]
        return model.residual(parameters or lens, point, arguments["pixel"])

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


@lru_cache
def lens_type(camera_model: str) -> Any:
    """Return the node type of a model's intrinsics: fields focal, principal and extra.

    The fields are in the order of the parameters. None: the model has nothing to refine.
    """
    model = MODELS[camera_model]
    fields = [(name, _vector(len(places))) for name in GROUPS if (places := getattr(model, name))]
    return make_dataclass(f"Lens_{camera_model}", fields) if fields else None


@lru_cache
def view_type(camera_model: str) -> Any:
    """Return the node type of a pose and a lens; in storage the pose comes first."""
    lens = lens_type(camera_model)
    pose = [("rotation", sf.Rot3), ("translation", sf.V3)]
    fields = [*pose, *((name, lens.__annotations__[name]) for name in lens.__annotations__)]
    return make_dataclass(f"View_{camera_model}", fields)


def _annotations(form: Form) -> dict[str, Any]:
    constant = Annotated[ConstantPose, ConstShared]
    lens = lens_type(form.camera_model)
    if form.is_view:
        return {
            "view": Annotated[view_type(form.camera_model), TunableShared],
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
        Annotated[_vector(form.model.num_parameters), ConstShared]
        if lens is None
        else Annotated[lens, TunableShared]
    )
    annotations["point"] = Annotated[Point, TunableShared]
    annotations["pixel"] = Annotated[sf.V2, ConstSequential]
    return annotations


def _vector(size: int) -> Any:
    return sf.matrix_type_from_shape((size, 1))
