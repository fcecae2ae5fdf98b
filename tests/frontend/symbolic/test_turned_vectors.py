"""Which rotations act through a vector alone, and that their Jacobians are the same that way."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from symforce.geo.unsupported.pose3_se3 import Pose3_SE3

import caspar
from caspar.bundle_adjustment import snavely
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.trace import trace
from caspar.frontend.symbolic.turned_vectors import Triple, TurnedVector
from caspar.ir.dtype import DType
from tests.frontend.factors.residuals import FACTORS, Rig
from tests.frontend.symbolic.test_tangent_jacobians import (
    assert_equals_differences,
    random_inputs,
    residual_and_jacobians,
)

Array = NDArray[np.float64]
Tunable = caspar.TunableShared
Const = caspar.ConstSequential

Rotation = Annotated[sf.Rot3, Tunable]
Pose = Annotated[sf.Pose3, Tunable]
Vector = Annotated[sf.V3, Tunable]
Seen = Annotated[sf.V3, Const]


@dataclass
class Arm:
    """A struct whose rotations stand behind other things."""

    offset: sf.V2
    shoulder: sf.Rot3
    length: sf.V1
    elbow: sf.Pose3


@caspar.factor
def turned(rotation: Rotation, point: Vector, seen: Seen) -> sf.V3:
    return rotation * point - seen


@caspar.factor
def turned_constant(rotation: Rotation, bearing: Seen, seen: Annotated[sf.V3, Const]) -> sf.V3:
    return rotation * bearing - seen


@caspar.factor
def turned_back_constant(rotation: Rotation, bearing: Seen) -> sf.V2:
    x, y, z = rotation.inverse() * bearing
    return sf.V2(sf.atan2(y, x), z)


@caspar.factor
def moved(pose: Pose, point: Vector) -> sf.V3:
    x, y, z = pose * point
    return sf.V3(x / z, y / z, sf.exp(z))


@caspar.factor
def moved_back(pose: Pose, point: Vector) -> sf.V3:
    x, y, z = pose.inverse() * point
    return sf.V3(x / z, y / z, sf.exp(z))


@caspar.factor
def seen_from_centre(pose: Pose, point: Vector) -> sf.V2:
    x, y, z = pose.R * (point - pose.t)
    return sf.V2(x, y) / z


@caspar.factor
def branches(pose: Pose, point: Vector, seen: Seen) -> sf.V3:
    x, y, z = pose * point
    depth = sf.Max(z, 0.5) + 0.1 * sf.sign_no_zero(x)
    return sf.V3(sf.atan2(y, x), sf.Piecewise((x, y < seen[0]), (y**3, True)), sf.sqrt(depth))


@caspar.factor
def norm_too(pose: Pose, point: Vector) -> sf.V2:
    """|p| does not turn with p: it has the property on its own."""
    return sf.V2((pose * point)[0], point.norm())


@caspar.factor
def in_a_struct(arm: Annotated[Arm, Tunable], point: Vector) -> sf.V3:
    """The shoulder turns what came of the elbow, no argument."""
    return arm.shoulder * (arm.elbow * point) * arm.length[0] + sf.V3(*arm.offset, 1)


@caspar.factor
def two_poses(outer: Pose, inner: Pose, point: Vector) -> sf.V2:
    x, y, z = outer * (inner * point)
    return sf.V2(x, y) / z


@caspar.factor
def of_a_rig(rig: Annotated[Rig, Tunable], point: Vector) -> sf.V3:
    return rig.sensor.inverse() * point * rig.scale[0]


@caspar.factor
def turned_pair(pair: Annotated[caspar.Pair[sf.Pose3], caspar.TunablePair]) -> sf.V3:
    """A relative position: what is turned back is a part of the other node."""
    return pair[0].inverse() * pair[1].t


@caspar.factor
def with_a_direction(rotation: Rotation, direction: Annotated[sf.Unit3, Tunable]) -> sf.V3:
    return rotation * direction.to_unit_vector()


@caspar.factor
def moved_along(pose: Annotated[Pose3_SE3, Tunable], point: Vector) -> sf.V3:
    """The translation's chart has the rotation in it, not the other way round."""
    x, y, z = pose.inverse() * point
    return sf.V3(x / z, y / z, sf.exp(z))


