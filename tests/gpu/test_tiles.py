"""Tiles built on a device equal those built by NumPy, array by array."""

from dataclasses import fields

import numpy as np
import pytest

from caspar.codegen.cuda_header import BLOCK_SIZE
from caspar.memory.tiles import build_tile_index

pytestmark = pytest.mark.gpu

CASES = {
    "one": (1, 1),
    "a tile less one": (255, 40),
    "a tile": (256, 40),
    "a tile and one": (257, 1000),
    "many": (100_003, 7_001),
    "one object": (5_000, 1),
    "more objects than items": (300, 100_000),
}


@pytest.mark.parametrize("order", ["random", "sorted", "reversed"])
@pytest.mark.parametrize("case", sorted(CASES))
def test_equal_those_of_numpy(case: str, order: str) -> None:
    cuda = pytest.importorskip("caspar.runtime.cuda")
    num_items, num_objects = CASES[case]
    index = np.random.default_rng(1).integers(0, num_objects, num_items).astype(np.int32)
    if order != "random":
        index.sort()
    if order == "reversed":
        index = np.ascontiguousarray(index[::-1])
    backend = cuda.CudaBackend()
    with backend.scope():
        made = backend.tile_index(backend.upload(index), num_objects, BLOCK_SIZE)
        expected = build_tile_index(index, num_objects, BLOCK_SIZE)
        assert made.num_partials == expected.num_partials
        for field in fields(expected):
            if field.name != "num_partials":
                host = backend.to_host(getattr(made, field.name))
                assert np.array_equal(host, getattr(expected, field.name)), field.name
