"""Factors of matched points of two scans, for iterative closest points (ICP).

Each function returns a `caspar.Factor`. Points are constants, in the axes of their scan. With one
pose, `target_from_source` takes the source's points to the target. With two, each scan has a pose
`world_from_...`: for graphs of many scans.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

from caspar.errors import InputError
from caspar.factors.making import (
    Argument,
    Choices,
    Markers,
    NodeChoice,
    check_kind,
    each,
    library,
    make_factor,
    node,
    space_dim,
)
from caspar.factors.rotations import rotated_covariance, whitened_by_covariance
from caspar.factors.whitening import NoiseChoice, vector_type
from caspar.frontend.factors.factor import Factor


@library
def point_to_point(
    pose: NodeChoice = sf.Pose3,
    target_pose: NodeChoice | None = None,
    *,
    noise: NoiseChoice = "sigma",
    name: str = "point_to_point",
    markers: Markers | None = None,
) -> Factor:
    """A point of the source is a point of the target: target_from_source(source) - target.

    Rows: coordinates in the target's axes, in the unit of the points.

    Arguments of the factor: `target_from_source`, a node; or, with `target_pose`, the nodes
    `world_from_source` and `world_from_target`. `source` and `target`, (m, 2) or (m, 3).

    Args:
        pose: Node type, or a part of one: an `sf.Pose2` or `sf.Pose3`.
        target_pose: The same for the target's pose; None: the only pose is between both scans.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that are no poses, or wrong markers.
        OptionError: Unknown noise.

    Example:
        >>> import caspar
        >>> import numpy as np
        >>> import symforce.symbolic as sf
        >>> solver = caspar.Solver(caspar.factors.point_to_point(sf.Pose2, noise="unit"))
        >>> source = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
        >>> target = source @ [[0.8, 0.6], [-0.6, 0.8]] + [3.0, 4.0]  # turned and moved
        >>> matches = {"target_from_source": [0, 0, 0], "source": source, "target": target}
        >>> result = solver.solve({"Pose2": [[1.0, 0.0, 0.0, 0.0]], "point_to_point": matches})
        >>> result.values["Pose2"].round(3)  # cos sin x y
        array([[0.8, 0.6, 3. , 4. ]])
    """
    nodes, dim = _poses("point_to_point", pose, target_pose)

    def error(source: Any, target: Any, **poses: Any) -> list[Any]:
        """The moved point minus its match."""
        return list(_moved(poses, source) - target)

    points = (each("source", vector_type(dim)), each("target", vector_type(dim)))
    return make_factor(error, dim, (*nodes, *points), Choices(name, noise, markers))


@library
def point_to_plane(
    pose: NodeChoice = sf.Pose3,
    target_pose: NodeChoice | None = None,
    *,
    noise: NoiseChoice = "sigma",
    name: str = "point_to_plane",
    markers: Markers | None = None,
) -> Factor:
    """A point of the source lies in a plane of the target (Chen and Medioni, 1992).

    One row, the distance along the normal: normal . (target_from_source(source) - target), in the
    unit of the points. In the plane, with `sf.Pose2`, the target's lines.

    Arguments of the factor: nodes as in `point_to_point`; `source`, `target` and `normal`, (m, 2)
    or (m, 3); normals of unit length, in the target's axes.

    Args:
        pose: Node type, or a part of one: an `sf.Pose2` or `sf.Pose3`.
        target_pose: The same for the target's pose; None: the only pose is between both scans.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that are no poses, or wrong markers.
        OptionError: Unknown noise.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> solver = caspar.Solver(caspar.factors.point_to_plane(sf.Pose2, noise="unit"))
        >>> match = {"target_from_source": [0], "source": [[1.0, 2.0]],
        ...          "target": [[0.0, 1.5]], "normal": [[0.0, 1.0]]}
        >>> found = solver.evaluate({"Pose2": [[1.0, 0.0, 0.0, 0.0]], "point_to_plane": match})
        >>> found.residuals("point_to_plane").round(3)
        array([[0.5]])
    """
    nodes, dim = _poses("point_to_plane", pose, target_pose)

    def error(source: Any, target: Any, normal: Any, **poses: Any) -> list[Any]:
        """The distance of the moved point from the plane."""
        return [normal.dot(_moved(poses, source) - target)]

    points = tuple(each(one, vector_type(dim)) for one in ("source", "target", "normal"))
    return make_factor(error, 1, (*nodes, *points), Choices(name, noise, markers))


@library
def plane_to_plane(
    pose: NodeChoice = sf.Pose3,
    target_pose: NodeChoice | None = None,
    *,
    noise: NoiseChoice = "unit",
    name: str = "plane_to_plane",
    markers: Markers | None = None,
) -> Factor:
    """Generalised ICP: both points are uncertain, each along its own surface.

    With d = T source - target and C = C_target + R C_source R^T, the cost is 1/2 d^T C^-1 d (Segal,
    Haehnel, Thrun, *Generalized-ICP*, RSS 2009, eq. 2): the rows are L^-1 d, where L L^T = C. C
    turns with the pose, and its derivative is part of the Jacobian; most programs hold it.
    `plane_covariances` makes covariances from normals.

    Arguments of the factor: nodes as in `point_to_point`; `source` and `target`, (m, 2) or (m, 3);
    `source_covariance` and `target_covariance`, (m, 2, 2) or (m, 3, 3), positive definite, in the
    axes of their scans.

    Args:
        pose: Node type, or a part of one: an `sf.Pose2` or `sf.Pose3`.
        target_pose: The same for the target's pose; None: the only pose is between both scans.
        noise: `unit`: the covariances whiten. Otherwise in addition to them.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that are no poses, or wrong markers.
        OptionError: Unknown noise.
    """
    nodes, dim = _poses("plane_to_plane", pose, target_pose)

    def error(
        source: Any, target: Any, source_covariance: Any, target_covariance: Any, **poses: Any
    ) -> list[Any]:
        """The moved point minus its match, whitened by both covariances."""
        turned = rotated_covariance(_target_from_source(poses).R, source_covariance)
        apart = _moved(poses, source) - target
        return whitened_by_covariance(list(apart), target_covariance + turned)

    square = sf.matrix_type_from_shape((dim, dim))
    constants = (
        each("source", vector_type(dim)),
        each("target", vector_type(dim)),
        each("source_covariance", square),
        each("target_covariance", square),
    )
    return make_factor(error, dim, (*nodes, *constants), Choices(name, noise, markers))


def _poses(
    factor: str, pose: NodeChoice, target_pose: NodeChoice | None
) -> tuple[Sequence[Argument], int]:
    kind = check_kind(factor, "pose", pose, (sf.Pose2, sf.Pose3))
    if target_pose is None:
        return (node("target_from_source", pose),), space_dim(kind)
    check_kind(factor, "target_pose", target_pose, (kind,))
    nodes = (node("world_from_source", pose), node("world_from_target", target_pose))
    return nodes, space_dim(kind)


def _target_from_source(poses: dict[str, Any]) -> Any:
    if "target_from_source" in poses:
        return poses["target_from_source"]
    return poses["world_from_target"].inverse() * poses["world_from_source"]


def _moved(poses: dict[str, Any], source: Any) -> Any:
    """The source's point in the target's axes."""
    if "target_from_source" in poses:
        return poses["target_from_source"] * source
    target = poses["world_from_target"]
    return target.R.inverse() * (poses["world_from_source"] * source - target.t)


def plane_covariances(normals: NDArray[np.float64], thickness: float = 1e-3) -> NDArray[np.float64]:
    """Covariances of points on surfaces: variance 1 along the surface, little across it.

    Segal et al., section III.B.

    Args:
        normals: (..., n) of unit length; n is 2 or 3.
        thickness: Variance along the normal, relative to the one along the surface.

    Returns:
        (..., n, n).

    Raises:
        InputError: The thickness is not positive.
    """
    if not thickness > 0.0:
        raise InputError(f"plane_covariances, thickness: {thickness}; it must be greater than zero")
    normals = np.asarray(normals, np.float64)
    across = normals[..., :, None] * normals[..., None, :]
    return np.eye(normals.shape[-1]) - (1.0 - thickness) * across
