"""Convert the arguments of callers to caspar's own classes.

Models, options, config and priors may be objects of caspar or of pycolmap.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from caspar.colmap import pycolmap_objects
from caspar.colmap.adjust.options import BundleAdjustmentConfig, BundleAdjustmentOptions
from caspar.colmap.files.folder import read_model
from caspar.colmap.model import Model, SensorType
from caspar.colmap.prepare import Request
from caspar.colmap.priors.priors import IntrinsicsPrior, PosePriorOptions, PosePriors
from caspar.colmap.pycolmap_objects import is_pycolmap
from caspar.errors import InputError, OptionError

_SAME_OPTIONS = (
    *("refine_focal_length", "refine_principal_point", "refine_extra_params"),
    *("refine_rig_from_world", "refine_sensor_from_rig", "constant_rig_from_world_rotation"),
    *("refine_points3D", "min_track_length"),
)

_COUNTING = (
    *_SAME_OPTIONS,
    "backend",  # caspar takes its place
    "print_summary",  # nothing is printed but by `print(summary)`
    "ceres.loss_function_type",
    "ceres.loss_function_scale",
    "ceres.use_gpu",  # a GPU is used if there is one
    "ceres.solver_options.max_num_iterations",
    "ceres.solver_options.max_solver_time_in_seconds",
    "ceres.solver_options.function_tolerance",
    "ceres.solver_options.initial_trust_region_radius",
)
"""Options that count, or whose meaning caspar has anyway."""

_COUNTING_OF_PRIORS = (
    "prior_position_fallback_stddev",
    "ceres.prior_position_loss_function_type",
    "ceres.prior_position_loss_scale",
    "alignment_ransac.max_error",
)


def options_of(given: Any, usual: Any = None) -> tuple[BundleAdjustmentOptions, tuple[str, ...]]:
    """Read a `pycolmap.BundleAdjustmentOptions`, and return warnings for what has no effect.

    Of options as in `usual` no warning is issued; None: the defaults. Raises an `OptionError` for
    pycolmap before 4.
    """
    if not hasattr(given, "ceres"):
        raise OptionError("options of pycolmap before version 4 cannot be read; install pycolmap 4")
    same = {name: getattr(given, name) for name in _SAME_OPTIONS if hasattr(given, name)}
    usual = type(given)() if usual is None else usual
    solver, usual_solver = given.ceres.solver_options, usual.ceres.solver_options
    chosen = {}
    if solver.max_solver_time_in_seconds < usual_solver.max_solver_time_in_seconds:
        chosen["max_time_s"] = solver.max_solver_time_in_seconds
    if solver.function_tolerance > 0:
        chosen["cost_tolerance"] = solver.function_tolerance
    if solver.initial_trust_region_radius != usual_solver.initial_trust_region_radius:
        chosen["initial_damping"] = 1 / solver.initial_trust_region_radius
    options = BundleAdjustmentOptions(
        **same,
        loss_function_type=given.ceres.loss_function_type.name,
        loss_function_scale=given.ceres.loss_function_scale,
        max_num_iterations=solver.max_num_iterations,
        solve_options=chosen,
    )
    return options, _without_effect("options", given, usual, _COUNTING)


def pose_prior_options_of(given: Any) -> tuple[PosePriorOptions, tuple[str, ...]]:
    """Read a `pycolmap.PosePriorBundleAdjustmentOptions`, with warnings for what has no effect."""
    max_error = given.alignment_ransac.max_error
    options = PosePriorOptions(
        prior_position_fallback_stddev=given.prior_position_fallback_stddev,
        prior_position_loss_function_type=given.ceres.prior_position_loss_function_type.name,
        prior_position_loss_scale=given.ceres.prior_position_loss_scale,
        alignment_max_error=max_error if max_error > 0 else None,
    )
    return options, _without_effect("pose_prior_options", given, type(given)(), _COUNTING_OF_PRIORS)


def config_of(given: Any) -> BundleAdjustmentConfig:
    """Read a `pycolmap.BundleAdjustmentConfig`; COLMAP's adjusters remove no observations."""
    sensors = frozenset(one.id for one in given.constant_sensor_from_rig_poses)
    return BundleAdjustmentConfig(
        images=frozenset(given.images),
        constant_cam_intrinsics=frozenset(given.constant_cam_intrinsics),
        constant_rig_from_world_poses=frozenset(given.constant_rig_from_world_poses),
        constant_sensor_from_rig_poses=sensors,
        constant_points=frozenset(given.constant_points),
        variable_points=frozenset(given.variable_points),
        fixed_gauge=given.fixed_gauge.name,
        filter_negative_depth=False,
    )


