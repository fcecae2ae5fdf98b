"""Bundle adjustment of COLMAP models, as `pycolmap.bundle_adjustment` does it.

Input: a folder, a `Model` or a `pycolmap.Reconstruction`. Output: a `Summary`. The solve is that of
`caspar.Solver`; everything else takes a few passes over the arrays.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from caspar.colmap import pycolmap_objects
from caspar.colmap.adjust.gauge import with_gauge
from caspar.colmap.adjust.observations import (
    mean_errors,
    observations_of,
    without_negative_depths,
)
from caspar.colmap.adjust.options import (
    BundleAdjustmentConfig,
    BundleAdjustmentOptions,
    Gauge,
    LossFunction,
)
from caspar.colmap.adjust.problem import Problem, make_problem
from caspar.colmap.adjust.rig_structure import with_poses
from caspar.colmap.adjust.solve_arrays import Values, solve_arrays
from caspar.colmap.adjust.solving import solved
from caspar.colmap.adjust.summary import Summary, termination_type
from caspar.colmap.files.folder import read_model, write_model
from caspar.colmap.model import Model
from caspar.errors import InputError, OptionError
from caspar.solver.result.result import IterationRecord
from caspar.user_warnings import warn_user

def bundle_adjustment(
    model: Any,
    options: Any = None,
    config: Any = None,
    *,
    output: Any = None,
    verbose: bool | None = None,
    on_iteration: Callable[[IterationRecord], object] | None = None,
) -> Summary:
    """Refine poses, intrinsics and points of a COLMAP model.

    Without a config this is `pycolmap.bundle_adjustment`: observations of points behind their
    cameras are removed first, all images take part, and two cameras hold the gauge. With pycolmap's
    config it is COLMAP's `BundleAdjuster`, which removes nothing. Mean reprojection errors of
    points are those of the adjusted model.

    Args:
        model: A folder, which is only read; a `Model`, which stays as it is; or a
            `pycolmap.Reconstruction`, which is changed in place if the solution is usable.
        options: A `BundleAdjustmentOptions`, or pycolmap's. None: the defaults.
        config: A `BundleAdjustmentConfig`, or pycolmap's. None: as above.
        output: A folder into which the adjusted model is written, in binary form, if the solution
            is usable. None: it is in the summary only.
        verbose: As of `caspar.Solver.solve`.
        on_iteration: As of `caspar.Solver.solve`.

    Returns:
        Costs, how it ended, warnings and the adjusted model. A solve that does not converge raises
        no error. Warnings are also issued as Python's.

    Raises:
        InputError: The model contradicts itself, or no observation takes part.
        OptionError: An option that is not allowed.
        FileFormatError, OSError: The folder cannot be read, or the output cannot be written.
    """
    checked, chosen = _options(options), _config(config)
    given = _read(model)
    filtered = seen = observations_of(given)
    adjusted = given
    if chosen.filter_negative_depth:
        adjusted, filtered = without_negative_depths(given, seen)
    num_filtered = len(seen.points) - len(filtered.points)
    problem = make_problem(adjusted, filtered, checked, chosen)
    problem = with_gauge(problem, Gauge(chosen.fixed_gauge))
    summary = _adjusted(problem, checked, num_filtered, verbose, on_iteration)
    for warning in summary.warnings:
        warn_user(warning)
    if summary.is_solution_usable():
        if pycolmap_objects.is_pycolmap(model, "Reconstruction"):
            pycolmap_objects.update(model, given, summary.model)
        if output is not None:
            write_model(summary.model, output)
    return summary


def _adjusted(
    problem: Problem,
    options: BundleAdjustmentOptions,
    num_filtered: int,
    verbose: bool | None,
    on_iteration: Callable[[IterationRecord], object] | None,
) -> Summary:
    """Solve a problem, and say what became of it."""
    loss = LossFunction(options.loss_function_type)
    parts = solve_arrays(problem, loss, options.loss_function_scale)
    result = solved(problem, parts, options, verbose, on_iteration)
    warnings = list(problem.warnings)
    if num_filtered > 0:
        warnings.append(
            f"{num_filtered} observations of points behind their cameras are removed, with the "
            "points that fewer than two images see then"
        )
    return Summary(
        initial_cost=result.initial_cost,
        final_cost=result.final_cost,
        num_residuals=2 * len(problem.observations.points),
        termination_type=termination_type(result.status),
        num_images=len(problem.observations.used_images),
        num_points=len(problem.observations.used_points),
        num_filtered=num_filtered,
        warnings=tuple(warnings),
        model=_with_values(problem, parts.values(result.values)),
        result=result,
    )


def _with_values(problem: Problem, values: Values) -> Model:
    model = with_poses(problem.model, problem.structure, values.frames, values.sensors)
    model = replace(
        model,
        cameras=replace(model.cameras, parameters=values.parameters),
        points=replace(model.points, xyz=values.points),
    )
    return replace(model, points=replace(model.points, errors=mean_errors(model, problem.seen)))


def _read(given: Any) -> Model:
    if isinstance(given, Model):
        return given
    if pycolmap_objects.is_pycolmap(given, "Reconstruction"):
        return pycolmap_objects.model_of(given)
    if isinstance(given, str | bytes | os.PathLike):
        return read_model(given)
    raise InputError(
        f"model is a {type(given).__name__}; it must be a folder, a caspar.colmap.Model or a "
        "pycolmap.Reconstruction"
    )


def _options(given: Any) -> BundleAdjustmentOptions:
    if given is None:
        return BundleAdjustmentOptions()
    if pycolmap_objects.is_pycolmap(given, "BundleAdjustmentOptions"):
        return pycolmap_objects.options_of(given)
    if isinstance(given, BundleAdjustmentOptions):
        return given
    raise OptionError(
        f"options is a {type(given).__name__}; it must be a BundleAdjustmentOptions of "
        "caspar.colmap or of pycolmap"
    )


def _config(given: Any) -> BundleAdjustmentConfig:
    if given is None:
        return BundleAdjustmentConfig()
    if pycolmap_objects.is_pycolmap(given, "BundleAdjustmentConfig"):
        return pycolmap_objects.config_of(given)
    if isinstance(given, BundleAdjustmentConfig):
        return given
    raise OptionError(
        f"config is a {type(given).__name__}; it must be a BundleAdjustmentConfig of "
        "caspar.colmap or of pycolmap"
    )
