"""Which scalars of a type have unit length."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose

from caspar.bundle_adjustment import Cam
from caspar.frontend.symbolic.field_types import unit_ranges
from tests.frontend.factors.residuals import Rig, random_storage


class Pose(sf.Pose3):
    """A type of somebody's own."""


@dataclass
class Fleet:
    """Structs in a struct."""

    speed: sf.V2
    first: Rig
    heading: sf.Rot2
    wind: sf.Unit3


@pytest.mark.parametrize(
    ("declared", "ranges"),
    [
        (sf.V3, []),
        (float, []),
        (sf.Rot3, [(0, 4)]),
        (Pose, [(0, 4)]),
        (sf.Rot2, [(0, 2)]),
        (sf.Pose2, [(0, 2)]),
        (sf.Unit3, [(0, 3)]),
        (Cam, [(0, 4)]),
        (Fleet, [(2, 6), (9, 13), (14, 16), (16, 19)]),
    ],
)
def test_ranges(declared: type[Any], ranges: list[tuple[int, int]]) -> None:
    found = [(part.start, part.stop) for part in unit_ranges(declared)]
    assert found == ranges
    if declared is not float:
        values = random_storage(declared, np.random.default_rng(0))
        for start, stop in found:
            assert_allclose(np.linalg.norm(values[start:stop]), 1.0)
