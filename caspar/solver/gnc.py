"""Graduated non-convexity: solves with many outliers from a start that need not be near.

Yang, Antonante, Tzoumas, Carlone, *Graduated Non-Convexity for Robust Spatial Perception: From
Non-Minimal Solvers to Global Outlier Rejection*, RA-L 2020. A solve with weights, new weights from
its residuals, and so on, while a parameter takes the loss from a convex one to the one that is
meant. Cost tier: twenty to seventy solves, each from the values that were given; a `Solver` keeps
its plan, as only weights change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from caspar.errors import InputError, OptionError
from caspar.frontend.factors.trace import WEIGHT
from caspar.options import GncLossName, choice
from caspar.runtime.arrays import HOST, location
from caspar.solver.evaluation import Evaluation
from caspar.solver.input.problem import with_bare_factors
from caspar.solver.result.by_name import ByName
from caspar.solver.result.quantities import count_text, preformatted
from caspar.solver.result.result import SolveResult, SolveStatus, on_host
from caspar.solver.solver import Solver

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


MOST_AT_START = 1e4
"""Times the largest squared residual after the first solve: more at the start counts as much. A
start with a residual of 1e30 would take hundreds of solves that change nothing."""


class GncLoss(Enum):
    """The loss that a solve ends with.

    TRUNCATED: an inlier costs its squared residual, an outlier the squared threshold.
    GEMAN_MCCLURE: that loss, with the threshold as its scale.
    """

    TRUNCATED = "truncated"
    GEMAN_MCCLURE = "geman_mcclure"


@dataclass(frozen=True)
class GncStep:
    """One solve of a graduation.

    Attributes:
        control: mu of the paper: how convex the loss still is.
        cost: The weighted cost after the solve.
        num_inliers: Instances within the threshold, of all factors that have one.
        num_iterations: Levenberg-Marquardt iterations.
    """

    control: float
    cost: float
    num_inliers: int
    num_iterations: int


@dataclass(frozen=True, eq=False)
class GncResult:
    """The result of `solve_gnc`.

    Attributes:
        result: Result of the last solve, with weighted costs. The status is `NO_RESIDUALS` if
            every factor has a threshold and no residual is within it.
        weights: For each factor with a threshold (m,) in [0, 1], without the user's weights.
        inliers: For each of these (m,) booleans: residuals within the threshold at the end.
        steps: One for each solve.
        has_settled: Whether weights no longer changed. If not, `max_steps` ended it, or all
            residuals were taken for outliers.
    """

    result: SolveResult = field(repr=False)
    weights: Mapping[str, Floats] = field(repr=False)
    inliers: Mapping[str, Flags] = field(repr=False)
    steps: tuple[GncStep, ...]
    has_settled: bool

    def __post_init__(self) -> None:
        for name in ("weights", "inliers"):
            named = ByName(getattr(self, name), "factor with a threshold")
            object.__setattr__(self, name, named)

    @property
    def values(self) -> Mapping[str, Any]:
        """The values of the last solve."""
        return self.result.values

    def __str__(self) -> str:
        return "\n".join([*self._inlier_texts(), "", str(self.result)])

    def _repr_html_(self) -> str:
        inliers = preformatted("\n".join(self._inlier_texts()))
        return f"{inliers}{self.result._repr_html_()}"

    def _inlier_texts(self) -> list[str]:
        settled = "weights no longer change" if self.has_settled else "weights still change"
        texts = [f"{count_text(len(self.steps), 'solve')}; {settled}"]
        for name, flags in self.inliers.items():
            texts.append(f"inliers       {int(flags.sum()):,} of {len(flags):,} {name}")
        return texts


def solve_gnc(
    solver: Solver,
    arrays: Mapping[str, Any],
    *,
    inlier_threshold: float | Mapping[str, Any] | None = None,
    inlier_probability: float | Mapping[str, float] | None = None,
    known_inliers: Mapping[str, Any] | None = None,
    loss: GncLossName | GncLoss = GncLoss.TRUNCATED,
    max_steps: int = 100,
    growth: float = 1.4,
    **options: Any,
) -> GncResult:
    """Solve with many outliers by graduated non-convexity.

    Args:
        solver: Of factors without losses, where they have a threshold.
        arrays: As for `Solver.solve`. Weights among them multiply those found here.
        inlier_threshold: Greatest length of an inlier's residual, in its unit: a number for all
            factors; or by the names of factors a number, or (m,) for each instance. A factor that
            is not named has no outliers.
        inlier_probability: Instead, for residuals in units of their standard deviation: the share
            of inliers that the threshold keeps, by the chi-square distribution of the squared
            length; for all factors, or by name.
        known_inliers: By the name of a factor its instances that are no outliers, such as odometry:
            indices, or (m,) booleans.
        loss: `truncated` or `geman_mcclure`.
        max_steps: Solves at most.
        growth: How much less convex the loss is from solve to solve, above 1.
        **options: For `Solver.solve`.

    Raises:
        InputError: A factor that does not exist, a threshold that is not above 0 or of the wrong
            shape; what `Solver.solve` raises.
        OptionError: Neither a threshold nor a probability is given, or both; an unknown loss.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
        >>> values = {"value": [0, 0, 0, 0], "expected": [[1.0], [1.1], [1.2], [9.0]]}
        >>> arrays = {"Length": [[0.0]], "measured": values}
        >>> found = caspar.solve_gnc(solver, arrays, inlier_threshold=0.5)
        >>> found.values["Length"].round(3)
        array([[1.1]])
        >>> found.inliers["measured"]
        array([ True, True, True, False])
    """
    if (inlier_threshold is None) == (inlier_probability is None):
        raise OptionError("solve_gnc: give either inlier_threshold or inlier_probability")
    if not growth > 1.0:
        raise OptionError(f"solve_gnc: growth={growth!r}: must be above 1")
    if max_steps < 1:
        raise OptionError(f"solve_gnc: max_steps={max_steps!r}: must be at least 1")
    chosen = choice(GncLoss, "loss", loss)
    arrays = with_bare_factors(arrays, solver.traced_factors)
    start = solver.evaluate(arrays)
    squares = _squared_thresholds(start, inlier_threshold, inlier_probability)
    for name in squares:
        if name in start.losses:
            raise InputError(
                f"factor {name}: has the loss {start.losses[name]}, but a factor with a threshold "
                "gets one from solve_gnc; leave its loss out, or name other factors only"
            )
    course = _Course(solver, arrays, squares, _known(start, known_inliers or {}), options)
    return course.run(chosen, max_steps, growth)


class _Course:
    """The solves of one graduation.

    `squares`: By factor (m,) squared thresholds. `known`: By factor (m,) booleans: no outliers.
    """

    def __init__(
        self,
        solver: Solver,
        arrays: Mapping[str, Any],
        squares: Mapping[str, Floats],
        known: Mapping[str, Flags],
        options: Mapping[str, Any],
    ) -> None:
        self._solver = solver
        self._arrays = dict(arrays)
        self._squares = squares
        self._known = known
        self._options = options
        self._given = {name: arrays[name].get(WEIGHT) for name in squares}
        self._steps: list[GncStep] = []

    def run(self, loss: GncLoss, max_steps: int, growth: float) -> GncResult:
        """All solves."""
        truncates = loss is GncLoss.TRUNCATED
        rule = truncated_weights if truncates else geman_mcclure_weights
        weights = {name: np.ones(len(square)) for name, square in self._squares.items()}
        at_start = self._largest(self._ratios(self._arrays))
        result, ratios = self._solve(weights, np.nan)
        largest = self._largest(ratios)
        has_settled = largest <= 1.0
        # the paper's start: convex for the largest residual. Every solve begins at the start, where
        # residuals may be larger than after the first, which shares them out
        largest = max(largest, min(at_start, MOST_AT_START * largest))
        control = 1.0 / max(2.0 * largest - 1.0, 1e-12) if truncates else 2.0 * largest
        while not has_settled and len(self._steps) < max_steps:
            found = {name: rule(ratio, control) for name, ratio in ratios.items()}
            found = {name: np.where(self._known[name], 1.0, one) for name, one in found.items()}
            if found.keys() == result.costs.keys() and not any(one.any() for one in found.values()):
                break  # nothing would be left to solve
            weights = found
            before = result.final_cost
            result, ratios = self._solve(weights, control)
            if truncates:
                between = (np.minimum(one, 1.0 - one).max(initial=0.0) for one in weights.values())
                is_binary = all(one <= 1e-4 for one in between)
                is_same = abs(before - result.final_cost) <= 1e-5 * abs(before)
                has_settled = is_binary and is_same
                control *= growth
            else:
                has_settled = control <= 1.0
                control = max(control / growth, 1.0)
        inliers = {name: (ratio <= 1.0) | self._known[name] for name, ratio in ratios.items()}
        result = self._judged(result, inliers)
        has_settled = has_settled and result.status is not SolveStatus.NO_RESIDUALS
        return GncResult(result, weights, inliers, tuple(self._steps), has_settled)

    def _judged(self, result: SolveResult, inliers: Mapping[str, Flags]) -> SolveResult:
        """The result with a remark on factors without inliers, and no success if there are none."""
        empty = {name for name, one in inliers.items() if len(one) == 0}
        rejected = [name for name, one in inliers.items() if not one.any() and name not in empty]
        remarks = tuple(
            f"factor {name}: no residual is within the threshold, all {len(inliers[name]):,} "
            "instances are taken for outliers. Look whether the threshold has the unit of the "
            "residuals, raise it, or start nearer."
            for name in rejected
        )
        nothing_is_left = len(rejected) > 0 and set(rejected) == set(result.costs) - empty
        status = SolveStatus.NO_RESIDUALS if nothing_is_left else result.status
        return replace(result, status=status, remarks=(*result.remarks, *remarks))

    def _solve(
        self, weights: Mapping[str, Floats], control: float
    ) -> tuple[SolveResult, dict[str, Floats]]:
        """A solve with some weights; and by factor (m,) squared residuals over thresholds."""
        for name, weight in weights.items():
            self._arrays[name] = {**self._arrays[name], WEIGHT: self._placed(name, weight)}
        # from the start: where all weights are 1, outliers may have folded what they should not
        result = self._solver.solve(self._arrays, **self._options)
        ratios = self._ratios({**self._arrays, **result.values})
        num_inliers = sum(int((ratio <= 1.0).sum()) for ratio in ratios.values())
        step = GncStep(control, result.final_cost, num_inliers, len(result.iterations))
        self._steps.append(step)
        return result, ratios

    def _ratios(self, arrays: Mapping[str, Any]) -> dict[str, Floats]:
        """Return (m,) squared residuals over squared thresholds, by factor."""
        found = self._solver.evaluate(arrays)
        return {
            name: (found.residuals(name) ** 2).sum(axis=1) / square
            for name, square in self._squares.items()
        }

    def _largest(self, ratios: Mapping[str, Floats]) -> float:
        """The largest ratio of instances that may be outliers, 0 if there are none."""
        largest = 0.0
        for name, ratio in ratios.items():
            largest = max(largest, float(ratio[~self._known[name]].max(initial=0.0)))
        return largest

    def _placed(self, name: str, weight: Floats) -> Any:
        """A weight times the user's, where the arrays are."""
        given = self._given[name]
        nodes = next(one for one in self._arrays.values() if not isinstance(one, Mapping))
        is_in_parts = any(isinstance(one, list) for one in self._arrays[name].values())
        if is_in_parts or location(nodes) == HOST:
            # whole weights of the host may stand beside parts
            return weight if given is None else weight * _joined(given).reshape(-1)
        uploaded = self._solver.backend.upload(weight)
        return uploaded if given is None else uploaded * self._solver.backend.upload(given)


