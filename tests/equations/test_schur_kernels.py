"""The implicit Schur complement against dense algebra, to rounding.

Factors are linear and their Jacobians are given as constants, so that NumPy has them exactly.
Kernels are evaluated item by item, and what they add to nodes is summed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import caspar
from caspar.equations.factor_builder import SharedSums
from caspar.equations.factor_kernels import factor_kernels
from caspar.equations.solver_form import solver_form
from caspar.frontend.factors.jacobian import JacobianStorage
from caspar.frontend.factors.trace import Argument, TracedFactor, trace
from caspar.frontend.precision import TYPES
from caspar.ir.evaluate import evaluate_graph
from caspar.memory.accessors.nodes.exchanges import SpreadOverNode, SumOverNode
from caspar.memory.kernel import KernelSpec
from caspar.options import Precision

Array = NDArray[np.float64]
Index = NDArray[np.int64]
FLOAT64 = TYPES[Precision.FLOAT64]
DIMS = {"Eye": 3, "Dot": 2}
COUNTS = {"Eye": 4, "Dot": 6}


class Eye(sf.V3): ...


class Dot(sf.V2): ...


Sequential = caspar.ConstSequential


@caspar.factor
def sight(
    eye: Annotated[Eye, caspar.TunableShared],
    dot: Annotated[Dot, caspar.TunableShared],
    by_eye: Annotated[sf.M23, Sequential],
    by_dot: Annotated[sf.M22, Sequential],
) -> sf.V2:
    return by_eye * eye + by_dot * dot


@caspar.factor
def both(
    left: Annotated[Eye, caspar.TunableShared],
    right: Annotated[Eye, caspar.TunableShared],
    dot: Annotated[Dot, caspar.TunableShared],
    by_left: Annotated[sf.V3, Sequential],
    by_right: Annotated[sf.V3, Sequential],
    by_dot: Annotated[sf.V2, Sequential],
) -> sf.V1:
    return sf.V1(by_left.dot(left) + by_right.dot(right) + by_dot.dot(dot))


@caspar.factor
def tall(
    eye: Annotated[Eye, caspar.TunableShared],
    dot: Annotated[Dot, caspar.TunableShared],
    by_eye: Annotated[sf.M53, Sequential],
    by_dot: Annotated[sf.M52, Sequential],
) -> sf.V5:
    """More than twice as many rows as an eliminated node has scalars."""
    return by_eye * eye + by_dot * dot


@dataclass
class Linear:
    """Instances of one factor.

    Attributes:
        factor: The factor.
        index: By node argument.
        blocks: (n, rows, dim) Jacobian by node argument.
        kernels: By role.
        jacobian: Stored entries of each item.
    """

    factor: TracedFactor
    index: dict[str, Index]
    blocks: dict[str, Array]
    kernels: dict[str, KernelSpec] = field(default_factory=dict)
    jacobian: Array = field(default_factory=lambda: np.zeros((1, 0)))

    def constants(self) -> dict[str, Array]:
        """As SymForce stores them: matrices column by column."""
        return {
            f"by_{name}__value": block.transpose(0, 2, 1).reshape(len(block), -1)
            for name, block in self.blocks.items()
        }


def instances(rng: np.random.Generator, factor: caspar.Factor, count: int, rows: int) -> Linear:
    traced = trace(factor)
    index = {name.name: rng.integers(0, COUNTS[_type(name)], count) for name in traced.nodes}
    for name in index:
        index[name][1] = index[name][0]  # two of one pair
    blocks = {name.name: rng.normal(size=(count, rows, DIMS[_type(name)])) for name in traced.nodes}
    return Linear(traced, index, blocks)


def _type(argument: Argument) -> str:
    assert argument.node is not None
    return argument.node.name


class System:
    """Kernels and dense matrices of the same factors.

    Attributes:
        parts: (count, dim) arrays by node type and part.
        c: Jacobian by the eyes, dense; in the variables of the linear system.
        e: By the dots.
        v: Damped diagonal blocks of the dots, dense.
    """

    def __init__(
        self, rng: np.random.Generator, linear: Sequence[Linear], storage: JacobianStorage
    ) -> None:
        self.linear = linear
        factors = [one.factor for one in linear]
        dot = next(node.node for node in factors[0].nodes if _type(node) == "Dot")
        assert dot is not None
        form = solver_form(factors, [dot], SharedSums.ORDERED, storage)
        squares = {name: np.zeros((COUNTS[name], dim)) for name, dim in DIMS.items()}
        for one in linear:
            made = factor_kernels(one.factor, FLOAT64, form.factors[one.factor.name])
            one.kernels = dict(made.kernels)
            for argument in one.factor.nodes:
                own = (one.blocks[argument.name] ** 2).sum(axis=1)
                np.add.at(squares[_type(argument)], one.index[argument.name], own)
        is_scaled = storage.is_stored
        self.parts: dict[tuple[str, str], Array] = {}
        for name, dim in DIMS.items():
            self.parts[name, "value"] = rng.normal(size=(COUNTS[name], dim))
            self.parts[name, "diagonal"] = np.where(squares[name] > 0.0, squares[name], 1.0)
        if is_scaled:
            for one in linear:
                one.jacobian = self.run(one, "store")["jacobian"]
        scale = {
            name: 1.0 / np.sqrt(self.parts[name, "diagonal"]) if is_scaled else np.ones_like(rows)
            for name, rows in squares.items()
        }
        self.c, self.e = (self._dense(name, scale[name]) for name in DIMS)
        self.v = self.e.T @ self.e + 0.1 * np.eye(self.e.shape[1])
        self.parts["Dot", "preconditioner"] = _packed_inverse_roots(self.v, DIMS["Dot"])

    def _dense(self, name: str, scale: Array) -> Array:
        rows = []
        for one in self.linear:
            count, num_rows, _ = next(iter(one.blocks.values())).shape
            dense = np.zeros((count, num_rows, COUNTS[name], DIMS[name]))
            for argument in one.factor.nodes:
                if _type(argument) == name:
                    at = one.index[argument.name]
                    block = one.blocks[argument.name] * scale[at][:, None, :]
                    dense[np.arange(count), :, at] += block
            rows.append(dense.reshape(count * num_rows, -1))
        return np.concatenate(rows)

    def run(self, one: Linear, role: str) -> dict[str, Array]:
        """What a kernel stores, item by item."""
        spec, objects = one.kernels[role], {}
        given = {**one.constants(), "jacobian": one.jacobian, "done": np.zeros((1, 1))}
        for arg in spec.args:
            owner = _owner(one.factor, arg.name)
            if isinstance(arg.read, SumOverNode):
                assert owner is not None
                objects[arg.name] = one.index[owner.name]
            elif isinstance(arg.read, SpreadOverNode):
                continue
            elif arg.read is not None and owner is not None:
                part = arg.name.rpartition("__")[2]
                given[arg.name] = self.parts[_type(owner), part][one.index[owner.name]]
        inputs = {arg.name: given[arg.name] for arg in spec.args if arg.name in given}
        lengths = {arg.name: arg.chunk_length for arg in spec.args}
        return evaluate_graph(spec.graph, inputs, lengths, objects)

    def summed(self, role: str, node: str, part: str) -> Array:
        """What the kernels of a role add to a part of a node type: flat, node by node."""
        total: Any = 0.0
        for one in self.linear:
            found = self.run(one, role)
            for argument in one.factor.nodes:
                values = found.get(f"{argument.name}__{part}")
                if _type(argument) == node and values is not None:
                    sums = np.zeros((COUNTS[node], values.shape[1]))
                    np.add.at(sums, one.index[argument.name], values)
                    total = total + sums.reshape(-1)
        return np.asarray(total)

    def scalar(self, role: str, name: str) -> float:
        return sum(float(self.run(one, role)[name].sum()) for one in self.linear)

    @property
    def schur(self) -> Array:
        return self.c.T @ self.c - self.c.T @ self.e @ np.linalg.solve(self.v, self.e.T @ self.c)


def _owner(factor: TracedFactor, name: str) -> Argument | None:
    owner = name.rpartition("__")[0]
    return next((node for node in factor.nodes if node.name == owner), None)


def _packed_inverse_roots(matrix: Array, dim: int) -> Array:
    """W with W^T W = V^-1 of each diagonal block, lower triangles by rows."""
    places = np.tril_indices(dim)
    starts = range(0, len(matrix), dim)
    blocks = [matrix[start : start + dim, start : start + dim] for start in starts]
    return np.stack([np.linalg.inv(np.linalg.cholesky(block))[places] for block in blocks])


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


STORAGES = pytest.mark.parametrize(
    "storage",
    [JacobianStorage.STORED, JacobianStorage.RECOMPUTED],
    ids=lambda storage: str(storage.value),
)


def assert_exact(found: Array, wanted: Array) -> None:
    """To rounding."""
    assert_allclose(found, wanted, rtol=1e-11, atol=1e-11)


def alone(rng: np.random.Generator, storage: JacobianStorage) -> System:
    return System(rng, [instances(rng, sight, 17, 2)], storage)


def together(rng: np.random.Generator, storage: JacobianStorage) -> System:
    """Two factors on one eliminated type; one of them has two eyes, which may be the same."""
    two = instances(rng, both, 13, 1)
    two.index["right"][:3] = two.index["left"][:3]
    return System(rng, [instances(rng, sight, 17, 2), two], storage)


def many_rows(rng: np.random.Generator, storage: JacobianStorage) -> System:
    return System(rng, [instances(rng, tall, 17, 5)], storage)


@STORAGES
def test_the_blocks_are_those_of_the_whole(rng: np.random.Generator, storage: Any) -> None:
    """The dots' blocks of J^T J do not couple them: the complement is what it is said to be."""
    system = together(rng, storage)
    off = system.v - np.kron(np.eye(COUNTS["Dot"]), np.ones((2, 2))) * system.v
    assert_allclose(off, 0.0, atol=1e-13)


