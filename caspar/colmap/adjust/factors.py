"""Reprojection factors of all camera models, with any of their arguments constant.

Input: a `Form`, what is constant in a factor. Output: a `Factor` and the types of its arguments.
Traced once for each form in a process; kernels are compiled once on a machine.

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

from caspar.cameras import MODELS
from caspar.frontend.factors.factor import Factor, factor
from caspar.frontend.markers import ConstSequential, ConstShared, TunableShared

ALL_STEPS = (True,) * 6
NO_STEPS = (False,) * 6


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
    """What is constant in a factor.

    Attributes:
        camera_model: Name of the camera model.
        refined: Groups of intrinsics that are refined, of focal, principal and extra.
        constant_steps: Components of the step of the frame's pose that are zero: rotation (all or
            none), translation.
        has_sensor: Whether the camera is not the reference sensor of its rig.
        is_sensor_constant: Whether its pose is constant; True without sensor.
        is_point_constant: Whether points are constant.
    """

    camera_model: str
    refined: tuple[str, ...]
    constant_steps: tuple[bool, ...]
    has_sensor: bool
    is_sensor_constant: bool
    is_point_constant: bool

    @property
    def is_constant(self) -> bool:
        """Whether nothing is refined."""
        return (
            not self.refined
            and self.constant_steps == ALL_STEPS
            and self.is_sensor_constant
            and self.is_point_constant
        )

    @property
    def name(self) -> str:
        """The name of the factor: the camera model and what is constant."""
        words = [self.camera_model]
        if self.constant_steps == ALL_STEPS:
            words.append("constant_frame")
        elif self.constant_steps != NO_STEPS:
            words.append(f"constant_{_letters(self.constant_steps)}")
        if self.has_sensor:
            words.append("constant_sensor" if self.is_sensor_constant else "sensor")
        if self.refined:
            words += [self.refined_name]
        if self.is_point_constant:
            words.append("constant_point")
        return "_".join(words)

    @property
    def refined_name(self) -> str:
        """The refined groups of intrinsics in one word."""
        return "_".join(self.refined)

    @property
    def refined_places(self) -> list[int]:
        """Indices of the refined parameters."""
        return [place for name in self.refined for place in getattr(self._model, name)]

    @property
    def constant_places(self) -> list[int]:
        """Indices of the other parameters."""
        refined = self.refined_places
        return [place for place in range(self._model.num_parameters) if place not in refined]

    @property
    def frame_type(self) -> Any:
        """The type of what is refined of a frame."""
        return _frame_type(tuple(not is_constant for is_constant in self.constant_steps))

    @property
    def constant_frame_type(self) -> Any:
        """The type of what is constant of a frame."""
        is_whole = self.constant_steps == ALL_STEPS
        return ConstantPose if is_whole else _frame_type(self.constant_steps)

    @property
    def lens_type(self) -> Any:
        """The type of refined intrinsics."""
        return _lens_type(self.camera_model, self.refined)

    @property
    def _model(self) -> Any:
        return MODELS[self.camera_model]


def pose_columns(steps: tuple[bool, ...]) -> list[int]:
    """Return the places in a stored pose of chosen components of its step."""
    rotation = [0, 1, 2, 3] if steps[0] else []
    return rotation + [4 + place for place in range(3) if steps[3 + place]]


@lru_cache
def reprojection_factor(form: Form) -> Factor:
    """Return the factor of a form that is not wholly constant.

    Its arguments are `point`, `pixel`, and those of `frame`, `constant_frame`, `sensor`, `lens` and
    `constant_lens` that the form calls for. Tunable ones are shared nodes, constants indexed
    values, pixels one for each factor.
    """
    model = MODELS[form.camera_model]

    def residual(**arguments: Any) -> sf.V2:
        rotation, translation = _pose(form, arguments)
        point = rotation * arguments["point"] + translation
        if form.has_sensor:
            point = arguments["sensor"].rotation * point + arguments["sensor"].translation
        return model.residual(_intrinsics(form, arguments), point, arguments["pixel"])

    annotations = _annotations(form)
    # the arguments depend on the form
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
        for name, annotation in annotations.items()
    ]
    residual.__name__ = form.name
    residual.__annotations__ = annotations
    vars(residual)["__signature__"] = inspect.Signature(parameters)
    return factor(residual)


def _annotations(form: Form) -> dict[str, Any]:
    annotations: dict[str, Any] = {}
    if form.constant_steps != ALL_STEPS:
        annotations["frame"] = Annotated[form.frame_type, TunableShared]
    if form.constant_steps != NO_STEPS:
        annotations["constant_frame"] = Annotated[form.constant_frame_type, ConstShared]
    if form.has_sensor:
        annotations["sensor"] = (
            Annotated[ConstantPose, ConstShared]
            if form.is_sensor_constant
            else Annotated[Sensor, TunableShared]
        )
    if form.refined:
        annotations["lens"] = Annotated[form.lens_type, TunableShared]
    if form.constant_places:
        vector = _vector(len(form.constant_places))
        annotations["constant_lens"] = Annotated[vector, ConstShared]
    marker = ConstShared if form.is_point_constant else TunableShared
    annotations["point"] = Annotated[Point, marker]
    annotations["pixel"] = Annotated[sf.V2, ConstSequential]
    return annotations


def _pose(form: Form, arguments: dict[str, Any]) -> tuple[Any, sf.V3]:
    names = ["constant_frame" if constant else "frame" for constant in form.constant_steps]
    rotation = arguments[names[0]].rotation
    parts = {name: iter(arguments[name].translation) for name in set(names[3:])}
    return rotation, sf.V3(*(next(parts[name]) for name in names[3:]))


def _intrinsics(form: Form, arguments: dict[str, Any]) -> list[Any]:
    values: dict[int, Any] = {}
    if form.constant_places:
        values |= zip(form.constant_places, arguments["constant_lens"], strict=True)
    if form.refined:
        refined = [one for name in form.refined for one in getattr(arguments["lens"], name, ())]
        values |= zip(form.refined_places, refined, strict=True)
    return [values[place] for place in sorted(values)]


@lru_cache
def _frame_type(steps: tuple[bool, ...]) -> Any:
    """Return the type of some components of a frame."""
    if steps == ALL_STEPS:
        return Frame
    fields: list[tuple[str, Any]] = [("rotation", sf.Rot3)] if steps[0] else []
    fields += [("translation", _vector(sum(steps[3:])))] if any(steps[3:]) else []
    return make_dataclass(f"Frame_{_letters(steps)}", fields)


@lru_cache
def _lens_type(camera_model: str, refined: tuple[str, ...]) -> Any:
    model = MODELS[camera_model]
    sizes = {name: len(getattr(model, name)) for name in refined}
    fields = [(name, _vector(size)) for name, size in sizes.items() if size > 0]
    return make_dataclass(f"Lens_{camera_model}", fields)


def _vector(size: int) -> Any:
    return sf.matrix_type_from_shape((size, 1))


def _letters(steps: tuple[bool, ...]) -> str:
    """Return r for rotation and x, y, z for translation, of chosen components."""
    return "".join(name for name, place in zip("rxyz", (0, 3, 4, 5), strict=True) if steps[place])
