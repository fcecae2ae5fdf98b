"""Blocks and cross blocks, by every way to invert, against a dense inverse."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.options import BackendName
from caspar.solver.limits import Limits
from tests.problems import EXAMPLES
from tests.solver.covariance.covariance_cases import (
    METHODS,
    Arrays,
    Dense,
    Rows,
    bundle,
    dense_problem,
    known_view,
    largest_error,
    observe,
    observe_focal,
    pseudo_inverse,
    with_focal,
    without_gauge,
)
from tests.solver.reference import argument_jacobians
from tests.solver.solving import ON_BACKENDS

USABLE = 1e-7
"""Error of conjugate gradients, which end at a residual of 1e-12; others are off by roundings."""


def assert_is_covariance(
    cov: caspar.Covariance, dense: Dense, inverse: Rows, tolerance: float
) -> None:
    deviations = np.sqrt(inverse.diagonal())
    names = list(cov.instances)
    for name in names:
        for block, number in zip(cov[name], cov.instances[name], strict=True):
            place = dense.place(name, number)
            own = deviations[place]
            assert largest_error(block, inverse[place, place], (own, own)) < tolerance
    for name in names:
        for other in names:
            one, two = cov.instances[name][0], cov.instances[other][-1]
            place, column = dense.place(name, one), dense.place(other, two)
            found = cov.cross(name, one, other, two)
            both = deviations[place], deviations[column]
            assert largest_error(found, inverse[place, column], both) < tolerance


@pytest.mark.parametrize("name", EXAMPLES)
def test_jacobians(name: str) -> None:
    """Those that covariances are made of, against finite differences of SymForce's expressions."""
    example = EXAMPLES[name]
    arrays = example.arrays()
    dense = dense_problem(example.factors, arrays)
    row = 0
    for factor in argument_jacobians(example.factors, arrays):
        count, rows = factor[0].slope.shape[:2]
        wanted = np.zeros((count, rows, dense.jacobian.shape[1]))
        for one in factor:
            for k in range(count):
                wanted[k][:, dense.place(one.node, int(one.index[k]))] += one.slope[k]
        found = dense.jacobian[row : row + count * rows]
        assert_allclose(found, wanted.reshape(found.shape), atol=1e-6 * np.abs(wanted).max())
        row += count * rows
    assert row == len(dense.jacobian)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", EXAMPLES)
@ON_BACKENDS
def test_examples(name: str, method: str, backend: BackendName) -> None:
    example = EXAMPLES[name]
    solver = caspar.Solver(example.factors, backend=backend, limits=METHODS[method])
    arrays = example.arrays()
    arrays |= solver.solve(arrays).values
    dense = dense_problem(example.factors, arrays)
    cov = solver.covariance(arrays, dict.fromkeys(dense.dims, "all"))
    assert cov.method == method
    assert (cov.rank, cov.free_directions) == (dense.jacobian.shape[1], ())
    tolerance = USABLE if method == "conjugate gradients" else 1e-9
    assert_is_covariance(cov, dense, pseudo_inverse(dense.jacobian), tolerance)


@pytest.mark.parametrize("method", METHODS)
@ON_BACKENDS
def test_eliminated_nodes_have_their_marginal_covariance(method: str, backend: BackendName) -> None:
    arrays, factors = bundle(), (observe, known_view)
    solver = caspar.Solver(factors, backend=backend, limits=METHODS[method])
    dense = dense_problem(factors, arrays)
    cov = solver.covariance(arrays, {"Mark": "all", "View": "all"})
    inverse = pseudo_inverse(dense.jacobian)
    assert_is_covariance(cov, dense, inverse, USABLE)
    place = dense.place("Mark", 0)
    conditional = np.linalg.inv(dense.jacobian[:, place].T @ dense.jacobian[:, place])
    assert (inverse[place, place].diagonal() > 1.2 * conditional.diagonal()).all()


@pytest.mark.parametrize("method", METHODS)
@ON_BACKENDS
def test_minimum_norm_is_the_pseudo_inverse(method: str, backend: BackendName) -> None:
    arrays = without_gauge(bundle())
    solver = caspar.Solver(observe, backend=backend, limits=METHODS[method])
    dense = dense_problem([observe], arrays)
    with pytest.raises(caspar.errors.RankDeficiencyError, match="7 directions move 5 View and 30"):
        solver.covariance(arrays, {"View": [1]})
    cov = solver.covariance(arrays, {"View": "all", "Mark": "all"}, gauge="minimum_norm")
    assert cov.rank == dense.jacobian.shape[1] - 7
    assert_is_covariance(cov, dense, pseudo_inverse(dense.jacobian, 7), USABLE)


