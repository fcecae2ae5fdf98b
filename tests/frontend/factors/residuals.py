"""Residuals over every kind of node type, and random values of the types."""

from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from symforce.ops import StorageOps
from symforce.opt.noise_models import BarronNoiseModel

import caspar
from caspar.bundle_adjustment import snavely
from caspar.frontend.factors.factor import Factor

Array = NDArray[np.float64]
Tunable = caspar.TunableShared
Const = caspar.ConstSequential


@caspar.factor
def pose3_between(
    pair: Annotated[caspar.Pair[sf.Pose3], caspar.TunablePair], measured: Annotated[sf.Pose3, Const]
) -> sf.V6:
    return sf.V6(measured.local_coordinates(pair[0].inverse() * pair[1]))


@caspar.factor
def pose3_prior(pose: Annotated[sf.Pose3, Tunable], expected: Annotated[sf.Pose3, Const]) -> sf.V6:
    return sf.V6(pose.local_coordinates(expected))


@caspar.factor
def rot3_between(a: Annotated[sf.Rot3, Tunable], b: Annotated[sf.Rot3, Tunable]) -> sf.V3:
    return sf.V3((a.inverse() * b).to_tangent())


@caspar.factor
def rot3_acts(a: Annotated[sf.Rot3, Tunable], v: Annotated[sf.V3, Tunable]) -> sf.V3:
    return a * v + a.inverse() * (a * a) * sf.V3(1, -2, 3)


@caspar.factor
def rot3_from_vector(v: Annotated[sf.V3, Tunable], seen: Annotated[sf.V3, Const]) -> sf.V3:
    return sf.Rot3.from_tangent(v.to_flat_list()) * seen


@caspar.factor
def pose2_between(
    a: Annotated[sf.Pose2, Tunable],
    b: Annotated[sf.Pose2, Tunable],
    measured: Annotated[sf.Pose2, Const],
) -> sf.V3:
    return sf.V3(measured.local_coordinates(a.inverse() * b))


@caspar.factor
def rot2_angle(a: Annotated[sf.Rot2, Tunable], b: Annotated[sf.Rot2, Tunable]) -> sf.V1:
    return sf.V1(a.local_coordinates(b))


@caspar.factor
def bearing(
    pose: Annotated[sf.Pose2, Tunable],
    landmark: Annotated[sf.V2, Tunable],
    angle: Annotated[sf.V1, Const],
) -> sf.V1:
    local = pose.inverse() * landmark
    return sf.V1(sf.wrap_angle(sf.atan2(local[1], local[0]) - angle[0]))


@caspar.factor
def unit3_direction(a: Annotated[sf.Unit3, Tunable], v: Annotated[sf.V3, Tunable]) -> sf.V3:
    return a.to_unit_vector() - v.normalized()


@caspar.factor
def unit3_local(a: Annotated[sf.Unit3, Tunable], b: Annotated[sf.Unit3, Const]) -> sf.V2:
    return sf.V2(a.local_coordinates(b))


@caspar.factor
def distance(
    a: Annotated[sf.V3, Tunable], b: Annotated[sf.V3, Tunable], d: Annotated[sf.V1, Const]
) -> sf.V1:
    return sf.V1((a - b).norm() - d[0])


@caspar.factor
def robust(a: Annotated[sf.V2, Tunable], b: Annotated[sf.V2, Const]) -> sf.V2:
    """Huber's weights, the branch chosen by the norm."""
    error = a - b
    size = error.norm()
    weight = sf.Piecewise((1, size < 1), (sf.sqrt((2 * size - 1) / size**2), True))
    return weight * error


@caspar.factor
def barron(a: Annotated[sf.V2, Tunable], b: Annotated[sf.V2, Const]) -> sf.V2:
    """SymForce's general robust loss."""
    noise = BarronNoiseModel(alpha=0.5, delta=1.2, scalar_information=2, x_epsilon=1e-6)
    return noise.whiten_norm(a - b)


@caspar.factor
def matrix_node(a: Annotated[sf.M22, Tunable], b: Annotated[sf.V2, Tunable]) -> sf.V2:
    return a * b + a.transpose() * sf.V2(1, 2)


@caspar.factor
def pinhole(
    camera: Annotated[sf.LinearCameraCal, Tunable], point: Annotated[sf.V3, Tunable]
) -> sf.V2:
    in_front = sf.V3(point[0], point[1], 2 + sf.tanh(point[2]))
    pixel, _ = camera.pixel_from_camera_point(in_front)
    return pixel


@dataclass
class Rig:
    """A struct of structs."""

    body: sf.Pose3
    sensor: sf.Rot3
    scale: sf.V1


@caspar.factor
def rig(node: Annotated[Rig, Tunable], point: Annotated[sf.V3, Tunable]) -> sf.V3:
    return node.sensor * (node.body.inverse() * point) * sf.exp(node.scale[0])


FACTORS: dict[str, Factor] = {
    factor.name: factor
    for factor in (
        *(pose3_between, pose3_prior, rot3_between, rot3_acts, rot3_from_vector, pose2_between),
        *(rot2_angle, bearing, unit3_direction, unit3_local, distance, robust, barron, matrix_node),
        *(pinhole, rig, snavely),
    )
}


def random_storage(declared: type[Any], rng: np.random.Generator) -> Array:
    """Storage of a random value of a type."""
    if is_dataclass(declared):
        hints = get_type_hints(declared)
        return np.concatenate([random_storage(hints[f.name], rng) for f in fields(declared)])
    values: Array = rng.normal(size=StorageOps.storage_dim(declared))
    turn = {sf.Rot3: 4, sf.Pose3: 4, sf.Rot2: 2, sf.Pose2: 2, sf.Unit3: 3}
    for kind, length in turn.items():
        if issubclass(declared, kind):
            values[:length] /= np.linalg.norm(values[:length])
    return values
