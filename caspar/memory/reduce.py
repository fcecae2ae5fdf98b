"""Summing partials into objects: the second half of a shared add."""

from dataclasses import dataclass

from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec
from caspar.memory.accessors.sequential import WriteSequential
from caspar.memory.layout import partial_chunk_widths

LANES = ((256, 128), (4, 32))
"""Partials an object has on average, from which on so many threads sum them instead of one. The
most that any block has: one node that all factors share has a partial for each tile."""


def num_lanes(num_partials: int, num_objects: int) -> int:
    """Threads that suit a number of partials and of objects that they are of."""
    return next((lanes for least, lanes in LANES if num_partials > least * num_objects), 1)


@dataclass(frozen=True)
class ReduceSpec:
    """A kernel whose items are objects: output[i] += the sum of the object's partials.

    Attributes:
        dim: Scalars of an object.
        dtype: Type of partials and output.
        lanes: Threads that share the partials of one object on CUDA, see `num_lanes`.
        rows: Whether an object's scalars stand together in the output: `layout.row_scalars`.
    """

    dim: int
    dtype: DType
    lanes: int
    rows: bool = False

    @property
    def name(self) -> str:
        """Entry point: equal specs are the same kernel."""
        layout = "_in_rows" if self.rows else ""
        return f"accumulate_{self.dtype.value}_{self.dim}_by_{self.lanes}{layout}"

    @property
    def output(self) -> ArgSpec:
        """The output; it may be a window of a larger array."""
        access = WriteSequential(rows=self.rows)
        return ArgSpec("output", self.dim, self.dtype, write=access, windowed=True)

    @property
    def partial_chunk_widths(self) -> tuple[int, ...]:
        """Scalars in each chunk of a partial."""
        return partial_chunk_widths(self.dim)
