"""Conjugate gradients with the block tridiagonal preconditioner, as a linear solver."""

from collections.abc import Sequence

from caspar.runtime.backend import Launch
from caspar.solver.linear.tridiagonal.chain_space import ChainSpace
from caspar.solver.linear.tridiagonal.chain_structure import ChainStructure
from caspar.solver.plan.plan import NodePlan, Plan
from caspar.solver.system.launches import Binder
from caspar.solver.system.phases import Phases, flattened


class ChainLaunches:
    """Launches of preconditioned conjugate gradients; types without chains have block Jacobi.

    Args:
        plan: Memory and structure.
        binder: Binds its kernels.
        spaces: Of the chained types, by name.
    """

    def __init__(self, plan: Plan, binder: Binder, spaces: dict[str, ChainSpace]) -> None:
        self._plan = plan
        self._binder = binder
        self._spaces = spaces

    def begin(self) -> list[Launch]:
        """After the factorisation: first vectors and scalars."""
        spaces = list(self._spaces.values())
        return [
            self._binder.scalar_launch("chain_begin"),
            *(space.clear() for space in spaces),
            *self._each("start"),
            *flattened(self.apply()),
            self._binder.scalar_launch("pcg_begin"),
            *(space.node_launch("chain_turn") for space in spaces),
        ]

    def iteration(self, phases: Phases) -> list[list[Launch]]:
        """One iteration of conjugate gradients."""
        *products, _, beta, _ = phases.iterate_gradients()
        # r.z is known before z: what comes of it goes beside the first launches to z, and what
        # sets the flag stands last
        forward, solve, (first, *backward) = self._parts()
        return [
            *products,
            self._each("step"),
            *forward,
            solve,
            [*first, *beta],
            *backward,
            [*self._each("turn"), *phases.clear_curvatures()],
        ]

    def apply(self) -> list[list[Launch]]:
        """z = M^-1 r."""
        forward, solve, backward = self._parts()
        return [*forward, solve, *backward]

    def _parts(self) -> tuple[list[list[Launch]], list[Launch], list[list[Launch]]]:
        """Phases of L^-1, of D^-1 and of L^-T."""
        spaces = list(self._spaces.values())
        levels = range(max(space.num_levels for space in spaces))
        forward = [
            [space.forward(level) for space in spaces if level < space.num_levels]
            for level in levels
        ]
        backward = [
            [space.backward(level) for space in spaces if level < space.num_levels]
            for level in reversed(levels)
        ]
        return forward, [space.node_launch("chain_solve") for space in spaces], backward

    def _each(self, role: str) -> list[Launch]:
        return [self._own(node, role) for node in self._plan.reduced]

    def _own(self, node: NodePlan, role: str) -> Launch:
        space = self._spaces.get(node.node.name)
        if space is None:
            return self._binder.node_launch(node, role)
        return space.node_launch(f"chain_{role}")


class TridiagonalGradients:
    """Conjugate gradients preconditioned by block tridiagonal matrices.

    Args:
        plan: Memory and structure.
        binder: Binds its kernels.
        phases: Its launches.
        chains: One structure at least; its kernels are loaded.
        remarks: Why it was chosen.
    """

    is_direct = False

    def __init__(
        self,
        plan: Plan,
        binder: Binder,
        phases: Phases,
        chains: Sequence[ChainStructure],
        remarks: tuple[str, ...] = (),
    ) -> None:
        self.name = "pcg" if len(plan.eliminated) == 0 else "schur_pcg"
        backend = plan.library.backend
        spaces = {chain.node.node.name: ChainSpace(plan, binder, chain) for chain in chains}
        self._spaces = spaces
        self.num_bytes = sum(space.num_bytes for space in spaces.values())
        launches = ChainLaunches(plan, binder, spaces)
        factorize = [launch for space in spaces.values() for launch in space.factorize()]
        self._begin = backend.sequence([*phases.reduce(), *factorize, *launches.begin()])
        self._iterate = phases.repeated(launches.iteration(phases))
        self.remarks = (*remarks, *self._iterate.remarks)

    def begin(self) -> None:
        """Reduce, factorise, start."""
        self._begin.run()

    def solve(self, max_iterations: int) -> None:
        """Iterate."""
        self._iterate.run(max_iterations)
