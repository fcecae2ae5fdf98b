"""Make the factors and arrays of a solver from a model, options and priors.

Input: a `Model` and what was asked for. Output: `Prepared`. A few passes over the arrays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from caspar.colmap.adjust.observations import mean_errors, observations_of, without_negative_depths
from caspar.colmap.adjust.options import (
    BundleAdjustmentConfig,
    BundleAdjustmentOptions,
    Gauge,
    LossFunction,
)
from caspar.colmap.adjust.problem import Problem, make_problem, with_gauge
from caspar.colmap.adjust.rig_structure import with_poses
from caspar.colmap.adjust.solve_arrays import SolveArrays, Values, solve_arrays
from caspar.colmap.model import Model
from caspar.colmap.priors.arrays import PlacedPriors, add_intrinsics_priors, add_pose_priors, place
from caspar.colmap.priors.priors import IntrinsicsPrior, PosePriorOptions, PosePriors


@dataclass(frozen=True, eq=False)
class Request:
    """The request for an adjustment: what is refined and takes part, and priors."""

    options: BundleAdjustmentOptions
    config: BundleAdjustmentConfig
    pose_priors: PosePriors | None = None
    pose_prior_options: PosePriorOptions = field(default_factory=PosePriorOptions)
    intrinsics_priors: Mapping[int, IntrinsicsPrior] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Prepared:
    """A problem, and the same as a solver takes it.

    The problem is where pose priors say it is; `placed` are these, None without any. `num_filtered`
    observations of points behind their cameras are left out.
    """

    problem: Problem
    parts: SolveArrays
    placed: PlacedPriors | None
    num_filtered: int
    warnings: tuple[str, ...]

    def model(self, values: Values, *, has_errors: bool = True) -> Model:
        """Return the model with other values, and with the mean errors that points then have.

        Without `has_errors` errors stay as they are.
        """
        problem = self.problem
        frame_poses = values.frames[: len(problem.written.frame_ids)]
        model = with_poses(problem.model, problem.written, frame_poses, values.sensors)
        model = replace(
            model,
            cameras=replace(model.cameras, parameters=values.parameters),
            points=replace(model.points, xyz=values.points),
        )
        if has_errors:
            errors = mean_errors(model, problem.seen)
            model = replace(model, points=replace(model.points, errors=errors))
        return model if self.placed is None else self.placed.back(model)


def prepare(
    given: Model, request: Request, *, merges_views: bool = True, aligns: bool = True
) -> Prepared:
    """Choose what takes part and what is constant, and add priors.

    `merges_views` as of `solve_arrays`; no such nodes are made if there are priors. With `aligns`
    the model is brought to where pose priors say it is. Raises an `InputError` if the model
    contradicts itself, or no observation takes part.
    """
    options, config = request.options, request.config
    filtered = seen = observations_of(given)
    adjusted, placed = given, None
    if config.filter_negative_depth:
        adjusted, filtered = without_negative_depths(given, seen)
    if request.pose_priors is not None:
        adjusted, placed = place(
            adjusted, request.pose_priors, request.pose_prior_options, config, aligns=aligns
        )
    num_filtered = len(seen.points) - len(filtered.points)
    problem = make_problem(adjusted, filtered, options, config)
    if placed is None or placed.count == 0:
        problem = with_gauge(problem, Gauge(config.fixed_gauge))
    loss = LossFunction(options.loss_function_type)
    has_priors = placed is not None or len(request.intrinsics_priors) > 0
    parts = solve_arrays(
        problem,
        loss,
        options.loss_function_scale,
        merges_views=merges_views and not has_priors,
        has_plain_lenses=len(request.intrinsics_priors) > 0,
    )
    warnings = [*request.warnings, *problem.warnings]
    if placed is not None:
        warnings += add_pose_priors(parts, problem, placed)
    warnings += add_intrinsics_priors(parts, problem, request.intrinsics_priors)
    if num_filtered > 0:
        warnings.append(
            f"{num_filtered} observations of points behind their cameras are removed, with the "
            "points that fewer than two images see then"
        )
    return Prepared(problem, parts, placed, num_filtered, tuple(warnings))
