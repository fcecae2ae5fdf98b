"""Hypothesis strategies of random graphs."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from caspar.ir.dtype import DType
from tests.ir.graph_cases import GraphCase, Recipe
from tests.ir.random_graphs import Grower


@dataclass(frozen=True)
class _Drawn:
    """Decisions drawn by Hypothesis."""

    draw: DrawFn

    def below(self, limit: int) -> int:
        """See `graph_cases.Chooser`."""
        return self.draw(st.integers(0, limit - 1))


@st.composite
def _cases(draw: DrawFn, recipe: Recipe, max_steps: int) -> GraphCase:
    dtype = draw(st.sampled_from([DType.FLOAT64, DType.FLOAT32]))
    grower = Grower(_Drawn(draw), replace(recipe, dtype=dtype))
    for _ in range(draw(st.integers(1, max_steps))):
        draw(_steps(grower))
    return grower.finish()


@st.composite
def _steps(draw: DrawFn, grower: Grower) -> None:
    """One step, as a strategy of its own: Hypothesis can leave it out to simplify a case."""
    grower.grow(_Drawn(draw))


def mixed_cases(max_steps: int = 25) -> SearchStrategy[GraphCase]:
    """Graphs of every op."""
    return _cases(Recipe(max_width=12), max_steps)


def exact_cases(max_steps: int = 16, max_width: int = 60) -> SearchStrategy[GraphCase]:
    """Graphs that every order of evaluation computes to the bit, with wide sums and products."""
    return _cases(Recipe(max_width=max_width, only_exact=True), max_steps)


def special_cases(max_steps: int = 25) -> SearchStrategy[GraphCase]:
    """Graphs of every op with literals such as -0.0, infinities and NaN; not to be evaluated."""
    return _cases(Recipe(special_literals=True), max_steps)