def _joined(given: Any) -> Floats:
    """Weights of the host, or in parts, as one array."""
    is_in_parts = isinstance(given, list) and all(hasattr(one, "shape") for one in given)
    return on_host(given) if is_in_parts else np.asarray(given)


def truncated_weights(ratio: Floats, control: float) -> Floats:
    """Weights by (m,) squared residuals over squared thresholds: equation 14 of the paper."""
    with np.errstate(divide="ignore"):
        between = np.sqrt(control * (control + 1.0) / ratio) - control
    inside, outside = control / (control + 1.0), (control + 1.0) / control
    return np.where(ratio <= inside, 1.0, np.where(ratio >= outside, 0.0, between))


def geman_mcclure_weights(ratio: Floats, control: float) -> Floats:
    """Weights by (m,) squared residuals over squared thresholds: equation 12 of the paper."""
    return np.asarray((control / (ratio + control)) ** 2)


def _squared_thresholds(
    start: Evaluation,
    threshold: float | Mapping[str, Any] | None,
    probability: float | Mapping[str, float] | None,
) -> dict[str, Floats]:
    """Return (m,) squared thresholds by factor."""
    names = list(start.costs)
    if threshold is not None:
        given = threshold if isinstance(threshold, Mapping) else dict.fromkeys(names, threshold)
        found = {name: _threshold(start, name, value) for name, value in given.items()}
        return {name: value**2 for name, value in found.items()}
    shares: Mapping[str, Any] = (
        probability if isinstance(probability, Mapping) else dict.fromkeys(names, probability)
    )
    squares = {}
    for name, value in shares.items():
        rows = start.residuals(name)
        if not 0.0 < float(value) < 1.0:
            raise InputError(
                f"inlier_probability of factor {name}: {value!r}; it is between 0 and 1"
            )
        squares[name] = np.full(len(rows), float(chi2.ppf(value, rows.shape[1])))
    return squares


