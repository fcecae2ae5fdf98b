"""The kernels of a node type compute what their documentation says."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

from caspar.equations.factor_builder import FactorForm, SharedSums
from caspar.equations.node_blocks import ABSENT, damped_step
from caspar.equations.node_kernels import (
    NODE_ROLES,
    eliminated_retract_kernel,
    factorize_kernel,
    node_kernels,
    retract_kernel,
    scale_kernel,
    solve_kernel,
    start_kernel,
    step_kernel,
    turn_kernel,
)
from caspar.equations.scalar_kernels import scalar_kernels
from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.jacobian import JacobianStorage
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.precision import TYPES
from caspar.ir.dtype import DType
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.patterns import ReadSequential, WriteSequential
from caspar.options import Precision
from tests.frontend.kernels import evaluating_kernels
from tests.frontend.kernels.evaluating_kernels import FLOAT64, Array
from tests.solver.reference import levelled

POSE = NodeType("Pose", sf.Pose3, storage_dim=7, tangent_dim=6)
DIM = POSE.tangent_dim
NUM = 7


def evaluate(spec: KernelSpec, **arrays: Any) -> dict[str, Array]:
    """A kernel on numbers; D remembers nothing unless `influence` is given."""
    count = max(len(array) for array in arrays.values() if np.ndim(array) > 0)
    return evaluating_kernels.evaluate(spec, **{"influence": np.zeros((count, DIM)), **arrays})


def square(triangle: Array) -> Array:
    """Lower triangles by rows to matrices."""
    lower = np.zeros((len(triangle), DIM, DIM))
    rows, columns = np.tril_indices(DIM)
    lower[:, rows, columns] = triangle
    return lower


def symmetric(triangle: Array) -> Array:
    lower = square(triangle)
    return lower + lower.swapaxes(1, 2) - lower * np.eye(DIM)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def block(rng: np.random.Generator) -> Array:
    """Lower triangles of J^T J with columns of very different scale."""
    jacobian = rng.normal(size=(NUM, 9, DIM)) * 10.0 ** np.arange(-3, 3)
    whole = np.einsum("nki,nkj->nij", jacobian, jacobian)
    rows, columns = np.tril_indices(DIM)
    triangle: Array = whole[:, rows, columns]
    return triangle


class TestScale:
    def test_gradients_go_to_unit_columns(self, rng: np.random.Generator) -> None:
        squares = 10.0 ** rng.uniform(-6, 6, (NUM, DIM))
        gradient = rng.normal(size=(NUM, DIM))
        found = evaluate(
            scale_kernel(POSE, FLOAT64), diagonal=squares, gradient=gradient, damping=0.3
        )
        assert_array_equal(found["diagonal"], squares)
        assert_allclose(found["gradient"], gradient / np.sqrt(squares))

    @pytest.mark.parametrize("damping", [1e-3, 10.0, 1e9])
    def test_entries_of_a_part_become_alike(self, damping: float, rng: np.random.Generator) -> None:
        """With damping: of the places of a pose the first is hardly held, nor is its turn."""
        parts = (range(3), range(3, 6))
        pose = replace(POSE, tangent_parts=parts)
        squares = rng.uniform(1.0, 2.0, (NUM, DIM))
        squares[:, (1, 3)] = 1e-12
        found = evaluate(
            scale_kernel(pose, FLOAT64),
            diagonal=squares,
            gradient=np.ones((NUM, DIM)),
            damping=damping,
            levelling=1.0,
        )
        assert_allclose(found["diagonal"], levelled(pose, squares, damping))
        least = damping / (damping + 10.0)
        for part in parts:
            ratio = found["diagonal"][:, part].min(axis=1) / squares[:, part].max(axis=1)
            assert_allclose(ratio, np.maximum(least, 1e-12), rtol=0.5)

    def test_entries_of_a_part_stay_apart_without_levelling(self, rng: np.random.Generator) -> None:
        pose = replace(POSE, tangent_parts=(range(3), range(3, 6)))
        squares = 10.0 ** rng.uniform(-90, 90, (NUM, DIM))
        found = evaluate(
            scale_kernel(pose, FLOAT64),
            diagonal=squares,
            gradient=np.ones((NUM, DIM)),
            damping=10.0,
            levelling=0.0,
        )
        assert_array_equal(found["diagonal"], squares)

    @pytest.mark.parametrize("entry", [0.0, -1.0, np.nan])
    def test_a_scalar_no_factor_touches_keeps_its_scale(self, entry: float) -> None:
        squares = np.full((1, DIM), entry)
        found = evaluate(
            scale_kernel(POSE, FLOAT64),
            diagonal=squares,
            gradient=np.ones((1, DIM)),
            damping=0.3,
        )
        assert_array_equal(found["diagonal"], ABSENT)
        assert_allclose(found["gradient"], 1.0, rtol=1e-7)

    @pytest.mark.parametrize("exponent", [-300, -40, -30, 300])
    def test_only_zeros_are_absent(self, exponent: int) -> None:
        """Entries have the units of residuals, so every size is possible."""
        size = 10.0**exponent
        found = evaluate(
            scale_kernel(POSE, FLOAT64),
            diagonal=np.full((1, DIM), size),
            gradient=np.ones((1, DIM)),
            damping=0.3,
        )
        assert_array_equal(found["diagonal"], size)
        assert_allclose(found["gradient"], size**-0.5)


ELIMINATED = pytest.mark.parametrize("eliminated", [False, True], ids=["reduced", "eliminated"])


def factorized(block: Array, damping: float, *, eliminated: bool, **more: Any) -> dict[str, Array]:
    """What `factorize` makes of a block, where D is not summed by itself."""
    spec = factorize_kernel(POSE, FLOAT64, eliminated=eliminated, **more)
    return evaluate(spec, block=block, damping=damping)


class TestFactorize:
    @ELIMINATED
    def test_w_is_the_inverse_root_of_the_damped_block(
        self, block: Array, eliminated: bool
    ) -> None:
        damping = 0.3
        found = factorized(block, damping, eliminated=eliminated)
        whole = symmetric(block)
        diagonal = np.einsum("nii->ni", whole)
        assert_allclose(found["diagonal"], diagonal)
        w = square(found["preconditioner"])
        damped = whole + damping * diagonal[:, None, :] * np.eye(DIM)
        scale = 1.0 / np.sqrt(diagonal)
        product = (w.swapaxes(1, 2) @ w) @ damped
        scaled = product * scale[:, None, :] / scale[:, :, None]
        assert_allclose(scaled, np.broadcast_to(np.eye(DIM), scaled.shape), atol=1e-9)

    @ELIMINATED
    def test_w_of_a_scaled_block(self, block: Array, eliminated: bool) -> None:
        """Damping is added as it is, and no diagonal is written: it is there."""
        whole = symmetric(block)
        diagonal = np.einsum("nii->ni", whole)
        unit = whole / np.sqrt(diagonal[:, :, None] * diagonal[:, None, :])
        rows, columns = np.tril_indices(DIM)
        found = factorized(unit[:, rows, columns], 0.3, eliminated=eliminated, scaled=True)
        assert list(found) == ["preconditioner"]
        w = square(found["preconditioner"])
        product = (w.swapaxes(1, 2) @ w) @ (unit + 0.3 * np.eye(DIM))
        assert_allclose(product, np.broadcast_to(np.eye(DIM), product.shape), atol=1e-12)

    def test_the_diagonal_is_of_the_whole_block(self, block: Array) -> None:
        """Damping does not shrink where the eliminated nodes take most of a block."""
        whole = symmetric(block)
        diagonal = np.einsum("nii->ni", whole)
        spec = factorize_kernel(POSE, FLOAT64, reduced=True)
        found = evaluate(spec, reduced_block=0.1 * block, diagonal=diagonal, damping=0.5)
        assert_array_equal(found["diagonal"], diagonal)
        w = square(found["preconditioner"])
        damped = 0.1 * whole + 0.5 * diagonal[:, None, :] * np.eye(DIM)
        assert_allclose(np.linalg.inv(w.swapaxes(1, 2) @ w), damped, rtol=1e-8, atol=1e-9)

    @ELIMINATED
    def test_a_scalar_no_factor_touches(self, block: Array, eliminated: bool) -> None:
        """Its row and column are zero: a unit diagonal takes their place."""
        untouched = symmetric(block)
        untouched[:, 2, :] = untouched[:, :, 2] = 0.0
        rows, columns = np.tril_indices(DIM)
        found = factorized(untouched[:, rows, columns], 1e-3, eliminated=eliminated)
        assert_array_equal(found["diagonal"][:, 2], ABSENT)
        assert np.isfinite(found["preconditioner"]).all()

    @ELIMINATED
    @pytest.mark.parametrize("scaled", [False, True])
    @pytest.mark.parametrize("precision", [Precision.FLOAT64, Precision.FLOAT32])
    def test_a_singular_block_stays_finite(
        self, precision: Precision, scaled: bool, eliminated: bool
    ) -> None:
        ones = np.ones((1, DIM * (DIM + 1) // 2))
        spec = factorize_kernel(POSE, TYPES[precision], eliminated=eliminated, scaled=scaled)
        found = evaluate(spec, block=ones, damping=0.0)
        assert np.isfinite(found["preconditioner"]).all()

    @pytest.mark.parametrize("scaled", [False, True])
    def test_a_block_that_is_not_definite_counts_as_one(self, scaled: bool) -> None:
        """As rounding may leave a reduced block; W is then the inverse root of the diagonal."""
        whole = np.diag([4.0, 4.0, -1.0, 4.0, 4.0, 4.0])
        rows, columns = np.tril_indices(DIM)
        diagonal = np.full((1, DIM), 4.0)
        spec = factorize_kernel(POSE, FLOAT64, reduced=True, scaled=scaled)
        reduced = whole[rows, columns][None]
        found = evaluate(spec, reduced_block=reduced, diagonal=diagonal, damping=0.1)
        wanted = np.eye(DIM) if scaled else 0.5 * np.eye(DIM)
        assert_array_equal(square(found["preconditioner"])[0], wanted)

    @pytest.mark.parametrize("entry", [0.0, -1.0, np.nan])
    def test_no_curvature(self, entry: float) -> None:
        block = np.full((1, DIM * (DIM + 1) // 2), 0.0)
        block[0, -1] = entry
        found = factorized(block, 0.5, eliminated=False)
        assert found["diagonal"][0, -1] == ABSENT
        assert np.isfinite(found["preconditioner"]).all()
        summed = np.full((1, DIM), entry)
        spec = factorize_kernel(POSE, FLOAT64, reduced=True)
        found = evaluate(spec, reduced_block=block, diagonal=summed, damping=0.5)
        assert_array_equal(found["diagonal"], ABSENT)
        assert np.isfinite(found["preconditioner"]).all()

    def test_the_step_of_a_small_block(self, block: Array, rng: np.random.Generator) -> None:
        """`damped_step`, which inner iterations take."""
        slope = rng.normal(size=(NUM, DIM))
        kernel = KernelBuilder("alone", DType.FLOAT64)
        entries = kernel.read("block", block.shape[1], DType.FLOAT64, ReadSequential())
        gradient = kernel.read("gradient", DIM, DType.FLOAT64, ReadSequential())
        damping = kernel.scalar("damping")
        step = damped_step(DIM, DType.FLOAT64, entries, gradient, damping)
        kernel.write("step", step, DType.FLOAT64, WriteSequential())
        found = evaluate(kernel.build(), block=block, gradient=slope, damping=0.2)["step"]
        whole = symmetric(block)
        damped = whole + 0.2 * whole * np.eye(DIM)
        wanted = -np.linalg.solve(damped, slope[:, :, None])[:, :, 0]
        assert_allclose(found, wanted, rtol=1e-6)


class TestConjugateGradients:
    """One system through start, product, step and turn."""

    def test_start(self, rng: np.random.Generator) -> None:
        gradient, diagonal = rng.normal(size=(NUM, DIM)), rng.uniform(0.5, 2.0, (NUM, DIM))
        triangle = rng.normal(size=(NUM, DIM * (DIM + 1) // 2))
        found = evaluate(
            start_kernel(POSE, FLOAT64),
            gradient=gradient,
            preconditioner=triangle,
            diagonal=diagonal,
            damping=0.25,
        )
        w = square(triangle)
        z = np.einsum("nji,njk,nk->ni", w, w, -gradient)
        assert_array_equal(found["step"], np.zeros((NUM, DIM)))
        assert_allclose(found["residual"], -gradient)
        assert_allclose(found["direction"], z)
        assert_allclose(found["product"], 0.25 * diagonal * z)
        assert_allclose(found["descent"][:, 0], (-gradient * z).sum(axis=1))
        assert_allclose(found["curvature"][:, 0], (0.25 * diagonal * z * z).sum(axis=1))

    def test_step(self, rng: np.random.Generator) -> None:
        step, direction, residual, product = rng.normal(size=(4, NUM, DIM))
        triangle = rng.normal(size=(NUM, DIM * (DIM + 1) // 2))
        found = evaluate(
            step_kernel(POSE, FLOAT64),
            step=step,
            direction=direction,
            residual=residual,
            product=product,
            preconditioner=triangle,
            alpha=0.75,
        )
        w = square(triangle)
        r = residual - 0.75 * product
        z = np.einsum("nji,njk,nk->ni", w, w, r)
        assert_allclose(found["step"], step + 0.75 * direction)
        assert_allclose(found["residual"], r)
        assert_allclose(found["preconditioned"], z)
        assert_allclose(found["descent"][:, 0], (r * z).sum(axis=1))

    def test_turn(self, rng: np.random.Generator) -> None:
        z, previous = rng.normal(size=(2, NUM, DIM))
        diagonal = rng.uniform(0.5, 2.0, (NUM, DIM))
        found = evaluate(
            turn_kernel(POSE, FLOAT64),
            preconditioned=z,
            direction=previous,
            diagonal=diagonal,
            beta=0.5,
            damping=0.25,
        )
        p = z + 0.5 * previous
        assert_allclose(found["direction"], p)
        assert_allclose(found["product"], 0.25 * diagonal * p)
        assert_allclose(found["curvature"][:, 0], (0.25 * diagonal * p * p).sum(axis=1))


@pytest.fixture
def poses(rng: np.random.Generator) -> Array:
    made = rng.normal(size=(NUM, 7))
    made[:, :4] /= np.linalg.norm(made[:, :4], axis=1, keepdims=True)
    return made


SCALED = pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])


class TestRetract:
    @SCALED
    def test_sums_the_terms_of_the_model(
        self, poses: Array, rng: np.random.Generator, scaled: bool
    ) -> None:
        step, gradient, residual = 0.1 * rng.normal(size=(3, NUM, DIM))
        diagonal = rng.uniform(0.5, 2.0, (NUM, DIM))
        found = evaluate(
            retract_kernel(POSE, FLOAT64, scaled=scaled),
            nodes=poses,
            step=step,
            gradient=gradient,
            residual=residual,
            diagonal=diagonal,
            damping=0.25,
        )
        weight = 1.0 if scaled else diagonal
        squared = (weight * step * step).sum(axis=1)
        wanted = [
            *((step * gradient).sum(axis=1), (step * residual).sum(axis=1)),
            *(0.25 * squared, squared, 0.0 * squared),
        ]
        assert_allclose(found["model"], np.stack(wanted, axis=1))
        moved = step / np.sqrt(diagonal) if scaled else step
        assert_allclose(np.linalg.norm(found["candidate"][:, :4], axis=1), 1.0)
        assert_allclose(found["candidate"][:, 4:], poses[:, 4:] + moved[:, 3:])

    @SCALED
    def test_an_eliminated_node_steps_by_what_is_left(
        self, poses: Array, rng: np.random.Generator, scaled: bool
    ) -> None:
        """-W^T W (gradient + E^T C x): its rows of the system hold exactly."""
        gradient, inner = 0.1 * rng.normal(size=(2, NUM, DIM))
        diagonal = rng.uniform(0.5, 2.0, (NUM, DIM))
        triangle = rng.normal(size=(NUM, DIM * (DIM + 1) // 2))
        found = evaluate(
            eliminated_retract_kernel(POSE, FLOAT64, scaled=scaled),
            nodes=poses,
            gradient=gradient,
            inner=inner,
            preconditioner=triangle,
            diagonal=diagonal,
            damping=0.25,
        )
        w = square(triangle)
        step = -np.einsum("nji,njk,nk->ni", w, w, gradient + inner)
        weight = 1.0 if scaled else diagonal
        squared = (weight * step * step).sum(axis=1)
        promised = (np.einsum("nij,nj->ni", w, gradient) ** 2).sum(axis=1)
        wanted = [(step * gradient).sum(axis=1), 0.0 * squared, 0.25 * squared, squared, promised]
        assert_allclose(found["model"], np.stack(wanted, axis=1))
        moved = step / np.sqrt(diagonal) if scaled else step
        assert_allclose(found["candidate"][:, 4:], poses[:, 4:] + moved[:, 3:])

    def test_no_step_no_move(self) -> None:
        nodes = np.array([[0.5, 0.5, -0.5, 0.5, 1.0, 2.0, 3.0]])
        zero = np.zeros((1, DIM))
        found = evaluate(
            retract_kernel(POSE, FLOAT64),
            nodes=nodes,
            step=zero,
            gradient=zero,
            residual=zero,
            diagonal=zero,
            damping=1.0,
        )
        assert_allclose(found["candidate"], nodes, atol=1e-14)


def test_solve_applies_the_inverse_of_the_block(rng: np.random.Generator) -> None:
    inner = rng.normal(size=(NUM, DIM))
    triangle = rng.normal(size=(NUM, DIM * (DIM + 1) // 2))
    found = evaluate(solve_kernel(POSE, FLOAT64), inner=inner, preconditioner=triangle)
    w = square(triangle)
    assert_allclose(found["inner"], np.einsum("nji,njk,nk->ni", w, w, inner))


@SCALED
@ELIMINATED
def test_names_are_unique(eliminated: bool, scaled: bool) -> None:
    storage = JacobianStorage.STORED if scaled else JacobianStorage.RECOMPUTED
    form = SolverForm(
        {"one": FactorForm(SharedSums.ATOMIC, storage)}, (POSE.name,) if eliminated else ()
    )
    own = node_kernels(POSE, FLOAT64, form)
    names = [spec.name for spec in (*own, *scalar_kernels(FLOAT64))]
    assert len(set(names)) == len(names)
    roles = [spec.name.removeprefix("Pose__") for spec in own]
    assert set(roles) <= set(NODE_ROLES)
    assert ("scale" in roles) is scaled
