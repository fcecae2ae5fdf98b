"""Problems that a warp solves: as a thread does, here and in CUDA C; and those that are larger."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.batch.generate.shape import Team
from caspar.codegen.targets import TARGETS
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.batch.batch_cases import CASES, Case, curves, decay, near, paths, triangles
from tests.batch.test_batch_solver import FLAT, ragged
from tests.covering import first, usual
from tests.harness_backend import HarnessBackend

NUM_BUMPS = 5


class Bumps(sf.Matrix):
    """Heights, places and inverse widths of five bumps, and a line below them: 17 unknowns."""

    SHAPE = (3 * NUM_BUMPS + 2, 1)


@caspar.factor(loss=caspar.loss.Huber)
def reading(
    bumps: Annotated[Bumps, caspar.TunableUnique],
    at: Annotated[sf.Scalar, caspar.ConstSequential],
    value: Annotated[sf.Scalar, caspar.ConstSequential],
) -> sf.V1:
    """A reading of a sum of bumps."""
    found = bumps[15] + bumps[16] * at - value
    for bump in range(0, 15, 3):
        height, place, width = (bumps[bump + part] for part in range(3))
        found += height * sf.exp(-(((at - place) * width) ** 2))
    return sf.V1(found)


def spectra(num_problems: int = 4, num_samples: int = 70) -> Case:
    """Sums of five bumps with some outliers."""
    rng = np.random.default_rng(4)
    at = np.linspace(-1.0, 1.0, num_samples)
    true = np.zeros((num_problems, 17))
    true[:, 0:15:3] = rng.uniform(1.0, 2.0, (num_problems, 5))
    true[:, 1:15:3] = np.linspace(-0.8, 0.8, 5) + rng.normal(0.0, 0.02, (num_problems, 5))
    true[:, 2:15:3] = 7.0
    bump = (at[:, None] - true[:, None, 1:15:3]) * true[:, None, 2:15:3]
    value = (true[:, None, 0:15:3] * np.exp(-(bump**2))).sum(axis=2)
    value += rng.normal(0.0, 0.01, value.shape)
    value[:, ::17] += 1.0
    start = true + rng.normal(0.0, 0.03, true.shape)
    scale = 0.05
    return Case(
        (reading,),
        {"Bumps": start, "reading": {"at": at[None], "value": value, "loss_scale": scale}},
        lambda p: {
            "Bumps": start[p : p + 1],
            "reading": {"at": at, "value": value[p], "loss_scale": scale},
        },
        num_problems,
    )


ALL = {**CASES, "spectra": spectra}


def by_warp(case: Case, **choices: Any) -> caspar.BatchSolver:
    """A solver of which warps solve problems."""
    solver = caspar.BatchSolver(case.factors, **{"backend": "cpu", **choices})
    solver.team = Team.WARP
    return solver


@pytest.mark.parametrize("name", first(2, ["paths", "triangles", "spectra", "curves", "cameras"]))
def test_a_warp_finds_what_a_thread_finds(name: str) -> None:
    case = ALL[name]()
    solver = by_warp(case)
    result = solver.solve(case.arrays, fixed=case.fixed)
    thread = caspar.BatchSolver(case.factors, backend="cpu")
    thread.team = Team.THREAD
    expected = thread.solve(case.arrays, fixed=case.fixed)
    assert result.is_success.all()
    assert_allclose(result.initial_cost, expected.initial_cost, rtol=1e-13)
    assert_allclose(result.final_cost, expected.final_cost, rtol=1e-12)
    for node, values in expected.values.items():
        assert_allclose(result.values[node], values, rtol=FLAT, atol=FLAT)
    arrays = {**case.arrays, **result.values}
    covariance = solver.covariance(arrays, fixed=case.fixed)
    wanted = thread.covariance(arrays, fixed=case.fixed)
    assert_allclose(covariance, wanted, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "precision"),
    usual([("paths", "float32"), ("spectra", "float64")], ALL, ["float64", "float32"]),
)
def test_cuda_text_gives_the_same(name: str, precision: str) -> None:
    case = ALL[name]()
    result = by_warp(case, precision=precision).solve(case.arrays, fixed=case.fixed)
    other = by_warp(case, precision=precision, backend=HarnessBackend())
    found = other.solve(case.arrays, fixed=case.fixed)
    # lanes add up in another order: the last step may be taken or not
    values, cost = (FLAT, 1e-12) if precision == "float64" else (2e-3, 1e-4)
    for node, expected in result.values.items():
        assert_allclose(found.values[node], expected, rtol=values, atol=values)
    assert_allclose(found.final_cost, result.final_cost, rtol=cost)
    assert_array_equal(found.is_success, result.is_success)
    again = other.solve(case.arrays, fixed=case.fixed)
    assert_array_equal(again.final_cost, found.final_cost)


def test_cuda_text_gives_the_same_covariances() -> None:
    for case in (triangles(num_problems=3), paths(num_problems=3)):
        expected = by_warp(case).covariance(case.arrays, fixed=case.fixed)
        other = by_warp(case, backend=HarnessBackend())
        assert_allclose(other.covariance(case.arrays, fixed=case.fixed), expected, rtol=1e-9)


def test_larger_problems_as_one_by_one() -> None:
    case = spectra()
    batch = caspar.BatchSolver(case.factors, backend="cpu")
    result = batch.solve(case.arrays)
    solver = caspar.Solver(case.factors, backend="cpu", precision="float64")
    for number in range(case.num_problems):
        single = solver.solve(case.single(number))
        assert result.status[number].is_success
        assert single.status.is_success
        assert_allclose(result.final_cost[number], single.final_cost, rtol=1e-9)
        assert_allclose(result.values["Bumps"][number], single.values["Bumps"][0], atol=1e-5)


@pytest.mark.parametrize("backend", ["cpu", "harness"])
def test_ragged_bounded_and_spoilt_problems(backend: str) -> None:
    lengths = [7, 0, 70, 4, 1, 33, 0, 32]
    arrays, _, _ = ragged(lengths)
    arrays["Curve"][3] = np.nan
    case = curves()
    bounds = {"Curve": (np.zeros((8, 3)), np.full((8, 3), 3.01))}
    held = {"Curve": np.arange(8) == 5}
    chosen: Any = "cpu" if backend == "cpu" else HarnessBackend()
    solver = caspar.BatchSolver([decay], backend=chosen)
    solver.team = Team.WARP
    result = solver.solve(arrays, bounds=bounds, fixed=held)
    thread = caspar.BatchSolver([decay], backend="cpu").solve(arrays, bounds=bounds, fixed=held)
    # with one sample there is no single minimum
    told = np.array([0, 1, 2, 3, 5, 6, 7])
    assert_array_equal(result.status[told], thread.status[told])
    assert_allclose(result.values["Curve"][told], thread.values["Curve"][told], atol=FLAT)
    assert_array_equal(result.active_bounds["Curve"][told], thread.active_bounds["Curve"][told])
    assert_array_equal(result.values["Curve"][5], arrays["Curve"][5])
    assert case.factors[1] is near


@pytest.mark.parametrize(
    ("name", "precision", "arch"),
    usual(
        [("paths", "float32", "sm_75"), ("spectra", "float64", "sm_90")],
        ALL,
        ["float32", "float64"],
        ["sm_75", "sm_90"],
    ),
)
def test_kernels_compile(name: str, precision: str, arch: str) -> None:
    case = ALL[name]()
    solver = by_warp(case, backend=HarnessBackend(), precision=precision)
    compiled = compile_text(solver.source(case.arrays, fixed=case.fixed), arch)
    (resources,) = compiled.resources.values()
    assert compiled.warnings == ()
    assert resources.shared_bytes <= 48 * 1024
    assert resources.spill_store_bytes <= 64


def test_who_solves_follows_from_sizes() -> None:
    for target in ("cpu", "cuda"):
        assert Team.usual(TARGETS[target].dialect.has_warps, 12, 100_000, 200.0) is Team.THREAD
        assert Team.usual(TARGETS[target].dialect.has_warps, 13, 100_000, 200.0) is Team.WARP
        assert Team.usual(TARGETS[target].dialect.has_warps, 3, 1_000, 30.0) is Team.THREAD
    assert Team.usual(True, 3, 1_000, 64.0) is Team.WARP
    assert Team.usual(False, 3, 1_000, 64.0) is Team.THREAD
    few, many = ragged([70, 60]), ragged([70, 50])
    solver = caspar.BatchSolver(decay, backend=HarnessBackend())
    assert "__syncwarp()" in solver.source(few[0])
    assert "__syncwarp()" not in solver.source(many[0])
    case = spectra()
    text = caspar.BatchSolver(case.factors, backend=HarnessBackend()).source(case.arrays)
    assert "__syncwarp()" in text
