"""Tangent Jacobians against SymForce's own and against differences through the retraction."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from symforce.ops import LieGroupOps, StorageOps

from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.jacobian import tangent_jacobians
from caspar.frontend.factors.trace import (
    Argument,
    ArgumentKind,
    TracedFactor,
    trace,
)
from caspar.frontend.markers import Pair
from caspar.frontend.symbolic.epsilon import SYMBOL, value, with_symbolic_epsilon
from caspar.frontend.symbolic.lower import Lowering
from caspar.frontend.symbolic.turned_vectors import TurnedVector
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph
from caspar.memory.kernel import KernelBuilder
from caspar.memory.patterns import ReadSequential, WriteRows
from tests.frontend.evaluating import lowered
from tests.frontend.factors.residuals import FACTORS, random_storage

Array = NDArray[np.float64]

NUM_POINTS = 5
STEP = 1e-5


def python_type(argument: Argument) -> Any:
    return type(argument.symbolic)


def random_inputs(factor: TracedFactor, seed: int = 0) -> dict[str, Array]:
    """(NUM_POINTS, storage_dim) values of each argument."""
    rng = np.random.default_rng(seed)
    return {
        argument.name: np.stack(
            [random_storage(python_type(argument), rng) for _ in range(NUM_POINTS)]
        )
        for argument in factor.arguments
    }


def residual_and_jacobians(
    factor: TracedFactor,
    inputs: dict[str, Array],
    dtype: DType = DType.FLOAT64,
    turned: Sequence[TurnedVector] | None = None,
    nodes: Sequence[Argument] | None = None,
) -> tuple[Array, dict[str, Array]]:
    """(n, rows) residual and (n, rows, tangent_dim) Jacobian of each node, by the frontend."""
    turned = factor.turned if turned is None else turned
    nodes = factor.nodes if nodes is None else nodes
    kernel = KernelBuilder("test", dtype)
    symbols = {str(SYMBOL): kernel.graph.const(value(dtype))}
    storage = {}
    for argument in factor.arguments:
        dim = argument.storage_dim
        storage[argument.name] = kernel.read(argument.name, dim, dtype, ReadSequential())
        names = map(str, argument.symbols)
        scalars = (scalar.value for scalar in storage[argument.name])
        symbols |= dict(zip(names, scalars, strict=True))
    lowering = Lowering(kernel.graph, symbols, "test")
    scalar = type(storage[factor.arguments[0].name][0])
    rows = [scalar(kernel.graph, lowering.lower(row)) for row in factor.residual]
    blocks = tangent_jacobians(kernel, nodes, rows, lowering, storage, turned)
    kernel.write("residual", rows, dtype, WriteRows())
    for name, block in blocks.items():
        flat = [entry for row in block for entry in row]
        kernel.write(f"J {name}", flat, dtype, WriteRows())
    found = evaluate_graph(kernel.build().graph, inputs)
    count = len(found["residual"])
    jacobians = {name: found[f"J {name}"].reshape(count, len(rows), -1) for name in blocks}
    return found["residual"], jacobians


def evaluate_symbolic(factor: TracedFactor, entries: list[Any], inputs: dict[str, Array]) -> Array:
    """(n, num_entries) values of expressions over the storage of the arguments."""
    names = [str(symbol) for argument in factor.arguments for symbol in argument.symbols]
    points = np.concatenate([inputs[argument.name] for argument in factor.arguments], axis=1)
    epsilon = np.full((len(points), 1), value(DType.FLOAT64))
    points = np.concatenate([points, epsilon], axis=1)
    return lowered(entries, [*names, str(SYMBOL)], points)


@pytest.mark.parametrize("name", FACTORS)
def test_equals_symforce(name: str) -> None:
    factor = trace(FACTORS[name])
    inputs = random_inputs(factor)
    residual, jacobians = residual_and_jacobians(factor, inputs)
    symbolic = sf.Matrix(len(factor.residual), 1, list(factor.residual))
    assert_allclose(residual, evaluate_symbolic(factor, list(factor.residual), inputs))
    for argument in factor.nodes:
        wanted = with_symbolic_epsilon(symbolic.jacobian, argument.symbolic, epsilon=SYMBOL)
        entries = [wanted[i, j] for i in range(wanted.rows) for j in range(wanted.cols)]
        values = evaluate_symbolic(factor, entries, inputs)
        found = jacobians[argument.name].reshape(NUM_POINTS, -1)
        assert_allclose(found, values, rtol=1e-9, atol=1e-9, err_msg=argument.name)


class Numeric:
    """A factor's function called with numbers."""

    def __init__(self, function: Factor, factor: TracedFactor) -> None:
        self._function = function
        self._factor = factor

    def __call__(self, storage: dict[str, Array]) -> Array:
        """The residual of one instance."""
        arguments: dict[str, Any] = {}
        for argument in self._factor.arguments:
            made = StorageOps.from_storage(argument.symbolic, list(storage[argument.name]))
            if argument.kind is ArgumentKind.NODE_PAIR:
                made = Pair((*arguments.get(argument.source, ()), made))
            arguments[argument.source] = made
        result = self._function(**arguments)
        return np.array([float(entry) for entry in result.to_flat_list()])


