"""Kernels of a factor: what is stored of the Jacobian, and that the parts fit together."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import caspar
from caspar.frontend.factor_kernels import FactorKernels, factor_kernels
from caspar.frontend.precision import TYPES
from caspar.frontend.trace import trace
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph
from caspar.memory.kernel import KernelSpec
from caspar.memory.patterns import (
    AddSharedPartials,
    AddSumPartials,
    ReadIndexed,
    ReadSequential,
    ReadUnique,
    WriteSequential,
)
from caspar.options import Precision
from tests.frontend.residuals import FACTORS, random_storage

Array = NDArray[np.float64]
FLOAT64 = TYPES[Precision.FLOAT64]


class Point(sf.V2): ...


class Frame(sf.V2): ...


Node = Annotated[Point, caspar.TunableShared]


def kernels_of(function: Any, precision: Precision = Precision.FLOAT64) -> FactorKernels:
    return factor_kernels(trace(caspar.factor(function)), TYPES[precision])


class TestStoredEntries:
    def test_literal_entries_are_not_stored(self) -> None:
        def difference(a: Node, b: Node) -> sf.V2:
            return a - b

        kernels = kernels_of(difference)
        assert kernels.jacobian_dim == 0
        assert "jacobian" not in [arg.name for arg in kernels.linearize.args]
        assert "jacobian" not in [arg.name for arg in kernels.product.args]

    def test_repeated_entries_are_stored_once(self) -> None:
        def scaled(a: Node, s: Annotated[sf.V1, caspar.TunableShared]) -> sf.V2:
            return s[0] * a

        # d/da: s on the diagonal; d/ds: a
        assert kernels_of(scaled).jacobian_dim == 3

    def test_zero_columns_and_rows(self) -> None:
        def first(a: Node) -> sf.V2:
            return sf.V2(a[0] ** 2, 7)

        kernels = kernels_of(first)
        assert kernels.jacobian_dim == 1
        assert product(kernels, {"a": np.array([[3.0, 5.0]])}, {"a": np.array([[1.0, 1.0]])}) == {
            "a": [[36.0, 0.0]],
            "curvature": 36.0,
        }

    def test_the_jacobian_argument_holds_what_is_counted(self) -> None:
        for factor in FACTORS.values():
            kernels = factor_kernels(trace(factor), FLOAT64)
            for spec in (kernels.linearize, kernels.product):
                assert spec.arg("jacobian").dim == kernels.jacobian_dim
            rows = len(trace(factor).residual)
            dims = [node.node.tangent_dim for node in trace(factor).nodes if node.node is not None]
            assert kernels.jacobian_dim <= rows * sum(dims)


def evaluate(spec: KernelSpec, inputs: dict[str, Array]) -> dict[str, Array]:
    """Values stored by a kernel, before any sum over items."""
    given = {arg.name: inputs[arg.name] for arg in spec.args if arg.read is not None}
    lengths = {arg.name: arg.chunk_length for arg in spec.args}
    return evaluate_graph(spec.graph, given, lengths)


def product(
    kernels: FactorKernels, inputs: dict[str, Array], directions: dict[str, Array]
) -> dict[str, Any]:
    """J^T (J p) of each argument and p^T J^T J p, through all three kernels."""
    scored = evaluate(kernels.score, inputs)
    linearized = evaluate(kernels.linearize, {**inputs, "residual": scored["residual"]})
    given = {f"{name}_direction": p for name, p in directions.items()}
    given |= {"jacobian": linearized.get("jacobian", np.zeros((1, 0))), "done": np.zeros((1, 1))}
    found = evaluate(kernels.product, given)
    result: dict[str, Any] = {name: found[f"{name}_product"].tolist() for name in directions}
    return result | {"curvature": float(found["curvature"][0, 0])}


@pytest.mark.parametrize("name", FACTORS)
def test_blocks_gradients_and_products_belong_to_one_jacobian(name: str) -> None:
    """From unit directions through the product kernel follows J^T J; its blocks are the others."""
    factor = trace(FACTORS[name])
    kernels = factor_kernels(factor, FLOAT64)
    rng = np.random.default_rng(0)
    inputs = {
        argument.name: random_storage(type(argument.symbolic), rng)[None]
        for argument in factor.arguments
    }
    scored = evaluate(kernels.score, inputs)
    assert_allclose(scored["cost"], 0.5 * (scored["residual"] ** 2).sum(keepdims=True))
    linearized = evaluate(kernels.linearize, {**inputs, "residual": scored["residual"]})
    dims = {node.name: node.node.tangent_dim for node in factor.nodes if node.node is not None}
    unit = np.eye(sum(dims.values()))
    starts = np.cumsum([0, *dims.values()])
    columns = []
    for direction in unit:
        parts = {
            own: direction[None, start : start + dim]
            for (own, dim), start in zip(dims.items(), starts[:-1], strict=True)
        }
        found = product(kernels, inputs, parts)
        columns.append(np.concatenate([found[own][0] for own in dims]))
        assert_allclose(found["curvature"], direction @ columns[-1], rtol=1e-12, atol=1e-12)
    square = np.stack(columns, axis=1)
    assert_allclose(square, square.T, rtol=1e-12, atol=1e-9 * np.abs(square).max())
    for (own, dim), start in zip(dims.items(), starts[:-1], strict=True):
        block = square[start : start + dim, start : start + dim]
        lower = block[np.tril_indices(dim)]
        largest = np.abs(square).max()
        assert_allclose(linearized[f"{own}_block"][0], lower, atol=1e-12 * largest)
        assert linearized[f"{own}_gradient"].shape == (1, dim)


def test_the_gradient_is_that_of_the_cost() -> None:
    def residual(a: Node, b: Node) -> sf.V2:
        return sf.V2(a[0] * b[1] - 1, sf.sin(a[1]) + b[0])

    kernels = kernels_of(residual)
    at = {"a": np.array([[0.3, 0.5]]), "b": np.array([[2.0, -1.0]])}

    def cost(inputs: dict[str, Array]) -> float:
        return float(evaluate(kernels.score, inputs)["cost"][0, 0])

    scored = evaluate(kernels.score, at)
    found = evaluate(kernels.linearize, {**at, "residual": scored["residual"]})
    for name in at:
        for axis, step in enumerate(1e-6 * np.eye(2)):
            after, before = (cost(at | {name: at[name] + s * step}) for s in (1.0, -1.0))
            slope = (after - before) / 2e-6
            assert found[f"{name}_gradient"][0, axis] == pytest.approx(slope, abs=1e-8)


def test_accesses_follow_the_markers() -> None:
    def mixed(
        p: Annotated[caspar.Pair[Point], caspar.TunablePair],
        f: Annotated[Frame, caspar.TunableUnique],
        c: Annotated[sf.V2, caspar.ConstSequential],
        i: Annotated[sf.V2, caspar.ConstIndexed],
        u: Annotated[sf.V2, caspar.ConstUnique],
    ) -> sf.V2:
        return sf.V2(p[0][0] * p[1][1], f[0] ** 2) + c + i + u

    kernels = kernels_of(mixed, Precision.MIXED)
    reads = {arg.name: arg.read for arg in kernels.score.args if arg.read is not None}
    assert reads == {
        "p_first": ReadIndexed(),
        "p_second": ReadIndexed(),
        "f": ReadUnique(),
        "c": ReadSequential(),
        "i": ReadIndexed(),
        "u": ReadUnique(),
    }
    writes = {arg.name: (arg.write, arg.dtype) for arg in kernels.linearize.args if arg.write}
    assert writes == {
        "jacobian": (WriteSequential(), DType.FLOAT32),
        "p_first_gradient": (AddSharedPartials(), DType.FLOAT64),
        "p_first_block": (AddSharedPartials(), DType.FLOAT64),
        "p_second_gradient": (AddSharedPartials(), DType.FLOAT64),
        "p_second_block": (AddSharedPartials(), DType.FLOAT64),
        "f_gradient": (AddSumPartials(), DType.FLOAT64),
        "f_block": (AddSumPartials(), DType.FLOAT64),
    }
    assert kernels.product.guard == "done"


@pytest.mark.parametrize("precision", Precision, ids=lambda precision: precision.value)
def test_types_of_each_precision(precision: Precision) -> None:
    types = TYPES[precision]
    kernels = factor_kernels(trace(FACTORS["distance"]), types)
    # the cost decides about steps: it is computed, not only summed, in the type of the sums
    assert kernels.score.graph.dtype is types.sums
    assert kernels.linearize.graph.dtype is types.storage
    assert kernels.product.graph.dtype is types.storage
    assert kernels.score.arg("cost").dtype is types.sums
    assert kernels.product.arg("a_product").dtype is types.storage
    assert kernels.product.arg("curvature").dtype is types.sums
