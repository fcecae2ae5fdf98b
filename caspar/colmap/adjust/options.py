"""Options of an adjustment, COLMAP's and caspar's: refined and constant parts, and the solve."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from caspar.errors import OptionError
from caspar.options import BackendChoice, LinearSolverChoice, Precision, choice


class LossFunction(Enum):
    """COLMAP's robust losses of the squared distance of an observation, see `caspar.loss`."""

    TRIVIAL = "TRIVIAL"
    SOFT_L1 = "SOFT_L1"
    CAUCHY = "CAUCHY"
    HUBER = "HUBER"


class Gauge(Enum):
    """Rule that keeps the model from moving as a whole; COLMAP's names."""

    UNSPECIFIED = "UNSPECIFIED"
    """Nothing: the damping of Levenberg-Marquardt does."""
    TWO_CAMS_FROM_WORLD = "TWO_CAMS_FROM_WORLD"
    """The pose of the first camera, and one component of the translation of a second."""
    THREE_POINTS = "THREE_POINTS"
    """A point, a second one, and one component of a third. COLMAP holds all of three points,
    which is two components more than the gauge has, and takes those that its hash table has first:
    the cost is then higher, the more so the noisier they are. The summary has a warning that says
    so. Points that are constant anyway are taken first, as in COLMAP."""