def retracted(argument: Argument, storage: Array, step: Array) -> Array:
    """The value after a step, by SymForce with numbers."""
    at = StorageOps.from_storage(argument.symbolic, [float(entry) for entry in storage])
    moved = LieGroupOps.retract(at, [float(entry) for entry in step], 1e-14)
    return np.array([float(entry) for entry in StorageOps.to_storage(moved)])


@pytest.mark.parametrize("name", FACTORS)
def test_equals_differences_through_the_retraction(name: str) -> None:
    assert_equals_differences(FACTORS[name])


def assert_equals_differences(traceable: Factor) -> None:
    """The residual is that of the function, the Jacobian that of small steps."""
    factor = trace(traceable)
    inputs = random_inputs(factor)
    residual, jacobians = residual_and_jacobians(factor, inputs)
    function = Numeric(traceable, factor)
    for number in range(2):
        at = {argument: rows[number] for argument, rows in inputs.items()}
        assert_allclose(residual[number], function(at), rtol=1e-9, atol=1e-9)
        for argument in factor.nodes:
            assert argument.node is not None
            columns = []
            for step in STEP * np.eye(argument.node.tangent_dim):
                ends = [
                    function(
                        at | {argument.name: retracted(argument, at[argument.name], sign * step)}
                    )
                    for sign in (1.0, -1.0)
                ]
                columns.append((ends[0] - ends[1]) / (2.0 * STEP))
            wanted = np.stack(columns, axis=1)
            scale = 1.0 + np.abs(wanted).max()
            found = jacobians[argument.name][number]
            assert_allclose(found / scale, wanted / scale, atol=1e-7, err_msg=argument.name)


@pytest.mark.parametrize("name", ["pose3_between", "pose2_between", "unit3_local", "rig"])
def test_the_retraction_is_that_of_symforce(name: str) -> None:
    factor = trace(FACTORS[name])
    rng = np.random.default_rng(1)
    for argument in factor.nodes:
        assert argument.node is not None
        storage, tangent, moved = argument.node.retracted_storage("node")
        names = [str(symbol) for symbol in (*storage, *tangent, SYMBOL)]
        values = [random_storage(python_type(argument), rng) for _ in range(NUM_POINTS)]
        steps = rng.normal(size=(NUM_POINTS, argument.node.tangent_dim))
        epsilon = np.full((NUM_POINTS, 1), value(DType.FLOAT64))
        found = lowered(moved, names, np.concatenate([values, steps, epsilon], axis=1))
        wanted = [retracted(argument, at, step) for at, step in zip(values, steps, strict=True)]
        assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


both_types = pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(DType.FLOAT64, 1e-6), (DType.FLOAT32, 2e-3)],
    ids=["float64", "float32"],
)


@both_types
def test_rotations_that_agree(dtype: DType, tolerance: float) -> None:
    """The logarithm at the identity: without an epsilon, 0 / 0."""
    rng = np.random.default_rng(4)
    turns = np.stack([[0.0, 0.0, 0.0, 1.0], *(random_storage(sf.Rot3, rng) for _ in range(4))])
    inputs = {"a": turns, "b": turns}
    residual, jacobians = residual_and_jacobians(trace(FACTORS["rot3_between"]), inputs, dtype)
    assert_allclose(residual, np.zeros((5, 3)), atol=tolerance)
    identity = np.broadcast_to(np.eye(3), (5, 3, 3))
    assert_allclose(jacobians["a"], -identity, atol=tolerance)
    assert_allclose(jacobians["b"], identity, atol=tolerance)


@both_types
def test_poses_that_agree(dtype: DType, tolerance: float) -> None:
    poses = np.array([[0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 3.0], [0.5, 0.5, -0.5, 0.5, 0.0, 1.0, 0.0]])
    inputs = {"pose": poses, "expected": poses}
    residual, jacobians = residual_and_jacobians(trace(FACTORS["pose3_prior"]), inputs, dtype)
    assert_allclose(residual, np.zeros((2, 6)), atol=tolerance)
    assert_allclose(jacobians["pose"][:, :3, :3], -np.stack([np.eye(3)] * 2), atol=tolerance)
    assert_allclose(jacobians["pose"][:, :3, 3:], 0.0, atol=tolerance)


@both_types
def test_directions_along_an_axis(dtype: DType, tolerance: float) -> None:
    """Unit3's chart divides by the distance to the x axis."""
    axes = np.concatenate([np.eye(3), -np.eye(3)])
    inputs = {"a": axes, "v": axes + 0.5}
    _, jacobians = residual_and_jacobians(trace(FACTORS["unit3_direction"]), inputs, dtype)
    # the columns of d a / d tangent are orthonormal and orthogonal to a
    basis = jacobians["a"]
    products = np.einsum("nij,nik->njk", basis, basis)
    assert_allclose(products, np.stack([np.eye(2)] * 6), atol=tolerance)
    assert_allclose(np.einsum("nij,ni->nj", basis, axes), 0.0, atol=tolerance)


@both_types
def test_points_that_coincide(dtype: DType, tolerance: float) -> None:
    """The norm has no derivative there; what comes out is finite."""
    points = np.zeros((1, 3))
    inputs = {"a": points, "b": points, "d": np.ones((1, 1))}
    residual, jacobians = residual_and_jacobians(trace(FACTORS["distance"]), inputs, dtype)
    assert_allclose(residual, [[-1.0]], atol=tolerance)
    assert all(np.isfinite(jacobian).all() for jacobian in jacobians.values())
