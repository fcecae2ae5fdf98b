"""Sums over eliminated nodes and over runs: CPU backend = CUDA source = NumPy, to the bit.

Values are whole numbers, so that the order of a sum does not matter. Holes of tiles hold NaN.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from caspar.codegen.cuda.header import BLOCK_SIZE
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar
from caspar.memory.access import TILES
from caspar.memory.accessors.nodes.exchanges import ReadForNode, SpreadOverNode, SumOverNode
from caspar.memory.accessors.nodes.node_sums import AddOwnNode, WriteOwnNode
from caspar.memory.accessors.sums.partials import MIN_SLOTS, AddSumSlots
from caspar.memory.accessors.sums.runs import MANY_SCALARS, AddRuns
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.patterns import (
    AddSharedPartials,
    AddStretchPartials,
    AddSumPartials,
    ReadIndexed,
    ReadSequential,
    WriteSequential,
)
from tests.covering import alternating, first
from tests.harness import find_compiler
from tests.memory.tiling.node_tile_problems import PROBLEMS, Problem, draw_problem
from tests.support_cases import SPARE, KernelCase
from tests.support_kernels import CompiledKernels, assert_exact

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

FLOATS = (DType.FLOAT32, DType.FLOAT64)
SINGLE, DOUBLE = FLOATS
TYPES = ((SINGLE, SINGLE), (DOUBLE, SINGLE), (SINGLE, DOUBLE), (DOUBLE, DOUBLE))
"""Of storage, and what is computed in; `test_solver_kernels` has all of them by default."""

types = pytest.mark.parametrize(("storage", "computing"), first(2, TYPES))
COUNTS = (31, BLOCK_SIZE, 2500)
"""The last fills several tiles of one node on both targets."""

DIMS = (1, 3, 4, 9)
NAMES = [name for name in PROBLEMS if name != "sparse"]

PLAIN = "plain"
"""Of sums over runs: not in node tiles."""


def sums(first: list[Scalar], second: list[Scalar]) -> list[Scalar]:
    return [a + b for a, b in zip(first, second, strict=True)]


def small(values: list[Scalar]) -> list[Scalar]:
    """Values whose sums are exact."""
    return [-(-entry.max(-7.0)).max(-7.0) for entry in values]


def exchange_kernel(dim: int, storage: DType, computing: DType, num_exchanges: int) -> KernelSpec:
    """x plus what a node makes of the sums over its items, several times, and to the node.

    Only the leader of a node has `led`: on the way there it reads what belongs to the node, and it
    writes the node.
    """
    kernel = KernelBuilder(f"exchange_{dim}_{num_exchanges}", computing, tiled=True)
    node = kernel.read("node", dim, storage, ReadIndexed())
    value = kernel.read("x", dim, storage, ReadSequential())
    led = spread = [entry * 0.0 for entry in node]
    for number in range(num_exchanges):
        first = "" if number == 0 else "sum_0"
        led = small(kernel.exchange(f"sum_{number}", value, SumOverNode(first)))
        bias = kernel.read(f"bias_{number}", dim, storage, ReadForNode("sum_0", "node"))
        led = sums(led, bias)
        spread = kernel.exchange(f"spread_{number}", led, SpreadOverNode("sum_0"))
        value = sums(value, spread)
    if num_exchanges > 0:
        led = sums(led, kernel.read("offset", dim, storage, ReadForNode("sum_0")))
        kernel.write("moved", led, storage, WriteOwnNode("sum_0", "node"))
    kernel.write("y", value, storage, WriteSequential())
    kernel.write("first", value, storage, AddOwnNode("node"))
    kernel.write("second", spread, storage, AddOwnNode("node", "first"))
    kernel.write("alone", value, storage, AddOwnNode())
    kernel.write("apart", value, storage, AddOwnNode(in_order=False))
    kernel.write("with_apart", spread, storage, AddOwnNode("apart", "apart", in_order=False))
    kernel.write("partials", value, storage, AddSharedPartials())
    kernel.write("sum", value, storage, AddSumPartials())
    return kernel.build()


def stretching_kernel(
    storage: DType,
    computing: DType,
    *,
    num_spread: int,
    is_fenced: bool,
    halves: bool = False,
    by: str = TILES,
) -> KernelSpec:
    """What a product does: sums over nodes and back, then to the partner.

    After an odd number of exchanges, or a sum over the tile, the next tile needs a barrier. Halves
    of the next tile are loaded before this one's sums are added.
    """
    dim = 3
    name = f"runs_{num_spread}_{is_fenced}_{halves}_{by}"
    kernel = KernelBuilder(name, computing, tiled=True, stretches=True)
    partner = kernel.read("partner", dim, storage, _read_partner(by))
    entries = DType.FLOAT16 if halves else storage
    x = kernel.read("x", dim, entries, ReadSequential(once=True))
    value = sums(x, partner)
    led = small(kernel.exchange("sum_0", value, SumOverNode()))
    spread = [entry * 0.0 for entry in value]
    for number in range(num_spread):
        passed = kernel.exchange(f"spread_{number}", led, SpreadOverNode("sum_0"))
        spread = sums(spread, passed)
    kernel.write("y", spread, storage, WriteSequential())
    kernel.write("first", sums(sums(value, x), spread), storage, AddRuns(by))
    kernel.write("total", spread[:1], DType.FLOAT64, AddSumSlots())
    if not is_fenced:
        kernel.write("sum", value, storage, AddStretchPartials())
    return kernel.build()


def in_place_kernel(dim: int, storage: DType, computing: DType) -> KernelSpec:
    """Each node plus the sums of two exchanges, the second with the first's: what `inner` does."""
    kernel = KernelBuilder(f"in_place_{dim}", computing, tiled=True)
    node = kernel.read("node", dim, storage, ReadForNode("sum_0"))
    x = kernel.read("x", dim, storage, ReadSequential())
    spread = kernel.exchange("spread_0", node, SpreadOverNode("sum_0"))
    led = small(kernel.exchange("sum_0", sums(x, spread), SumOverNode()))
    spread = kernel.exchange("spread_1", sums(led, node), SpreadOverNode("sum_0"))
    led = kernel.exchange("sum_1", sums(x, spread), SumOverNode("sum_0"))
    kernel.write("node", sums(led, node), storage, WriteOwnNode("sum_0"))
    return kernel.build()


