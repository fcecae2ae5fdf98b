"""The block tridiagonal preconditioner: what it inverts, what it refuses, what solves gain."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import caspar
from caspar.bundle_adjustment import snavely
from caspar.errors import FactorError, InputError, OptionError
from caspar.memory.access import ArgSpec
from caspar.memory.patterns import ReadSequential
from caspar.solver.linear.tridiagonal.chain_structure import eliminate
from caspar.solver.linear.tridiagonal.tridiagonal import ChainLaunches
from caspar.solver.system.launches import Binder
from caspar.solver.system.phases import Phases, flattened
from examples import pose_graph_3d
from tests.harness_backend import HarnessBackend
from tests.solver.chain_cases import (
    BENDS,
    CHAIN,
    MARKS,
    PAIRS,
    RIDES,
    chain_arrays,
    dense_preconditioner,
)
from tests.solver.linear_cases import MIXES, assert_first_step, glance, hold, pin, tie
from tests.solver.pose_graphs import KNOWN_OPTIMA, RotationError
from tests.solver.solving import Arrays, assert_same_values
from tests.support_memory import place

Matrix = NDArray[np.float64]

DAMPING = 1e-3


def _solver(factors: Any = CHAIN, **choices: Any) -> caspar.Solver:
    named = {"backend": "cpu", "precision": "float64", "inner_iterations": 0, **choices}
    return caspar.Solver(factors, preconditioner="block_tridiagonal", **named)


class _Parts:
    """The preconditioner of a solver at the start of its solve, and how to apply it."""

    def __init__(self, solver: caspar.Solver, arrays: Arrays) -> None:
        with solver.system(arrays) as system:
            self.plan = system.plan
            linear: Any = system.linear
            self.spaces = linear._spaces
            self.plan.scalar("damping")[...] = DAMPING
            system.score()
            system.linearize(DAMPING)
        self.binder = Binder(self.plan)
        self.phases = Phases(self.plan, self.binder)
        self.launches = ChainLaunches(self.plan, self.binder, self.spaces)
        self.factorize()

    def factorize(self) -> None:
        for launch in self.phases.reduce():
            launch.run()
        for space in self.spaces.values():
            for launch in space.factorize():
                launch.run()

    def _vector(self, name: str) -> list[tuple[Matrix, NDArray[np.int64]]]:
        """Of each type a vector's memory and the places of its rows."""
        found = []
        for node in self.plan.reduced:
            arg = ArgSpec(name, node.node.tangent_dim, self.plan.types.storage, ReadSequential())
            memory = self.plan.memory[f"{node.node.name}.{name}"]
            found.append((memory, place(arg, node.count).where))
        return found

    def apply(self, vector: Matrix) -> Matrix:
        """z = M^-1 r, in the order of the unknowns."""
        for name in ("done", "alpha", "beta"):
            self.plan.scalar(name)[...] = 0.0
        first = 0
        for memory, where in self._vector("residual"):
            memory[where] = vector[first : first + where.size].reshape(where.shape)
            first += where.size
        for name in ("step", "direction", "product"):
            for memory, _ in self._vector(name):
                memory[...] = 0.0
        steps, turns = (self.launches._each(role) for role in ("step", "turn"))
        for launch in flattened([steps, *self.launches.apply(), turns]):
            launch.run()
        found = [memory[where].ravel() for memory, where in self._vector("direction")]
        return np.concatenate(found).astype(np.float64)

    def inverse(self) -> Matrix:
        """M^-1."""
        size = sum(node.count * node.node.tangent_dim for node in self.plan.reduced)
        return np.stack([self.apply(unit) for unit in np.eye(size)], axis=1)

    @property
    def descent(self) -> float:
        return float(self.plan.memory["descents"].sum())


def _expected(parts: _Parts, factors: Any, arrays: Arrays, eliminated: str = "") -> Matrix:
    """M in the variables of the linear system."""
    matrix, diagonal = dense_preconditioner(factors, arrays, DAMPING, eliminated)
    if not parts.plan.is_scaled:
        return matrix
    scale = 1.0 / np.sqrt(diagonal)
    return matrix * scale[:, None] * scale


