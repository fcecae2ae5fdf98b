"""Factors of poses, rotations and vectors alone: priors, relative motions, hand-eye calibration.

Each function returns a `caspar.Factor`. Input: node types. No cost but that of a small object; a
solver traces and compiles the factor.
"""

from typing import Any

import symforce.symbolic as sf

from caspar.errors import OptionError
from caspar.factors.making import (
    Choices,
    Markers,
    NodeChoice,
    check_kind,
    each,
    kind_of,
    library,
    make_factor,
    node,
    tangent_dim,
)
from caspar.factors.projective import SL4
from caspar.factors.rotations import Chart, ChartChoice, step_between, transform_error
from caspar.factors.similarity import Sim3
from caspar.factors.whitening import NoiseChoice
from caspar.frontend.factors.factor import Factor
from caspar.options import choice

GROUPS: tuple[Any, ...] = (sf.Pose2, sf.Pose3, sf.Rot2, sf.Rot3)


@library
def prior(
    value: NodeChoice = sf.Pose3,
    *,
    chart: ChartChoice = "product",
    noise: NoiseChoice = "sigma",
    name: str = "prior",
    markers: Markers | None = None,
) -> Factor:
    """A value is known: the step from the expected to the estimated one.

    The rows are in the order and in the axes of the node's steps (`docs/guide/factors.md`), those
    of `caspar.Solver.covariance`: `sqrt_information(covariance)` of an earlier solve makes it the
    prior of the next one. A pose: rotation vector in the axes of the body (rad), then the
    translation in the axes in which it is stored. With `chart="logarithm"` a pose has the logarithm
    of expected^-1 value, in the axes of the expected body: GTSAM's error of a `PriorFactorPose3`.

    Arguments of the factor: `value`, the node; `expected`, (m, storage_dim) of its type.

    Args:
        value: Node type, or a part of one: pose, rotation, direction, vector or a dataclass.
        chart: How the difference of two poses becomes a vector, see `Chart`.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Wrong markers.
        OptionError: Unknown noise or chart.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> solver = caspar.Solver(caspar.factors.prior(sf.Pose2))
        >>> fixes = [[1, 0, 1.0, 2.0], [1, 0, 2.0, 3.0]]  # cos sin x y
        >>> prior = {"value": [0, 0], "expected": fixes, "sigma": [0.1, 0.5, 0.5]}
        >>> result = solver.solve({"Pose2": [[1.0, 0.0, 0.0, 0.0]], "prior": prior})
        >>> result.values["Pose2"][:, 2:].round(3)
        array([[1.5, 2.5]])
    """
    kind, used = kind_of(value), choice(Chart, "chart", chart)

    def error(value: Any, expected: Any) -> list[Any]:
        """The step from the expected to the estimated value."""
        return step_between(expected, value, used)

    arguments = (node("value", value), each("expected", kind))
    return make_factor(error, tangent_dim(kind), arguments, Choices(name, noise, markers))


@library
def between(
    pose: NodeChoice = sf.Pose3,
    *,
    chart: ChartChoice = "product",
    noise: NoiseChoice = "sigma",
    name: str = "between",
    markers: Markers | None = None,
) -> Factor:
    """The motion from one pose to another is measured, as by odometry or a loop closure.

    With poses `world_from_a` and `world_from_b` and D = a_from_b^-1 world_from_a^-1 world_from_b,
    the rows are the rotation vector of D (rad), then its translation in the axes of the measured
    b: g2o's error in another order, with the whole angle instead of half of it. With
    `chart="logarithm"` they are the logarithm of D: GTSAM's error of a `BetweenFactorPose3`, and of
    a `BetweenFactorPose2` with the angle first. Rotations have the rotation vector only, vectors
    b - a minus the measured difference, a `Sim3` the logarithm of the scale as seventh row, and an
    `SL4` the step of its class.

    g2o's matrices (`caspar.io.read_g2o`) become those of this factor by
    `rotation_first(graph.sqrt_information)`.

    Arguments of the factor: `a` and `b`, nodes; `a_from_b`, (m, storage_dim) of their type.

    Args:
        pose: Node type, or a part of one: `sf.Pose2`, `sf.Pose3`, `sf.Rot2`, `sf.Rot3`, `Sim3`,
            `SL4`, or a vector.
        chart: How the difference of two poses becomes a vector, see `Chart`.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: A type that has no difference, or wrong markers.
        OptionError: Unknown noise or chart, or a chart of poses for a `Sim3` or `SL4`.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> solver = caspar.Solver(caspar.factors.between(sf.Pose2, noise="unit"))
        >>> poses = [[1.0, 0.0, 5.0, 5.0], [1.0, 0.0, 0.0, 0.0]]  # cos sin x y
        >>> odometry = {"a": [0], "b": [1], "a_from_b": [[0.8, 0.6, 1.0, 2.0]]}
        >>> result = solver.solve({"Pose2": poses, "between": odometry}, fixed={"Pose2": [0]})
        >>> result.values["Pose2"][1].round(3)
        array([0.8, 0.6, 6. , 7. ])
    """
    kind, used = kind_of(pose), choice(Chart, "chart", chart)
    is_vector = isinstance(kind, type) and issubclass(kind, sf.Matrix)
    has_one_chart = isinstance(kind, type) and issubclass(kind, (Sim3, SL4))
    if has_one_chart and used is not Chart.PRODUCT:
        raise OptionError(
            f"caspar.factors.between, argument chart: {kind.__name__} has 'product' only, not "
            f"{used.value!r}"
        )
    if not is_vector and not has_one_chart:
        check_kind("between", "pose", pose, (*GROUPS, sf.V3))

    def error(a: Any, b: Any, a_from_b: Any) -> list[Any]:
        """The measured against the estimated motion from a to b."""
        if is_vector:
            return list((b - a - a_from_b).to_flat_list())
        return transform_error(a_from_b, a.inverse() * b, used)

    arguments = (node("a", pose), node("b", pose), each("a_from_b", kind))
    return make_factor(error, tangent_dim(kind), arguments, Choices(name, noise, markers))