def _read_partner(by: str) -> ReadIndexed:
    """By an index of its own, or by what items' places say."""
    return ReadIndexed(TILES if by == TILES else "")


def runs_kernel(dim: int, storage: DType, computing: DType, by: str) -> KernelSpec:
    """x added to its partner, twice by one index; alone by its own."""
    kernel = KernelBuilder(f"runs_{dim}_{by}", computing, tiled=by != PLAIN)
    owner = "partner" if by == PLAIN else by
    partner = kernel.read("partner", dim, storage, _read_partner(by))
    x = kernel.read("x", dim, storage, ReadSequential())
    kernel.write("first", sums(x, partner), storage, AddRuns(owner))
    kernel.write("second", x, storage, AddRuns(owner, "first"))
    kernel.write("alone", x, storage, AddRuns())
    return kernel.build()


def whole_rows(rng: np.random.Generator, length: int, dim: int) -> np.ndarray:
    rows = rng.integers(-5, 6, (length, dim)).astype(np.float64)
    return np.concatenate([rows, np.full((SPARE, dim), np.nan)])


def case_of(spec: KernelSpec, problem: Problem, dim: int, *, tiled: bool = True) -> KernelCase:
    """A problem's items; every argument with whole numbers to start from."""
    rng = np.random.default_rng(dim)
    partner = np.zeros_like(problem.node) if problem.partner is None else problem.partner
    num_partners = max(problem.num_partners, 1)
    num_objects = {
        **{"x": len(problem.node), "partials": num_partners},
        **({"partner": num_partners} if spec.name.startswith("runs") else {}),
    }
    rows = {}
    for arg in spec.args:
        if arg.name in ("y", "partials", "sum", "moved"):
            continue
        if isinstance(arg.read, SumOverNode | SpreadOverNode):
            continue
        if isinstance(arg.write, AddSumSlots):
            rows[arg.name] = whole_rows(rng, MIN_SLOTS, arg.dim)
            continue
        size = num_partners if spec.name.startswith("runs") else problem.num_nodes
        rows[arg.name] = whole_rows(rng, num_objects.get(arg.name, size), dim)
    by = partner if spec.name.startswith("runs") else problem.node
    index = {"node": problem.node, "offset": problem.node, "partner": partner, "alone": by}
    index["apart"] = problem.node
    index["partials"] = partner
    return KernelCase(
        spec,
        len(problem.node),
        rows,
        {name: array for name, array in index.items() if name in {arg.name for arg in spec.args}},
        num_partners,
        problem.node if tiled else None,
        problem.partner if tiled else None,
    )


