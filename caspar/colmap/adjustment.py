"""Bundle adjustment of COLMAP models, as `pycolmap.bundle_adjustment` does it.

Input: a folder, a `Model` or a `pycolmap.Reconstruction`. Output: a `Summary`. The solve is that of
`caspar.Solver`; everything else takes a few passes over the arrays.
"""

from collections.abc import Callable, Mapping
from typing import Any

from caspar.colmap import pycolmap_objects
from caspar.colmap.adjust.options import BundleAdjustmentOptions
from caspar.colmap.adjust.problem import NothingToAdjustError
from caspar.colmap.adjust.solving import solved
from caspar.colmap.adjust.summary import Summary, termination_type
from caspar.colmap.arguments import model_given, request_given
from caspar.colmap.files.folder import write_model
from caspar.colmap.model import Model
from caspar.colmap.prepare import Prepared, prepare
from caspar.colmap.priors.priors import IntrinsicsPrior
from caspar.errors import warn_user
from caspar.solver.result.result import IterationRecord, SolveResult


def bundle_adjustment(
    model: Any,
    options: Any = None,
    config: Any = None,
    *,
    pose_priors: Any = None,
    pose_prior_options: Any = None,
    intrinsics_priors: Mapping[int, IntrinsicsPrior] | None = None,
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
        pose_priors: A `PosePriors`, or a list of pycolmap's `PosePrior`: positions of cameras and
            directions of gravity. The model is aligned with them first, and they hold the gauge.
        pose_prior_options: A `PosePriorOptions`, or pycolmap's `PosePriorBundleAdjustmentOptions`.
        intrinsics_priors: By ids of cameras.
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

    Example:
        >>> import caspar
        >>> import pycolmap
        >>> model = pycolmap.synthesize_dataset(pycolmap.SyntheticDatasetOptions())
        >>> noise = pycolmap.SyntheticNoiseOptions()
        >>> noise.point3D_stddev = 0.01
        >>> pycolmap.synthesize_noise(noise, model)
        >>> summary = caspar.colmap.bundle_adjustment(model)
        >>> summary.is_solution_usable(), summary.final_cost < summary.initial_cost
        (True, True)
    """
    request = request_given(options, config, pose_priors, pose_prior_options, intrinsics_priors)
    given = model_given(model)
    prepared = prepare(given, request)
    result = solved(prepared.problem, prepared.parts, request.options, verbose, on_iteration)
    summary = _summary(prepared, result)
    for warning in summary.warnings:
        warn_user(warning)
    if summary.is_solution_usable():
        if pycolmap_objects.is_pycolmap(model, "Reconstruction"):
            pycolmap_objects.update(model, given, summary.model)
        if output is not None:
            write_model(summary.model, output)
    return summary


def adjust_in_place(
    reconstruction: Any,
    options: BundleAdjustmentOptions,
    config: Any,
    *,
    pose_priors: Any = None,
    pose_prior_options: Any = None,
    known: Model | None = None,
) -> Summary | None:
    """Adjust a `pycolmap.Reconstruction` between a mapper's steps; None if nothing takes part.

    Errors of points stay as they are, as in COLMAP's mappers, and no warnings are issued. Options
    and priors are as of `bundle_adjustment`. `known` is what the reconstruction holds: the model of
    the adjustment before, if nothing has changed since. None: it is read.
    """
    request = request_given(options, config, pose_priors, pose_prior_options)
    given = pycolmap_objects.model_of(reconstruction) if known is None else known
    try:
        prepared = prepare(given, request)
    except NothingToAdjustError:
        return None
    result = solved(prepared.problem, prepared.parts, options, False, None, shares_kernels=True)
    summary = _summary(prepared, result, has_errors=False)
    if summary.is_solution_usable():
        pycolmap_objects.update(reconstruction, given, summary.model)
    return summary


def _summary(prepared: Prepared, result: SolveResult, *, has_errors: bool = True) -> Summary:
    problem, parts = prepared.problem, prepared.parts
    seen = problem.observations
    return Summary(
        initial_cost=result.initial_cost,
        final_cost=result.final_cost,
        num_residuals=problem.num_residuals + parts.num_prior_residuals,
        termination_type=termination_type(result.status),
        num_images=len(seen.used_images),
        num_points=len(seen.used_points),
        num_filtered=prepared.num_filtered,
        warnings=prepared.warnings,
        model=prepared.model(parts.values(result.values), has_errors=has_errors),
        result=result,
        keypoints=parts.keypoints,
    )
