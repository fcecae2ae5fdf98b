"""The kernels that build node tiles on a device, run on the host, against NumPy."""

from dataclasses import asdict
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.codegen.cuda.structure.checks import CHECKSUM_KERNEL, CHECKSUM_SOURCE
from caspar.codegen.cuda.structure.node_tiles import NODE_TILE_KERNELS, NODE_TILE_SOURCE
from caspar.codegen.cuda.structure.tiles import (
    SCAN_BLOCK_SIZE,
    TILE_SOURCE,
    WARPS_OF_BLOCK,
    sort_source,
)
from caspar.memory.tiling.node_tiles import TILES_OF_CHUNK, build_node_order, build_node_tiles
from caspar.memory.tiling.tiles import ORDER_TILE_SIZES
from caspar.runtime.cuda.structure.node_tile_steps import make_node_order, make_node_tiles
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.covering import alternating
from tests.harness import CudaModule, KernelArgument, compile_cuda, find_compiler
from tests.memory.tiling.node_tile_problems import PROBLEMS, Problem, draw_problem

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")


@cache
def _module(text: str) -> CudaModule:
    return compile_cuda(text)


class HarnessTools:
    """The kernels on the host."""

    xp: ModuleType = np

    def __init__(self) -> None:
        self.launched: set[str] = set()

    def launch(self, name: str, num_blocks: int, block_size: int, *arguments: Any) -> None:
        self.launched.add(name)
        _module(NODE_TILE_SOURCE).launch(name, num_blocks, block_size, arguments)

    def scan(self, values: NDArray[np.uint32]) -> None:
        arguments: list[KernelArgument] = [np.uint32(len(values)), values]
        _module(TILE_SOURCE).launch("scan_blocks", 1, SCAN_BLOCK_SIZE, arguments)

    def sorted_places(self, index: NDArray[np.int32], tile_size: int) -> NDArray[np.uint16]:
        num_tiles = len(index) // tile_size
        num_blocks = -(-num_tiles // WARPS_OF_BLOCK)
        places = np.zeros(len(index), np.uint16)
        tile_start, block_start = np.zeros(num_tiles + 1, np.int32), np.zeros(num_blocks, np.uint32)
        count, stats = np.uint32(len(index)), np.zeros(4, np.int32)
        module = _module(sort_source(tile_size))
        module.launch(
            "sort_tiles",
            num_blocks,
            32 * WARPS_OF_BLOCK,
            [count, index, places, tile_start, block_start, stats],
        )
        return places

    def to_host(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def upload(self, array: NDArray[Any]) -> NDArray[Any]:
        return array


def assert_same_tiles(problem: Problem, tile_size: int, *, keep_order: bool = False) -> set[str]:
    """Compare with NumPy; return the kernels that were launched."""
    tools = HarnessTools()
    sizes = (problem.num_nodes, problem.num_partners, tile_size)
    given = (problem.node, problem.partner, *sizes)
    made = make_node_tiles(tools, *given, keep_order=keep_order)
    expected = build_node_tiles(*given, keep_order=keep_order)
    wanted_arrays, found_arrays = asdict(expected), asdict(made)
    wanted_arrays |= wanted_arrays.pop("node_order")
    found_arrays |= found_arrays.pop("node_order")
    for name, wanted in wanted_arrays.items():
        found = found_arrays[name]
        assert_array_equal(found, wanted, f"{problem}: {name}")
        assert np.asarray(found).dtype == np.asarray(wanted).dtype
    return tools.launched


@needs_compiler
@pytest.mark.parametrize(("name", "tile_size"), alternating(sorted(PROBLEMS), ORDER_TILE_SIZES))
def test_equal_those_of_numpy(name: str, tile_size: int) -> None:
    for count in (0, 1, 129, 5003):
        assert_same_tiles(draw_problem(name, count), tile_size)


@needs_compiler
@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_orders_equal_those_of_numpy(name: str) -> None:
    for count in (1, 1025):
        problem = draw_problem(name, count)
        assert_same_tiles(problem, 128, keep_order=True)
        if problem.partner is None:
            continue
        given = (problem.node, problem.partner, problem.num_nodes, problem.num_partners, 128)
        made, expected = make_node_order(HarnessTools(), *given), build_node_order(*given)
        assert_array_equal(made.node, expected.node)
        assert_array_equal(made.rank, expected.rank)


@needs_compiler
def test_every_kernel_takes_part() -> None:
    launched = assert_same_tiles(draw_problem("long tail", 5003), 128)
    assert launched == set(NODE_TILE_KERNELS)


@needs_compiler
@pytest.mark.parametrize("seed", [0, 4])
def test_packing_up_to_the_end_of_a_chunk(seed: int) -> None:
    """The last node of a chunk moves, while the next chunk reads where it ends."""
    size = np.random.default_rng(seed).integers(1, 129, 1300)
    node = np.repeat(np.arange(len(size)), size).astype(np.int32)
    assert_same_tiles(Problem("large nodes", node, None, len(size), 0), 128)


@needs_compiler
def test_several_chunks() -> None:
    """Nodes of one to ten items, which are packed; chunks end inside a node."""
    count = 3 * TILES_OF_CHUNK * 128 + 77
    node = np.sort(np.random.default_rng(0).integers(0, count // 2, count)).astype(np.int32)
    partner = (node // 7 % 50).astype(np.int32)
    assert_same_tiles(Problem("chunks", node, partner, count // 2, 50), 128)


@needs_compiler
@pytest.mark.parametrize("more", [0, 1, 2])
def test_no_node_begins_in_the_last_chunk(more: int) -> None:
    chunk = TILES_OF_CHUNK * 128
    size = np.full(chunk // 128 + 1, 128)
    size[[0, -1]] = 127, more + 1
    node = np.repeat(np.arange(len(size)), size).astype(np.int32)
    assert len(node) == chunk + more
    assert_same_tiles(Problem("last", node, None, len(size), 0), 128)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
def test_the_compiler_has_nothing_to_say(arch: str) -> None:
    sources = {NODE_TILE_SOURCE: NODE_TILE_KERNELS, CHECKSUM_SOURCE: (CHECKSUM_KERNEL,)}
    for source, names in sources.items():
        compiled = compile_text(source, arch)
        assert compiled.warnings == (), compiled.log
        assert set(compiled.resources) == set(names)
        # float64 divisions, of which only normalise_places has some, are calls on some devices
        stacks = {name: entry.stack_bytes for name, entry in compiled.resources.items()}
        assert {name for name, size in stacks.items() if size > 0} <= {"normalise_places"}
