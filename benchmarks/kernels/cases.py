"""The residuals of the comparison, and which of our kernels stands beside which of theirs."""

import importlib
from dataclasses import dataclass
from enum import Enum
from typing import Any


@dataclass(frozen=True)
class Case:
    """A residual.

    Attributes:
        factor: Where it is, `module:name`. Imported late: the reference sets SymForce's epsilon
            before that.
        title: For the table.
    """

    factor: str
    title: str

    @property
    def name(self) -> str:
        """The factor's name, which kernels begin with."""
        return self.factor.partition(":")[2]

    def load(self) -> Any:
        """Import the factor."""
        module, _, name = self.factor.partition(":")
        return getattr(importlib.import_module(module), name)


CASES = (
    Case("caspar.bundle_adjustment:snavely", "BAL camera (2 rows; nodes of 9 and 3)"),
    Case("examples.pose_graph_3d:odometry", "Pose3 odometry (6 rows; nodes of 6 and 6)"),
    Case(
        "examples.inertial_navigation:preintegrated_imu",
        "Preintegrated IMU (9 rows; nodes of 9, 6 and 9)",
    ),
    Case(
        "examples.camera_calibration:opencv_pixel",
        "OpenCV camera of 12 parameters (2 rows; nodes of 12, 6 and 3)",
    ),
)


class Role(Enum):
    """A kernel's task; kernels of one role are compared.

    FIRST: residual, half its square, Jacobian, gradient and diagonal blocks in one kernel, all in
        float32: the reference's `res_jac_first`. Our solver has no such kernel; ours is made for
        this table, with the same outputs.
    AGAIN: the same without the square: the reference's `res_jac`; ours is the solver's own
        `linearize` in mixed precision, which reads the residual that the score wrote.
    SCORE: half the square of the residual, in float32; ours also writes the residual.
    SCORE_MIXED: our solver's own in mixed precision: it evaluates in float64. The reference has
        nothing like it.
    PRODUCT: a step of PCG. Ours is J^T J p and |J p|^2; the reference's `jtjnjtr_direct` is
        J^T J p without the diagonal blocks, which it applies elsewhere.
    """

    FIRST = "linearise and score"
    AGAIN = "linearise"
    SCORE = "score"
    SCORE_MIXED = "score, as solved"
    PRODUCT = "product"


REFERENCE_KERNELS = {
    "res_jac_first": Role.FIRST,
    "res_jac": Role.AGAIN,
    "score": Role.SCORE,
    "jtjnjtr_direct": Role.PRODUCT,
}
"""Ends of the names of the reference's kernels."""
