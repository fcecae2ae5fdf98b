"""Running a kernel three ways: CPU backend, CUDA source in the harness, NumPy.

A `KernelCase` says what a kernel is bound to. Each way gets fresh memory from it: outputs are
poisoned with NaN, arrays are longer than needed and lie between canaries, so that comparing whole
arrays shows what was written where nothing should be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.codegen.cuda_header import HEADER
from caspar.codegen.source import TILES, KernelSource
from caspar.driver import TARGETS, Target, compile_kernel
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph
from caspar.memory.access import ArgSpec
from caspar.memory.accessors.exchanges import ReadForNode, SpreadOverNode, SumOverNode
from caspar.memory.accessors.node_sums import AddOwnNode, WriteOwnNode
from caspar.memory.accessors.partials import MIN_SLOTS, AddSumSlots, tile_fields
from caspar.memory.accessors.runs import AddRuns
from caspar.memory.accessors.slots import BeginSlots, ReadSlots
from caspar.memory.binding import Binding
from caspar.memory.kernel import KernelSpec
from caspar.memory.node_tiles import NodeTiles, build_node_tiles
from caspar.memory.patterns import (
    AddSharedPartials,
    AddSumPartials,
    ReadIndexed,
    ReadPartials,
    ReadSequential,
    ReadUnique,
    WriteUnique,
)
from caspar.memory.tiles import TileIndex, build_tile_index
from caspar.runtime.backend import bound_blocks, parameter_values
from caspar.runtime.cpu import CpuBackend
from tests.harness import CudaModule, compile_cuda
from tests.support_memory import (
    Placement,
    block_of_tiles,
    canaries_live,
    place,
    tile_partials,
    with_canaries,
)

Array = NDArray[Any]
Index = NDArray[np.int32]

SPARE = 3
"""Objects, rows or partials an array has beyond those the kernel needs."""

WARP_SIZE = 32

OFFSET = 1
"""Partial of tile 0 of a `AddSumPartials()`."""


@dataclass(frozen=True)
class KernelCase:
    """What a kernel is run on.

    Attributes:
        spec: The kernel.
        count: Items.
        rows: (length, dim) values of each argument that is read.
        index: (count,) object of each item, of each argument that has an index of its own.
        num_objects: Objects that the indices of sums may name.
        node: (count,) eliminated node of each item, of a tiled kernel.
        partner: (count,) node by which the items of a tile are sorted, of a tiled kernel.
        copies: Slots of every object, of arrays that have several; rows come slot by slot.
        stretch: Tiles that a block takes one after the other, of a kernel that may.
    """

    spec: KernelSpec
    count: int
    rows: Mapping[str, Array]
    index: Mapping[str, Index] = field(default_factory=dict)
    num_objects: int = 1
    node: Index | None = None
    partner: Index | None = None
    copies: int = 1
    stretch: int = 1

    @property
    def coarsest_eps(self) -> float:
        """Machine epsilon of the coarsest type the kernel uses."""
        dtypes = {self.spec.graph.dtype, *(arg.dtype for arg in self.spec.args)} - {DType.INT32}
        return max(float(np.finfo(dtype.value).eps) for dtype in dtypes)

    def perturbed(self, relative: float, seed: int) -> KernelCase:
        """The same with every input off by a relative error, up or down."""
        rng = np.random.default_rng(seed)
        rows = {
            name: values * (1.0 + relative * rng.choice([-1.0, 1.0], values.shape))
            for name, values in self.rows.items()
        }
        return replace(self, rows=rows)

    def node_tiles(self, tile_size: int) -> NodeTiles | None:
        """Slots of a tiled kernel."""
        if self.node is None:
            return None
        num = int(self.node.max()) + 1
        num_partners = 0 if self.partner is None else int(self.partner.max()) + 1
        return build_node_tiles(self.node, self.partner, num, num_partners, tile_size)

    def objects_of(self, arg: ArgSpec) -> Index:
        """(count,) object of each item, by the index that an argument goes by."""
        owners = [access.index_of for access in arg.accessors if access.index_of != ""]
        return self.index[owners[0] if len(owners) > 0 else arg.name]

    def num_slots(self, tile_size: int) -> int:
        """Items, and holes of node tiles."""
        tiles = self.node_tiles(tile_size)
        return self.count if tiles is None else tiles.num_slots

    def bindings(self, tile_size: int, *, stretches: bool = False) -> dict[str, Binding]:
        """Fresh memory for a target whose tiles have this size; `stretches`: see `stretch`."""
        tiles = self.node_tiles(tile_size)
        made = {arg.name: self._binding(arg, tile_size, tiles) for arg in self.spec.args}
        if tiles is not None:
            stretch = self.stretch if stretches else 1
            num_blocks = tiles.num_long - (-tiles.num_short // stretch)
            fields = {**tiles.fields, "stretch": stretch}
            made[TILES] = Binding(tiles.tile_items, num_blocks, fields=fields)
        return made

    def _binding(self, arg: ArgSpec, tile_size: int, tiles: NodeTiles | None) -> Binding:
        if isinstance(arg.read, SumOverNode | SpreadOverNode):
            assert tiles is not None
            return Binding(with_canaries(tiles.place), tiles.num_slots)
        fields, length = self._layout(arg, tile_size, tiles)
        placement = place(arg, length)
        data = np.full(placement.size, np.nan, arg.dtype.value)
        if arg.name in self.rows:
            data[placement.where] = self._slot_rows(arg, tiles)
        return Binding(with_canaries(data), length, fields=fields)

    def _layout(
        self, arg: ArgSpec, tile_size: int, tiles: NodeTiles | None
    ) -> tuple[dict[str, Array | int], int]:
        """What its access needs besides the array, and the array's length."""
        num_slots = self.count if tiles is None else tiles.num_slots
        fields: dict[str, Array | int] = {}
        index = self.index.get(arg.name)
        if index is not None:
            # holes name the object of the first item of their tile
            index = index if tiles is None else index[tiles.order]
            fields = {"index": index}
        if isinstance(arg.write, AddOwnNode | WriteOwnNode):
            assert tiles is not None
            fields["place"] = tiles.place
        if isinstance(arg.write, AddSumSlots):
            fields["slots"] = MIN_SLOTS
        if arg.write == AddSharedPartials():
            assert index is not None
            partial_tiles = self._partial_tiles(index, tile_size, tiles)
            return tile_fields(partial_tiles), partial_tiles.num_partials + SPARE
        if arg.write == AddSumPartials():
            return {"offset": OFFSET}, OFFSET + -(-num_slots // tile_size) + SPARE
        if has_slots(arg):
            fields |= {"slots": self.copies, "stride": self.stride(arg)}
            return fields, self.copies * self.stride(arg)
        if arg.name in self.rows:
            return fields, len(self.rows[arg.name]) + self._num_holes(arg, num_slots)
        if isinstance(arg.write, WriteOwnNode):
            return fields, int(self.objects_of(arg).max()) + 1 + SPARE
        return fields, (1 if arg.write == WriteUnique() else num_slots) + SPARE

    def stride(self, arg: ArgSpec) -> int:
        """Rows of a slot."""
        rows = self.rows.get(arg.name)
        return self.count + SPARE if rows is None else len(rows) // self.copies

    def _partial_tiles(self, index: Index, tile_size: int, tiles: NodeTiles | None) -> TileIndex:
        if tiles is None:
            return build_tile_index(index, self.num_objects, tile_size)
        is_hole = np.arange(tile_size) >= tiles.tile_items[:, None]
        named = np.where(is_hole.reshape(-1), self.num_objects, index).astype(np.int32)
        return build_tile_index(named, self.num_objects + 1, tile_size)

    def _num_holes(self, arg: ArgSpec, num_slots: int) -> int:
        return num_slots - self.count if isinstance(arg.read, ReadSequential) else 0

    def _slot_rows(self, arg: ArgSpec, tiles: NodeTiles | None) -> Array:
        """The rows of an argument; of a sequential one in the order of the slots, holes NaN."""
        rows = self.rows[arg.name]
        if tiles is None or not isinstance(arg.read, ReadSequential):
            return rows
        slots = np.full((tiles.num_slots, arg.dim), np.nan, rows.dtype)
        filled = slots_of_items(tiles, self.count)
        slots[filled] = rows[: self.count]
        return np.concatenate([slots, rows[self.count :]])


def slots_of_items(tiles: NodeTiles, count: int) -> Array:
    """(count,) slot of each item."""
    tile_size = tiles.num_slots // tiles.num_tiles
    has_item = (np.arange(tile_size) < tiles.tile_items[:, None]).reshape(-1)
    slots = np.empty(count, np.int64)
    slots[tiles.order[has_item]] = np.flatnonzero(has_item)
    return slots


def has_slots(arg: ArgSpec) -> bool:
    """Whether an array may hold every object several times."""
    write = arg.write
    is_spread = isinstance(write, AddRuns) and write.spread
    return is_spread or isinstance(write, BeginSlots) or isinstance(arg.read, ReadSlots)


@dataclass(frozen=True)
class Run:
    """What a kernel left behind.

    Attributes:
        case: What it ran on.
        bindings: The memory afterwards.
        tile_size: Items of a tile.
        writes_pads: Whether a store fills the pad of a chunk with zeros.
    """

    case: KernelCase
    bindings: Mapping[str, Binding]
    tile_size: int
    writes_pads: bool

    def on(self, case: KernelCase) -> Run:
        """The same way of running on another case."""
        return replace(self, case=case)

    def expected(self, dtype: DType) -> dict[str, Array]:
        """What NumPy makes of the same case, computing in a type: flat arrays."""
        before = self.case.bindings(self.tile_size)
        stored = _evaluate(self.case, before, dtype)
        return {
            arg.name: self._written(arg, before[arg.name], stored.get(arg.name))
            for arg in self.case.spec.args
        }

    def _warps(self, slots: Array, tiles: NodeTiles | None) -> Array:
        """The warp that has each slot, on CUDA."""
        block = slots // self.tile_size
        if tiles is not None:
            stretch = self.case.stretch if self.case.spec.stretches else 1
            block = block_of_tiles(tiles, block, stretch)
        warp: Array = block * (self.tile_size // WARP_SIZE) + slots % self.tile_size // WARP_SIZE
        return warp

    def _written(self, arg: ArgSpec, binding: Binding, stored: Array | None) -> Array:
        data: Array = binding.data
        if stored is None:
            return data
        case, values = self.case, stored.astype(arg.dtype.value)
        placement = place(arg, binding.length)
        tiles = case.node_tiles(self.tile_size)
        slots = np.arange(case.count) if tiles is None else slots_of_items(tiles, case.count)
        if arg.write == AddSharedPartials():
            self._add_partials(arg, data, placement, slots, values)
        elif arg.write == AddSumPartials():
            for tile in range(-(-case.num_slots(self.tile_size) // self.tile_size)):
                total = values[slots // self.tile_size == tile].sum(axis=0, dtype=np.longdouble)
                data[placement.where[OFFSET + tile]] = total
        elif isinstance(arg.write, AddSumSlots):
            np.add.at(data, self._warps(slots, tiles) % MIN_SLOTS, values[:, 0])
        elif isinstance(arg.write, AddOwnNode | AddRuns):
            objects = case.objects_of(arg)
            if has_slots(arg):
                objects = objects + slots // self.tile_size % case.copies * case.stride(arg)
            np.add.at(data, placement.where[objects], values)
        elif isinstance(arg.write, BeginSlots):
            for first in range(0, case.copies * case.stride(arg), case.stride(arg)):
                data[placement.where[first + slots]] = 0.0 if first > 0 else values
                self._write_pads(data, placement, first + slots)
        elif isinstance(arg.write, WriteOwnNode):
            moved = case.objects_of(arg)
            data[placement.where[moved]] = values
            self._write_pads(data, placement, np.unique(moved))
        else:
            written = slots[:1] if arg.write == WriteUnique() else slots
            data[placement.where[written]] = values[: len(written)]
            self._write_pads(data, placement, written)
        return data

    def _write_pads(self, data: Array, placement: Placement, written: Array) -> None:
        if self.writes_pads and len(placement.pads) > 0:
            data[placement.pads.reshape(len(placement.where), -1)[written]] = 0.0

    def _add_partials(
        self, arg: ArgSpec, data: Array, placement: Placement, slots: Array, values: Array
    ) -> None:
        """A partial for each object of a tile; that of the holes, which nobody reads, is open."""
        objects = np.full(self.case.num_slots(self.tile_size), self.case.num_objects)
        objects[slots] = self.case.index[arg.name]
        by_slot = np.zeros((len(objects), arg.dim), values.dtype)
        by_slot[slots] = values
        found = self.bindings[arg.name].data
        for number, (owner, items) in enumerate(tile_partials(objects, self.tile_size)):
            if owner < self.case.num_objects:
                data[placement.where[number]] = by_slot[items].sum(axis=0, dtype=np.longdouble)
            else:
                data[placement.where[number]] = found[placement.where[number]]


def _evaluate(case: KernelCase, bindings: Mapping[str, Binding], dtype: DType) -> dict[str, Array]:
    """(count, dim) values that each argument's store gets."""
    inputs, objects = {}, {}
    for arg in case.spec.args:
        if arg.read is None:
            continue
        if isinstance(arg.read, SumOverNode):
            assert case.node is not None
            objects[arg.name] = case.node
            continue
        if isinstance(arg.read, SpreadOverNode):
            continue
        rows = case.rows[arg.name]
        if isinstance(arg.read, ReadPartials):
            rows = rows.astype(np.float64).sum(axis=0, keepdims=True)
        elif isinstance(arg.read, ReadSlots):
            rows = rows.reshape(case.copies, -1, arg.dim).sum(axis=0)
        elif arg.read == ReadUnique():
            rows = rows[:1]
        elif isinstance(arg.read, ReadIndexed | ReadForNode):
            rows = rows[case.objects_of(arg)]
        inputs[arg.name] = np.broadcast_to(rows[: case.count], (case.count, arg.dim))
    lengths = {arg.name: arg.chunk_length for arg in case.spec.args}
    return evaluate_graph(replace(case.spec.graph, dtype=dtype), inputs, lengths, objects)


class CompiledKernels:
    """Kernels compiled for the CPU backend and, in one translation unit, for the harness.

    Args:
        specs: The kernels.
        cpu: Whether they exist for the CPU backend.
    """

    def __init__(self, specs: Sequence[KernelSpec], *, cpu: bool = True) -> None:
        self.cuda_sources = generate(specs, TARGETS["cuda"])
        cuda_text = one_text(list(self.cuda_sources.values()))
        with ThreadPoolExecutor(1) as pool:  # the host compiler works beside Numba
            module = pool.submit(compile_cuda, cuda_text)
            cpu_sources = generate(specs, TARGETS["cpu"]) if cpu else {}
            self._backend = CpuBackend()
            self.cpu_kernels = self._backend.load(list(cpu_sources.values()))
            self.cuda_module = module.result()

    def run_cpu(self, case: KernelCase) -> Run:
        """Run on the CPU backend."""
        kernel = self.cpu_kernels[case.spec.name]
        bindings = case.bindings(kernel.source.block_size)
        launch = self._backend.bind(kernel, bindings, case.num_slots(kernel.source.block_size))
        self._backend.sequence([launch]).run()
        return Run(case, bindings, kernel.source.block_size, writes_pads=False)

    def run_cuda(self, case: KernelCase, *, check_races: bool = True) -> Run:
        """Run the CUDA source in the harness."""
        source = self.cuda_sources[case.spec.name]
        tile_size = source.block_size
        if source.few_items:
            tile_size = -(-case.count // source.num_blocks(case.count, tile_size))
        bindings = case.bindings(tile_size, stretches=source.stretches)
        count = case.num_slots(tile_size)
        launch_cuda(self.cuda_module, source, bindings, count, check_races=check_races)
        return Run(case, bindings, tile_size, writes_pads=True)

    def run(self, case: KernelCase) -> tuple[Run, Run]:
        """Run both ways."""
        return self.run_cpu(case), self.run_cuda(case)


def generate(specs: Sequence[KernelSpec], target: Target) -> dict[str, KernelSource]:
    """Sources by name."""
    return {spec.name: compile_kernel(spec, target) for spec in specs}


def one_text(sources: Sequence[KernelSource]) -> str:
    """CUDA sources as one translation unit: the header once, then every kernel."""
    assert all(source.text.startswith(HEADER) for source in sources)
    return HEADER + "".join(source.text.removeprefix(HEADER) for source in sources)


def launch_cuda(
    module: CudaModule,
    source: KernelSource,
    bindings: Mapping[str, Binding],
    count: int,
    *,
    check_races: bool = True,
) -> None:
    """Launch a kernel with the grid and arguments that the CUDA backend gives it."""
    values = parameter_values(source.params, bindings, count)
    args = [
        value
        if not isinstance(value, int)
        else (np.uint32 if param.is_unsigned else np.int32)(value)
        for param, value in zip(source.params, values, strict=True)
    ]
    num_blocks = bound_blocks(source, bindings, count, source.block_size)
    grid = (num_blocks, source.num_layers)
    module.launch(source.name, grid, source.block_size, args, check_races=check_races)


def assert_exact(run: Run, dtype: DType) -> None:
    """Everything the kernel could reach holds what NumPy says, to the bit (but for zeros' sign)."""
    expected = run.expected(dtype)
    for arg in run.case.spec.args:
        assert_array_equal(run.bindings[arg.name].data, expected[arg.name], _message(run, arg))
        assert canaries_live(run.bindings[arg.name].data), _message(run, arg)


def assert_close(run: Run, roundings: float) -> None:
    """The same to rounding.

    NumPy computes in float64, also on inputs that are off by a rounding error each. A column may
    differ by so many times what that changes, plus the rounding of its largest entry.
    """
    eps = run.case.coarsest_eps
    expected = run.expected(DType.FLOAT64)
    nearby = [run.on(run.case.perturbed(eps, seed)).expected(DType.FLOAT64) for seed in range(3)]
    for arg in run.case.spec.args:
        binding = run.bindings[arg.name]
        found, wanted = binding.data.astype(np.float64), expected[arg.name].astype(np.float64)
        message = _message(run, arg)
        assert canaries_live(binding.data), message
        assert_array_equal(np.isnan(found), np.isnan(wanted), message)
        if arg.write is None:
            continue
        change = np.max([np.abs(other[arg.name] - wanted) for other in nearby], axis=0)
        column = place(arg, binding.length).column
        largest = np.nanmax(np.abs(wanted))
        for number in range(-1, arg.dim):
            chosen = (column == number) & ~np.isnan(wanted)
            size = np.max(np.abs(wanted[chosen]), initial=1e-300)
            size = largest if size < 1e-12 * largest else size  # cancels in exact arithmetic
            unit = np.max(change[chosen], initial=0.0) + eps * size
            error = np.max(np.abs(found[chosen] - wanted[chosen]), initial=0.0) / unit
            assert error <= roundings, f"{message}, column {number}: off by {error:.3g} roundings"


def _message(run: Run, arg: ArgSpec) -> str:
    return (
        f"{run.case.spec.name} on {run.case.count} items, tiles of {run.tile_size}: "
        f"argument {arg.name} ({arg.read}, {arg.write}, {arg.dim} x {arg.dtype.value})"
    )
