"""Node types of pose graphs in space."""

import symforce.symbolic as sf


class Pose(sf.Pose3):
    """Takes body to world coordinates; in storage qx qy qz qw tx ty tz."""


class Landmark(sf.V3):
    """A point in world coordinates."""
