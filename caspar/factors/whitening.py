"""Noise of a factor: how its error is divided by what is usual.

Input: the rows of an error, and the factor's noise argument. Output: the whitened rows, whose
squares the solver sums. Symbolic, once for each factor.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Literal, TypeAlias

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

from caspar.errors import InputError
from caspar.frontend.markers import ConstSequential, ConstUnique, Marker


class Noise(Enum):
    """Argument of a factor that says how precise its measurements are."""

    SIGMA = "sigma"
    """`sigma`, (dim,): the standard deviation of each row of the error, one for all instances."""
    SQRT_INFORMATION = "sqrt_information"
    """`sqrt_information`, (m, dim, dim): for each instance a matrix W by which the error is
    multiplied; W^T W is the inverse of the error's covariance."""
    UNIT = "unit"
    """None: the residual is the error, in its own units."""


NoiseChoice: TypeAlias = Noise | Literal["sigma", "sqrt_information", "unit"]


def noise_argument(noise: Noise, dim: int) -> tuple[Any, type[Marker]] | None:
    """Type and marker of the argument that holds the noise of an error; None: there is none."""
    if noise is Noise.SIGMA:
        return vector_type(dim), ConstUnique
    if noise is Noise.SQRT_INFORMATION:
        return sf.matrix_type_from_shape((dim, dim)), ConstSequential
    return None


def whitened(noise: Noise, error: Sequence[Any], value: Any) -> Any:
    """The residual."""
    if noise is Noise.SIGMA:
        error = [row / value[number] for number, row in enumerate(error)]
    residual = vector_type(len(error))(list(error))
    return value * residual if noise is Noise.SQRT_INFORMATION else residual


def vector_type(size: int) -> Any:
    """The type of a column vector."""
    return sf.matrix_type_from_shape((size, 1))


def sqrt_information(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """The matrices that whiten errors of given covariances.

    Args:
        covariance: (..., dim, dim) symmetric and positive definite.

    Returns:
        (..., dim, dim) lower triangular W with W^T W the inverse of the covariance.

    Raises:
        InputError: A covariance is not positive definite.

    Example:
        >>> import caspar
        >>> import numpy as np
        >>> W = caspar.factors.sqrt_information(np.array([[4.0, 2.0], [2.0, 2.0]]))
        >>> (W.T @ W).round(3)  # the inverse of the covariance
        array([[ 0.5, -0.5],
               [-0.5,  1. ]])
    """
    covariance = np.asarray(covariance, np.float64)
    try:
        return np.tril(np.linalg.inv(np.linalg.cholesky(covariance)))
    except np.linalg.LinAlgError as error:
        raise InputError(
            f"sqrt_information, covariance of shape {covariance.shape}: a matrix is not positive "
            "definite; a direction without noise needs a small variance, not zero"
        ) from error


def rotation_first(sqrt_information: NDArray[np.float64]) -> NDArray[np.float64]:
    """g2o's matrices for `between`: rotation before translation, whole angles.

    g2o weighs the translation, then for SE2 the angle, for SE3 the quaternion's vector part, which
    is half of a small rotation vector.

    Args:
        sqrt_information: (m, 3, 3) or (m, 6, 6), as `caspar.io.read_g2o` gives it.

    Returns:
        The same shape; no longer triangular.

    Raises:
        InputError: Another shape.

    Example:
        >>> import caspar
        >>> import numpy as np
        >>> caspar.factors.rotation_first(np.diag([10.0, 20.0, 30.0])[None])  # x, y, angle
        array([[[ 0., 10.,  0.],
                [ 0.,  0., 20.],
                [30.,  0.,  0.]]])
    """
    roots = np.asarray(sqrt_information, np.float64)
    if roots.ndim != 3 or roots.shape[1:] not in ((3, 3), (6, 6)):
        raise InputError(
            f"rotation_first, sqrt_information: shape {roots.shape}; it must be (m, 3, 3) or "
            "(m, 6, 6)"
        )
    if roots.shape[1] == 3:
        return roots[:, :, [2, 0, 1]]
    return np.concatenate([roots[:, :, 3:] / 2.0, roots[:, :, :3]], axis=2)
