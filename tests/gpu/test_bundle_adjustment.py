"""Real problems on a device: optimum, determinism, and agreement with the CPU backend."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caspar
from caspar.bundle_adjustment import snavely
from caspar.errors import InputError, OutOfMemoryError
from caspar.io import BalProblem, read_bal
from caspar.options import PrecisionName

pytestmark = pytest.mark.gpu

DATA = Path(__file__).parents[2] / "data"
OPTIMA = {"problem-21-11315-pre": 30378.636, "problem-49-7776-pre": 13344.241}
BOUNDS = {"problem-21-11315-pre": 30382.0, "problem-49-7776-pre": 13358.0}


def _arrays(problem: BalProblem, convert: Any = np.asarray) -> dict[str, Any]:
    return {
        "Cam": convert(problem.cameras),
        "Point": convert(problem.points),
        "snavely": {
            "cam": convert(problem.camera_index),
            "point": convert(problem.point_index),
            "pixel": convert(problem.pixels),
        },
    }


@pytest.mark.parametrize("precision", ["mixed", "float64", "float32"])
@pytest.mark.parametrize("name", sorted(OPTIMA))
def test_reaches_the_optimum_twice_with_the_same_bits(name: str, precision: PrecisionName) -> None:
    problem = read_bal(DATA / f"{name}.txt.bz2")
    solver = caspar.Solver([snavely], backend="cuda", precision=precision, deterministic=True)
    first, second = solver.solve(_arrays(problem)), solver.solve(_arrays(problem))
    assert first.status.is_success
    assert first.final_cost <= BOUNDS[name]
    assert first.final_cost == pytest.approx(OPTIMA[name], rel=1e-4)
    assert first.final_cost == second.final_cost
    for node in ("Cam", "Point"):
        assert np.array_equal(first.values[node], second.values[node])


@pytest.mark.parametrize("name", sorted(OPTIMA))
def test_agrees_with_the_cpu_backend(name: str) -> None:
    problem = read_bal(DATA / f"{name}.txt.bz2")
    costs = [
        caspar.Solver([snavely], backend=backend, precision="float64")
        .solve(_arrays(problem))
        .final_cost
        for backend in ("cuda", "cpu")
    ]
    assert costs[0] == pytest.approx(costs[1], rel=1e-6)


def test_instances_in_any_order_reach_the_optimum() -> None:
    problem = read_bal(DATA / "problem-21-11315-pre.txt.bz2")
    order = np.random.default_rng(0).permutation(problem.num_observations)
    shuffled = BalProblem(
        problem.cameras,
        problem.points,
        problem.camera_index[order],
        problem.point_index[order],
        problem.pixels[order],
    )
    result = caspar.Solver([snavely], backend="cuda").solve(_arrays(shuffled))
    assert result.final_cost == pytest.approx(30378.636, rel=1e-5)


def test_cupy_arrays_stay_on_the_device() -> None:
    cupy = pytest.importorskip("cupy")
    problem = read_bal(DATA / "problem-21-11315-pre.txt.bz2")
    given = _arrays(problem, cupy.asarray)
    result = caspar.Solver([snavely], backend="cuda").solve(given)
    assert isinstance(result.values["Cam"], cupy.ndarray)
    assert result.values["Cam"].dtype == cupy.float64
    assert result.final_cost == pytest.approx(30378.636, rel=1e-5)
    assert cupy.array_equal(given["Cam"], cupy.asarray(problem.cameras))


def test_torch_tensors_go_in_and_come_out() -> None:
    torch = pytest.importorskip("torch")
    problem = read_bal(DATA / "problem-21-11315-pre.txt.bz2")
    given = _arrays(problem, lambda array: torch.from_numpy(array.copy()).cuda())
    result = caspar.Solver([snavely], backend="cuda").solve(given)
    assert isinstance(result.values["Point"], torch.Tensor)
    assert result.values["Point"].is_cuda
    assert result.final_cost == pytest.approx(30378.636, rel=1e-5)


def test_jax_arrays_go_in_and_come_out() -> None:
    jax = pytest.importorskip("jax")
    problem = read_bal(DATA / "problem-21-11315-pre.txt.bz2")
    given = _arrays(problem, jax.numpy.asarray)
    result = caspar.Solver([snavely], backend="cuda").solve(given)
    assert isinstance(result.values["Point"], jax.Array)
    assert result.final_cost == pytest.approx(30378.636, rel=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
@pytest.mark.parametrize("wrong", [-1, 11315])
def test_an_index_out_of_range_on_the_device_is_named(dtype: Any, wrong: int) -> None:
    cupy = pytest.importorskip("cupy")
    problem = read_bal(DATA / "problem-21-11315-pre.txt.bz2")
    given = _arrays(problem, cupy.asarray)
    index = given["snavely"]["point"].astype(dtype)
    index[17] = cupy.asarray(wrong).astype(dtype)
    given["snavely"]["point"] = index
    named = f"factor snavely, argument point: index {int(index[17])} at entry 17 is out of range"
    with pytest.raises(InputError, match=named):
        caspar.Solver([snavely], backend="cuda").solve(given)


def test_arrays_on_two_devices_are_named() -> None:
    cupy = pytest.importorskip("cupy")
    problem = read_bal(DATA / "problem-21-11315-pre.txt.bz2")
    given = _arrays(problem)
    given["snavely"]["pixel"] = cupy.asarray(problem.pixels)
    with pytest.raises(InputError, match=r"argument pixel: lives on cuda:0.*the host"):
        caspar.Solver([snavely], backend="cuda").solve(given)


def test_out_of_memory_names_needed_and_available_bytes() -> None:
    cupy = pytest.importorskip("cupy")
    problem = read_bal(DATA / "problem-21-11315-pre.txt.bz2")
    solver = caspar.Solver([snavely], backend="cuda")
    solver.compile()
    pool = cupy.cuda.MemoryPool()
    pool.set_limit(size=1_000_000)
    with (
        cupy.cuda.using_allocator(pool.malloc),
        pytest.raises(OutOfMemoryError, match="bytes"),
    ):
        solver.solve(_arrays(problem))
