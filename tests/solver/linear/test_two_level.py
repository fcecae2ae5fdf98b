"""The two-level preconditioner: its parts, its matrix, and what solves make of it."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import caspar
from caspar.bundle_adjustment import snavely
from caspar.equations.parts import NodePart
from caspar.errors import FactorError, OptionError
from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.choice.recipe import make_recipe
from caspar.solver.kept_system import KeptSystem
from caspar.solver.linear.gradients import ConjugateGradients
from caspar.solver.linear.two_level.clusters import make_clusters
from caspar.solver.linear.two_level.coarse_launches import CoarseLaunches
from caspar.solver.linear.two_level.coarse_space import SHIFT
from caspar.solver.system.launches import Binder
from caspar.solver.system.phases import Phases, flattened
from tests.harness_backend import HarnessBackend
from tests.solver.bundles import arrays_of, part_of, read
from tests.solver.linear import linear_cases
from tests.solver.linear.linear_cases import MIXES, assert_first_step, glance, hold, pin
from tests.solver.solving import Arrays, assert_same_values

Matrix = NDArray[np.float64]

FUSED = (glance, hold)
NOT_FUSED = (glance, hold, pin)
DAMPING = 1e-3


def _solver(factors: Any = NOT_FUSED, **choices: Any) -> caspar.Solver:
    named = {"backend": "cpu", "precision": "float64", "inner_iterations": 0, **choices}
    return caspar.Solver(factors, preconditioner="two_level", **named)


def _marks(factors: tuple[caspar.Factor, ...]) -> Arrays:
    wanted = {"View", "Mark", *(factor.name for factor in factors)}
    arrays = linear_cases.make_arrays(num_views=13, num_marks=60)
    # all of them: every mark is seen but the last
    arrays["Mark"] = arrays["Mark"][:-1]
    arrays["pin"] = {"mark": np.arange(59), "known": arrays["pin"]["known"][:-1]}
    arrays["glance"] = {**arrays["sight"], "seen": 0.5 * arrays["sight"]["seen"]}
    return {name: rows for name, rows in arrays.items() if name in wanted}


class _Parts:
    """The coarse space of a solver after its first linear solve, and how to use its kernels."""

    def __init__(self, solver: caspar.Solver, arrays: Arrays) -> None:
        with solver.system(arrays) as system:
            linear = system.solvers.current
            assert isinstance(linear, ConjugateGradients)
            preconditioner: Any = linear.preconditioner
            self.preconditioner, self.space = preconditioner, preconditioner.space
            self.plan = system.plan
            system.score()
            system.linearize(DAMPING)
            for name, value in (("damping", DAMPING), ("levelling", 1.0), ("done", 0.0)):
                self.plan.scalar(name)[...] = value
            linear.begin()
            linear.solve(1)
        self.plan.scalar("done")[...] = 0.0
        self.binder = Binder(self.plan)
        launches = CoarseLaunches(self.plan, self.binder, self.space)
        self.restrict, self.reduce, self.apply = flattened(launches.correct)
        self.prolong = launches.prolong

    @property
    def _shape(self) -> tuple[int, int]:
        return self.plan.reduced[0].count, 3

    def _vector(self, part: NodePart, vector: Matrix) -> None:
        self.binder.pack(
            self.plan.reduced[0].key(part), np.ascontiguousarray(vector.reshape(self._shape))
        )

    def _read(self, part: NodePart) -> Matrix:
        rows = np.empty(self._shape)
        self.binder.unpack(self.plan.reduced[0].key(part), rows)
        return rows.reshape(-1)

    def columns(self) -> Matrix:
        """P, from z += P y."""
        size = self.space.structure.size
        correction = self.space.binding("correction", size).data
        found = []
        for unit in np.eye(size):
            correction[...] = unit
            self._vector(NodePart.PRECONDITIONED, np.zeros(self._shape))
            self.prolong.run()
            found.append(self._read(NodePart.PRECONDITIONED))
        return np.stack(found, axis=1)

    def restricted(self, vector: Matrix) -> Matrix:
        """P^T r."""
        self._vector(NodePart.RESIDUAL, vector)
        self.restrict.run()
        self.reduce.run()
        found: Matrix = self.space.binding("restricted", 1).data[: self.space.structure.size]
        return found.copy()

    def product(self, vector: Matrix) -> Matrix:
        """S p, by the kernels of PCG."""
        self._vector(NodePart.DIRECTION, vector)
        self.binder.clear(self.plan.reduced[0].key(NodePart.PRODUCT)).run()
        for launch in flattened(Phases(self.plan, self.binder).iteration().product):
            launch.run()
        diagonal = np.ones_like(vector) if self.plan.is_scaled else self._read(NodePart.DIAGONAL)
        return self._read(NodePart.PRODUCT) + DAMPING * diagonal * vector

    def matrix(self) -> Matrix:
        """A without its shift, from the entries of the lower triangle."""
        dense = self.preconditioner.factorization.matrix
        dense[...] = 0.0
        self.space.entries(dense).run()
        shift = SHIFT[self.plan.types.storage, self.plan.is_scaled]
        lower = np.tril(dense) - shift * np.eye(len(dense))
        scale = self.space.binding("scale", 1).data[: len(dense)]
        inverse_scale = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0.0)
        full = lower + np.tril(lower, -1).T
        return np.asarray(full * inverse_scale[:, None] * inverse_scale)


@pytest.mark.parametrize("jacobian", ["stored", "recompute"])
@pytest.mark.parametrize("factors", [FUSED, NOT_FUSED], ids=["fused", "not fused"])
def test_the_coarse_matrix_is_that_of_the_products(
    factors: tuple[caspar.Factor, ...], jacobian: str
) -> None:
    parts = _Parts(_solver(factors, jacobian=jacobian), _marks(factors))
    columns = parts.columns()
    product = np.stack([parts.product(column) for column in columns.T], axis=1)
    wanted = columns.T @ product
    size = np.sqrt(np.diag(wanted))
    assert parts.space.structure.num_clusters == 4
    assert_allclose(parts.matrix(), wanted, atol=1e-9 * size.max() ** 2)
    # 6 displacements and 3 components, the tenth column fills up the group; the last cluster is a
    # view that sees nothing
    assert np.count_nonzero(size) == 9 * 3 + 3


def test_restriction_is_the_transpose_of_prolongation() -> None:
    parts = _Parts(_solver(), _marks(NOT_FUSED))
    residual = np.random.default_rng(1).standard_normal(13 * 3)
    assert_allclose(parts.restricted(residual), parts.columns().T @ residual, rtol=1e-9, atol=1e-9)


def test_the_correction_solves_the_coarse_system() -> None:
    parts = _Parts(_solver(FUSED), _marks(FUSED))
    residual = np.random.default_rng(2).standard_normal(13 * 3)
    restricted = parts.restricted(residual)
    parts.apply.run()
    correction = parts.space.binding("correction", 1).data
    matrix = parts.matrix()
    assert_allclose(matrix @ correction, restricted, atol=1e-6 * np.abs(restricted).max())
    descents = parts.space.binding("descents", 1).data[parts.plan.num_reduced_tiles :]
    assert descents.sum() == pytest.approx(correction @ restricted, rel=1e-9)


# -- solves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("jacobian", ["stored", "float16", "recompute"])
def test_a_step_is_that_of_the_normal_equations(jacobian: str) -> None:
    tolerance = 1e-2 if jacobian == "float16" else 1e-6
    assert_first_step(_solver(jacobian=jacobian), "bundle adjustment", 1e-4, tolerance)


@pytest.mark.parametrize("jacobian", ["stored", "float16", "recompute"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_cuda_texts_take_the_same_step(deterministic: bool, jacobian: str) -> None:
    solver = _solver(backend=HarnessBackend(128), deterministic=deterministic, jacobian=jacobian)
    tolerance = 1e-2 if jacobian == "float16" else 1e-6
    assert_first_step(solver, "bundle adjustment", 1e-4, tolerance)


@pytest.mark.parametrize("preconditioner", ["two_level", "block_jacobi"])
def test_tiles_leave_room_for_sums_over_clusters(preconditioner: str) -> None:
    """Of a device, which takes tiles of 256 otherwise."""
    recipe = make_recipe([snavely], linear_solver="schur_pcg", preconditioner=preconditioner)
    library = KeptSystem(HarnessBackend(256), recipe).kernels.compile()
    assert library.tile_size == (128 if preconditioner == "two_level" else 256)


@cache
def _bundle() -> Arrays:
    return arrays_of(part_of(read("problem-49-7776"), 1500))


def _solved(preconditioner: str, precision: str, **options: Any) -> caspar.SolveResult:
    solver = caspar.Solver(
        snavely,
        backend="cpu",
        precision=precision,
        linear_solver="schur_pcg",
        preconditioner=preconditioner,
    )
    return solver.solve(_bundle(), **options)


@pytest.mark.parametrize("precision", ["mixed", "float32", "float64"])
def test_fewer_iterations_lead_to_the_same_optimum(precision: str) -> None:
    wanted = _solved("block_jacobi", precision)
    result = _solved("two_level", precision, min_linear_iterations=6)
    assert result.status.is_success
    assert result.linear_solver == "schur_pcg"
    assert result.final_cost == pytest.approx(wanted.final_cost, rel=1e-4)


def test_tight_solves_take_half_of_the_iterations() -> None:
    options = {
        "max_iterations": 3,
        "linear_tolerance": 1e-5,
        "min_linear_tolerance": 1e-5,
        "initial_damping": 1e-6,
        "max_linear_iterations": 1000,
    }
    one, two = (
        sum(record.linear_iterations for record in _solved(name, "float64", **options).iterations)
        for name in ("block_jacobi", "two_level")
    )
    assert 2 * two < one


def test_solves_repeat_to_the_bit() -> None:
    first, second = (_solved("two_level", "mixed", max_iterations=4) for _ in range(2))
    assert_same_values(first.values, second.values)


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mix", "part"),
    [
        ("shared lens", "1 eliminated and 2 remaining"),
        ("two factors on marks", "factor parallax does not touch exactly one View, by an index"),
        ("views alone", "0 eliminated and"),
        ("views and marks apart", "no factor joins Mark and View"),
    ],
)
def test_factors_that_have_no_coarse_space(mix: str, part: str) -> None:
    with pytest.raises(FactorError, match=part):
        _solver(MIXES.get(mix, (hold, pin)))
    # `auto` takes another one
    caspar.Solver(MIXES.get(mix, (hold, pin)), backend="cpu")


@pytest.mark.parametrize("linear_solver", ["pcg", "schur_dense", "sparse"])
def test_other_linear_solvers_have_no_preconditioner(linear_solver: str) -> None:
    with pytest.raises(OptionError, match="use linear_solver='schur_pcg' or 'auto'"):
        _solver(linear_solver=linear_solver)


@pytest.mark.parametrize("name", ["ilu", "block_tridiagonal"])
def test_unknown_preconditioners_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match="must be one of 'auto', 'block_jacobi', 'two_level'"):
        caspar.Solver(snavely, backend="cpu", preconditioner=name)


# -- clusters and inverses -----------------------------------------------------------------------


def test_clusters_are_what_shares_neighbours() -> None:
    """Three groups whose numbers say nothing."""
    random = np.random.default_rng(0)
    group = random.permutation(np.repeat(np.arange(3), 8))
    nodes, neighbours = [], []
    for neighbour in range(300):
        members = np.flatnonzero(group == neighbour % 3)
        nodes += random.choice(members, 4, replace=False).tolist()
        neighbours += [neighbour] * 4
    labels = make_clusters(np.array(nodes), np.array(neighbours), 24, 3)
    assert_array_equal(np.unique(labels), [0, 1, 2])
    for number in range(3):
        assert len(np.unique(labels[group == number])) == 1


def test_nodes_that_share_nothing_are_in_clusters_too() -> None:
    labels = make_clusters(np.arange(10), np.arange(10), 12, 4)
    assert labels.shape == (12,)
    assert_array_equal(np.unique(labels), np.arange(4))


def test_inverses_say_where_there_is_none() -> None:
    solver = CpuBackend().dense_factorization(3)
    matrix = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
    inverse = np.empty((3, 3))
    for sign in (1.0, -1.0, 1.0):
        solver.matrix[...] = np.tril(sign * matrix)
        solver.factorize()
        solver.invert(inverse)
        assert solver.outcome[0] == float(sign < 0.0)
    assert_allclose(inverse @ matrix, np.eye(3), atol=1e-12)
