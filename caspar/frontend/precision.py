"""The floating types that each precision uses."""

from dataclasses import dataclass

from caspar.ir.dtype import DType
from caspar.options import Precision


@dataclass(frozen=True)
class Types:
    """Floating types of a solver.

    Attributes:
        values: Nodes, candidates and constants. Residuals, gradients, stored Jacobians and
            retractions are computed in it.
        storage: Stored Jacobians and residuals, PCG vectors, D and preconditioners. Products are
            computed in it, and so are Jacobians that are derived again, from rounded values.
        sums: Gradients, block diagonals, costs and dot products over all items; blocks are
            factorised in it.
    """

    values: DType
    storage: DType
    sums: DType

    @property
    def rounds_values(self) -> bool:
        """Return whether computations in the type of storage read rounded values."""
        return self.values is not self.storage


TYPES = {
    Precision.MIXED: Types(DType.FLOAT64, DType.FLOAT32, DType.FLOAT64),
    Precision.FLOAT64: Types(DType.FLOAT64, DType.FLOAT64, DType.FLOAT64),
    Precision.FLOAT32: Types(DType.FLOAT32, DType.FLOAT32, DType.FLOAT32),
}
