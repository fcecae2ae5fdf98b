"""A random graph with inputs, and by how much two evaluations of it may differ."""

import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph, evaluate_program
from caspar.ir.graph import Graph
from caspar.ir.program import Program
from caspar.ir.text import print_graph

Array = NDArray[np.float64]


class Chooser(Protocol):
    """Where decisions come from."""

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1; 0 is the plainest choice."""
        ...


@dataclass(frozen=True)
class Seeded:
    """Decisions of a seeded generator."""

    generator: random.Random

    def below(self, limit: int) -> int:
        """See `Chooser`."""
        return self.generator.randrange(limit)


@dataclass(frozen=True)
class Recipe:
    """What kind of graph to grow.

    Attributes:
        dtype: Floating type.
        num_steps: Times the graph grows; a step makes one call or a few.
        max_width: Terms of the widest sum or product.
        only_exact: No functions, roots and quotients.
        special_literals: Also -0.0, infinities and NaN; tolerances then mean nothing.
    """

    dtype: DType = DType.FLOAT64
    num_steps: int = 20
    max_width: int = 8
    only_exact: bool = False
    special_literals: bool = False


@dataclass(frozen=True)
class GraphCase:
    """A graph, and how to tell whether something computes the same.

    Attributes:
        graph: Reads "integers", "units", "reals" and "state"; writes "y", and "state" in place.
        inputs: Argument -> (lanes, dim) array; "reals" has one row for all lanes.
        tolerances: Stored argument -> (columns,) greatest difference of two evaluations.
    """

    graph: Graph
    inputs: dict[str, Array]
    tolerances: dict[str, Array]

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """What Hypothesis prints of a case that fails."""
        printer.text("\n" + print_graph(self.graph))

    @cached_property
    def _expected(self) -> dict[str, Array]:
        """What the graph itself stores."""
        return evaluate_graph(self.graph, self.inputs)

    def check(self, code: Graph | Program) -> None:
        """Check that a graph or program stores the same, to rounding where it is not exact."""
        self._check(code, self._expected, self.tolerances)

    def check_exactly(self, code: Graph | Program) -> None:
        """Check that a graph or program stores the same bits, but for the sign of zeros.

        The graph is evaluated anew, since ops may have been replaced since the last check.
        """
        exact = {name: np.zeros_like(array) for name, array in self.tolerances.items()}
        self._check(code, evaluate_graph(self.graph, self.inputs), exact)

    def _check(
        self,
        code: Graph | Program,
        expected: dict[str, Array],
        tolerances: dict[str, Array],
    ) -> None:
        if isinstance(code, Graph):
            found = evaluate_graph(code, self.inputs)
        else:
            found = evaluate_program(code, self.inputs)
        assert set(found) == set(expected)
        for name, array in expected.items():
            # column by column NumPy's own check takes most of a test's time
            with np.errstate(invalid="ignore"):
                is_near = abs(found[name] - array) <= tolerances[name]
            for column in np.flatnonzero(~is_near.all(axis=0)):
                one, other = found[name][:, column], array[:, column]
                tolerance = tolerances[name][column]
                assert_allclose(one, other, 0.0, tolerance, err_msg=f"{name}, column {column}")
