"""Numbers from expressions: lowered to a graph and evaluated."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph

Array = NDArray[np.float64]


class Scene:
    """A builder that reads named symbols, one column of the points for each."""

    def __init__(self, names: Sequence[str]) -> None:
        self.builder = GraphBuilder(DType.FLOAT64)
        chunks = [names[first : first + 2] for first in range(0, len(names), 2)]
        self.symbols = {
            name: value
            for number, chunk in enumerate(chunks)
            for name, value in zip(
                chunk, self.builder.read("points", number, len(chunk)), strict=True
            )
        }
        self.lowering = Lowering(self.builder, self.symbols, "factor test")

    def evaluate(self, values: Sequence[int], points: Array) -> Array:
        """(num_points, num_values) of values of the builder."""
        for chunk, first in enumerate(range(0, len(values), 2)):
            self.builder.store("values", chunk, values[first : first + 2])
        return evaluate_graph(self.builder.build(), {"points": points})["values"]


def lowered(expressions: Sequence[Any], names: Sequence[str], points: Array) -> Array:
    """(num_points, num_expressions) values of expressions at (num_points, num_names) points."""
    scene = Scene(names)
    return scene.evaluate([scene.lowering.lower(e) for e in expressions], points)