def _threshold(start: Evaluation, name: str, value: Any) -> Floats:
    count = len(start.residuals(name))
    found = np.asarray(value, np.float64)
    if found.shape not in ((), (count,)):
        raise InputError(
            f"inlier_threshold of factor {name}: shape {found.shape}; expected a number, or "
            f"({count},) for its instances"
        )
    if not bool((found > 0.0).all()) or not bool(np.isfinite(found).all()):
        raise InputError(f"inlier_threshold of factor {name}: must be finite and greater than 0")
    return np.broadcast_to(found, (count,))


def _known(start: Evaluation, given: Mapping[str, Any]) -> dict[str, Flags]:
    """Return (m,) booleans by factor: which instances are no outliers."""
    known = {name: np.zeros(len(start.residuals(name)), bool) for name in start.costs}
    for name, which in given.items():
        count = len(start.residuals(name))  # of a name that exists
        found = np.asarray(which)
        is_mask = found.dtype == bool and found.shape == (count,)
        is_index = found.dtype.kind in "iu" and found.ndim == 1
        if found.size > 0 and not is_mask and not is_index:
            raise InputError(
                f"known_inliers of factor {name}: {found.dtype} of shape {found.shape}; expected "
                f"indices, or ({count},) booleans"
            )
        if is_index and found.size > 0 and not (0 <= found.min() and found.max() < count):
            raise InputError(f"known_inliers of factor {name}: indices are 0 to {count - 1}")
        if found.size > 0:
            known[name][found] = True
    return known
