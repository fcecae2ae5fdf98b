"""A checked problem, and what of it the devices of this process have.

Cost tier: once for a solve.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from caspar.frontend.factors.trace import TracedFactor
from caspar.solver.active import Active
from caspar.solver.input.problem import Problem
from caspar.solver.plan.shard import Shard
from caspar.solver.result.result import ProblemSize


@dataclass(frozen=True)
class Reading:
    """The arrays of a solve, checked.

    Attributes:
        own: What this process has of the factors that take part; None: nothing.
        whole: The whole problem; of several processes all nodes, with outlines of the factors.
        active: What takes part.
        sizes: Instances of the factors that take part, by rank of several processes.
        is_spread: Whether each of several processes has passed a part of the factors.
    """

    own: Problem | None
    whole: Problem
    active: Active
    sizes: tuple[Mapping[str, int], ...]
    is_spread: bool = False

    @property
    def instances(self) -> dict[str, int]:
        """Instances of each factor in the whole problem."""
        return {name: sum(sizes[name] for sizes in self.sizes) for name in self.sizes[0]}

    def size(self, factors: tuple[TracedFactor, ...]) -> ProblemSize:
        """Counts of what takes part, beside those of all factors."""
        problem, recipe = self.whole, self.active.recipe
        counts = {one.name: problem.factors[one.name].num_counted for one in factors}
        rows = sum(len(factor.residual) * counts[factor.name] for factor in recipe.factors)
        nodes = {node.name: problem.counts[node.name] for node in recipe.nodes}
        unknowns = sum(node.tangent_dim * nodes[node.name] for node in recipe.nodes)
        unknowns -= sum(problem.num_held(nodes).values())
        held = problem.num_held([*nodes, *self.active.held])
        left_out = {name: problem.factors[name].count - count for name, count in counts.items()}
        left_out = {name: count for name, count in left_out.items() if count > 0}
        bounded = {name: limits.num_bounded for name, limits in problem.bounds.items()}
        return ProblemSize(nodes, counts, rows, unknowns, held, left_out, bounded)


@dataclass
class Share:
    """The parts of a problem on the devices of this process.

    Attributes:
        problems: By device here its part. Whoever pops one holds its last reference.
        shards: By device here its facts on the whole; empty: the first device of all has
            everything.
        active: Ranks of all devices that have a part.
        remarks: What users should know.
    """

    problems: dict[int, Problem]
    shards: tuple[Shard, ...]
    active: tuple[int, ...]
    remarks: tuple[str, ...]
