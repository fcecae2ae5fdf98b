"""Steps of Levenberg-Marquardt that need no host: what goes in and out, for any backend.

Most steps of a small fit are accepted, and nothing is special about them: no end, no question, no
change of the linear solver. Python takes longer for such a step than the processor does.
`PlainSteps` takes them one after the other in compiled code, and stops at the first step that is
not plain, before anything is decided about it. `iterate.plain_steps` has the rules.
"""

from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Number(IntEnum):
    """What is decided by and what changes, by its place in an array of float64.

    Of the state: STOP is not 0 once a step is not plain; COST, DAMPING, STEP_DAMPING,
    GRADIENT_NORM, CONFIRMING, REMAINING, LEAST_GAIN are those of `PolicyState` and the policy for
    the next step; COUNT steps were taken. The others stay: limits, tolerances and constants of the
    policy.
    """

    STOP = 0
    COST = 1
    DAMPING = 2
    STEP_DAMPING = 3
    GRADIENT_NORM = 4
    CONFIRMING = 5
    REMAINING = 6
    LEAST_GAIN = 7
    COUNT = 8
    MIN_GAIN = 9
    GOOD_GAIN = 10
    KEEPS = 11
    CUBE = 12
    GREATEST_SHRINK = 13
    MIN_DAMPING = 14
    MAX_DAMPING = 15
    COST_TOLERANCE = 16
    TWICE_GRADIENT_TOLERANCE = 17
    TWICE_STEP_TOLERANCE_SQUARE = 18
    NEGLIGIBLE_COST = 19
    RELIEF = 20
    GREATEST_RELIEF = 21
    LITTLE_DAMPING = 22
    LEAST_PIVOT = 23
    LOOKS = 24
    ABSENT = 25


class Row(IntEnum):
    """What is recorded of a step, by its place."""

    COST = 0
    DAMPING = 1
    GAIN_RATIO = 2


class PlainSteps(Protocol):
    """Takes plain steps of one system.

    Attributes:
        numbers: (len(Number),) float64, written before `run` and read after it.
        rows: (MOST_STEPS, len(Row)) float64, one for each step that was taken.
    """

    numbers: NDArray[np.float64]
    rows: NDArray[np.float64]

    def run(self, max_steps: int) -> None:
        """Take steps, at most that many, from values that were scored."""


MOST_STEPS = 64
"""Steps of a `run` at most: between two of them Ctrl-C is noticed."""
