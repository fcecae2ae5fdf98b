"""What a user chooses: types, parts, names, noise, markers; and the errors of wrong choices."""

import copy
import pickle
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.errors import FactorError, InputError, OptionError
from caspar.frontend.factors.trace import ArgumentKind, trace
from caspar.tracing import traced_factor
from tests.factors.every_factor import FACTORS, factors


class Pose(sf.Pose3):
    """A node type of the user's own."""


class Point(sf.V3):
    """Another one."""


def kinds(factor: caspar.Factor) -> dict[str, ArgumentKind]:
    return {one.source: one.kind for one in trace(factor).arguments}


def test_node_types_keep_their_names() -> None:
    traced = trace(factors.bearing(Pose, Point))
    assert [one.node_type.name for one in traced.nodes] == ["Pose", "Point"]


def test_arguments_by_default() -> None:
    assert kinds(factors.gps_position()) == {
        "world_from_body": ArgumentKind.NODE_SHARED,
        "position": ArgumentKind.CONST_SEQUENTIAL,
        "lever_arm": ArgumentKind.CONST_UNIQUE,
        "sigma": ArgumentKind.CONST_UNIQUE,
    }


def test_markers() -> None:
    markers = {"lever_arm": caspar.TunableUnique, "sigma": caspar.ConstSequential}
    found = kinds(factors.gps_position(markers=markers))
    assert found["lever_arm"] is ArgumentKind.NODE_UNIQUE
    assert found["sigma"] is ArgumentKind.CONST_SEQUENTIAL


@pytest.mark.parametrize(
    ("noise", "argument"),
    [("sigma", "sigma"), (factors.Noise.SQRT_INFORMATION, "sqrt_information")],
)
def test_noise(noise: Any, argument: str) -> None:
    assert list(kinds(factors.prior(noise=noise)))[-1] == argument


def test_without_noise() -> None:
    assert list(kinds(factors.prior(noise="unit"))) == ["value", "expected"]


def test_names() -> None:
    factor = factors.between(name="odometry").with_loss(caspar.loss.Cauchy)
    assert factor.name == "odometry"
    assert trace(factors.between(name="loops")).name == "loops"


def test_parts_of_one_node_are_one_argument() -> None:
    traced = trace(FACTORS["velocity_of_state"])
    assert [one.source for one in traced.arguments] == ["state", "measured", "sigma"]
    assert traced.nodes[0].node_type.name == "NavState"


def test_may_be_called_in_a_residual() -> None:
    """A library factor is a function of symbols too."""
    inner = factors.range(Point, Point, noise="unit")

    @caspar.factor
    def relative(
        a: Annotated[Point, caspar.TunableShared],
        b: Annotated[Point, caspar.TunableShared],
        distance: Annotated[sf.V1, caspar.ConstSequential],
    ) -> sf.V1:
        return sf.V1(inner(a, b, distance)[0] / distance[0])

    assert len(trace(relative).residual) == 1


@pytest.mark.parametrize("name", FACTORS)
def test_pickled(name: str) -> None:
    """As the call that made it, with and without a loss."""
    factor = FACTORS[name].with_loss(caspar.loss.Huber)
    again = pickle.loads(pickle.dumps(factor))
    assert trace(again).key == trace(factor).key
    assert again.loss is caspar.loss.Huber
    assert copy.deepcopy(factor) is factor


def test_is_traced_once() -> None:
    """Another solver finds the trace of the first."""
    factor = factors.range(Point, Point)
    assert traced_factor(factor) is traced_factor(factor)


def expect(error: type[Exception], match: str) -> Any:
    return pytest.raises(error, match=match)


def test_wrong_types() -> None:
    with expect(
        FactorError,
        r"caspar.factors.bearing, argument pose: sf.Rot3 cannot be used; it "
        r"must be sf.Pose2, sf.Pose3, a subclass",
    ):
        factors.bearing(sf.Rot3)
    with expect(FactorError, r"bearing, argument point: sf.V2 cannot be used; it must be sf.V3"):
        factors.bearing(sf.Pose3, sf.V2)
    with expect(FactorError, r"between, argument pose: sf.Unit3 cannot be used"):
        factors.between(sf.Unit3)
    with expect(
        FactorError,
        r"imu, argument state: .*must be a dataclass with the fields pose and "
        r"velocity, or a pair",
    ):
        factors.imu(sf.Pose3)
    with expect(
        FactorError,
        r"reprojection, argument lens: it holds 3 numbers; it must hold 4: "
        r"f",
    ):
        factors.reprojection("PINHOLE", lens=sf.V3)


def test_wrong_markers() -> None:
    with expect(
        FactorError,
        r"factor prior, markers: there is no argument 'pose'; the arguments "
        r"are value, expected, sigma",
    ):
        factors.prior(markers={"pose": caspar.TunableUnique})
    with expect(FactorError, r"factor prior, marker of argument value: .* is no marker"):
        factors.prior(markers={"value": sf.V3})
    with expect(FactorError, r"TunablePair is for factors of your own"):
        factors.between(markers={"a": caspar.TunablePair})
    other = factors.part(factors.NavState, "velocity", "state")
    with expect(
        FactorError,
        r"factor velocity, argument state: parts of one argument must be of "
        r"one node type",
    ):
        factors.velocity(factors.part(Pose, lambda pose: pose, "state"), other)


def test_wrong_choices() -> None:
    with expect(
        OptionError,
        r"noise='sigmas': must be one of 'sigma', 'sqrt_information', "
        r"'unit'",
    ):
        factors.prior(noise="sigmas")  # type: ignore[arg-type]
    with expect(OptionError, r"camera='PINHOL': there is no such model .* the models are "):
        factors.reprojection("PINHOL")
    with expect(InputError, r"plane_covariances, thickness: 0.0; it must be greater than zero"):
        factors.plane_covariances(np.eye(3), 0.0)
    with expect(InputError, r"sqrt_information, covariance of shape \(3, 3\): a matrix is not pos"):
        factors.sqrt_information(np.zeros((3, 3)))
    with expect(InputError, r"rotation_first, sqrt_information: shape \(6, 6\)"):
        factors.rotation_first(np.eye(6))
    with expect(InputError, r"lines_through: points 0 are the same; a line needs two"):
        factors.lines_through(np.ones((1, 3)), np.ones((1, 3)))
