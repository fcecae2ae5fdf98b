"""The kernel that finds the covariances of the problems of a batch.

Input: the shape of a batch in float64, and a target. Output: a `KernelSource` that writes
(J^T W J)^-1 of each problem, NaN if it is too ill-conditioned for that, and its cost. What is held
has a covariance of zero. If the shape is `orthogonal`, a warp writes the triangle of the QR
decomposition of W^1/2 J instead: see `batch.covariance`.
"""

from caspar.batch.generate import programs
from caspar.batch.generate.instances import InstanceText, empty_text
from caspar.batch.generate.parameters import (
    COVARIANCE,
    FINAL_COST,
    HANDED,
    covariance_params,
)
from caspar.batch.generate.programs import WIDE, ProgramBuilder
from caspar.batch.generate.shape import BatchShape, Team
from caspar.batch.generate.step_program import free_unknowns
from caspar.batch.generate.team import TeamOrthogonalStep
from caspar.codegen.batch.text import PROBLEM
from caspar.codegen.source import KernelSource, source_from_json, source_to_json
from caspar.codegen.targets import TARGETS, Target
from caspar.driver import cached
from caspar.equations.node_blocks import free_block, inverse_cholesky, safe_diagonal
from caspar.ir.graph import Graph
from caspar.ir.scalar import total

COVARIANCE_KERNEL = "find_covariances"

LEAST_PIVOT = 1e-8
"""Pivot of the matrix scaled to unit diagonal below which more than half of the digits are lost."""


def cached_covariance_kernel(shape: BatchShape, target: str) -> KernelSource:
    """Generate the kernel for a target by its name, or take it from the cache."""
    return cached(
        ["covariance", target, shape.key],
        lambda: covariance_kernel(shape, TARGETS[target]),
        source_to_json,
        source_from_json,
    )


def covariance_kernel(shape: BatchShape, target: Target) -> KernelSource:
    """Generate the kernel."""
    text, size = empty_text(shape, target), shape.num_unknowns
    instances = InstanceText(shape, text, target)
    for name in (programs.VALUES, programs.CANDIDATE):
        text.shared(name, shape.storage, shape.storage_dim)
    if shape.is_masked:
        text.shared(programs.FREE, shape.storage, size + 1)
    with text.alone():
        instances.load()
    text.variable("cost", WIDE, text.number(0.0, WIDE))
    instances.score()
    with text.first_lane():
        text.set(f"{FINAL_COST}_data[{PROBLEM}]", "cost")
    if shape.team is Team.THREAD:
        text.array(programs.MATRIX, shape.storage, size * size)
        text.array(programs.GRADIENT, shape.storage, size)
        instances.linearize(programs.normal_graph)
        _invert(instances)
    else:
        triangle = TeamOrthogonalStep(instances, text.num_lanes)
        triangle.declare()
        triangle.linearize(programs.weighted_rows_graph)
        triangle.write_triangle(f"{COVARIANCE}_data")
    return text.source(COVARIANCE_KERNEL, covariance_params(shape))


def _invert(instances: InstanceText) -> None:
    text, shape = instances.text, instances.shape
    size = shape.num_unknowns
    places = {COVARIANCE: (f"{COVARIANCE}_data", f"{PROBLEM} * {size * size}")}

    def store(name: str, entry: int, value: str) -> None:
        array, first = places[name]
        text.set(f"{array}[{first} + {entry}]", value)

    instances.program(inverse_graph(shape), add=store)
    entry = text.name("entry")
    text.let(entry, f"{COVARIANCE}_data[{PROBLEM} * {size * size}]")
    with text.when(f"({text.chosen(f'{entry} == {entry}', '0', '1')}) == 1"):
        text.count(f"{HANDED}_data[0]")


def inverse_graph(shape: BatchShape) -> Graph:
    """(J^T W J)^-1 by rows, by the inverse of its Cholesky factor."""
    kernel, size = ProgramBuilder("covariance", shape.storage), shape.num_unknowns
    kernel.graph.origin = "covariance"
    free = free_unknowns(kernel, shape)
    entries = [kernel.entry(programs.MATRIX, i * size + i) for i in range(size)]
    scale = [safe_diagonal(entry).sqrt().reciprocal() for entry in entries]
    lower = {
        (i, j): kernel.entry(programs.MATRIX, i * size + j) * scale[i] * scale[j]
        for i in range(size)
        for j in range(i + 1)
    }
    root, is_regular = inverse_cholesky(free_block(lower, free), size)
    for place in range(size):
        is_regular = is_regular & (root[place, place] < LEAST_PIVOT**-0.5)
    for i in range(size):
        for j in range(i + 1):
            entry = total(root[k, i] * root[k, j] for k in range(i, size)) * scale[i] * scale[j]
            if free is not None:
                entry = (free[i] & free[j]).where(entry, 0.0)
            entry = is_regular.where(entry, float("nan"))
            for place in dict.fromkeys((i * size + j, j * size + i)):
                kernel.put(COVARIANCE, place, entry)
    return kernel.graph.build()
