"""The compiled kernels of a solver. Once for each solver; reductions when first needed."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from caspar.codegen.source import KernelSource
from caspar.codegen.targets import Target
from caspar.driver import SolverSources
from caspar.equations.factor_kernels import FACTOR_ROLES, exact_role
from caspar.equations.node_kernels import NODE_ROLES
from caspar.errors import ResourceError
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.names import kernel_name
from caspar.memory.kernel import ReduceSpec
from caspar.runtime.backend import Backend, Kernel

HOT_ROLES = ("product", "scatter")
"""Kernels of factors that run in every iteration of a linear solver."""

LOOPED = ("clear",)
"""Other kernels of several blocks that run there."""


class KernelLibrary:
    """Compiled kernels by name; the ones that sum partials are made when first needed.

    `owners`: Names of factors and node types, whose kernels' names begin with them. `wide_places`:
    Whether items' places in node tiles have 64 bits.

    Attributes:
        rounded: Arguments of each factor that kernels read rounded, by the factor's name.
    """

    def __init__(
        self,
        backend: Backend,
        target: Target,
        sources: SolverSources,
        owners: Sequence[str],
        *,
        wide_places: bool = False,
        is_settled: bool = False,
    ) -> None:
        self.backend = backend
        self.reductions_time_s = 0.0
        self.loaded: set[str] = set()
        self.jacobian_dims = sources.jacobian_dims
        self.rounded = sources.rounded
        self._target = target
        self._wide_places = wide_places
        sources = self._rewritten(sources)
        self._load = partial(backend.load, is_settled=is_settled)
        self._kernels: dict[str, Kernel] = {}
        hot_names, all_names = (
            [kernel_name(owner, role) for role in roles for owner in owners]
            for roles in (HOT_ROLES, (*FACTOR_ROLES, *NODE_ROLES))
        )
        # those that share tiles, and run in one loop
        hot, together = (
            [sources.kernels[name] for name in names if name in sources.kernels]
            for names in (hot_names, [*LOOPED, *all_names])
        )
        self.tile_size = self._common_tile_size(together, hot)
        alone = [one for name, one in sources.kernels.items() if name not in self._kernels]
        self._kernels.update(self._load(alone))

    def _rewritten(self, sources: SolverSources) -> SolverSources:
        """Return the sources, with 64-bit places if they are wide here."""
        rewrite = self._target.with_wide_places
        if rewrite is None or not self._wide_places:
            return sources
        kernels = {name: rewrite(source) for name, source in sources.kernels.items()}
        return replace(sources, kernels=kernels)

    def _common_tile_size(
        self, sources: Sequence[KernelSource], hot: Sequence[KernelSource]
    ) -> int:
        """Load kernels with one tile size: they share tiles, and run in one loop.

        The kernels of the inner loop decide by the block sizes that suit them, unless another one
        does not fit.
        """
        chosen = sources if len(hot) == 0 else hot
        self._kernels.update(self._load(chosen))
        most = min(self._kernels[source.name].block_size for source in chosen)
        common = set.intersection(*({*source.block_sizes} for source in chosen))
        refusal: ResourceError | None = None
        for size in sorted((size for size in common if size <= most), reverse=True):
            sizes = {name: kernel.block_size for name, kernel in self._kernels.items()}
            others = [one for one in sources if sizes.get(one.name) != size]
            try:
                self._kernels.update(self._load(others, size))
            except ResourceError as error:
                refusal = error if refusal is None else refusal
                continue
            return size
        assert refusal is not None
        raise refusal

    def num_node_tiles(self, node: NodeType, count: int) -> int:
        """Partial sums that the kernels of a node type make, each of as many."""
        return self._kernels[kernel_name(node.name, "retract")].source.num_blocks(
            count, self.tile_size
        )

    @property
    def sources(self) -> dict[str, KernelSource]:
        """Sources of all kernels that are loaded, by name."""
        return {name: kernel.source for name, kernel in self._kernels.copy().items()}

    def kernel(self, name: str) -> Kernel:
        """A kernel of the solver."""
        return self._kernels[name]

    def has_kernel_of(self, owner: str, role: str) -> bool:
        """Return whether a factor or node type has a kernel for something."""
        return kernel_name(owner, role) in self._kernels

    def kernel_of(self, owner: str, role: str) -> Kernel:
        """The kernel of a factor or node type for something."""
        return self.kernel(kernel_name(owner, role))

    def exact_role(self, factor: str, role: str) -> str:
        """A kernel with Jacobians in float64, if there is one, else the usual one."""
        exact = exact_role(role)
        return exact if self.has_kernel_of(factor, exact) else role

    def load(self, name: str, sources: SolverSources) -> None:
        """Compile more kernels of the solver; `name` is what they are together."""
        found = self._rewritten(sources).kernels.items()
        missing = [one for name, one in found if name not in self._kernels]
        self._kernels.update(self._load(missing, self.tile_size))
        self.loaded.add(name)

    def load_reductions(self, specs: Iterable[ReduceSpec]) -> None:
        """Compile what is missing, all at once."""
        missing = {spec.name: spec for spec in specs if spec.name not in self._kernels}
        if len(missing) == 0:
            # most often; and loading nothing starts threads, 0.7 ms of the setup under a profiler
            return
        start = time.perf_counter()
        sources = [self._target.generate_reduce(spec) for spec in missing.values()]
        self._kernels.update(self._load(sources, self.tile_size))
        self.reductions_time_s += time.perf_counter() - start

    def reduction(self, spec: ReduceSpec) -> Kernel:
        """The kernel that sums partials."""
        self.load_reductions([spec])
        return self._kernels[spec.name]
