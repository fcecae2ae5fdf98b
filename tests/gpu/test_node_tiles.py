"""Node tiles built on a device equal those built by NumPy; checksums tell arrays apart."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from caspar.memory.tiling.node_tiles import NodeTiles, build_node_order, build_node_tiles
from caspar.memory.tiling.tiles import ORDER_TILE_SIZES
from tests.memory.tiling.node_tile_problems import PROBLEMS, Problem, draw_problem

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

SIZES = (0, 1, 127, 129, 1025, 10_003, 300_007)


def cuda_backend() -> Any:
    return pytest.importorskip("caspar.runtime.cuda.backend").CudaBackend()


def entries(tiles: NodeTiles) -> dict[str, Any]:
    """Numbers and arrays by name, those of the order of the nodes too."""
    own = {field.name: getattr(tiles, field.name) for field in fields(tiles)}
    order = own.pop("node_order")
    return {**own, "order.node": order.node, "order.rank": order.rank}


def assert_same(backend: Any, made: NodeTiles, expected: NodeTiles) -> None:
    for name, wanted in entries(expected).items():
        found = entries(made)[name]
        if isinstance(wanted, np.ndarray):
            assert found.dtype == wanted.dtype
            found = backend.to_host(found)
        assert np.array_equal(found, wanted), name


def check(backend: Any, problem: Problem, tile_size: int) -> None:
    sizes = (problem.num_nodes, problem.num_partners, tile_size)
    expected = build_node_tiles(problem.node, problem.partner, *sizes)
    with backend.scope():
        node = backend.upload(problem.node)
        partner = None if problem.partner is None else backend.upload(problem.partner)
        assert_same(backend, backend.node_tiles(node, partner, *sizes), expected)
        made = backend.node_tiles(node, partner, *sizes, keep_order=True)
        expected = build_node_tiles(problem.node, problem.partner, *sizes, keep_order=True)
        assert_same(backend, made, expected)
        if problem.partner is not None:
            order = build_node_order(problem.node, problem.partner, *sizes)
            found = backend.node_order(node, partner, *sizes)
            assert np.array_equal(backend.to_host(found.node), order.node)
            assert np.array_equal(backend.to_host(found.rank), order.rank)


@pytest.mark.parametrize("tile_size", ORDER_TILE_SIZES)
@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_equal_those_of_numpy(name: str, tile_size: int) -> None:
    backend = cuda_backend()
    for count in SIZES:
        check(backend, draw_problem(name, count), tile_size)


@pytest.mark.parametrize("tile_size", [256, 1024])
def test_five_million(tile_size: int) -> None:
    """More chunks than a block of threads, labels from a sample."""
    check(cuda_backend(), draw_problem("long tail", 5_000_000), tile_size)


class TestChecksum:
    def test_the_same_arrays_have_the_same(self) -> None:
        backend = cuda_backend()
        with backend.scope():
            for count in (0, 1, 255, 10_003, 3_000_001):
                array = cupy.arange(count, dtype=cupy.int32)
                copy = cupy.arange(count + 1, dtype=cupy.int32)[:count]
                assert backend.checksum([array, copy]) == backend.checksum([copy, array])
                assert 0 <= backend.checksum([array]) < 2**64

    def test_every_entry_and_its_place_count(self) -> None:
        backend = cuda_backend()
        with backend.scope():
            array = cupy.arange(70_001, dtype=cupy.int32)
            seen = {backend.checksum([array])}
            for entry in (0, 1, 31, 32, 65_535, 70_000):
                for bit in (0, 13, 30):
                    array[entry] ^= 1 << bit
                    seen.add(backend.checksum([array]))
                    array[entry] ^= 1 << bit
            swapped = array.copy()
            swapped[[5, 6]] = swapped[[6, 5]]
            seen.add(backend.checksum([swapped]))
            assert len(seen) == 1 + 6 * 3 + 1
            assert backend.checksum([array]) in seen

    def test_where_an_array_ends_counts(self) -> None:
        backend = cuda_backend()
        with backend.scope():
            array = cupy.zeros(100, dtype=cupy.int32)
            lists = ([array], [array[:40], array[40:]], [array[:60], array[60:]], [array, array])
            wide = [cupy.zeros(50, dtype=cupy.int64)]
            assert len({backend.checksum(arrays) for arrays in (*lists, wide, [])}) == 6

    def test_many_arrays(self) -> None:
        backend = cuda_backend()
        with backend.scope():
            arrays = [cupy.full(3, number, dtype=cupy.int32) for number in range(50)]
            first = backend.checksum(arrays)
            assert backend.checksum(arrays[::-1]) != first
            assert backend.checksum(arrays) == first

    @pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "float64"])
    @pytest.mark.parametrize("count", [1, 2, 3, 1003])
    def test_every_type(self, dtype: str, count: int) -> None:
        """Also where an array begins between words of four bytes, and ends there."""
        backend = cuda_backend()
        with backend.scope():
            array = cupy.zeros(count + 1, dtype=dtype)[1:]
            before = backend.checksum([array])
            assert backend.checksum([array.copy()]) == before
            for entry in {0, count // 2, count - 1}:
                array[entry] = 1
                assert backend.checksum([array]) != before
                array[entry] = 0
            assert backend.checksum([array]) == before
