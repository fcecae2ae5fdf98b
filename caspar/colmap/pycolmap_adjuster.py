"""`CasparAdjuster`, `CasparPosePriorAdjuster`: caspar as a bundle adjuster of pycolmap's pipelines.

It goes where pycolmap's examples of a custom pipeline make an adjuster of Ceres. Only this module
imports pycolmap, when it is imported by name.
"""

from collections.abc import Mapping
from typing import Any

import pycolmap

from caspar.colmap.adjust.summary import Summary
from caspar.colmap.adjustment import bundle_adjustment


class CasparAdjuster(pycolmap.BundleAdjuster):
    """Solves with caspar what `pycolmap.create_default_bundle_adjuster` solves with Ceres.

    Args:
        options: A `pycolmap.BundleAdjustmentOptions`.
        config: A `pycolmap.BundleAdjustmentConfig`.
        reconstruction: A `pycolmap.Reconstruction`; `solve` changes it in place.
    """

    def __init__(self, options: Any, config: Any, reconstruction: Any) -> None:
        super().__init__(options, config)
        self._reconstruction = reconstruction
        self._priors: Mapping[str, Any] = {}
        self.caspar_summary: Summary | None = None
        """caspar's own summary of the last solve."""

    def solve(self) -> Any:
        """Adjust the reconstruction.

        Returns:
            A `pycolmap.BundleAdjustmentSummary`.

        Raises:
            CasparError: As `caspar.colmap.bundle_adjustment`.
        """
        summary = bundle_adjustment(self._reconstruction, self.options, self.config, **self._priors)
        self.caspar_summary = summary
        kinds = pycolmap.BundleAdjustmentTerminationType
        return pycolmap.BundleAdjustmentSummary(
            termination_type=getattr(kinds, summary.termination_type.value),
            num_residuals=summary.num_residuals,
        )


class CasparPosePriorAdjuster(CasparAdjuster):
    """Solves with caspar what `pycolmap.create_pose_prior_bundle_adjuster` solves with Ceres.

    Args:
        options: A `pycolmap.BundleAdjustmentOptions`.
        prior_options: A `pycolmap.PosePriorBundleAdjustmentOptions`, or caspar's
            `PosePriorOptions`.
        config: A `pycolmap.BundleAdjustmentConfig`.
        pose_priors: A list of `pycolmap.PosePrior`, or caspar's `PosePriors`. Directions of gravity
            count too, which they do not with Ceres.
        reconstruction: A `pycolmap.Reconstruction`; `solve` aligns it with the priors, and changes
            it in place.
    """

    def __init__(
        self, options: Any, prior_options: Any, config: Any, pose_priors: Any, reconstruction: Any
    ) -> None:
        super().__init__(options, config, reconstruction)
        self._priors = {"pose_priors": pose_priors, "pose_prior_options": prior_options}
