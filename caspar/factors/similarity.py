"""Similarities of space: rotation, translation and scale, as of maps of one camera.

Without another sensor a camera does not know the scale of its map, and the scale drifts along a
path. Graphs of similarities spread that over a closed loop (Strasdat et al., *Scale Drift-Aware
Large Scale Monocular SLAM*, RSS 2010).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import symforce.symbolic as sf


@dataclass
class Sim3:
    """A similarity x -> s R x + t; in storage qx qy qz qw tx ty tz log(s).

    Steps have 7 entries: a rotation vector in the axes of the body (rad), the change of t in the
    axes in which it is stored, and the change of log(s). A subclass that is a dataclass too is a
    node type of its own.

    Attributes:
        pose: R and t.
        log_scale: Logarithm of the scale s.

    Example:
        >>> import caspar
        >>> import numpy as np
        >>> between = caspar.factors.between(caspar.factors.Sim3, noise="unit")
        >>> frames = np.zeros((2, 8))
        >>> frames[:, 3] = 1.0  # no rotation
        >>> half = [[0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, np.log(0.5)]]
        >>> arrays = {"Sim3": frames, "between": {"a": [0], "b": [1], "a_from_b": half}}
        >>> result = caspar.Solver(between).solve(arrays, fixed={"Sim3": [0]})
        >>> np.exp(result.values["Sim3"][1, 7]).round(6)
        np.float64(0.5)
    """

    pose: sf.Pose3
    log_scale: sf.V1

    @property
    def scale(self) -> Any:
        """The scale s."""
        return sf.exp(self.log_scale[0])

    def inverse(self) -> Sim3:
        """The similarity that undoes this one."""
        rotation = self.pose.R.inverse()
        moved = rotation * self.pose.t
        return Sim3(sf.Pose3(rotation, -moved / self.scale), -self.log_scale)

    def __mul__(self, other: Any) -> Any:
        """This similarity after another one, or the image of a point, an `sf.V3`."""
        if not isinstance(other, Sim3):
            return self.scale * (self.pose.R * other) + self.pose.t
        pose = sf.Pose3(self.pose.R * other.pose.R, self * other.pose.t)
        return Sim3(pose, self.log_scale + other.log_scale)
