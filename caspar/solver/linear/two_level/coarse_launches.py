"""The launches of conjugate gradients with a coarse space. Once for each structure."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from caspar.equations.parts import NodePart
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.memory.layout import padded_width
from caspar.runtime.backend import Launch
from caspar.solver.linear.two_level.coarse_kernels import LANES, apply_name
from caspar.solver.linear.two_level.coarse_space import CoarseSpace
from caspar.solver.plan.plan import Plan
from caspar.solver.system.launches import Binder
from caspar.solver.system.phases import Iteration, flattened


class CoarseLaunches:
    """Launches of an iteration that has a coarse space.

    Those of block Jacobi, but r.z is summed into an array of the coarse space's.

    Args:
        plan: Memory and structure.
        binder: Binds its kernels.
        space: The coarse space.

    Attributes:
        correct: y = A^-1 P^T r, and r.P y.
        prolong: z += P y.
        num_bytes: Bytes of their indices.
    """

    def __init__(self, plan: Plan, binder: Binder, space: CoarseSpace) -> None:
        self._plan = plan
        self._binder = binder
        self._space = space
        (self._node,) = plan.reduced
        self.num_bytes = 0
        self.correct = self._correction()
        self.prolong = self._prolongation()

    def start(self) -> list[Launch]:
        """After the inversion and `factorize`: first vectors and scalars."""
        size, numbers = self._space.structure.size, self._space.numbers
        count = int(numbers.inverse.shape[0])
        inverse = {
            "failed": self._space.binding("outcome", 1),
            "inverse": self._space.binding("inverse", 1, index=numbers.inverse),
            "row_scale": self._space.binding("scale", size, index=numbers.inverse_row),
            "column_scale": self._space.binding("scale", size, index=numbers.inverse_column),
            "matrix": self._space.binding("matrix", count),
        }
        return [
            self._space.bind("coarse_inverse", inverse, count),
            self._binder.scalar_launch("coarse_begin"),
            self._own_launch("start"),
            self._binder.node_launch(self._node, "set_aside"),
            *flattened(self.correct),
            self._own_scalars("pcg_begin"),
            self.prolong,
            self._binder.node_launch(self._node, "turn"),
        ]

    def apply(self, iteration: Iteration) -> Iteration:
        """An iteration of block Jacobi, and the coarse space besides."""
        return replace(
            iteration,
            advance=[self._own_launch("step")],
            apply=self.correct,
            # what sets the flag stands last
            beta=[self.prolong, self._own_scalars("pcg_beta")],
        )

    def _index(self, numbers: Array) -> Array:
        """An index that a launch keeps."""
        index = self._plan.library.backend.xp.asarray(numbers, dtype="int32")
        self.num_bytes += int(index.nbytes)
        return index

    def _correction(self) -> list[list[Launch]]:
        """y = A^-1 P^T r, and r.P y."""
        structure, size = self._space.structure, self._space.structure.size
        restricted = self._space.binding("restricted", structure.num_clusters)
        bound = self._space.bind_sum(self._space.restricted, restricted, structure.cluster)
        item = np.arange(LANES * size)
        count = len(item)
        apply = {
            **self._binder.scalars(),
            "matrix": self._space.binding("matrix", count),
            "restricted": self._space.binding("restricted", LANES, index=self._index(item % LANES)),
            "restricted_row": self._space.binding(
                "restricted", 1, index=self._index(item // LANES)
            ),
            "correction": self._space.binding("correction", size),
            "descent": self._descent(self._plan.num_reduced_tiles),
        }
        return [
            [self._space.node_launch("restrict", {"restricted": bound.binding})],
            self._plan.library.finish(bound),
            [self._space.bind(apply_name(structure.width), apply, count)],
        ]

    def _prolongation(self) -> Launch:
        """z += P y."""
        space, storage = self._space, self._plan.types.storage
        dim, count = self._node.node.tangent_dim, self._node.count
        xp = self._plan.library.backend.xp
        clusters = space.structure.num_clusters
        vector = self._plan.memory[self._node.key(NodePart.PRECONDITIONED)]
        place = [_scalars_of(number, dim, count, storage) for number in range(dim)]
        cluster = self._index(xp.tile(space.structure.cluster, dim))
        scalar = self._index(np.concatenate(place))
        bindings = {
            **self._binder.scalars(),
            "rows": space.binding("rows", dim * count),
            "correction": space.binding("correction", clusters, index=cluster),
            "preconditioned": Binding(vector, 1, fields={"index": scalar}),
        }
        return space.bind("coarse_prolong", bindings, dim * count)

    def _descent(self, offset: int) -> Binding:
        return self._space.binding("descents", self._space.num_descents, offset=offset)

    def _own_launch(self, role: str) -> Launch:
        """A kernel of the reduced type whose part of r.z goes to the coarse space's sums."""
        return self._binder.node_launch(self._node, role, {"descent": self._descent(0)})

    def _own_scalars(self, name: str) -> Launch:
        return self._binder.scalar_launch(name, {"descents": self._descent(0)})


def _scalars_of(component: int, dim: int, count: int, dtype: DType) -> NDArray[np.int32]:
    """(count,) places of a component in a blocked array."""
    lane = component % dtype.chunk_length
    chunk = component - lane
    width = padded_width(min(dtype.chunk_length, dim - chunk))
    return (chunk * count + width * np.arange(count) + lane).astype(np.int32)
