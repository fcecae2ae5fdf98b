"""What callers pass, in any of its forms, as caspar's own.

Models, options, config and priors may be caspar's or pycolmap's.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from caspar.colmap import pycolmap_objects, pycolmap_options
from caspar.colmap.adjust.options import BundleAdjustmentConfig, BundleAdjustmentOptions
from caspar.colmap.files.folder import read_model
from caspar.colmap.model import Model
from caspar.colmap.prepare import Request
from caspar.colmap.priors.priors import IntrinsicsPrior, PosePriorOptions, PosePriors
from caspar.colmap.pycolmap_objects import is_pycolmap
from caspar.errors import InputError, OptionError


def model_given(given: Any) -> Model:
    """Read a folder or a `pycolmap.Reconstruction`; a `Model` is taken as it is.

    Raises:
        InputError: It is something else.
        FileFormatError, OSError: The folder cannot be read.
    """
    if isinstance(given, Model):
        return given
    if is_pycolmap(given, "Reconstruction"):
        return pycolmap_objects.model_of(given)
    if isinstance(given, str | bytes | os.PathLike):
        return read_model(given)
    raise InputError(
        f"model is a {type(given).__name__}; it must be a folder, a caspar.colmap.Model or a "
        "pycolmap.Reconstruction"
    )


def request_given(
    options: Any,
    config: Any,
    pose_priors: Any = None,
    pose_prior_options: Any = None,
    intrinsics_priors: Mapping[int, IntrinsicsPrior] | None = None,
) -> Request:
    """Read what is asked for.

    Raises:
        InputError, OptionError: Something of another type.
    """
    checked, warnings = _options(options)
    how, more = _pose_prior_options(pose_prior_options)
    for number, prior in (intrinsics_priors or {}).items():
        if not isinstance(prior, IntrinsicsPrior):
            raise InputError(
                f"intrinsics_priors of camera {number!r} is a {type(prior).__name__}; it must be a "
                "caspar.colmap.IntrinsicsPrior"
            )
    return Request(
        options=checked,
        config=_config(config),
        pose_priors=None if pose_priors is None else _pose_priors(pose_priors),
        pose_prior_options=how,
        intrinsics_priors=dict(intrinsics_priors or {}),
        warnings=(*warnings, *more),
    )


def _options(given: Any) -> tuple[BundleAdjustmentOptions, tuple[str, ...]]:
    if given is None:
        return BundleAdjustmentOptions(), ()
    if is_pycolmap(given, "BundleAdjustmentOptions"):
        return pycolmap_options.options_of(given)
    if isinstance(given, BundleAdjustmentOptions):
        return given, ()
    raise OptionError(
        f"options is a {type(given).__name__}; it must be a BundleAdjustmentOptions of "
        "caspar.colmap or of pycolmap"
    )


def _config(given: Any) -> BundleAdjustmentConfig:
    if given is None:
        return BundleAdjustmentConfig()
    if is_pycolmap(given, "BundleAdjustmentConfig"):
        return pycolmap_options.config_of(given)
    if isinstance(given, BundleAdjustmentConfig):
        return given
    raise OptionError(
        f"config is a {type(given).__name__}; it must be a BundleAdjustmentConfig of "
        "caspar.colmap or of pycolmap"
    )


def _pose_priors(given: Any) -> PosePriors:
    if isinstance(given, PosePriors):
        return given
    if isinstance(given, Sequence) and all(is_pycolmap(one, "PosePrior") for one in given):
        return pycolmap_options.pose_priors_of(given)
    raise InputError(
        f"pose_priors is a {type(given).__name__}; it must be a caspar.colmap.PosePriors or a list "
        "of pycolmap.PosePrior"
    )


def _pose_prior_options(given: Any) -> tuple[PosePriorOptions, tuple[str, ...]]:
    if given is None:
        return PosePriorOptions(), ()
    if is_pycolmap(given, "PosePriorBundleAdjustmentOptions"):
        return pycolmap_options.pose_prior_options_of(given)
    if isinstance(given, PosePriorOptions):
        return given, ()
    raise OptionError(
        f"pose_prior_options is a {type(given).__name__}; it must be a "
        "caspar.colmap.PosePriorOptions or a pycolmap.PosePriorBundleAdjustmentOptions"
    )