@pytest.mark.parametrize(("num_exchanges", "types"), alternating([1, 0, 3], TYPES))
def test_exchanges_and_own_nodes(num_exchanges: int, types: tuple[DType, DType]) -> None:
    storage, computing = types
    dims = DIMS if storage is computing and num_exchanges == 1 else (3,)
    specs = {dim: exchange_kernel(dim, storage, computing, num_exchanges) for dim in dims}
    compiled = CompiledKernels(list(specs.values()))
    counts = COUNTS if num_exchanges < 3 else (31, 2500 // 4)
    for dim, spec in specs.items():
        for name in NAMES:
            for count in counts if dim == 3 else (BLOCK_SIZE + 1,):
                for run in compiled.run(case_of(spec, draw_problem(name, count), dim)):
                    assert_exact(run, computing)


@types
def test_nodes_are_moved_in_place(storage: DType, computing: DType) -> None:
    spec = in_place_kernel(3, storage, computing)
    compiled = CompiledKernels([spec])
    for name in NAMES:
        for count in COUNTS:
            for run in compiled.run(case_of(spec, draw_problem(name, count), 3)):
                assert_exact(run, computing)


@pytest.mark.parametrize(("by", "types"), alternating([TILES, "partner", PLAIN], TYPES))
def test_runs(by: str, types: tuple[DType, DType]) -> None:
    """Only on CUDA. Few scalars wait for the end of the kernel, more are added chunk by chunk."""
    storage, computing = types
    dims = (3, 45, *((1, 4, MANY_SCALARS, MANY_SCALARS + 1) if storage is computing else ()))
    specs = {dim: runs_kernel(dim, storage, computing, by) for dim in dims}
    compiled = CompiledKernels(list(specs.values()), cpu=False)
    for dim, spec in specs.items():
        for name in NAMES:
            for count in COUNTS if dim == 3 else (BLOCK_SIZE + 1,):
                case = case_of(spec, draw_problem(name, count), dim, tiled=by != PLAIN)
                assert_exact(compiled.run_cuda(case), computing)


STRETCHING: tuple[dict[str, Any], ...] = (
    {"num_spread": 1, "is_fenced": True},
    {"num_spread": 1, "is_fenced": True, "by": "partner"},
    {"num_spread": 1, "is_fenced": False},
    {"num_spread": 2, "is_fenced": True},
    {"num_spread": 1, "is_fenced": True, "halves": True},
)


@pytest.mark.parametrize(("options", "types"), alternating(STRETCHING, TYPES))
def test_a_block_takes_several_tiles(options: dict[str, Any], types: tuple[DType, DType]) -> None:
    computing = types[1]
    spec = stretching_kernel(*types, **options)
    compiled = CompiledKernels([spec], cpu=False)
    for name in NAMES:
        for count, stretch in ((31, 8), (2500, 1), (2500, 3)):
            case = case_of(spec, draw_problem(name, count), 3)
            assert_exact(compiled.run_cuda(replace(case, stretch=stretch)), computing)


def many_partners(count: int) -> Problem:
    """So many that items' places take 64 bits."""
    few = draw_problem("any", count)
    assert few.partner is not None
    partner = few.partner * 11_000
    partner[0] = 66_000
    return Problem("many partners", few.node, partner, few.num_nodes, 66_001)


@pytest.mark.parametrize(("storage", "computing"), first(1, TYPES))
def test_wide_places(storage: DType, computing: DType) -> None:
    specs = [
        stretching_kernel(storage, computing, num_spread=1, is_fenced=True),
        runs_kernel(3, storage, computing, TILES),
    ]
    compiled = CompiledKernels(specs, cpu=False)
    for spec in specs:
        for count in (31, 2500):
            case = replace(case_of(spec, many_partners(count), 3), stretch=3)
            tiles = case.node_tiles(BLOCK_SIZE)
            assert tiles is not None
            assert tiles.place.dtype == np.uint64
            assert_exact(compiled.run_cuda(case), computing)


@pytest.mark.parametrize(
    ("num_spread", "is_fenced", "has_barrier"),
    [(1, True, False), (1, False, True), (2, True, True)],
)
def test_the_next_tile_waits_where_memory_is_used_again(
    num_spread: int, is_fenced: bool, has_barrier: bool
) -> None:
    dtype = DType.FLOAT32
    spec = stretching_kernel(dtype, dtype, num_spread=num_spread, is_fenced=is_fenced)
    text = CompiledKernels([spec], cpu=False).cuda_sources[spec.name].text
    assert ("if (tile > first_tile) __syncthreads();" in text) == has_barrier


def test_a_set_guard_leaves_everything_alone() -> None:
    kernel = KernelBuilder("guarded", DType.FLOAT32, tiled=True)
    kernel.guard("flag")
    x = kernel.read("x", 3, DType.FLOAT32, ReadSequential())
    total = kernel.exchange("sum_0", x, SumOverNode())
    kernel.write("alone", total, DType.FLOAT32, AddOwnNode())
    spec = kernel.build()
    case = case_of(spec, draw_problem("long tail", 700), 3)
    case = replace(case, rows={**case.rows, "flag": np.ones((1, 1))})
    for run in CompiledKernels([spec]).run(case):
        untouched = case.bindings(run.tile_size)["alone"]
        assert_array_equal(run.bindings["alone"].data, untouched.data)
