"""Camera models compiled as users compile them: residuals and Jacobians of many points."""

from collections.abc import Sequence
from dataclasses import dataclass

import mpmath
import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

from caspar.cameras import BehindCamera, CameraModel
from caspar.cameras.arithmetic import Arithmetic
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.frontend.symbolic.derive import gradient
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar
from caspar.memory.kernel import KernelBuilder
from caspar.memory.patterns import ReadRows, WriteRows
from caspar.runtime.cpu.backend import CpuBackend
from tests.support_ops import run_rows

Array = NDArray[np.float64]

_exact = mpmath.mp.clone()
_exact.dps = 60

_EXACT = Arithmetic(
    sqrt=_exact.sqrt,
    sin=_exact.sin,
    cos=_exact.cos,
    tan=_exact.tan,
    atan=_exact.atan,
    atan2=_exact.atan2,
    floor=_exact.floor,
    minimum=min,
    absolute=abs,
    where=lambda condition, value, otherwise: value if condition else otherwise,
)
"""Numbers of 60 digits; not for points that a camera cannot see."""


@dataclass(frozen=True)
class Residuals:
    """What a camera model gives for n points.

    Attributes:
        values: (n, 2) projected minus measured pixels.
        jacobians: (n, 2, 3 + num_parameters), by the point first, then by the parameters.
    """

    values: Array
    jacobians: Array


def residuals(
    model: CameraModel,
    parameters: Array,
    points: Array,
    pixels: Array,
    behind: BehindCamera = BehindCamera.ZERO,
) -> Residuals:
    """Compile a model's residual and its derivatives for the processor and run them in float64."""
    num_arguments = 3 + model.num_parameters
    names = [f"a{number}" for number in range(num_arguments + 2)]
    symbols = [sf.Symbol(name) for name in names]
    rows = model.residual(
        symbols[3:num_arguments], symbols[:3], symbols[num_arguments:], behind
    ).to_flat_list()
    kernel = KernelBuilder("camera", DType.FLOAT64)
    inputs = kernel.read("rows", len(names), DType.FLOAT64, ReadRows())
    by_name = {name: scalar.value for name, scalar in zip(names, inputs, strict=True)}
    lowering = Lowering(kernel.graph, by_name, "camera")
    outputs = []
    for row in rows:
        value = lowering.lower(row)
        outputs += [value, *gradient(kernel.graph, value, list(by_name.values())[:num_arguments])]
    kernel.write(
        "results", [Scalar(kernel.graph, one) for one in outputs], DType.FLOAT64, WriteRows()
    )
    spec = kernel.build()
    source = compile_kernel(spec, TARGETS["cpu"])
    given = np.concatenate([points, parameters, pixels], axis=1)
    results: Array = (
        run_rows(CpuBackend(), spec, source, given).reshape(len(points), 2, -1).astype(np.float64)
    )
    return Residuals(results[:, :, 0], results[:, :, 1:])


@dataclass(frozen=True)
class CameraCase:
    """Arguments of a camera model, and what COLMAP makes of them.

    Attributes:
        parameters: (n, num_parameters).
        points: (n, 3) in camera coordinates.
        pixels: (n, 2), measured.
        values: (n, 2), COLMAP's residuals.
        jacobians: (n, 2, 3 + num_parameters), COLMAP's.
    """

    parameters: Array
    points: Array
    pixels: Array
    values: Array
    jacobians: Array


def differences(model: CameraModel, case: CameraCase) -> tuple[float, float]:
    """Compare with COLMAP.

    Not compared: the division models where z and the root cancel to less than a hundredth (both
    round there), and derivatives by the size of a periodic image, which nobody refines.

    Returns:
        Greatest differences of residuals, relative to the pixels' size, and of Jacobians, relative
        to the greatest entry of a row.
    """
    residual, jacobian = pointwise_differences(model, case)
    return float(residual.max()), float(jacobian.max())


def pointwise_differences(model: CameraModel, case: CameraCase) -> tuple[Array, Array]:
    """Return the same of each point, (n,) and (n,); zero where nothing is compared."""
    found = residuals(model, case.parameters, case.points, case.pixels)
    is_compared = ~is_cancelled(model, case)
    num_columns = 3 if model.is_periodic else case.jacobians.shape[2]
    size = np.abs(case.pixels).max(axis=1, keepdims=True) + np.abs(case.values)
    by_value = np.abs(found.values - case.values) / size
    by_jacobian = _relative(found.jacobians[:, :, :num_columns], case.jacobians[:, :, :num_columns])
    return by_value.max(axis=1) * is_compared, by_jacobian * is_compared


def is_cancelled(model: CameraModel, case: CameraCase) -> NDArray[np.bool_]:
    """(n,) points of division models where z and the root cancel to less than a hundredth."""
    if "DIVISION" not in model.name:
        return np.zeros(len(case.points), np.bool_)
    x, y, z = case.points.T
    root = np.sqrt(np.maximum(z * z - 4 * case.parameters[:, -1] * (x * x + y * y), 0))
    cancelled: NDArray[np.bool_] = np.abs(z + root) <= 1e-2
    return cancelled


def _relative(found: Array, expected: Array) -> Array:
    """(n,) greatest differences of Jacobians, relative to the greatest entry of a row."""
    row_size = np.maximum(np.abs(expected).max(axis=2, keepdims=True), np.finfo(float).tiny)
    relative: Array = (np.abs(found - expected) / row_size).max(axis=(1, 2))
    return relative


def errors_of_jacobians(
    model: CameraModel, case: CameraCase, rows: Sequence[int]
) -> tuple[float, float]:
    """Compare Jacobians of some points, which the camera sees, with arithmetic of 60 digits.

    Returns:
        Greatest errors of caspar's and of COLMAP's, relative to the greatest entry of a row.
    """
    chosen = CameraCase(*(array[list(rows)] for array in vars(case).values()))
    columns = 3 if model.is_periodic else chosen.jacobians.shape[2]
    found = residuals(model, chosen.parameters, chosen.points, chosen.pixels).jacobians
    truth = np.array(
        [
            _true_jacobian(model, parameters, point)
            for parameters, point in zip(chosen.parameters, chosen.points, strict=True)
        ]
    )[:, :, :columns]
    errors = [_relative(one[:, :, :columns], truth) for one in (found, chosen.jacobians)]
    return float(errors[0].max()), float(errors[1].max())


def _true_jacobian(model: CameraModel, parameters: Array, point: Array) -> Array:
    """(2, 3 + num_parameters), by central differences of numbers of 60 digits."""
    arguments = [_exact.mpf(float(one)) for one in (*point, *parameters)]
    step = _exact.mpf(10) ** -20
    columns = []
    for place in range(len(arguments)):
        sides = []
        for sign in (1, -1):
            moved = [*arguments]
            moved[place] += sign * step
            sides.append(model.formula(_EXACT, moved[3:], *moved[:3])[:2])
        columns.append(
            [(after - before) / (2 * step) for after, before in zip(*sides, strict=True)]
        )
    return np.array(columns, np.float64).T