def _assert_inverse(
    parts: _Parts, factors: Any, arrays: Arrays, eliminated: str = "", tolerance: float = 1e-7
) -> None:
    matrix = _expected(parts, factors, arrays, eliminated)
    assert np.linalg.eigvalsh(matrix)[0] > 0.0
    found = parts.inverse()
    assert_allclose(found @ matrix, np.eye(len(matrix)), atol=tolerance)
    random = np.random.default_rng(3).standard_normal(len(matrix))
    product = parts.apply(random) @ random
    assert parts.descent == pytest.approx(product, rel=max(1e-9, tolerance**2))


# -- what it inverts -----------------------------------------------------------------------------


@pytest.mark.parametrize("jacobian", ["stored", "recompute"])
@pytest.mark.parametrize("num_views", [2, 3, 4, 5, 8, 9, 16, 17, 21, 40])
def test_chains_of_every_length(num_views: int, jacobian: str) -> None:
    arrays = chain_arrays(CHAIN, num_views)
    _assert_inverse(_Parts(_solver(jacobian=jacobian), arrays), CHAIN, arrays)


@pytest.mark.parametrize("gaps", [(1,), (9,), (3, 4, 5), (2, 7), tuple(range(1, 9))])
def test_chains_with_gaps(gaps: tuple[int, ...]) -> None:
    arrays = chain_arrays(CHAIN, 10, gaps)
    _assert_inverse(_Parts(_solver(), arrays), CHAIN, arrays)


@pytest.mark.parametrize(
    ("factors", "eliminated"),
    [(PAIRS, ""), (BENDS, ""), (RIDES, ""), (MARKS, "Mark")],
    ids=["pairs", "three nodes", "two chained types", "eliminated marks"],
)
@pytest.mark.parametrize("jacobian", ["stored", "recompute"])
def test_other_factors(factors: tuple[caspar.Factor, ...], eliminated: str, jacobian: str) -> None:
    arrays = chain_arrays(factors, 11)
    parts = _Parts(_solver(factors, jacobian=jacobian), arrays)
    assert list(parts.spaces) == (["View", "Speed"] if factors is RIDES else ["View"])
    _assert_inverse(parts, factors, arrays, eliminated)


def test_types_without_links_have_block_jacobi() -> None:
    """Marks are not eliminated here, and nothing joins two of them."""
    arrays = chain_arrays(MARKS, 9)
    parts = _Parts(_solver(MARKS, linear_solver="pcg"), arrays)
    assert list(parts.spaces) == ["View"]
    # residuals of the candidate are in the bytes of the blocks' factors
    parts.factorize()
    _assert_inverse(parts, MARKS, arrays)


@pytest.mark.parametrize("precision", ["mixed", "float32"])
def test_lower_precisions(precision: str) -> None:
    arrays = chain_arrays(CHAIN, 23)
    _assert_inverse(_Parts(_solver(precision=precision), arrays), CHAIN, arrays, tolerance=2e-3)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("jacobian", ["stored", "recompute"])
def test_cuda_texts_invert_the_same(jacobian: str, deterministic: bool) -> None:
    arrays = chain_arrays(BENDS, 11, (4,))
    solver = _solver(
        BENDS, backend=HarnessBackend(32), jacobian=jacobian, deterministic=deterministic
    )
    _assert_inverse(_Parts(solver, arrays), BENDS, arrays)


def test_rounded_jacobians() -> None:
    """Blocks and links are those of the very Jacobians that are multiplied."""
    arrays = chain_arrays(CHAIN, 13)
    _assert_sound(_Parts(_solver(jacobian="float16"), arrays))
    wanted = _solver().solve(arrays).final_cost
    found = _solver(jacobian="float16").solve(arrays).final_cost
    assert found == pytest.approx(wanted, rel=1e-6)


def _poses(num_poses: int) -> Arrays:
    arrays = pose_graph_3d.read()
    edges = arrays["odometry"]
    kept = (edges["start"] < num_poses) & (edges["end"] < num_poses)
    return {
        **arrays,
        "Pose": arrays["Pose"][:num_poses],
        "odometry": {name: np.asarray(rows)[kept] for name, rows in edges.items()},
    }


