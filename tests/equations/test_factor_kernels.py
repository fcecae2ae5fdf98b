"""Kernels of a factor: what is stored of the Jacobian, and that the parts fit together."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import caspar
from caspar.equations.factor_builder import FactorForm, SharedSums
from caspar.equations.factor_kernels import FactorKernels, factor_kernels
from caspar.frontend.factors.jacobian import JacobianStorage
from caspar.frontend.factors.trace import trace
from caspar.frontend.precision import TYPES
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph
from caspar.memory.access import WriteAccessor
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
from tests.covering import alternating
from tests.frontend.factors.residuals import FACTORS, random_storage

Array = NDArray[np.float64]
FLOAT64 = TYPES[Precision.FLOAT64]


class Point(sf.V2): ...


class Frame(sf.V2): ...


Node = Annotated[Point, caspar.TunableShared]


STORAGES = pytest.mark.parametrize(
    "storage",
    [JacobianStorage.STORED, JacobianStorage.RECOMPUTED],
    ids=lambda storage: str(storage.value),
)


def form(storage: JacobianStorage) -> FactorForm:
    return FactorForm(SharedSums.ORDERED, storage)


def kernels_of(
    function: Any,
    precision: Precision = Precision.FLOAT64,
    storage: JacobianStorage = JacobianStorage.STORED,
) -> FactorKernels:
    return factor_kernels(trace(caspar.factor(function)), TYPES[precision], form(storage))


class TestStoredEntries:
    def test_literal_entries_are_stored_scaled(self) -> None:
        def difference(a: Node, b: Node) -> sf.V2:
            return a - b

        assert kernels_of(difference).jacobian_dim == 4
        recomputed = kernels_of(difference, storage=JacobianStorage.RECOMPUTED)
        assert recomputed.jacobian_dim == 0
        assert recomputed.slots is None
        assert "jacobian" not in [arg.name for arg in recomputed.kernels["product"].args]

    def test_entries_of_a_column_are_stored_once(self) -> None:
        def scaled(a: Node, s: Annotated[sf.V1, caspar.TunableShared]) -> sf.V2:
            return s[0] * a

        # d/da: s on the diagonal, of two columns; d/ds: a
        assert kernels_of(scaled).jacobian_dim == 4

        def repeated(a: Node) -> sf.V3:
            return sf.V3(a[0] ** 2, -(a[0] ** 2), a[0] ** 2)

        assert kernels_of(repeated).jacobian_dim == 1

    @STORAGES
    def test_zero_columns_and_rows(self, storage: JacobianStorage) -> None:
        def first(a: Node) -> sf.V2:
            return sf.V2(a[0] ** 2, 7)

        kernels = kernels_of(first, storage=storage)
        assert kernels.jacobian_dim == (1 if storage.is_stored else 0)
        made = Evaluated(kernels, {"a__value": np.array([[3.0, 5.0]])}, ["a"])
        # scaled by the column's length, 6
        scale = 6.0 if storage.is_stored else 1.0
        found = made.product({"a": np.array([[1.0, 1.0]])})
        assert_allclose(found["a"], [[36.0 / scale**2, 0.0]])
        assert_allclose(found["curvature"], 36.0 / scale**2)

    def test_the_jacobian_argument_holds_what_is_counted(self) -> None:
        for factor in FACTORS.values():
            made = factor_kernels(trace(factor), FLOAT64)
            for role in ("store", "product"):
                assert made.kernels[role].arg("jacobian").dim == made.jacobian_dim
            rows = len(trace(factor).residual)
            dims = [node.node.tangent_dim for node in trace(factor).nodes if node.node is not None]
            assert made.jacobian_dim <= rows * sum(dims)


def evaluate(spec: KernelSpec, inputs: dict[str, Array]) -> dict[str, Array]:
    """Values stored by a kernel, before any sum over items."""
    given = {arg.name: inputs[arg.name] for arg in spec.args if arg.read is not None}
    lengths = {arg.name: arg.chunk_length for arg in spec.args}
    return evaluate_graph(spec.graph, given, lengths)


class Evaluated:
    """A factor of one instance, through its kernels in their order.

    Attributes:
        inputs: What later kernels read.
        scale: D^-1/2 of each node argument; 1 where nothing is scaled.
        parts: What the linearisation made of each argument, by `<argument>__<part>`.
    """

    def __init__(
        self, kernels: FactorKernels, inputs: dict[str, Array], nodes: Sequence[str]
    ) -> None:
        self.kernels = kernels.kernels
        scored = evaluate(self.kernels["score"], inputs)
        self.residual = scored["residual"]
        assert_allclose(scored["cost"], 0.5 * (self.residual**2).sum(keepdims=True))
        self.inputs = {**inputs, "residual": self.residual}
        self.parts = evaluate(self.kernels["linearize"], self.inputs)
        self.scale = {name: np.ones_like(self.parts[f"{name}__gradient"]) for name in nodes}
        self.inputs |= {"jacobian": np.zeros((1, 0)), "done": np.zeros((1, 1))}
        if kernels.slots is None:
            return
        for name in nodes:
            squares = self.parts[f"{name}__diagonal"]
            diagonal = np.where(squares > 0.0, squares, 1.0)
            self.inputs[f"{name}__diagonal"] = diagonal
            self.scale[name] = 1.0 / np.sqrt(diagonal)
        stored = evaluate(self.kernels["store"], self.inputs)
        self.inputs["jacobian"] = stored.pop("jacobian", np.zeros((1, 0)))
        self.parts |= stored

    def product(self, directions: dict[str, Array]) -> dict[str, Array]:
        """J^T J p of each argument, and `curvature` p^T J^T J p, in scaled variables."""
        given = {f"{name}__direction": p for name, p in directions.items()}
        found = evaluate(self.kernels["product"], {**self.inputs, **given})
        result = {name: found[f"{name}__product"] for name in directions}
        return result | {"curvature": found["curvature"][0, 0]}


@pytest.mark.parametrize(
    ("name", "storage"),
    alternating(FACTORS, [JacobianStorage.RECOMPUTED, JacobianStorage.STORED]),
)
def test_blocks_gradients_and_products_belong_to_one_jacobian(
    name: str, storage: JacobianStorage
) -> None:
    """From unit directions through the product kernel follows J^T J; its blocks are the others."""
    factor = trace(FACTORS[name])
    rng = np.random.default_rng(0)
    inputs = {
        argument.value_name: random_storage(type(argument.symbolic), rng)[None]
        for argument in factor.arguments
    }
    dims = {node.name: node.node.tangent_dim for node in factor.nodes if node.node is not None}
    made = Evaluated(factor_kernels(factor, FLOAT64, form(storage)), inputs, list(dims))
    unit = np.eye(sum(dims.values()))
    starts = np.cumsum([0, *dims.values()])
    columns = []
    for direction in unit:
        parts = {
            own: direction[None, start : start + dim]
            for (own, dim), start in zip(dims.items(), starts[:-1], strict=True)
        }
        found = made.product(parts)
        columns.append(np.concatenate([found[own][0] for own in dims]))
        assert_allclose(found["curvature"], direction @ columns[-1], rtol=1e-12, atol=1e-12)
    square = np.stack(columns, axis=1)
    largest = np.abs(square).max()
    assert_allclose(square, square.T, rtol=1e-12, atol=1e-9 * largest)
    for (own, dim), start in zip(dims.items(), starts[:-1], strict=True):
        block = square[start : start + dim, start : start + dim]
        lower = block[np.tril_indices(dim)]
        assert_allclose(made.parts[f"{own}__block"][0], lower, atol=1e-12 * largest)
        assert made.parts[f"{own}__gradient"].shape == (1, dim)
        if storage.is_stored:
            # columns of unit length, but for those that are zero
            lengths = np.diag(block)
            assert_allclose(lengths[lengths > 0.5], 1.0)
            assert_allclose(lengths[lengths <= 0.5], 0.0, atol=1e-12)


@pytest.mark.parametrize("name", FACTORS)
def test_scaled_products_are_those_of_the_jacobian(name: str) -> None:
    """What is stored and scaled, and what is derived again, are the same matrix."""
    factor = trace(FACTORS[name])
    rng = np.random.default_rng(1)
    inputs = {
        argument.value_name: random_storage(type(argument.symbolic), rng)[None]
        for argument in factor.arguments
    }
    dims = {node.name: node.node.tangent_dim for node in factor.nodes if node.node is not None}
    stored, plain = (
        Evaluated(factor_kernels(factor, FLOAT64, form(storage)), inputs, list(dims))
        for storage in (JacobianStorage.STORED, JacobianStorage.RECOMPUTED)
    )
    directions = {own: rng.normal(size=(1, dim)) for own, dim in dims.items()}
    wanted = plain.product({own: p * stored.scale[own] for own, p in directions.items()})
    found = stored.product(directions)
    for own in dims:
        assert_allclose(found[own], wanted[own] * stored.scale[own], rtol=1e-9, atol=1e-9)
        assert_allclose(stored.parts[f"{own}__gradient"], plain.parts[f"{own}__gradient"])


def test_the_gradient_is_that_of_the_cost() -> None:
    def residual(a: Node, b: Node) -> sf.V2:
        return sf.V2(a[0] * b[1] - 1, sf.sin(a[1]) + b[0])

    kernels = kernels_of(residual)
    at = {"a__value": np.array([[0.3, 0.5]]), "b__value": np.array([[2.0, -1.0]])}

    def cost(inputs: dict[str, Array]) -> float:
        return float(evaluate(kernels.kernels["score"], inputs)["cost"][0, 0])

    scored = evaluate(kernels.kernels["score"], at)
    found = evaluate(kernels.kernels["linearize"], {**at, "residual": scored["residual"]})
    for name in ("a", "b"):
        read = f"{name}__value"
        for axis, step in enumerate(1e-6 * np.eye(2)):
            after, before = (cost(at | {read: at[read] + s * step}) for s in (1.0, -1.0))
            slope = (after - before) / 2e-6
            assert found[f"{name}__gradient"][0, axis] == pytest.approx(slope, abs=1e-8)


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
    score = kernels.kernels["score"]
    reads = {arg.name: arg.read for arg in score.args if arg.read is not None}
    assert reads == {
        "p__first__value": ReadIndexed(),
        "p__second__value": ReadIndexed(),
        "f__value": ReadUnique(),
        "c__value": ReadSequential(),
        "i__value": ReadIndexed(),
        "u__value": ReadUnique(),
    }

    def writes(role: str) -> dict[str, tuple[WriteAccessor, DType]]:
        args = kernels.kernels[role].args
        return {arg.name: (arg.write, arg.dtype) for arg in args if arg.write is not None}

    ends = {
        "p__first": AddSharedPartials(),
        "p__second": AddSharedPartials(),
        "f": AddSumPartials(),
    }
    assert writes("linearize") == {
        f"{name}__{part}": (access, dtype)
        for name, access in ends.items()
        for part, dtype in (("gradient", DType.FLOAT64), ("diagonal", DType.FLOAT32))
    }
    assert writes("store") == {"jacobian": (WriteSequential(), DType.FLOAT32)}
    # of what is stored, which is rounded
    assert writes("square") == {
        f"{name}__block": (access, DType.FLOAT64) for name, access in ends.items()
    }
    assert kernels.kernels["product"].guard == "done"
    assert not any(spec.tiled for spec in kernels.kernels.values())


@pytest.mark.parametrize("precision", Precision, ids=lambda precision: precision.value)
def test_types_of_each_precision(precision: Precision) -> None:
    types = TYPES[precision]
    kernels = factor_kernels(trace(FACTORS["distance"]), types).kernels
    # the cost decides about steps, the gradient where they end
    for role in ("score", "linearize", "store"):
        assert kernels[role].graph.dtype is types.values
        assert kernels[role].arg("a__value").dtype is types.values
    assert kernels["product"].graph.dtype is types.storage
    assert kernels["score"].arg("cost").dtype is types.sums
    assert kernels["product"].arg("a__product").dtype is types.storage
    assert kernels["product"].arg("curvature").dtype is types.sums


@pytest.mark.parametrize("precision", Precision, ids=lambda precision: precision.value)
def test_what_reads_rounded_values(precision: Precision) -> None:
    """Jacobians that are derived again, and blocks beside them; gradients are of exact values."""
    types = TYPES[precision]
    way = form(JacobianStorage.RECOMPUTED)
    kernels = factor_kernels(trace(FACTORS["distance"]), types, way).kernels
    rounded = {
        role
        for role, spec in kernels.items()
        if any(arg.name.endswith("__rounded") for arg in spec.args)
    }
    if precision is not Precision.MIXED:
        assert rounded == set()
        assert "gradient" not in kernels
        return
    assert rounded == {"linearize", "product"}
    for role in rounded:
        assert kernels[role].arg("a__rounded").dtype is DType.FLOAT32
        assert kernels[role].graph.dtype is DType.FLOAT32
    written = {role: {arg.name for arg in kernels[role].args if arg.write} for role in kernels}
    assert written["gradient"] == {"a__gradient", "b__gradient"}
    assert kernels["gradient"].graph.dtype is DType.FLOAT64
    assert not any(name.endswith("__gradient") for name in written["linearize"])
