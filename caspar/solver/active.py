"""The factors of a problem that have instances, and the preparation for just those.

A window at the start of a track has no loop closures yet, a survey no scale bars. What has no
instances takes no part: its kernels are not launched, and node types that only it touches keep
their values. Cost tier: kernels once for each set of factors that occurs.
"""

from collections.abc import Sequence
from dataclasses import replace
from threading import Lock

from caspar.errors import FactorError, InputError
from caspar.frontend.trace import NodeType, TracedFactor
from caspar.runtime.backend import Backend
from caspar.solver.form_choice import Recipe
from caspar.solver.preparation import Preparation
from caspar.solver.problem import Problem


class Preparations:
    """A `Preparation` for each set of factors; only the last one used keeps memory.

    Args:
        backend: Where they run.
        recipe: What the user chose, with all factors.

    Attributes:
        whole: The one for all factors.

    Raises:
        FactorError: The linear solver or the preconditioner does not suit all factors together.
    """

    def __init__(self, backend: Backend, recipe: Recipe) -> None:
        self._backend = backend
        self._recipe = recipe
        self.whole = Preparation(backend, recipe)
        self._made = {_names(recipe.factors): self.whole}
        self._last = self.whole
        self._lock = Lock()

    def choose(self, problem: Problem) -> tuple[Preparation, Problem, tuple[str, ...]]:
        """The preparation for the factors that have instances, their part of the problem, remarks.

        Raises:
            InputError: No factor has instances, or those that have do not suit the linear solver.
        """
        factors = tuple(
            factor for factor in self._recipe.factors if problem.factors[factor.name].count > 0
        )
        if len(factors) == 0:
            names = ", ".join(_names(self._recipe.factors))
            raise InputError(f"arrays: no factor has instances ({names}); at least one needs some")
        with self._lock:
            chosen = self._preparation(factors)
            if chosen is not self._last:
                # its memory goes before there is another
                self._last.release()
                self._last = chosen
        if len(factors) == len(self._recipe.factors):
            return chosen, problem, ()
        nodes = self._touched(factors)
        return chosen, problem.part(factors, nodes), (self._remark(factors, nodes),)

    def release(self) -> None:
        """Let go of the memory kept for the next solve."""
        self._last.release()

    def memory_table(self) -> str | None:
        """What is kept of the last solve; None before it."""
        return self._last.memory_table()

    def _preparation(self, factors: tuple[TracedFactor, ...]) -> Preparation:
        names = _names(factors)
        if names not in self._made:
            recipe = replace(self._recipe, factors=factors, nodes=self._touched(factors))
            try:
                self._made[names] = Preparation(self._backend, recipe)
            except FactorError as error:
                raise InputError(
                    f"arrays: of the factors only {', '.join(names)} have instances: {error}"
                ) from error
        return self._made[names]

    def _touched(self, factors: Sequence[TracedFactor]) -> tuple[NodeType, ...]:
        names = {
            argument.node.name
            for factor in factors
            for argument in factor.nodes
            if argument.node is not None
        }
        return tuple(node for node in self._recipe.nodes if node.name in names)

    def _remark(self, factors: Sequence[TracedFactor], nodes: Sequence[NodeType]) -> str:
        idle = [factor.name for factor in self._recipe.factors if factor not in factors]
        held = [node.name for node in self._recipe.nodes if node not in nodes]
        remark = f"no instances of {', '.join(idle)}"
        return remark if not held else f"{remark}; {', '.join(held)} kept as given"


def _names(factors: Sequence[TracedFactor]) -> tuple[str, ...]:
    return tuple(factor.name for factor in factors)