def test_poses_of_six_dimensions() -> None:
    arrays = _poses(14)
    parts = _Parts(_solver(pose_graph_3d.FACTORS), arrays)
    _assert_inverse(parts, pose_graph_3d.FACTORS, arrays, tolerance=1e-4)


# -- what is not positive definite ---------------------------------------------------------------


def _assert_sound(parts: _Parts) -> Matrix:
    """Finite, symmetric and positive semidefinite."""
    found = parts.inverse()
    assert np.isfinite(found).all()
    assert_allclose(found, found.T, atol=1e-9 * np.abs(found).max())
    assert np.linalg.eigvalsh(found)[0] >= -1e-9 * np.abs(found).max()
    return found


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("node", [0, 5, 6, 8, 12])
def test_a_block_that_has_no_inverse_is_not_joined_to_what_is_left(node: int, value: float) -> None:
    """The sixth node is the first of its segment: nothing joins it to any other then."""
    arrays = chain_arrays(CHAIN, 13)
    parts = _Parts(_solver(), arrays)
    # six entries, in rows of whole sectors
    parts.plan.memory["View.block"].reshape(13, 8)[node] = value
    parts.factorize()
    found = _assert_sound(parts)
    own = slice(3 * node, 3 * node + 3)
    assert_array_equal(found[own, own], np.eye(3))
    if node == 5:
        found[own, own] = 0.0
        assert np.abs(found[own]).max() == 0.0


def test_a_link_that_is_not_finite_is_left_out() -> None:
    arrays = chain_arrays(CHAIN, 13)
    parts = _Parts(_solver(), arrays)
    parts.plan.memory["tie.jacobian"][:7] = np.nan
    parts.factorize()
    _assert_sound(parts)


def test_a_link_too_strong_for_its_blocks_is_left_out() -> None:
    """Rounding may make it so: a pivot behind it is then not positive definite."""
    arrays = chain_arrays(CHAIN, 13)
    parts = _Parts(_solver(), arrays)
    parts.plan.memory["View.block"][...] *= 0.3
    parts.factorize()
    _assert_sound(parts)


def test_what_is_not_finite_does_not_stay() -> None:
    """A solve that overflows leaves nothing to the next one of the same structure."""
    arrays = chain_arrays(CHAIN, 13)
    solver = _solver()
    wanted = solver.solve(arrays)
    broken = {**arrays, "View": np.array(arrays["View"])}
    broken["View"][4] = 1e200
    assert not solver.solve(broken, max_iterations=2).status.is_success
    assert_same_values(solver.solve(arrays).values, wanted.values)


# -- solves --------------------------------------------------------------------------------------


def test_a_step_is_that_of_the_normal_equations() -> None:
    assert_first_step(_solver(MIXES["views alone"]), "views alone", 1e-8, 1e-6)


@pytest.mark.parametrize("linear_solver", ["auto", "pcg", "schur_pcg"])
def test_a_step_with_marks(linear_solver: str) -> None:
    solver = _solver(MIXES["everything"], linear_solver=linear_solver)
    assert_first_step(solver, "everything", 1e-8, 1e-6)


@pytest.mark.parametrize("deterministic", [False, True])
def test_cuda_texts_take_the_same_step(deterministic: bool) -> None:
    backend = HarnessBackend(128)
    solver = _solver(MIXES["views alone"], backend=backend, deterministic=deterministic)
    assert_first_step(solver, "views alone", 1e-8, 1e-6)


def _count(result: caspar.SolveResult) -> int:
    return sum(record.linear_iterations for record in result.iterations)


def _both(factors: Any, arrays: Mapping[str, Any], **options: Any) -> list[caspar.SolveResult]:
    return [
        caspar.Solver(
            factors, backend="cpu", linear_solver="pcg", preconditioner=preconditioner
        ).solve(arrays, **options)
        for preconditioner in ("block_jacobi", "block_tridiagonal")
    ]


