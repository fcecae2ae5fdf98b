"""Digests of what the compiler makes of random graphs: the same in every process."""

import hashlib
from collections.abc import Iterator

from caspar.codegen.targets import TARGETS, Target
from caspar.driver import compile_kernel
from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec
from caspar.memory.kernel import KernelSpec
from caspar.memory.patterns import ReadSequential, ReadUnique, WriteSequential
from caspar.passes.pipeline import GRAPH_STAGES
from tests.ir.graph_cases import GraphCase, Recipe
from tests.ir.random_graphs import random_case
from tests.passes.checking import all_schedules
from tests.passes.kernels import KERNELS

NUM_GRAPHS = 12
NUM_SCHEDULED = 4
NUM_COMPILED = 3


def kernel_of(case: GraphCase) -> KernelSpec:
    """A kernel whose arguments are those of a random graph."""
    dtype = case.graph.dtype
    args = []
    for name, array in case.inputs.items():
        read = ReadSequential() if len(array) > 1 else ReadUnique()
        write = WriteSequential() if name in case.tolerances else None
        args.append(ArgSpec(name, array.shape[1], dtype, read, write))
    args.append(ArgSpec("y", len(case.tolerances["y"]), dtype, write=WriteSequential()))
    return KernelSpec("random_kernel", tuple(args), case.graph)


def digests() -> Iterator[str]:
    """Every stage of many graphs, every order of some, the sources of a few."""
    for seed in range(NUM_GRAPHS):
        dtype = (DType.FLOAT32, DType.FLOAT64)[seed % 2]
        case = random_case(seed, Recipe(dtype, 20, 20, only_exact=seed % 3 == 0))
        for target in TARGETS.values():
            yield _stages(case, target)
            if seed < NUM_COMPILED:
                yield _digest(compile_kernel(kernel_of(case), target))
        if seed < NUM_SCHEDULED:
            yield _digest(all_schedules(case.graph))
    for kernel in KERNELS.values():
        yield _digest(all_schedules(kernel()))


def _stages(case: GraphCase, target: Target) -> str:
    graph = case.graph
    digest = ""
    for _, stage in GRAPH_STAGES:
        graph = stage(graph, target.costs[graph.dtype])
        digest = _digest((digest, graph))
    return digest


def _digest(made: object) -> str:
    return hashlib.sha256(repr(made).encode()).hexdigest()