@dataclass(frozen=True)
class BundleAdjustmentOptions:
    """Options of a bundle adjustment. Names and defaults up to `loss_function_scale` are COLMAP's.

    Attributes:
        refine_focal_length: Refine focal lengths.
        refine_principal_point: Refine principal points.
        refine_extra_params: Refine distortion.
        refine_rig_from_world: Refine the poses of frames, of COLMAP 3 those of images.
        refine_sensor_from_rig: Refine the poses of cameras in their rigs.
        constant_rig_from_world_rotation: Refine the translations of frames only.
        refine_points3D: Refine points.
        min_focal_length_ratio: Least focal length that a solve may refine to, over the longer side
            of the image. A start value beyond a bound is the bound instead.
        max_focal_length_ratio: The largest one.
        max_extra_param: Largest magnitude that a refined distortion parameter may have.
        min_track_length: Points of fewer observations take no part. Those of one never do: such a
            point fits whatever the camera does.
        loss_function_type: A `LossFunction`.
        loss_function_scale: Its scale in pixels.
        max_num_iterations: Levenberg-Marquardt iterations, rejected steps included.
        backend: `auto`, `cuda` or `cpu`.
        precision: `float64`, `mixed`, `float32`, or `auto`, as of `caspar.Solver`.
        linear_solver: As of `caspar.Solver`. `auto`: in float64 a dense factorisation if there are
            few cameras, else as there.
        solve_options: Further fields of `caspar.SolveOptions`, such as `max_time_s`; they replace
            what is chosen here.

    Raises:
        OptionError: A value that is not allowed.

    Example:
        >>> import caspar
        >>> import pycolmap
        >>> model = pycolmap.synthesize_dataset(pycolmap.SyntheticDatasetOptions())
        >>> options = caspar.colmap.BundleAdjustmentOptions(
        ...     max_num_iterations=20, min_track_length=3)
        >>> caspar.colmap.bundle_adjustment(model, options).is_solution_usable()
        True
    """

    refine_focal_length: bool = True
    refine_principal_point: bool = False
    refine_extra_params: bool = True
    refine_rig_from_world: bool = True
    refine_sensor_from_rig: bool = True
    constant_rig_from_world_rotation: bool = False
    refine_points3D: bool = True  # noqa: N815  COLMAP's name
    min_focal_length_ratio: float = 0.0
    max_focal_length_ratio: float = math.inf
    max_extra_param: float = math.inf
    min_track_length: int = 0
    loss_function_type: str | LossFunction = LossFunction.TRIVIAL
    loss_function_scale: float = 1.0
    max_num_iterations: int = 100
    backend: str | BackendChoice = BackendChoice.AUTO
    precision: str | Precision = Precision.FLOAT64
    linear_solver: str | LinearSolverChoice = LinearSolverChoice.AUTO
    solve_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check values; names of choices become members of their enums."""
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(one.default, bool) and not isinstance(value, bool):
                raise OptionError(f"{one.name}={value!r}: it must be True or False")
            if type(one.default) is int and (type(value) is not int or value < 0):
                raise OptionError(f"{one.name}={value!r}: it must be an integer of 0 or more")
        chosen = choice(LossFunction, "loss_function_type", self.loss_function_type)
        object.__setattr__(self, "loss_function_type", chosen)
        method = choice(LinearSolverChoice, "linear_solver", self.linear_solver)
        object.__setattr__(self, "linear_solver", method)
        ratios = self.min_focal_length_ratio, self.max_focal_length_ratio
        if not 0 <= ratios[0] < ratios[1]:
            raise OptionError(
                f"min_focal_length_ratio={ratios[0]!r}, max_focal_length_ratio={ratios[1]!r}: the "
                "first must be 0 or more, and less than the second"
            )
        if not self.max_extra_param >= 0:
            raise OptionError(f"max_extra_param={self.max_extra_param!r}: it must be 0 or more")
        if not 0 < self.loss_function_scale < math.inf:
            raise OptionError(
                f"loss_function_scale={self.loss_function_scale!r}: it must be positive and finite"
            )

    @property
    def has_bounds(self) -> bool:
        """True if intrinsics have bounds."""
        limits = self.min_focal_length_ratio, self.max_focal_length_ratio, self.max_extra_param
        return limits != (0.0, math.inf, math.inf)

    @property
    def is_float64(self) -> bool:
        """True if the precision was chosen as float64."""
        return self.precision in (Precision.FLOAT64, Precision.FLOAT64.value)

    @property
    def refined_intrinsics(self) -> tuple[str, ...]:
        """Names of the refined groups of intrinsics: focal, principal, extra."""
        flags = {
            "focal": self.refine_focal_length,
            "principal": self.refine_principal_point,
            "extra": self.refine_extra_params,
        }
        return tuple(name for name, is_refined in flags.items() if is_refined)


@dataclass(frozen=True)
class BundleAdjustmentConfig:
    """Images and points that take part, and values of theirs that are constant.

    Sets may be given as any collection of ids.

    Attributes:
        images: Ids of the images that take part; None: all.
        constant_cam_intrinsics: Ids of cameras whose intrinsics are constant.
        constant_rig_from_world_poses: Ids of frames whose poses are constant; in a model of COLMAP
            3, ids of images.
        constant_sensor_from_rig_poses: Ids of cameras whose poses in their rigs are constant.
        constant_points: Ids of points that are constant and take part with all observations, also
            those in images that take no part. The poses of such images are constant, and so are
            intrinsics that no image uses that takes part.
        variable_points: The same for points that are refined.
        fixed_gauge: A `Gauge`.
        filter_negative_depth: Remove observations of points behind their cameras first, and points
            that fewer than two images see then.

    Raises:
        OptionError: A value that is not allowed.

    Example:
        >>> import caspar
        >>> import pycolmap
        >>> model = pycolmap.synthesize_dataset(pycolmap.SyntheticDatasetOptions())
        >>> config = caspar.colmap.BundleAdjustmentConfig(constant_cam_intrinsics={1})
        >>> caspar.colmap.bundle_adjustment(model, config=config).is_solution_usable()
        True
    """

    images: frozenset[int] | None = None
    constant_cam_intrinsics: frozenset[int] = frozenset()
    constant_rig_from_world_poses: frozenset[int] = frozenset()
    constant_sensor_from_rig_poses: frozenset[int] = frozenset()
    constant_points: frozenset[int] = frozenset()
    variable_points: frozenset[int] = frozenset()
    fixed_gauge: str | Gauge = Gauge.TWO_CAMS_FROM_WORLD
    filter_negative_depth: bool = True

    def __post_init__(self) -> None:
        """Check values; the name of the gauge becomes a member of its enum."""
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name not in ("fixed_gauge", "filter_negative_depth") and value is not None:
                object.__setattr__(self, one.name, _checked_ids(one.name, value))
        object.__setattr__(self, "fixed_gauge", choice(Gauge, "fixed_gauge", self.fixed_gauge))
        both = self.constant_points & self.variable_points
        if both:
            raise OptionError(f"points {sorted(both)} are both constant and variable")


def _checked_ids(name: str, given: Iterable[Any]) -> frozenset[int]:
    try:
        ids = [(one, int(one)) for one in given]
    except (TypeError, ValueError):
        ids = [(None, 0)]
    if any(one is None or number != one for one, number in ids):
        raise OptionError(f"{name}={given!r}: it must be a collection of ids")
    return frozenset(number for _, number in ids)