@library
def hand_eye(
    x: NodeChoice = sf.Pose3,
    *,
    noise: NoiseChoice = "sigma",
    name: str = "hand_eye",
    markers: Markers | None = None,
) -> Factor:
    """A X = X B: where the camera is on the hand, from two motions that both see.

    A is a motion of the hand, `hand1_from_hand2`, B the camera's during the same time,
    `eye1_from_eye2`, and X is `hand_from_eye` (Tsai and Lenz, 1989). Rows: the rotation vector of
    (X B)^-1 A X (rad), then its translation. The noise is that of both motions together.

    Arguments of the factor: `x`, the node, usually one; `a` and `b`, (m, 7) poses.

    Args:
        x: Node type, or a part of one: an `sf.Pose3`.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: A type that is no pose, or wrong markers.
        OptionError: Unknown noise.
    """
    check_kind("hand_eye", "x", x, (sf.Pose3,))

    def error(x: Any, a: Any, b: Any) -> list[Any]:
        """A X against X B."""
        return transform_error(x * b, a * x)

    arguments = (node("x", x), each("a", sf.Pose3), each("b", sf.Pose3))
    return make_factor(error, 6, arguments, Choices(name, noise, markers))


@library
def robot_world_hand_eye(
    x: NodeChoice = sf.Pose3,
    y: NodeChoice = sf.Pose3,
    *,
    noise: NoiseChoice = "sigma",
    name: str = "robot_world_hand_eye",
    markers: Markers | None = None,
) -> Factor:
    """A X = Y B: where the camera is on the hand and where its target is, from single poses.

    A is `base_from_hand` as the robot reports it, B is `target_from_eye` as the camera sees it, X
    is `hand_from_eye` and Y is `base_from_target` (Zhuang, Roth, Sudhakar, 1994). For a camera
    beside the robot and a target in its hand, X is `hand_from_target`, Y is `base_from_eye` and B
    is `eye_from_target`. Rows: the rotation vector of (Y B)^-1 A X (rad), then its translation: the
    error of the camera's pose in the axes of the camera.

    Arguments of the factor: `x` and `y`, nodes, usually one each; `a` and `b`, (m, 7) poses. Give
    X and Y classes of their own, such as `class HandFromEye(sf.Pose3)`, or indices into one type.

    Args:
        x: Node type, or a part of one: an `sf.Pose3`.
        y: Node type, or a part of one: an `sf.Pose3`.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: A type that is no pose, or wrong markers.
        OptionError: Unknown noise.
    """
    check_kind("robot_world_hand_eye", "x", x, (sf.Pose3,))
    check_kind("robot_world_hand_eye", "y", y, (sf.Pose3,))

    def error(x: Any, y: Any, a: Any, b: Any) -> list[Any]:
        """A X against Y B."""
        return transform_error(y * b, a * x)

    arguments = (node("x", x), node("y", y), each("a", sf.Pose3), each("b", sf.Pose3))
    return make_factor(error, 6, arguments, Choices(name, noise, markers))
