"""`Summary`: what a bundle adjustment did, with COLMAP's fields and caspar's."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from caspar.colmap.model import Floats, Integers, Model
from caspar.solver.result.result import SolveResult, SolveStatus


class TerminationType(Enum):
    """COLMAP's kinds of ends."""

    CONVERGENCE = "CONVERGENCE"
    NO_CONVERGENCE = "NO_CONVERGENCE"
    FAILURE = "FAILURE"
    USER_SUCCESS = "USER_SUCCESS"
    USER_FAILURE = "USER_FAILURE"


_NO_CONVERGENCE = (SolveStatus.ITERATION_LIMIT, SolveStatus.TIME_LIMIT, SolveStatus.DAMPING_LIMIT)
_USER = (SolveStatus.STOPPED, SolveStatus.INTERRUPTED)


@dataclass(frozen=True, eq=False)
class Summary:
    """A bundle adjustment.

    Costs are half the sum of squared residuals in pixels, or of their losses.

    Attributes:
        initial_cost: Cost of the start values.
        final_cost: Cost of `model`.
        num_residuals: As COLMAP counts: two for each observation of which any pose, intrinsics or
            point is refined, and those of priors. The costs have the other observations too.
        termination_type: How it ended, in COLMAP's terms.
        num_images: Images with observations that take part.
        num_points: Points that take part.
        num_filtered: Observations of points behind their cameras that were removed before.
        warnings: What is odd about the model; what is odd about the solve is in the remarks of
            `result`.
        model: The adjusted model.
        result: The solve, with its status and its advice.
        keypoints: For each reprojection factor of `result`, the places of its instances among the
            keypoints of `model.images`.
    """

    initial_cost: float
    final_cost: float
    num_residuals: int
    termination_type: TerminationType
    num_images: int
    num_points: int
    num_filtered: int
    warnings: tuple[str, ...]
    model: Model = field(repr=False)
    result: SolveResult = field(repr=False)
    keypoints: Mapping[str, Integers] = field(default_factory=dict, repr=False)

    def is_solution_usable(self) -> bool:
        """Return whether the adjusted model is at least as good as the one that was given."""
        is_ended = self.termination_type is not TerminationType.FAILURE
        return is_ended and self.final_cost <= self.initial_cost

    @property
    def initial_error_px(self) -> float:
        """COLMAP's error: the root of cost over residuals, half the RMS distance of pixels.

        NaN if nothing is refined.
        """
        return self._error(self.initial_cost)

    @property
    def final_error_px(self) -> float:
        """The same of the adjusted model."""
        return self._error(self.final_cost)

    def _error(self, cost: float) -> float:
        return math.sqrt(cost / self.num_residuals) if self.num_residuals > 0 else math.nan

    def weights(self) -> Floats:
        """Return the weight of each keypoint at the end, in the order of `model.images.keypoints`.

        Returns:
            (k,) the slope of the loss at its error: 1 without a loss or within its scale, near 0
            for an outlier; NaN of keypoints that took no part.
        """
        return self._by_keypoint(self.result.weights)

    def distances_px(self) -> Floats:
        """Return how far each keypoint is from the projection of its point.

        Returns:
            (k,) pixels, in the order of `model.images.keypoints`; NaN of keypoints that took no
            part, 0 of points that their camera cannot see.
        """
        return self._by_keypoint(
            lambda factor: np.linalg.norm(self.result.residuals(factor), axis=1)
        )

    def _by_keypoint(self, numbers: Callable[[str], Any]) -> Floats:
        found = np.full(len(self.model.images.keypoints), np.nan)
        for factor, places in self.keypoints.items():
            found[places] = numbers(factor)
        return found

    def brief_report(self) -> str:
        """Return one line: costs, iterations, how it ended."""
        return (
            f"caspar: iterations {len(self.result.iterations)}, initial cost "
            f"{self.initial_cost:.6e}, final cost {self.final_cost:.6e}, "
            f"{self.termination_type.value}"
        )

    def __str__(self) -> str:
        """Sizes, errors, warnings and the report of the solve."""
        lines = [
            f"{self.num_images} images, {self.num_points} points, {self.num_residuals} residuals; "
            f"error {self.initial_error_px:.6g} -> {self.final_error_px:.6g} px, "
            f"{self.termination_type.value}",
            *(f"warning: {one}" for one in self.warnings),
        ]
        return "\n".join([*lines, "", str(self.result)])


def termination_type(status: SolveStatus) -> TerminationType:
    """Return COLMAP's name for the end of a solve."""
    if status.is_success:
        return TerminationType.CONVERGENCE
    if status in _NO_CONVERGENCE:
        return TerminationType.NO_CONVERGENCE
    return TerminationType.USER_SUCCESS if status in _USER else TerminationType.FAILURE
