"""Conjugate gradients on a small system, as launches in phases: what loops are tested on.

Unknowns are the (n, 3) values of left and right nodes, the matrix is the identity plus a graph's
Laplacian, an edge joins a left node and a right one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.codegen.source import KernelSource
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.ir.dtype import DType
from caspar.memory.accessors.sums.partials import object_fields, tile_fields
from caspar.memory.array import Binding
from caspar.memory.kernel import KernelBuilder, KernelSpec, ReduceSpec
from caspar.memory.layout import array_scalars
from caspar.memory.patterns import (
    AddSharedPartials,
    AddSumPartials,
    ReadIndexed,
    ReadPartials,
    ReadSequential,
    WriteSequential,
    WriteUnique,
)
from caspar.runtime.backend import Backend, Kernel, Launch

DIM = 3
REAL = DType.FLOAT64
SIDES = ("left", "right")
SCALARS = ("done", "alpha", "beta", "descent", "iterations", "goal")
STEP_ARRAYS = ("solution", "residual", "direction", "product")
REDUCTION = ReduceSpec(DIM, REAL, 1)
TILE = 256


def _product() -> KernelSpec:
    kernel = KernelBuilder("product", REAL)
    kernel.guard("done")
    ends = [kernel.read(f"{side}_direction", DIM, REAL, ReadIndexed()) for side in SIDES]
    apart = [left - right for left, right in zip(*ends, strict=True)]
    kernel.write("left_product", apart, REAL, AddSharedPartials())
    kernel.write("right_product", [-one for one in apart], REAL, AddSharedPartials())
    square = apart[0] * apart[0] + apart[1] * apart[1] + apart[2] * apart[2]
    kernel.write("curvature", [square], REAL, AddSumPartials())
    return kernel.build()


def _alpha() -> KernelSpec:
    kernel = KernelBuilder("alpha_of", REAL)
    kernel.guard("done")
    curvature = kernel.read("curvatures", 1, REAL, ReadPartials())[0]
    kernel.write("alpha", [kernel.scalar("descent") / curvature], REAL, WriteUnique())
    stopped = (0.0 < curvature).where(0.0, 3.0)
    kernel.write("done", [stopped], REAL, WriteUnique())
    return kernel.build()


def _step() -> KernelSpec:
    kernel = KernelBuilder("step", REAL, few_items=True)
    kernel.guard("done")
    alpha = kernel.scalar("alpha")
    old = {name: kernel.read(name, DIM, REAL, ReadSequential()) for name in STEP_ARRAYS}
    moves = zip(old["solution"], old["direction"], strict=True)
    falls = zip(old["residual"], old["product"], strict=True)
    rest = [residual - alpha * product for residual, product in falls]
    moved = [value + alpha * direction for value, direction in moves]
    kernel.write("solution", moved, REAL, WriteSequential())
    kernel.write("residual", rest, REAL, WriteSequential())
    square = rest[0] * rest[0] + rest[1] * rest[1] + rest[2] * rest[2]
    kernel.write("descents", [square], REAL, AddSumPartials())
    return kernel.build()


def _beta() -> KernelSpec:
    kernel = KernelBuilder("beta_of", REAL)
    kernel.guard("done")
    descent = kernel.read("descents", 1, REAL, ReadPartials())[0]
    reached = descent <= kernel.scalar("goal")
    kernel.write("done", [reached.where(1.0, 0.0)], REAL, WriteUnique())
    kernel.write("beta", [descent / kernel.scalar("descent")], REAL, WriteUnique())
    kernel.write("descent", [descent], REAL, WriteUnique())
    kernel.write("iterations", [kernel.scalar("iterations") + 1.0], REAL, WriteUnique())
    return kernel.build()


def _turn() -> KernelSpec:
    kernel = KernelBuilder("turn", REAL, few_items=True)
    kernel.guard("done")
    beta = kernel.scalar("beta")
    residual = kernel.read("residual", DIM, REAL, ReadSequential())
    direction = kernel.read("direction", DIM, REAL, ReadSequential())
    turned = [new + beta * old for new, old in zip(residual, direction, strict=True)]
    kernel.write("direction", turned, REAL, WriteSequential())
    kernel.write("product", turned, REAL, WriteSequential())
    square = turned[0] * turned[0] + turned[1] * turned[1] + turned[2] * turned[2]
    kernel.write("curvature", [square], REAL, AddSumPartials())
    return kernel.build()


def loop_sources(target: str) -> dict[str, KernelSource]:
    """The kernels, by name."""
    specs = (_product(), _alpha(), _step(), _beta(), _turn())
    sources = {spec.name: compile_kernel(spec, TARGETS[target]) for spec in specs}
    reduction = TARGETS[target].generate_reduce(REDUCTION)
    return {**sources, reduction.name: reduction}


def own_lines(text: str) -> str:
    """The entry point of a loop."""
    return text[text.index('extern "C" __global__') :]


@dataclass(frozen=True)
class Conjugate:
    """A system, its launches and its memory.

    Attributes:
        phases: Of one iteration.
        flag: (1,) what the loop ends by.
        memory: By name; `<side>_<array>` and the scalars.
        expected: (num_left + num_right, 3) the solution, by NumPy.
    """

    phases: list[list[Launch]]
    flag: Any
    memory: Mapping[str, Any]
    expected: NDArray[np.float64]

    def loop(self, backend: Any, phases: Any = None, **more: Any) -> Any:
        """A loop of all phases, or of others."""
        phases = self.phases if phases is None else phases
        return backend.loop(phases, self.flag, self.memory["scalars"], **more)

    @property
    def launches(self) -> list[Launch]:
        """All of them, in order."""
        return [launch for phase in self.phases for launch in phase]

    def state(self, backend: Backend) -> dict[str, NDArray[np.float64]]:
        """What an iteration leaves behind."""
        return {name: backend.to_host(array) for name, array in self.memory.items()}

    def solution(self, backend: Backend) -> NDArray[np.float64]:
        """(num_left + num_right, 3) values."""
        sides = [backend.to_host(self.memory[f"{side}_solution"]) for side in SIDES]
        return np.concatenate([_rows(side) for side in sides])


def conjugate(
    backend: Backend,
    num_edges: int,
    num_left: int,
    num_right: int,
    *,
    tolerance: float = 1e-10,
    tile: int = TILE,
) -> Conjugate:
    """A random system, ready for its first iteration."""
    rng = np.random.default_rng(7)
    counts = {"left": num_left, "right": num_right}
    ends = {side: rng.integers(0, count, num_edges) for side, count in counts.items()}
    ends["left"].sort()
    index = {side: numbers.astype(np.int32) for side, numbers in ends.items()}
    rows = {side: rng.normal(size=(count, DIM)) for side, count in counts.items()}
    sources = loop_sources(backend.name)
    node_tiles = {side: sources["step"].num_blocks(count, tile) for side, count in counts.items()}
    edge_tiles = -(-num_edges // tile)
    memory = _start(backend, rows, edge_tiles, sum(node_tiles.values()), tolerance)
    shared = {name: Binding(memory["scalars"][k : k + 1], 1) for k, name in enumerate(SCALARS)}
    kernels = backend.load(list(sources.values()), tile)

    def sums(name: str, first: int) -> Binding:
        return Binding(memory[name], int(memory[name].shape[0]), fields={"offset": first})

    def each_side(kernel: Kernel) -> list[Launch]:
        launches, first = [], 0
        for side, count in counts.items():
            own = {name: Binding(memory[f"{side}_{name}"], count) for name in STEP_ARRAYS}
            own["descents"] = sums("descents", first)
            own["curvature"] = sums("curvatures", edge_tiles + first)
            launches.append(backend.bind(kernel, {**shared, **own}, count))
            first += node_tiles[side]
        return launches

    product = {**shared, "curvature": sums("curvatures", 0)}
    reductions = []
    for side, count in counts.items():
        here = backend.upload(index[side])
        tiles = backend.tile_index(here, count, tile)
        length = tiles.num_partials
        partials = backend.upload(np.zeros(DIM * length))
        ahead = memory[f"{side}_direction"]
        product[f"{side}_direction"] = Binding(ahead, count, fields={"index": here})
        product[f"{side}_product"] = Binding(partials, length, fields=tile_fields(tiles))
        bound = {"partials": Binding(partials, length, fields=object_fields(tiles))}
        bound["output"] = Binding(memory[f"{side}_product"], count)
        reductions.append(backend.bind(kernels[REDUCTION.name], bound, count))
    everything = {**shared, "curvatures": sums("curvatures", 0), "descents": sums("descents", 0)}
    phases = [
        [backend.bind(kernels["product"], product, num_edges)],
        reductions,
        [backend.bind(kernels["alpha_of"], everything, 1)],
        each_side(kernels["step"]),
        [backend.bind(kernels["beta_of"], everything, 1)],
        each_side(kernels["turn"]),
    ]
    return Conjugate(phases, memory["scalars"][:1], memory, _solved(index, rows))


def _start(
    backend: Backend,
    rows: Mapping[str, NDArray[np.float64]],
    num_edge_tiles: int,
    num_node_tiles: int,
    tolerance: float,
) -> dict[str, Any]:
    """What an iteration works on, before the first."""
    memory: dict[str, Any] = {}
    for side, values in rows.items():
        for name in STEP_ARRAYS:
            start = np.zeros_like(values) if name == "solution" else values
            memory[f"{side}_{name}"] = backend.upload(_blocked(start))
    total = sum(np.sum(values**2) for values in rows.values())
    curvatures = np.zeros(num_edge_tiles + num_node_tiles)
    curvatures[num_edge_tiles] = total
    memory["curvatures"] = backend.upload(curvatures)
    memory["descents"] = backend.upload(np.zeros(num_node_tiles))
    scalars = np.array([0.0, 0.0, 0.0, total, 0.0, tolerance**2 * total])
    memory["scalars"] = backend.upload(scalars)
    return memory


def _solved(
    index: Mapping[str, NDArray[np.int32]], rows: Mapping[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """The solution, by NumPy."""
    right_side = np.concatenate([rows[side] for side in SIDES])
    matrix = np.eye(len(right_side))
    left, right = index["left"], len(rows["left"]) + index["right"]
    for one, other in ((left, left), (right, right)):
        np.add.at(matrix, (one, other), 1.0)
    for one, other in ((left, right), (right, left)):
        np.add.at(matrix, (one, other), -1.0)
    return np.linalg.solve(matrix, right_side)


def _blocked(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Chunks of two, the last one alone: (2, n) and (1, n) objects."""
    count = rows.shape[0]
    blocked = np.zeros(array_scalars(DIM, REAL, count))
    blocked[: 2 * count] = rows[:, :2].reshape(-1)
    blocked[2 * count : 3 * count] = rows[:, 2]
    return blocked


def _rows(blocked: NDArray[np.float64]) -> NDArray[np.float64]:
    count = blocked.shape[0] // DIM
    return np.column_stack([blocked[: 2 * count].reshape(count, 2), blocked[2 * count : 3 * count]])