def by(
    node: str,
    vector: tuple[str, int],
    origin: tuple[str, int] | None = None,
    *,
    start: int = 0,
    column: int = 0,
    is_inverse: bool = False,
) -> tuple[TurnedVector, ...]:
    """The one rotation expected of a factor."""
    minus = None if origin is None else Triple(*origin)
    return (TurnedVector(node, start, column, Triple(*vector), minus, is_inverse),)


FOUND: list[tuple[Factor, tuple[TurnedVector, ...]]] = [
    (snavely, by("cam", ("point", 0))),
    (turned, by("rotation", ("point", 0))),
    (turned_constant, by("rotation", ("bearing", 0))),
    (turned_back_constant, by("rotation", ("bearing", 0), is_inverse=True)),
    (moved, by("pose", ("point", 0))),
    (moved_back, by("pose", ("pose", 4), ("point", 0), is_inverse=True)),
    (seen_from_centre, by("pose", ("pose", 4), ("point", 0))),
    (branches, by("pose", ("point", 0))),
    (norm_too, by("pose", ("point", 0))),
    (in_a_struct, by("arm", ("point", 0), start=7, column=6)),
    (two_poses, by("inner", ("point", 0))),
    (of_a_rig, by("rig", ("point", 0), start=7, column=6, is_inverse=True)),
    (turned_pair, by("pair__first", ("pair__first", 4), ("pair__second", 4), is_inverse=True)),
    (with_a_direction, by("rotation", ("direction", 0))),
    (moved_along, by("pose", ("pose", 4), ("point", 0), is_inverse=True)),
]

found = pytest.mark.parametrize(
    ("factor", "expected"), FOUND, ids=[factor.name for factor, _ in FOUND]
)


@found
def test_is_found(factor: Factor, expected: tuple[TurnedVector, ...]) -> None:
    assert trace(factor).turned == expected


@found
def test_equals_derivatives_by_the_quaternion(factor: Factor, expected: Any) -> None:
    traced = trace(factor)
    inputs = random_inputs(traced)
    _, jacobians = residual_and_jacobians(traced, inputs)
    _, wanted = residual_and_jacobians(traced, inputs, turned=())
    for name, jacobian in jacobians.items():
        scale = 1.0 + np.abs(wanted[name]).max()
        assert_allclose(jacobian / scale, wanted[name] / scale, rtol=0.0, atol=1e-14)


@found
def test_is_as_precise_in_float32(factor: Factor, expected: Any) -> None:
    traced = trace(factor)
    inputs = random_inputs(traced)
    _, exact = residual_and_jacobians(traced, inputs)
    errors = []
    for turned_vectors in (traced.turned, ()):
        _, jacobians = residual_and_jacobians(traced, inputs, DType.FLOAT32, turned_vectors)
        names = [argument.name for argument in traced.nodes]
        errors.append(max(np.abs(jacobians[name] - exact[name]).max() for name in names))
    assert errors[0] <= 4.0 * errors[1]


@pytest.mark.parametrize("factor", [factor for factor, _ in FOUND], ids=lambda one: one.name)
def test_equals_differences_through_the_retraction(factor: Factor) -> None:
    assert_equals_differences(factor)


@caspar.factor
def quaternion_beside(rotation: Rotation, point: Vector) -> sf.V4:
    return sf.V4(*(rotation * point), rotation.q.x)


@caspar.factor
def small_quaternion_beside(rotation: Rotation, point: Vector) -> sf.V3:
    """A term that rounding would hide beside the others, but not where the point is large."""
    x, y, z = rotation * point
    return sf.V3(x, y, z + 1e-13 * rotation.q.x * point[0] ** 3)


@caspar.factor
def epsilon_quaternion_beside(rotation: Rotation, point: Vector) -> sf.V3:
    x, y, z = rotation * point
    return sf.V3(x, y, z + sf.epsilon() * rotation.q.x)


@caspar.factor
def step_of_epsilon_beside(rotation: Rotation, point: Vector) -> sf.V3:
    """Three times the quaternion; of other numbers than 3.7, zero times."""
    x, y, z = rotation * point
    return sf.V3(x, y, z + sf.floor(sf.epsilon() + 3.7) * rotation.q.x)


@caspar.factor
def quaternion_by_epsilon(rotation: Rotation, point: Vector) -> sf.V3:
    """Nothing but this epsilon says which branch counts."""
    x, y, z = rotation * point
    return sf.V3(x, y, sf.Piecewise((rotation.q.x, sf.epsilon() < 0.001), (z, True)))


