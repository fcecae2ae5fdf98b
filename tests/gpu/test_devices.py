"""Several CUDA devices that share a problem."""

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import caspar
from benchmarks.devices_scene import cost, ring
from caspar.bundle_adjustment import snavely
from tests.problems import EXAMPLES
from tests.solver.shards.sharing import (
    ALL_SHARE,
    assert_same_minimum,
    fail_at,
    sharing,
    skip_without,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _two_devices() -> None:
    skip_without(2)


@pytest.mark.parametrize("jacobian", ["recompute", "stored", "float16"])
def test_bundle_adjustment_ends_at_the_same_cost(jacobian: str) -> None:
    arrays = ring(300_000)
    one = caspar.Solver(
        [snavely], backend="cuda", precision="mixed", jacobian=jacobian, linear_solver="schur_pcg"
    ).solve(arrays)
    solver = sharing((snavely,), 2, "cuda", precision="mixed", jacobian=jacobian)
    two = solver.solve(arrays)
    assert two.device.startswith("2 x ")
    assert two.initial_cost == pytest.approx(one.initial_cost, rel=1e-9)
    assert cost(arrays, dict(two.values)) == pytest.approx(cost(arrays, dict(one.values)), rel=1e-6)


def test_a_second_solve_keeps_the_plan() -> None:
    arrays = ring(300_000)
    solver = sharing((snavely,), 2, "cuda", precision="mixed")
    first = solver.solve(arrays)
    again = solver.solve(arrays)
    assert again.final_cost == pytest.approx(first.final_cost, rel=1e-6)
    assert again.setup_time_s < first.setup_time_s + 0.1


def test_deterministic_solves_have_equal_bits() -> None:
    arrays = ring(100_000)
    solver = sharing((snavely,), 2, "cuda", precision="mixed", deterministic=True)
    first, second = solver.solve(arrays), solver.solve(arrays)
    for name in first.values:
        assert_array_equal(first.values[name], second.values[name])


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_examples(name: str) -> None:
    arrays = EXAMPLES[name].arrays()
    factors = EXAMPLES[name].factors
    one = sharing(factors, 2, "cpu", precision="float64").solve(arrays)
    two = sharing(factors, 2, "cuda", precision="float64").solve(arrays)
    assert_same_minimum(two, one, 1e-6, 1e-2)


def test_arrays_of_a_device_stay_there() -> None:
    cupy = pytest.importorskip("cupy")
    arrays = ring(50_000)
    on_device = {
        name: {key: cupy.asarray(rows) for key, rows in given.items()}
        if isinstance(given, dict)
        else cupy.asarray(given)
        for name, given in arrays.items()
    }
    solver = sharing((snavely,), 2, "cuda", precision="mixed")
    found, wanted = solver.solve(on_device), solver.solve(arrays)
    assert isinstance(found.values["Point"], cupy.ndarray)
    assert found.values["Point"].device.id == 0
    assert found.final_cost == pytest.approx(wanted.final_cost, rel=1e-6)


def test_a_device_alone_by_its_number() -> None:
    arrays = ring(20_000)
    result = caspar.Solver([snavely], backend="cuda", devices=[1]).solve(arrays)
    assert result.status.is_success


def test_a_device_that_fails_ends_the_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = ring(100_000)
    solver = caspar.Solver([snavely], backend="cuda", devices=2, limits=ALL_SHARE)
    solver.solve(arrays, max_iterations=1)
    with solver.system(arrays) as system:
        fail_at(monkeypatch, "score", system.systems.all[1])  # type: ignore[attr-defined]
        raised: list[BaseException] = []

        def score() -> None:
            try:
                system.score()
            except MemoryError as error:
                raised.append(error)

        # a thread that nobody waits for, so that a solve that hangs fails the test
        thread = threading.Thread(target=score, daemon=True)
        thread.start()
        thread.join(10.0)
        assert len(raised) == 1
        assert "of this test" in str(raised[0])
        monkeypatch.undo()
    # the next solve has new connections
    assert solver.solve(arrays).status.is_success


def test_residuals_come_in_the_order_given() -> None:
    arrays = ring(20_000)
    shared = sharing((snavely,), 2, "cuda", precision="float64").evaluate(arrays)
    alone = caspar.Solver([snavely], backend="cuda", precision="float64").evaluate(arrays)
    np.testing.assert_allclose(shared.residuals("snavely"), alone.residuals("snavely"), rtol=1e-9)


def test_solvers_that_are_collected_do_not_wait() -> None:
    cupy = pytest.importorskip("cupy")
    arrays = ring(20_000)
    ended = threading.Event()

    def solve_and_drop() -> None:
        for _ in range(3):
            solver = sharing((snavely,), 2, "cuda", precision="mixed")
            solver.solve(arrays)
            # graphs and connections are garbage together, in a cycle
            solver.cycle = solver  # type: ignore[attr-defined]
            del solver
            gc.collect()
        ended.set()

    # a thread that nobody waits for, so that a collection that hangs fails the test
    threading.Thread(target=solve_and_drop, daemon=True).start()
    assert ended.wait(60.0)
    for number in range(2):
        with cupy.cuda.Device(number):
            cupy.cuda.get_current_stream().synchronize()


KEPT = """
import caspar
from benchmarks.devices_scene import ring
from caspar.bundle_adjustment import snavely
from tests.solver.shards.sharing import sharing

solver = sharing((snavely,), 2, "cuda", precision="mixed")
result = solver.solve(ring(20_000))
print(result.status.is_success)
"""


def test_a_process_ends_with_its_solvers() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KEPT], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.strip() == "True"


DROPPED = """
import caspar
from benchmarks.devices_scene import ring
from caspar.bundle_adjustment import snavely
from tests.solver.shards.sharing import sharing

def solve():
    solver = sharing((snavely,), NUMBER, "cuda", precision="mixed")
    return solver.solve(ring(20_000)).status.is_success

print(solve())
"""


def test_a_process_ends_just_after_its_solvers() -> None:
    """While their connections are still being ended."""
    cupy = pytest.importorskip("cupy")
    program = DROPPED.replace("NUMBER", str(cupy.cuda.runtime.getDeviceCount()))
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.strip() == "True"
