"""The kinds of pose graphs that can be read, and how they store a pose."""

from enum import Enum


class PoseGraphKind(Enum):
    """The group that the poses of a graph belong to; the value is its name in g2o's tags."""

    SE2 = "SE2"
    SE3 = "SE3:QUAT"

    @property
    def storage_dim(self) -> int:
        """Numbers that store a pose: 4 in the plane, 7 in space."""
        return 4 if self is PoseGraphKind.SE2 else 7

    @property
    def tangent_dim(self) -> int:
        """Degrees of freedom of a pose: 3 in the plane, 6 in space."""
        return 3 if self is PoseGraphKind.SE2 else 6

    @property
    def dim(self) -> int:
        """Coordinates of a point: 2 in the plane, 3 in space."""
        return 2 if self is PoseGraphKind.SE2 else 3

    @property
    def identity(self) -> tuple[float, ...]:
        """The pose that moves nothing, in storage order."""
        if self is PoseGraphKind.SE2:
            return (1.0, 0.0, 0.0, 0.0)
        return (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
