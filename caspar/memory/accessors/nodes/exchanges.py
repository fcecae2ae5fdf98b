"""Exchanges: sums over the items of one node, within the kernel that goes on with them.

All items of the node lie in one tile, see `memory.tiling.node_tiles` and `accessors.node_sums`. On
CUDA a *team* of neighbouring lanes works for each node of the tile, as many for each as the block
has threads for: they sum over its items together, whichever items the threads have themselves, and
the first of them *leads*: it works with the sums on the node's behalf, and what comes of it is
passed to the items. Nodes of a tile are neighbours in memory, so what teams load of them is too.
"""

from dataclasses import dataclass
from typing import ClassVar

from caspar.ir.dtype import DType
from caspar.memory.access import AnyObjects, ArgSpec, ExchangeAccessor, Field, ReadAccessor
from caspar.memory.accessors.blocked import cpu_load, cuda_address, cuda_lanes, cuda_vector
from caspar.memory.accessors.indexed import ByIndex, object_name, owner
from caspar.memory.accessors.nodes.node_sums import (
    NODE_FIELDS,
    NODE_SUMS,
    NODE_TILE_SIZES,
    group_lines,
)
from caspar.memory.accessors.scope import SCALAR_TYPE, CpuScope, CudaScope, cuda_array
from caspar.memory.layout import padded_width

_ROWS, _TURNS = "rows of exchanges", "exchanges"
"""Keys of the notes of exchanges: the scalars that each stages; those that were written."""


MAX_STAGED_FLOAT64 = 8
"""Scalars of float64 that are staged at a time: two rows of more, for each of 256 threads, do not
fit the 48 KiB of a block. Tiles are those of all kernels, and smaller ones have more holes."""


def _parts(dim: int, dtype: DType) -> list[range]:
    """Ranges of a row that are staged one after the other."""
    most = MAX_STAGED_FLOAT64 if dtype is DType.FLOAT64 else dim
    return [range(first, min(first + most, dim)) for first in range(0, dim, most)]