def test_pose_graphs_need_fewer_iterations() -> None:
    jacobi, chains = _both(pose_graph_3d.FACTORS, pose_graph_3d.read())
    wanted = KNOWN_OPTIMA["smallGrid3D", RotationError.ROTATION_VECTOR].cost
    for result in (jacobi, chains):
        assert result.linear_solver == "pcg"
        assert result.final_cost == pytest.approx(wanted, rel=1e-6)
    assert _count(chains) < 0.9 * _count(jacobi)


def test_a_walk_without_loops_needs_one_iteration() -> None:
    """M is the whole matrix."""
    arrays = _poses(40)
    edges = arrays["odometry"]
    kept = np.abs(edges["start"] - edges["end"]) == 1
    arrays["odometry"] = {name: rows[kept] for name, rows in edges.items()}
    arrays["Pose"] = arrays["Pose"][: 1 + max(edges["start"][kept].max(), edges["end"][kept].max())]
    options = {"min_linear_iterations": 1, "linear_tolerance": 1e-6, "min_linear_tolerance": 1e-6}
    jacobi, chains = _both(pose_graph_3d.FACTORS, arrays, max_iterations=3, **options)
    assert max(record.linear_iterations for record in chains.iterations) <= 2
    assert _count(jacobi) > 20 * _count(chains)


def test_solves_repeat_to_the_bit() -> None:
    first, second = (
        _solver(pose_graph_3d.FACTORS).solve(pose_graph_3d.read(), max_iterations=4)
        for _ in range(2)
    )
    assert_same_values(first.values, second.values)


def test_another_structure_has_other_chains() -> None:
    solver = _solver()
    for num_views, gaps in ((12, ()), (12, (5,)), (7, ())):
        arrays = chain_arrays(CHAIN, num_views, gaps)
        _assert_inverse(_Parts(solver, arrays), CHAIN, arrays)


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("factors", [(snavely,), (glance, hold, pin), MIXES["shared lens"]])
def test_factors_that_join_no_two_nodes(factors: Sequence[caspar.Factor]) -> None:
    with pytest.raises(FactorError, match=r"no factor joins two nodes of one type .*block_jacobi"):
        _solver(factors)


@pytest.mark.parametrize("linear_solver", ["schur_dense", "sparse"])
def test_direct_solvers_have_no_preconditioner(linear_solver: str) -> None:
    with pytest.raises(OptionError, match=f"linear_solver='{linear_solver}'.*use linear_solver="):
        _solver(MARKS, linear_solver=linear_solver)


@pytest.mark.parametrize("num_views", [1, 6])
def test_indices_that_join_no_neighbours(num_views: int) -> None:
    arrays = chain_arrays((tie, hold), num_views)
    loops = np.array([[0, 2], [5, 1], [3, 3]]) if num_views > 1 else np.zeros((1, 2), dtype=int)
    arrays["tie"] = {"start": loops[:, 0], "end": loops[:, 1], "step": np.zeros((len(loops), 3))}
    arrays["hold"] = {"view": np.arange(num_views), "known": np.zeros((num_views, 3))}
    with pytest.raises(InputError, match=r"joins nodes k and k \+ 1.*View: tie.*block_jacobi"):
        _solver().solve(arrays)


# -- the order of the elimination ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_slots_are_disjoint(seed: int) -> None:
    random = np.random.default_rng(seed)
    is_linked = random.random(random.integers(1, 300)) < random.random()
    is_linked[0] = False
    order = eliminate(is_linked)
    assert len(np.unique(order.slot)) == len(is_linked)
    assert 0 <= order.slot.min()
    assert order.slot.max() < order.first_root + order.num_roots
    assert order.num_roots == np.count_nonzero(~is_linked)
    ends = range(order.first_root + order.num_roots, order.num_slots)
    for level in order.levels:
        assert len(np.unique(level.separator)) == len(np.unique(level.following))
        beyond = level.first_slot + 3 * level.num_segments
        assert level.separator.min() >= beyond
        assert level.following.min() >= beyond
        assert set(level.following) <= {*order.slot.tolist(), *ends}
