"""What kernels store, evaluated item by item."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.frontend.precision import TYPES
from caspar.ir.evaluate import evaluate_graph
from caspar.memory.kernel import KernelSpec
from caspar.options import Precision

Array = NDArray[np.float64]

FLOAT64 = TYPES[Precision.FLOAT64]


def evaluate(spec: KernelSpec, **inputs: Any) -> dict[str, Array]:
    """Values a kernel stores, item by item."""
    given = {
        arg.name: np.atleast_2d(np.asarray(inputs[arg.name], np.float64))
        for arg in spec.args
        if arg.read is not None and arg.name != spec.guard
    }
    if spec.guard is not None:
        given[spec.guard] = np.zeros((1, 1))
    lengths = {arg.name: arg.chunk_length for arg in spec.args}
    return evaluate_graph(spec.graph, given, lengths)
