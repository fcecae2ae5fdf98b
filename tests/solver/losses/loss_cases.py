"""Losses in NumPy, and small problems with outliers."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from tests.solver.linear.linear_cases import glance, hold, make_arrays, pin

Floats = NDArray[np.float64]
Arrays = dict[str, Any]


def tukey(u: Floats) -> Floats:
    found: Floats = np.where(u < 1.0, (1.0 - (1.0 - np.minimum(u, 1.0)) ** 3) / 3.0, 1.0 / 3.0)
    return found


def tolerant(u: Floats, width: float = 0.1) -> Floats:
    found: Floats = np.logaddexp(0.0, (u - 1.0) / width) - np.logaddexp(0.0, -1.0 / width)
    return width * found


def barron(u: Floats, alpha: float) -> Floats:
    b = abs(alpha - 2.0)
    return 2.0 * b / alpha * ((u / b + 1.0) ** (alpha / 2.0) - 1.0)


FORMULAS: Mapping[str, Callable[[Floats], Floats]] = {
    "L2": lambda u: u,
    "Huber": lambda u: np.where(u <= 1.0, u, 2.0 * np.sqrt(u) - 1.0),
    "SoftL1": lambda u: 2.0 * (np.sqrt(1.0 + u) - 1.0),
    "Cauchy": lambda u: np.asarray(np.log1p(u)),
    "Arctan": np.arctan,
    "GemanMcClure": lambda u: u / (1.0 + u),
    "Welsch": lambda u: -np.expm1(-u),
    "Tukey": tukey,
    "Tolerant": tolerant,
}
"""rho0 of u = s / a^2, by the name of the class in `caspar.loss`."""


def loss_named(name: str) -> type[caspar.loss.Loss]:
    found: type[caspar.loss.Loss] = getattr(caspar.loss, name)
    return found


# -- a line through points of which a third is too high --------------------------------------------


class Line(sf.V2):
    """Height at zero, and slope."""


@caspar.factor
def point(
    line: Annotated[Line, caspar.TunableUnique],
    at: Annotated[sf.V1, caspar.ConstSequential],
    height: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1(line[0] + line[1] * at[0] - height[0])


@caspar.factor
def place(
    line: Annotated[Line, caspar.TunableUnique],
    at: Annotated[sf.V2, caspar.ConstSequential],
    seen: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """Two rows that bend."""
    return sf.V2(line[0] + sf.sin(line[1] * at[0]), line[1] - line[0] * at[1]) - seen


@caspar.factor(loss=caspar.loss.Cauchy)
def cauchy_point(
    line: Annotated[Line, caspar.TunableUnique],
    at: Annotated[sf.V1, caspar.ConstSequential],
    height: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1(line[0] + line[1] * at[0] - height[0])


bounded_point = point.with_loss(caspar.loss.Tukey)


def line_arrays(num_points: int = 90, seed: int = 0) -> Arrays:
    """Arrays for `point`: noise of 0.1, every third point up to 20 too high."""
    random = np.random.default_rng(seed)
    at = random.uniform(-10.0, 10.0, (num_points, 1))
    height = 1.0 + 0.5 * at + random.normal(0.0, 0.1, at.shape)
    height[::3] += random.uniform(0.0, 20.0, height[::3].shape)
    return {"Line": np.array([[1.2, 0.45]]), "point": {"at": at, "height": height}}


# -- views of marks, of which some are wrong -------------------------------------------------------

ROBUST = (
    glance.with_loss(caspar.loss.Huber),
    hold.with_loss(caspar.loss.SoftL1),
    pin,
)
"""An eliminated node type with a loss, a remaining one with another, weights on the last."""


def view_arrays(seed: int = 0) -> Arrays:
    """Arrays for `ROBUST`."""
    random = np.random.default_rng(seed)
    arrays = make_arrays(num_views=6, num_marks=20)
    arrays = {name: arrays[name] for name in ("View", "Mark", "glance", "hold", "pin")}
    seen = arrays["glance"]["seen"]
    seen[::5] += random.normal(0.0, 2.0, seen[::5].shape)
    arrays["glance"]["loss_scale"] = 0.05
    arrays["hold"]["loss_scale"] = random.uniform(0.05, 0.1, len(arrays["hold"]["known"]))
    arrays["pin"]["weight"] = random.uniform(0.0, 2.0, len(arrays["pin"]["known"]))
    arrays["pin"]["weight"][::4] = 0.0
    return arrays
