"""Node types of pose graphs in the plane."""

import symforce.symbolic as sf


class Pose(sf.Pose2):
    """Takes body to world coordinates; in storage cos sin x y."""


class Landmark(sf.V2):
    """A point in world coordinates."""
