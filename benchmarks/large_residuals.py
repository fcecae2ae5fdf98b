"""Residuals of 20,000 operations and more, written as a user would: loops over SymForce objects.

Operations are counted in the score kernel's graph before any pass: a sum of n terms has n - 1.
"""

import random
from typing import Annotated

import symforce.symbolic as sf

from caspar.frontend.factors.factor import factor
from caspar.frontend.markers import ConstSequential, TunableShared

NUM_LINKS = 360
NUM_LAYERS = 8
LAYER_WIDTH = 34


class Base(sf.Pose3):
    """Where an arm is mounted."""


class Input(sf.V3):
    """What a network is evaluated at."""


@factor
def arm(
    base: Annotated[Base, TunableShared],
    angles: Annotated[sf.V6, ConstSequential],
    tip: Annotated[sf.V3, ConstSequential],
) -> sf.V3:
    """Where a chain of links ends, less where it was seen."""
    pose = base
    for link in range(NUM_LINKS):
        axis = sf.V3(0, 0, 1) if link % 2 == 0 else sf.V3(1, 0, 0)
        turn = sf.Rot3.from_angle_axis(angles[link % 6], axis)
        pose = pose * sf.Pose3(turn, sf.V3(0.5, 0.0, 0.001 * link))
    return pose.t - tip


@factor
def network(
    point: Annotated[Input, TunableShared],
    expected: Annotated[sf.V3, ConstSequential],
) -> sf.V3:
    """A network with fixed weights, less what it should give."""
    weights = random.Random(0)
    values = list(point)
    for _ in range(NUM_LAYERS):
        values = [
            sf.tanh(sum(weights.uniform(-1, 1) * value for value in values))
            for _ in range(LAYER_WIDTH)
        ]
    return sf.V3([sum(weights.uniform(-1, 1) * v for v in values) for _ in range(3)]) - expected


RESIDUALS = {"arm": arm, "network": network}
