"""Factors of what is known besides pixels: positions of cameras, gravity, intrinsics.

Input: which nodes a prior is of. Output: a `Factor`. Traced once in a process. With the pose
cam_from_world = (R, t), the residuals are

    L (-R^T t - position), where L^T L is the inverse of the covariance,
    (R gravity_in_world - gravity) / stddev, of unit vectors, stddev in radians,
    (parameter - mean) / stddev, of each parameter of a camera.
"""

import inspect
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any

import symforce.symbolic as sf

from caspar.cameras import MODELS
from caspar.colmap.adjust.factors import (
    LOSSES,
    ConstantPose,
    Frame,
    Sensor,
)
from caspar.colmap.adjust.lenses import GROUPS, lens_type, plain_lens
from caspar.colmap.adjust.options import LossFunction
from caspar.frontend.factors.factor import Factor, factor
from caspar.frontend.markers import ConstSequential, TunableShared


class SensorKind(Enum):
    """What places a camera in its rig."""

    NONE = "none"
    CONSTANT = "constant"
    NODE = "node"


@lru_cache
def position_factor(kind: SensorKind, loss: LossFunction) -> Factor:
    """Return the factor of a position.

    Its arguments are `frame`, `sensor` unless there is none, `position` and `root`, the matrix L.

    Args:
        kind: What places the camera in its rig.
        loss: Of the distance in standard deviations.
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

    Args:
        kind: What places the camera in its rig.
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
    """Rotation matrix and translation of cam_from_world."""
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
    """Make a factor of a function whose arguments depend on the form."""
    parameters = [
        inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
        for one, annotation in annotations.items()
    ]
    residual.__name__ = name
    residual.__annotations__ = annotations
    vars(residual)["__signature__"] = inspect.Signature(parameters)
    return factor(residual)