@STORAGES
@pytest.mark.parametrize("make", [alone, together])
def test_gather(make: Any, rng: np.random.Generator, storage: JacobianStorage) -> None:
    system = make(rng, storage)
    x = system.parts["Eye", "direction"] = rng.normal(size=(COUNTS["Eye"], 3))
    found = system.summed("gather", "Dot", "inner")
    assert_exact(found, system.e.T @ system.c @ x.reshape(-1))


@STORAGES
def test_product_in_one_pass(rng: np.random.Generator, storage: JacobianStorage) -> None:
    system = alone(rng, storage)
    p = system.parts["Eye", "direction"] = rng.normal(size=(COUNTS["Eye"], 3))
    wanted = system.schur @ p.reshape(-1)
    assert_exact(system.summed("product", "Eye", "product"), wanted)
    assert system.scalar("product", "curvature") == pytest.approx(p.reshape(-1) @ wanted, rel=1e-11)


@STORAGES
def test_product_of_several_factors(rng: np.random.Generator, storage: JacobianStorage) -> None:
    """Gather, solve, scatter."""
    system = together(rng, storage)
    p = system.parts["Eye", "direction"] = rng.normal(size=(COUNTS["Eye"], 3))
    inner = system.summed("gather", "Dot", "inner")
    solved = np.asarray(np.linalg.solve(system.v, inner), np.float64)
    system.parts["Dot", "inner"] = solved.reshape(-1, 2)
    wanted = system.schur @ p.reshape(-1)
    assert_exact(system.summed("scatter", "Eye", "product"), wanted)
    assert system.scalar("scatter", "curvature") == pytest.approx(p.reshape(-1) @ wanted, rel=1e-11)