def _row(dim: int) -> int:
    """Scalars of a staged row: rows of three are padded, so that one load takes them."""
    return padded_width(dim) if dim <= 4 else -(-dim // 4) * 4


@dataclass(frozen=True)
class _Exchange(ExchangeAccessor, AnyObjects):
    """The common part of exchanges that sum and those that spread the results.

    `team_of` is the exchange of the kernel that has formed the teams; empty: none has.
    """

    team_of: str = ""

    cuda_functions: ClassVar[str] = NODE_SUMS
    has_array: ClassVar[bool] = False
    cooperates: ClassVar[bool] = True
    tile_sizes: ClassVar[tuple[int, ...]] = NODE_TILE_SIZES

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        return NODE_FIELDS if self.team_of == "" else ()

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Form teams, unless another exchange does; say how much is staged."""
        scope.noted(_ROWS).append(max(_row(len(part)) for part in _parts(arg.dim, scope.dtype)))
        if self.team_of != "":
            return
        name = arg.name
        scope.emit(
            *group_lines(name),
            f"const Team {name}_team =",
            f"    team_of<BLOCK_SIZE>({name}_nodes, {name}_node_items, is_long);",
        )

    def _stage(self, scope: CudaScope, dim: int) -> str:
        """Room for a row of each thread.

        Exchanges take one of two in turn: between one's reads and the writes of the next but one is
        a barrier. Room for each would be more than a block may have (48 KiB).
        """
        scalar, rows, most = SCALAR_TYPE[scope.dtype], _row(dim), max(scope.noted(_ROWS))
        turns = scope.noted(_TURNS)
        name = f"staged_{len(turns) % 2}"
        turns.append(rows)
        scope.shared(name, f"StageRow<{scalar}, {most}> {name}[BLOCK_SIZE]", fenced=True)
        return name if rows == most else f"reinterpret_cast<StageRow<{scalar}, {rows}>*>({name})"

    def _team(self, arg: ArgSpec) -> str:
        return f"{owner(arg, self.team_of)}_team"


@dataclass(frozen=True)
class SumOverNode(_Exchange):
    """The leader of each node's team gets the sums."""

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Room for the sums of a node with several tiles too."""
        super().cuda_before(scope, arg)
        scalar, name = SCALAR_TYPE[scope.dtype], arg.name
        for part, size in (("warps", f"[BLOCK_SIZE / 32][{arg.dim}]"), ("total", f"[{arg.dim}]")):
            scope.shared(f"{name}_{part}", f"{scalar} {name}_{part}{size}", fenced=True)

    def cuda_exchange(self, scope: CudaScope, arg: ArgSpec, values: list[str]) -> list[str]:
        """Stage, sum; of a node with several tiles the first pass collects."""
        name, width = arg.name, len(values)
        total = cuda_array(scope, scope.dtype, values)
        scope.emit(
            "if (is_long) {",
            f"  if (pass == {scope.next_exchange()}u) {{",
            f"    collect_node<{width}, BLOCK_SIZE / 32>(",
            f"        active, tile == first_tile, {total}, {name}_warps, {name}_total);",
            "    continue;",
            "  }",
            f"  for (int n = 0; n < {width}; ++n) {total}[n] = {name}_total[n];",
            "} else {",
            *(f"  {line}" for line in self._sum_staged(scope, arg, total)),
            "}",
        )
        return [f"{total}[{component}]" for component in range(width)]

    def _sum_staged(self, scope: CudaScope, arg: ArgSpec, total: str) -> list[str]:
        parts, scalar = _parts(arg.dim, scope.dtype), SCALAR_TYPE[scope.dtype]
        lines: list[str] = []
        for part in parts:
            rows, width = self._stage(scope, len(part)), len(part)
            summed = total
            if len(parts) > 1:
                summed = scope.temporary()
                members = ", ".join(f"{total}[{n}]" for n in part)
                lines.append(f"{scalar} {summed}[{width}] = {{{members}}};")
            lines += [
                f"stage_values<{width}>({rows}, tiles_position, active, {summed});",
                "__syncthreads();",
                f"sum_by_team<{width}>({rows}, {self._team(arg)}, {summed});",
            ]
            if len(parts) > 1:
                lines += [f"{total}[{n}] = {summed}[{n - part.start}];" for n in part]
        return lines

    def cpu_before(self, scope: CpuScope, arg: ArgSpec) -> None:
        """A sum for each place where a node can begin."""
        scope.once(f"{arg.name}_sums = zeros(TILE_SIZE * {arg.dim})")
        scope.emit(f"{arg.name}_at = {arg.dim} * tiles_begin")

    def cpu_collect(self, scope: CpuScope, arg: ArgSpec, values: list[str]) -> None:
        """Add."""
        for component, value in enumerate(values):
            scope.emit(f"{arg.name}_sums[{arg.name}_at + {component}] += {value}")

    def cpu_exchanged(self, scope: CpuScope, arg: ArgSpec) -> list[str]:
        """The sums, in the computing type."""
        sums = (f"{arg.name}_sums[{arg.name}_at + {component}]" for component in range(arg.dim))
        return [scope.cast(total, DType.FLOAT64, scope.dtype) for total in sums]


@dataclass(frozen=True)
class SpreadOverNode(_Exchange):
    """Every item gets what its node's leader has.

    It may be made of sums, of what is read for the node, and of what is the same for all items.
    """

    collects: ClassVar[bool] = False

    def cuda_exchange(self, scope: CudaScope, arg: ArgSpec, values: list[str]) -> list[str]:
        """Through shared memory; where a block has one node, all threads lead."""
        width, rows, team = len(values), self._stage(scope, len(values)), self._team(arg)
        passed = cuda_array(scope, scope.dtype, values)
        scope.emit(
            "if (!is_long) {",
            f"  spread_values<{width}>({rows}, tiles_begin, {team}, {passed});",
            "}",
        )
        return [f"{passed}[{component}]" for component in range(width)]


@dataclass(frozen=True)
class ReadForNode(ReadAccessor, ByIndex):
    """Reads the node that a team works for; its array is in the order of the tiles' nodes.

    `index_of` is another argument of the kernel, read by the same index; empty: its own.
    """

    team_of: str = ""
    index_of: str = ""

    loads_first: ClassVar[bool] = True
    for_node: ClassVar[bool] = True

    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        """One vector load."""
        loaded, vector = scope.temporary(), cuda_vector(arg, chunk)
        address = cuda_address(arg, chunk, f"{self.team_of}_team.node")
        scope.emit(f"const {vector} {loaded} = *reinterpret_cast<const {vector}*>({address});")
        return cuda_lanes(arg, chunk, loaded)

    def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
        """Scalar loads."""
        return cpu_load(scope, arg, chunk, object_name(arg, self.index_of))
