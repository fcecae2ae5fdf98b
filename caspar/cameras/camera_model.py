"""`CameraModel`: one camera model, for symbols and for arrays.

Input: parameters, and points in camera coordinates (x to the right, y down, z forward). Output:
pixels, residuals. Symbolic use costs milliseconds, once for each factor; `project_points` takes
some tens of nanoseconds a point.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

from caspar.cameras.arithmetic import NUMERIC, SYMBOLIC, Arithmetic
from caspar.errors import InputError, OptionError

Formula: TypeAlias = Callable[[Arithmetic, Sequence[Any], Any, Any, Any], tuple[Any, Any, Any]]
"""A function of the parameters and x, y, z: pixel x, pixel y, clearance."""

InverseFormula: TypeAlias = Callable[[Arithmetic, Sequence[Any], Any, Any], tuple[Any, Any, Any]]
"""A function of the parameters and a pixel: a direction."""


class BehindCamera(Enum):
    """Residual of a point that the camera cannot see, for example one behind it."""

    ZERO = "zero"
    """COLMAP's rule: residual and derivatives are zero. A point that crosses the camera's plane
    drops out of the cost."""
    PROJECT = "project"
    """The rule of *Bundle Adjustment in the Large*: the formula is used as it is, and a depth is
    moved away from zero on its own side."""


@dataclass(frozen=True)
class CameraModel:
    """A camera model.

    Attributes:
        name: COLMAP's name, such as `OPENCV`.
        model_id: COLMAP's number in its files; None: COLMAP does not have the model.
        parameter_names: Names of the parameters in their order.
        focal: Indices of the focal lengths among the parameters.
        principal: Indices of the principal point.
        extra: Indices of the other parameters that can be refined.
        is_periodic: The first parameter is the width of an image whose left and right edges meet;
            the x residual is then the shorter way round.
        formula: The projection; use `project`, `residual` or `project_points`.
        inverse_formula: Its inverse, if there is a closed formula; use `unproject`.

    Example:
        >>> import caspar
        >>> caspar.cameras.MODELS["SIMPLE_RADIAL"].parameter_names
        ('f', 'cx', 'cy', 'k')
    """

    name: str
    model_id: int | None
    parameter_names: tuple[str, ...]
    focal: tuple[int, ...]
    principal: tuple[int, ...]
    extra: tuple[int, ...]
    is_periodic: bool
    formula: Formula = field(repr=False)
    inverse_formula: InverseFormula | None = field(repr=False)

    @property
    def num_parameters(self) -> int:
        """Number of parameters."""
        return len(self.parameter_names)

    def project(self, parameters: Any, point: Any) -> sf.V2:
        """Project a symbolic point, without a rule for points that the camera cannot see.

        Args:
            parameters: (num_parameters,) symbolic numbers, such as an `sf.V8`.
            point: (3,) symbolic camera coordinates, such as an `sf.V3`.

        Returns:
            The pixel; what it is for a point that the camera cannot see is not defined.
        """
        x, y, _ = self.formula(SYMBOLIC, list(parameters), *point)
        return sf.V2(x, y)

    def residual(
        self,
        parameters: Any,
        point: Any,
        pixel: Any,
        behind: str | BehindCamera = BehindCamera.ZERO,
    ) -> sf.V2:
        """Projected minus measured pixel, symbolic, with finite derivatives for every point.

        Args:
            parameters: (num_parameters,) symbolic numbers.
            point: (3,) symbolic camera coordinates.
            pixel: (2,) the measured pixel.
            behind: `zero` or `project`, see `BehindCamera`.

        Returns:
            The residual in pixels.

        Raises:
            OptionError: An unknown rule.
        """
        x, y, z = point
        if _behind(behind) is BehindCamera.PROJECT:
            z = z + sf.epsilon() ** 2 * sf.sign_no_zero(z)
        pixel_x, pixel_y, clearance = self.formula(SYMBOLIC, list(parameters), x, y, z)
        rows = [pixel_x - pixel[0], pixel_y - pixel[1]]
        if self.is_periodic:
            width = parameters[0]
            rows[0] = rows[0] - width * sf.floor(rows[0] / width + sf.Rational(1, 2))
        if _behind(behind) is BehindCamera.ZERO:
            rows = [sf.Piecewise((row, clearance >= 0), (0, True)) for row in rows]
        return sf.V2(*rows)

    def unproject(self, parameters: Any, pixel: Any) -> sf.V3:
        """Return the direction in which a symbolic pixel looks.

        Args:
            parameters: (num_parameters,) symbolic numbers.
            pixel: (2,) symbolic pixel.

        Returns:
            A direction of any positive length, in camera coordinates.

        Raises:
            InputError: The model's distortion has no closed inverse.
        """
        return sf.V3(*self._inverse()(SYMBOLIC, list(parameters), *pixel))

    def _inverse(self) -> InverseFormula:
        if self.inverse_formula is None:
            raise InputError(
                f"camera model {self.name} has no closed inverse: its distortion is a polynomial. "
                "Models that have one: see caspar.cameras.MODELS[...].inverse_formula"
            )
        return self.inverse_formula

    def project_points(
        self, parameters: NDArray[np.float64], points: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Project points with NumPy.

        Args:
            parameters: (num_parameters,) or (n, num_parameters).
            points: (n, 3) camera coordinates.

        Returns:
            (n, 2) pixels; NaN where the camera cannot see the point.

        Raises:
            InputError: An array has another shape.
        """
        parameters, points = np.asarray(parameters, np.float64), np.asarray(points, np.float64)
        if points.ndim != 2 or points.shape[1] != 3:
            raise InputError(f"{self.name}, points: shape {points.shape}; it must be (n, 3)")
        if parameters.shape not in ((self.num_parameters,), (len(points), self.num_parameters)):
            raise InputError(
                f"{self.name}, parameters: shape {parameters.shape}; it must be "
                f"({self.num_parameters},) or ({len(points)}, {self.num_parameters}): "
                f"{', '.join(self.parameter_names)}"
            )
        with np.errstate(all="ignore"):
            x, y, clearance = self.formula(NUMERIC, list(parameters.T), *points.T)
        pixels: NDArray[np.float64] = np.stack([x, y], axis=1)
        pixels[~(clearance >= 0)] = np.nan
        return pixels

    def unproject_points(
        self, parameters: NDArray[np.float64], pixels: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the directions in which pixels look, with NumPy.

        Args:
            parameters: (num_parameters,) or (n, num_parameters).
            pixels: (n, 2).

        Returns:
            (n, 3) directions of any positive length, in camera coordinates.

        Raises:
            InputError: The model's distortion has no closed inverse.
        """
        inverse = self._inverse()
        parameters = np.asarray(parameters, np.float64)
        with np.errstate(all="ignore"):
            direction = inverse(NUMERIC, list(parameters.T), *np.asarray(pixels, np.float64).T)
        return np.stack(np.broadcast_arrays(*direction), axis=1)

    def pixel_differences(
        self, parameters: NDArray[np.float64], differences: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Take differences of pixels the shorter way round, if the image is periodic.

        Args:
            parameters: (num_parameters,) or (n, num_parameters).
            differences: (n, 2) projected minus measured pixels.

        Returns:
            (n, 2).
        """
        if not self.is_periodic:
            return differences
        width = np.asarray(parameters, np.float64).T[0]
        shorter = differences.copy()
        shorter[:, 0] -= width * np.floor(differences[:, 0] / width + 0.5)
        return shorter


def _behind(given: str | BehindCamera) -> BehindCamera:
    try:
        return BehindCamera(given)
    except ValueError:
        allowed = ", ".join(repr(rule.value) for rule in BehindCamera)
        raise OptionError(f"behind={given!r}: it must be one of {allowed}") from None
