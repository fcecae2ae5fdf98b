"""Which floating type each precision uses for what."""

from dataclasses import dataclass

from caspar.ir.dtype import DType
from caspar.options import Precision


@dataclass(frozen=True)
class Types:
    """Floating types of a solver.

    Attributes:
        storage: State, Jacobians and PCG vectors; linearisation is computed in it.
        sums: Gradients, block diagonals, costs and dot products; block factorisation and the
            residuals behind the cost are computed in it. Evaluating the cost in float32 leaves
            noise of 4e-7 relative (measured on Trafalgar-21): Levenberg-Marquardt then accepts
            lucky draws and reports costs below the optimum.
    """

    storage: DType
    sums: DType


TYPES = {
    Precision.MIXED: Types(DType.FLOAT32, DType.FLOAT64),
    Precision.FLOAT64: Types(DType.FLOAT64, DType.FLOAT64),
    Precision.FLOAT32: Types(DType.FLOAT32, DType.FLOAT32),
}
