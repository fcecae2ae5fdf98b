"""Several CUDA devices that share a problem."""

import gc
import subprocess
import sys
import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import caspar
from benchmarks.devices_scene import cost, ring
from caspar.bundle_adjustment import snavely
from caspar.errors import InputError, OutOfMemoryError
from caspar.options import JacobianName
from caspar.solver.lm.normal_equations import NormalEquations
from tests.problems import EXAMPLES
from tests.solver.shards.sharing import (
    ALL_SHARE,
    assert_same_minimum,
    crew_of,
    each,
    fail_at,
    plans_of,
    sharing,
    skip_without,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _two_devices() -> None:
    skip_without(2)


@pytest.mark.parametrize("jacobian", ["recompute", "stored", "float16"])
def test_bundle_adjustment_ends_at_the_same_cost(jacobian: JacobianName) -> None:
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


@pytest.mark.parametrize("size", [50_000, 2_000_000])
def test_arrays_of_a_device_stay_there(size: int) -> None:
    """Points are divided by their numbers, and in the order of tiles."""
    cupy = pytest.importorskip("cupy")
    arrays = ring(size)
    on_device = {
        name: {key: cupy.asarray(rows) for key, rows in given.items()}
        if isinstance(given, dict)
        else cupy.asarray(given)
        for name, given in arrays.items()
    }
    solver = sharing((snavely,), 2, "cuda", precision="mixed")
    found, wanted = solver.solve(on_device), solver.solve(arrays)
    shard = plans_of(solver, on_device)[0].shard
    assert shard is not None
    assert shard.in_order == (("Point",) if size > 1_000_000 else ())
    alone = caspar.Solver([snavely], backend="cuda", precision="mixed").solve(arrays)
    assert wanted.final_cost == pytest.approx(alone.final_cost, rel=1e-6)
    moved = np.abs(cupy.asnumpy(found.values["Point"]) - alone.values["Point"])
    assert np.median(moved) < 1e-3
    assert isinstance(found.values["Point"], cupy.ndarray)
    assert found.values["Point"].device.id == 0
    assert found.final_cost == pytest.approx(wanted.final_cost, rel=1e-6)


def _in_parts(arrays: dict[str, Any], places: list[int], devices: list[int]) -> dict[str, Any]:
    """Points in parts that begin at some places, and their observations, on some devices."""
    cupy = pytest.importorskip("cupy")

    def put(rows: np.ndarray, first: list[int]) -> list[Any]:
        made = []
        for part, number in zip(np.split(rows, first), devices, strict=True):
            with cupy.cuda.Device(number):
                made.append(cupy.asarray(part))
        return made

    order = np.argsort(arrays["snavely"]["point"], kind="stable")
    first = np.searchsorted(arrays["snavely"]["point"][order], places).tolist()
    factor = {name: put(rows[order], first) for name, rows in arrays["snavely"].items()}
    return {**arrays, "Point": put(arrays["Point"], places), "snavely": factor}


@pytest.mark.parametrize(
    ("shares", "devices"),
    [([0.5], [0, 1]), ([0.5], [1, 0]), ([0.2, 0.3, 0.8], [1, 0, 1, 1]), ([], [1])],
)
@pytest.mark.parametrize("cameras_on_host", [True, False])
def test_parts_stay_where_they_are(
    shares: list[float], devices: list[int], cameras_on_host: bool
) -> None:
    cupy = pytest.importorskip("cupy")
    arrays = ring(50_000)
    wanted = sharing((snavely,), 2, "cuda", precision="mixed").solve(arrays)
    places = [int(share * len(arrays["Point"])) for share in shares]
    given = _in_parts(arrays, places, devices)
    if not cameras_on_host:
        with cupy.cuda.Device(0):
            given["Cam"] = cupy.asarray(arrays["Cam"])
    found = sharing((snavely,), 2, "cuda", precision="mixed").solve(given)
    assert found.final_cost == pytest.approx(wanted.final_cost, rel=1e-6)
    points = found.values["Point"]
    assert [part.device.id for part in points] == devices
    assert [part.shape for part in points] == [part.shape for part in given["Point"]]
    assert [part.dtype for part in points] == [part.dtype for part in given["Point"]]
    assert isinstance(found.values["Cam"], np.ndarray) is cameras_on_host
    values = {
        "Cam": np.asarray(cupy.asnumpy(found.values["Cam"])),
        "Point": np.concatenate([cupy.asnumpy(part) for part in points]),
    }
    assert cost(arrays, values) == pytest.approx(wanted.final_cost, rel=1e-6)
    again = sharing((snavely,), 2, "cuda", precision="mixed").solve({**given, **found.values})
    assert again.initial_cost == pytest.approx(found.final_cost, rel=1e-6)


def test_parts_of_two_devices_on_one() -> None:
    """A small problem, which one device solves, and a covariance, which one computes."""
    arrays = ring(5_000)
    given = _in_parts(arrays, [len(arrays["Point"]) // 2], [0, 1])
    solver = caspar.Solver([snavely], backend="cuda", precision="float64", devices=2)
    result = solver.solve(given)
    assert any("One device solved" in one for one in result.remarks)
    assert [part.device.id for part in result.values["Point"]] == [0, 1]
    fixed = {"Cam": [0, 1], "Point": [0]}
    found = solver.covariance(given, {"Cam": [3]}, fixed=fixed)
    one = caspar.Solver([snavely], backend="cuda", precision="float64")
    wanted = one.covariance(arrays, {"Cam": [3]}, fixed=fixed)
    np.testing.assert_allclose(
        np.asarray(found["Cam"]), np.asarray(wanted["Cam"]), rtol=1e-6, atol=1e-12
    )


@pytest.mark.parametrize("in_scope", [True, False])
def test_copies_wait_for_what_reads_their_memory(in_scope: bool) -> None:
    """Memory that was freed is the next copy's, while a kernel may still have to read it."""
    cupy = pytest.importorskip("cupy")
    from caspar.runtime.cuda.nccl import CudaMember

    member, read = CudaMember(0), []
    with cupy.cuda.Device(1):
        given = [cupy.full(1 << 20, number, np.float32) for number in range(4)]
        cupy.cuda.get_current_stream().synchronize()
    with member.scope() if in_scope else nullcontext():
        busy = cupy.zeros(1 << 26, np.float32)
        cupy.cuda.get_current_stream().synchronize()
        for source in given:
            brought = member.bring(source)
            for _ in range(100):
                cupy.sin(busy, out=busy)
            read.append(cupy.concatenate([brought, brought]))
            del brought
        local = cupy.empty(1 << 20, np.float32)
        member.receive(local, read[0][: 1 << 20])
        found = [member.to_host(one) for one in read]
        assert_array_equal(member.to_host(local), found[0][: 1 << 20])
    for number, one in enumerate(found):
        assert_array_equal(one, np.full(1 << 21, number, np.float32))


def test_parts_on_a_device_of_another_solver() -> None:
    cupy = pytest.importorskip("cupy")
    arrays = ring(5_000)
    given = _in_parts(arrays, [len(arrays["Point"]) // 2], [0, 1])
    with cupy.cuda.Device(0):
        given["Cam"] = cupy.asarray(given["Cam"])
    with pytest.raises(InputError, match="node type Point, part 1 of 2: lives on cuda:1, but"):
        caspar.Solver([snavely], backend="cuda").solve(given)


@pytest.mark.parametrize("devices", [1, 2])
def test_what_does_not_fit_is_said_before(devices: int) -> None:
    """By the limit of CuPy's pool, as if the devices had less memory."""
    cupy = pytest.importorskip("cupy")
    arrays, pool = ring(1_000_000), cupy.get_default_memory_pool()
    solver = caspar.Solver(
        [snavely],
        backend="cuda",
        devices=devices,
        limits=ALL_SHARE,
        linear_solver="schur_pcg",
        precision="mixed",
        jacobian="stored",
    )
    needed = solver.prepare(arrays).num_bytes // devices
    solver.release()
    gc.collect()
    try:
        for number in range(devices):
            with cupy.cuda.Device(number):
                pool.free_all_blocks()
                # more than indices and tiles take
                pool.set_limit(size=pool.used_bytes() + int(0.6 * needed))
        with pytest.raises(OutOfMemoryError, match="so nothing was allocated") as caught:
            solver.prepare(arrays)
    finally:
        for number in range(devices):
            with cupy.cuda.Device(number):
                pool.set_limit(size=0)
    assert caught.value.num_devices is not None
    assert caught.value.num_devices > devices
    assert solver.prepare(arrays).num_bytes > 0


def test_a_device_alone_by_its_number() -> None:
    arrays = ring(20_000)
    result = caspar.Solver([snavely], backend="cuda", devices=[1]).solve(arrays)
    assert result.status.is_success


def test_a_device_that_fails_ends_the_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = ring(100_000)
    solver = caspar.Solver([snavely], backend="cuda", devices=2, limits=ALL_SHARE)
    solver.solve(arrays, max_iterations=1)
    with crew_of(solver, arrays) as crew:
        fail_at(monkeypatch, "score", crew.systems[1])
        raised: list[BaseException] = []

        def score() -> None:
            try:
                each(crew, NormalEquations.score)
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