def pose_priors_of(given: Sequence[Any]) -> PosePriors:
    """Read a list of `pycolmap.PosePrior`; those of other sensors than cameras are left out.

    Raises an `OptionError` if positions are latitudes and longitudes.
    """
    camera = SensorType.CAMERA
    priors = [one for one in given if int(one.corr_data_id.sensor_id.type) == camera]
    if any(one.coordinate_system.name == "WGS84" and one.has_position() for one in priors):
        raise OptionError(
            "pose_priors: positions are in WGS84; convert them to metres first, by "
            "pycolmap.GPSTransform or caspar.colmap.PosePriors.from_gps"
        )
    # not all of a covariance may be there
    covariances = [
        one.position_covariance if one.has_position_cov() else np.full((3, 3), np.nan)
        for one in priors
    ]
    return PosePriors(
        np.array([one.corr_data_id.id for one in priors], np.int64),
        np.array([one.position for one in priors], np.float64).reshape(-1, 3),
        np.array(covariances, np.float64).reshape(-1, 3, 3),
        np.array([one.gravity for one in priors], np.float64).reshape(-1, 3),
    )


def _without_effect(name: str, given: Any, usual: Any, counting: Sequence[str]) -> tuple[str, ...]:
    """Return a warning that names the options that were changed and do not count."""
    before = dict(_flat(usual.todict()))
    changed = [
        f"{option}={value!r}"
        for option, value in _flat(given.todict())
        if option not in counting and before.get(option) != value
    ]
    if len(changed) == 0:
        return ()
    return (f"{name} of pycolmap that have no effect: {', '.join(changed)}",)


def _flat(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def options_given(given: Any, kind: type) -> Any:
    """Options of a class of pycolmap; None: the defaults; else an `OptionError`."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise OptionError(
            f"options is a {type(given).__name__}; it must be a pycolmap.{kind.__name__}"
        )
    return given


def model_given(given: Any) -> Model:
    """Read a folder or a `pycolmap.Reconstruction`; a `Model` is taken as it is.

    Raises an `InputError` for anything else, and what reading the folder raises.
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
    """Read what is asked for; `InputError` or `OptionError` for something of another type."""
    checked, warnings = _given(
        "options", options, BundleAdjustmentOptions, "BundleAdjustmentOptions", options_of
    )
    part, _ = _given(
        "config",
        config,
        BundleAdjustmentConfig,
        "BundleAdjustmentConfig",
        lambda one: (config_of(one), ()),
    )
    how, more = _given(
        "pose_prior_options",
        pose_prior_options,
        PosePriorOptions,
        "PosePriorBundleAdjustmentOptions",
        pose_prior_options_of,
    )
    for number, prior in (intrinsics_priors or {}).items():
        if not isinstance(prior, IntrinsicsPrior):
            raise InputError(
                f"intrinsics_priors of camera {number!r} is a {type(prior).__name__}; it must be a "
                "caspar.colmap.IntrinsicsPrior"
            )
    return Request(
        options=checked,
        config=part,
        pose_priors=None if pose_priors is None else _pose_priors(pose_priors),
        pose_prior_options=how,
        intrinsics_priors=dict(intrinsics_priors or {}),
        warnings=(*warnings, *more),
    )


def _given(
    name: str,
    given: Any,
    kind: type,
    theirs: str,
    read: Callable[[Any], tuple[Any, tuple[str, ...]]],
) -> tuple[Any, tuple[str, ...]]:
    """Caspar's options, those of pycolmap that are read, or the defaults; with warnings."""
    if given is None:
        return kind(), ()
    if isinstance(given, kind):
        return given, ()
    if is_pycolmap(given, theirs):
        return read(given)
    raise OptionError(
        f"{name} is a {type(given).__name__}; it must be a caspar.colmap.{kind.__name__} or a "
        f"pycolmap.{theirs}"
    )


def _pose_priors(given: Any) -> PosePriors:
    if isinstance(given, PosePriors):
        return given
    if isinstance(given, Sequence) and all(is_pycolmap(one, "PosePrior") for one in given):
        return pose_priors_of(given)
    raise InputError(
        f"pose_priors is a {type(given).__name__}; it must be a caspar.colmap.PosePriors or a list "
        "of pycolmap.PosePrior"
    )
