"""Camera models compiled as users compile them: residuals and Jacobians of many points."""

from dataclasses import dataclass

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

from caspar.cameras import BehindCamera, CameraModel
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.frontend.symbolic.derive import gradient
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar
from caspar.memory.kernel_builder import KernelBuilder
from caspar.memory.patterns import ReadRows, WriteRows
from caspar.runtime.cpu.backend import CpuBackend
from tests.support_ops import run_rows

Array = NDArray[np.float64]


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
    found = residuals(model, case.parameters, case.points, case.pixels)
    is_compared = np.ones(len(case.points), bool)
    if "DIVISION" in model.name:
        x, y, z = case.points.T
        root = np.sqrt(np.maximum(z * z - 4 * case.parameters[:, -1] * (x * x + y * y), 0))
        is_compared = np.abs(z + root) > 1e-2
    num_columns = 3 if model.is_periodic else case.jacobians.shape[2]
    size = np.abs(case.pixels).max(axis=1, keepdims=True) + np.abs(case.values)
    by_value = np.abs(found.values - case.values) / size
    expected = case.jacobians[:, :, :num_columns]
    row_size = np.maximum(np.abs(expected).max(axis=2, keepdims=True), np.finfo(float).tiny)
    by_jacobian = np.abs(found.jacobians[:, :, :num_columns] - expected) / row_size
    return float(by_value[is_compared].max()), float(by_jacobian[is_compared].max())