@pytest.mark.parametrize("method", METHODS)
def test_directions_of_single_nodes(method: str) -> None:
    """A place that one camera sees, one that none does, and a number that nothing depends on."""
    arrays = bundle()
    seen = arrays["observe"]
    first, last = (seen["mark"] == 7).argmax(), seen["mark"] == 9
    kept = ((seen["mark"] != 7) | (np.arange(len(last)) == first)) & ~last
    arrays["observe"] = {name: given[kept] for name, given in seen.items()}
    arrays, factors = with_focal(arrays), (observe_focal, known_view)
    solver = caspar.Solver(factors, backend="cpu", limits=METHODS[method])
    dense = dense_problem(factors, arrays)
    inverse = pseudo_inverse(dense.jacobian, 1)
    others = [number for number in range(30) if number not in (7, 9)]
    cov = solver.covariance(arrays, {"View": "all", "Mark": others})
    assert cov.rank == dense.jacobian.shape[1] - 5
    texts = "; ".join(cov.free_directions)
    for said in ("Mark 7", "no residual depends on Mark 9, all of it", "Focal 0, entry 1 of its"):
        assert said in texts
    assert_is_covariance(cov, dense, inverse, USABLE)
    for name, number in (("Mark", 7), ("Mark", 9), ("Focal", 0)):
        with pytest.raises(caspar.errors.RankDeficiencyError, match=f"{name} {number}, ") as caught:
            solver.covariance(arrays, {name: [number]})
        assert caught.value.num_free == 5
    asked = {"View": "all", "Mark": "all", "Focal": "all"}
    whole = solver.covariance(arrays, asked, gauge="minimum_norm")
    assert_is_covariance(whole, dense, inverse, USABLE)
    assert_array_equal(whole["Mark"][9], np.zeros((3, 3)))
    assert whole.standard_errors("Focal")[0, 0] > 0.0 == whole.standard_errors("Focal")[0, 1]


@pytest.mark.parametrize(
    "choices",
    [
        {"precision": "float32"},
        {"precision": "mixed", "linear_solver": "pcg"},
        {"linear_solver": "schur_dense"},
        {"linear_solver": "sparse", "eliminate": ()},
        {"precision": "float64", "jacobian": "float16", "linear_solver": "schur_pcg"},
    ],
)
def test_whatever_the_solver_is_made_for(choices: dict[str, Any]) -> None:
    arrays, factors = bundle(), (observe, known_view)
    limits = METHODS["dense factorisation"]
    solver = caspar.Solver(factors, backend="cpu", limits=limits, **choices)
    dense = dense_problem(factors, arrays)
    cov = solver.covariance(arrays, {"View": "all", "Mark": [4, 2]})
    assert_is_covariance(cov, dense, pseudo_inverse(dense.jacobian), USABLE)


@dataclass
class Wide:
    """More than objects of the reduced system hold."""

    level: sf.V9
    slope: sf.V6


class Sample(sf.V5):
    """Numbers that a sample depends on."""


@caspar.factor
def sample(
    wide: Annotated[Wide, caspar.TunableShared],
    neighbour: Annotated[Wide, caspar.TunableShared],
    taken: Annotated[Sample, caspar.ConstSequential],
) -> sf.V2:
    """Two numbers that depend on all of both nodes."""
    x = taken[0]
    first = sum(wide.level[k] * x**k for k in range(9))
    second = sum(neighbour.slope[k] * sf.cos((k + 1) * x + taken[1]) for k in range(6))
    third = sum(neighbour.level[k] * sf.sin((k + 1) * x) for k in range(9))
    return sf.V2(first + second, third - wide.slope[0] * x + second * taken[2])


def wide_arrays(count: int = 3, num_samples: int = 200) -> Arrays:
    random = np.random.default_rng(5)
    return {
        "Wide": random.normal(size=(count, 15)),
        "sample": {
            "wide": random.integers(0, count, num_samples),
            "neighbour": random.integers(0, count, num_samples),
            "taken": random.uniform(-1.0, 1.0, (num_samples, 5)),
        },
    }


@pytest.mark.parametrize("method", METHODS)
def test_large_nodes_and_factors_that_touch_one_twice(method: str) -> None:
    arrays = wide_arrays()
    assert (arrays["sample"]["wide"] == arrays["sample"]["neighbour"]).any()
    solver = caspar.Solver(sample, backend="cpu", limits=METHODS[method])
    dense = dense_problem([sample], arrays)
    num_free = dense.jacobian.shape[1] - np.linalg.matrix_rank(dense.jacobian)
    cov = solver.covariance(arrays, {"Wide": "all"}, gauge="minimum_norm")
    assert cov.rank == dense.jacobian.shape[1] - num_free
    assert_is_covariance(cov, dense, pseudo_inverse(dense.jacobian, num_free), 1e-6)


def test_many_points_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caspar.solver.normal.matrix.HOST_PIECE_SCALARS", 500)
    arrays, factors = bundle(), (observe, known_view)
    for method in ("dense factorisation", "sparse factorisation and selected inverse"):
        solver = caspar.Solver(factors, backend="cpu", limits=METHODS[method])
        dense = dense_problem(factors, arrays)
        cov = solver.covariance(arrays, {"View": "all", "Mark": "all"})
        assert_is_covariance(cov, dense, pseudo_inverse(dense.jacobian), USABLE)


def test_methods_are_chosen_by_size() -> None:
    arrays, factors = bundle(), (observe, known_view)
    sizes = {
        Limits(): "singular values of the Jacobian",
        Limits(max_svd_work=0): "dense factorisation",
        # a full matrix is not factorised as a sparse one
        Limits(max_svd_work=0, max_small_dense_covariance=0): "dense factorisation",
        Limits(
            max_svd_work=0, max_small_dense_covariance=0, max_dense_covariance=0
        ): "conjugate gradients",
    }
    for limits, method in sizes.items():
        solver = caspar.Solver(factors, backend="cpu", limits=limits)
        assert solver.covariance(arrays, {"View": [0]}).method == method