@caspar.factor
def small_quaternion_divided(rotation: Rotation, point: Vector) -> sf.V4:
    return sf.V4(*(rotation * point), sf.sin(1e-13 * rotation.q.x) * 1e13)


@caspar.factor
def prior_beside(pose: Pose, point: Vector, prior: Annotated[sf.Pose3, Const]) -> sf.V9:
    return sf.V9(*(pose * point), *pose.local_coordinates(prior))


@caspar.factor
def vector_beside(rotation: Rotation, point: Vector) -> sf.V4:
    return sf.V4(*(rotation * point), sf.exp(point[0]))


@caspar.factor
def quaternion_in_a_branch(rotation: Rotation, point: Vector) -> sf.V3:
    x, y, z = rotation * point
    return sf.V3(x, y, sf.Piecewise((z, point.squared_norm() < 1e9), (rotation.q.y, True)))


@caspar.factor
def quaternion_in_a_condition(rotation: Rotation, point: Vector) -> sf.V3:
    x, y, z = rotation * point
    return sf.V3(x, y, sf.Piecewise((z, rotation.q.y < 0), (2 * z, True)))


@caspar.factor
def two_vectors(rotation: Rotation, left: Vector, right: Vector) -> sf.V6:
    """A sum of two cross products: none of one vector."""
    return sf.V6(*(rotation * left), *(rotation * right))


@caspar.factor
def both_ways(rotation: Rotation, point: Vector) -> sf.V6:
    return sf.V6(*(rotation * point), *(rotation.inverse() * point))


@caspar.factor
def stretched(rotation: Rotation, point: Vector) -> sf.V3:
    return rotation * sf.V3(point[0], 2 * point[1], point[2])


@caspar.factor
def twisted(rotation: Rotation, point: Vector) -> sf.V3:
    """The vector's scalars in another order are a reflection of it."""
    return rotation * sf.V3(point[1], point[0], point[2])


@caspar.factor
def number_turned(rotation: Rotation, seen: Seen) -> sf.V3:
    """No argument is turned."""
    return rotation * sf.V3(1, -2, 3) - seen


class LeftRotation(sf.Rot3):
    """Steps turn the world, not the vector."""

    def storage_D_tangent(self, epsilon: Any = 0) -> Any:
        return super().storage_D_tangent(epsilon) * self.inverse().to_rotation_matrix()


class HastyRotation(sf.Rot3):
    """Steps turn twice as far."""

    def storage_D_tangent(self, epsilon: Any = 0) -> Any:
        return super().storage_D_tangent(epsilon) * 2


@caspar.factor
def turned_on_the_left(rotation: Annotated[LeftRotation, Tunable], point: Vector) -> sf.V3:
    return rotation * point


@caspar.factor
def turned_twice(rotation: Annotated[HastyRotation, Tunable], point: Vector) -> sf.V3:
    return rotation * point


NOT_FOUND = [
    *(quaternion_beside, small_quaternion_beside, epsilon_quaternion_beside),
    *(step_of_epsilon_beside, quaternion_by_epsilon, small_quaternion_divided, prior_beside),
    *(vector_beside, quaternion_in_a_branch, quaternion_in_a_condition, two_vectors),
    *(both_ways, stretched, twisted, number_turned, turned_on_the_left, turned_twice),
    *(FACTORS[name] for name in ("pose3_between", "pose3_prior", "rot3_between", "rot3_acts")),
    *(FACTORS[name] for name in ("rot3_from_vector", "pose2_between", "bearing", "robust")),
]


@pytest.mark.parametrize("factor", NOT_FOUND, ids=lambda one: one.name)
def test_is_not_found(factor: Factor) -> None:
    """All of a rotation's derivatives stay those by its quaternion."""
    assert trace(factor).turned == ()


def test_the_node_of_the_vector_may_be_left_out() -> None:
    """The rotation needs the derivatives by the vector all the same."""
    traced = trace(moved)
    assert [one.vector.argument for one in traced.turned] == ["point"]
    inputs = random_inputs(traced)
    pose = [argument for argument in traced.nodes if argument.name == "pose"]
    _, wanted = residual_and_jacobians(traced, inputs)
    _, alone = residual_and_jacobians(traced, inputs, nodes=pose)
    assert list(alone) == ["pose"]
    assert_allclose(alone["pose"], wanted["pose"], rtol=0.0, atol=0.0)
