"""Sums of many terms that have subsets in common."""

import random

from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.ops import Op


def wide_sums(num_sums: int, num_terms: int, num_inputs: int, seed: int = 0) -> Graph:
    """Sums of random subsets of the inputs."""
    rng = random.Random(seed)
    builder = GraphBuilder(DType.FLOAT64)
    length = builder.dtype.chunk_length
    inputs: list[int] = []
    for first in range(0, num_inputs, length):
        inputs += builder.read("x", first // length, min(length, num_inputs - first))
    sums = [builder.sum(rng.sample(inputs, num_terms)) for _ in range(num_sums)]
    for first in range(0, num_sums, length):
        builder.store("y", first // length, sums[first : first + length])
    return builder.build()


def num_additions(graph: Graph) -> int:
    """Binary additions that the sums of a graph take."""
    return sum(len(call.operands) - 1 for call in graph.calls if call.op is Op.SUM)
