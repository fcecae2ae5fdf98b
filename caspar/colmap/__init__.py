"""COLMAP models: files to arrays and back, and bundle adjustment with COLMAP's options.

`read_model` and `write_model` take folders to a `Model`, plain arrays, and back.
`bundle_adjustment` refines poses, intrinsics and points of a folder, a `Model` or a
`pycolmap.Reconstruction` as COLMAP does, with any of its camera models, and returns a `Summary`.
`incremental_mapping` and `global_mapping` make models from a database, as pycolmap's functions of
these names do.
"""

from caspar.colmap.adjust.observations import without_observations
from caspar.colmap.adjust.options import (
    BundleAdjustmentConfig,
    BundleAdjustmentOptions,
    Gauge,
    LossFunction,
)
from caspar.colmap.adjust.summary import Summary, TerminationType
from caspar.colmap.adjustment import bundle_adjustment
from caspar.colmap.covariances import Covariance, covariance
from caspar.colmap.files.folder import ModelFormat, read_model, write_model
from caspar.colmap.mapping import (
    global_mapping,
    global_positioning,
    incremental_mapping,
    rotation_averaging,
)
from caspar.colmap.model import NO_POINT, Cameras, Frames, Images, Model, Points, Rigs, SensorType
from caspar.colmap.priors.priors import (
    IntrinsicsPrior,
    PosePriorOptions,
    PosePriors,
    read_positions,
)

__all__ = [
    "NO_POINT",
    "BundleAdjustmentConfig",
    "BundleAdjustmentOptions",
    "Cameras",
    "Covariance",
    "Frames",
    "Gauge",
    "Images",
    "IntrinsicsPrior",
    "LossFunction",
    "Model",
    "ModelFormat",
    "Points",
    "PosePriorOptions",
    "PosePriors",
    "Rigs",
    "SensorType",
    "Summary",
    "TerminationType",
    "bundle_adjustment",
    "covariance",
    "global_mapping",
    "global_positioning",
    "incremental_mapping",
    "read_model",
    "read_positions",
    "rotation_averaging",
    "without_observations",
    "write_model",
]