@STORAGES
@pytest.mark.parametrize("make", [alone, together, many_rows])
def test_reduced_gradient(make: Any, rng: np.random.Generator, storage: JacobianStorage) -> None:
    system = make(rng, storage)
    h = system.parts["Dot", "gradient"] = rng.normal(size=(COUNTS["Dot"], 2))
    wanted = -system.c.T @ system.e @ np.linalg.solve(system.v, h.reshape(-1))
    assert_exact(system.summed("reduce", "Eye", "gradient"), wanted)


@STORAGES
@pytest.mark.parametrize("make", [alone, together, many_rows])
def test_reduced_blocks(make: Any, rng: np.random.Generator, storage: JacobianStorage) -> None:
    """Every observation's own part: C^T (I - E V^-1 E^T) C of its rows."""
    system = make(rng, storage)
    system.parts["Dot", "gradient"] = np.zeros((COUNTS["Dot"], 2))
    inverse = np.linalg.inv(system.v)
    wanted = np.zeros((COUNTS["Eye"], 3, 3))
    first = 0
    for one in system.linear:
        count, num_rows, _ = next(iter(one.blocks.values())).shape
        eyes = [argument for argument in one.factor.nodes if _type(argument) == "Eye"]
        for item in range(count):
            e = system.e[first : first + num_rows]
            for argument in eyes:
                at = one.index[argument.name][item]
                c = one.blocks[argument.name][item] / system_scale(system, at)
                mixed = c.T @ e
                wanted[at] += c.T @ c - mixed @ inverse @ mixed.T
            first += num_rows
    places = np.tril_indices(3)
    found = system.summed("reduce", "Eye", "block").reshape(COUNTS["Eye"], -1)
    assert_exact(found, wanted[:, places[0], places[1]])


def system_scale(system: System, at: int) -> Array:
    """What columns of an eye are divided by."""
    is_scaled = "store" in system.linear[0].kernels
    return np.sqrt(system.parts["Eye", "diagonal"][at]) if is_scaled else np.ones(3)


@STORAGES
def test_reduced_blocks_are_the_complement_s(
    rng: np.random.Generator, storage: JacobianStorage
) -> None:
    """Where no two observations are of one pair."""
    linear = instances(rng, sight, COUNTS["Eye"] * COUNTS["Dot"], 2)
    linear.index["eye"] = np.repeat(np.arange(COUNTS["Eye"]), COUNTS["Dot"])
    linear.index["dot"] = np.tile(np.arange(COUNTS["Dot"]), COUNTS["Eye"])
    system = System(rng, [linear], storage)
    system.parts["Dot", "gradient"] = np.zeros((COUNTS["Dot"], 2))
    found = system.summed("reduce", "Eye", "block").reshape(COUNTS["Eye"], -1)
    places = np.tril_indices(3)
    for eye in range(COUNTS["Eye"]):
        block = system.schur[3 * eye : 3 * eye + 3, 3 * eye : 3 * eye + 3]
        assert_exact(found[eye], block[places])
