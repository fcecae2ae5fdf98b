"""SymForce's epsilon while tracing, and that nothing is left of it afterwards."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import symforce
import symforce.symbolic as sf
from symforce import geo, ops

import caspar
from caspar.errors import FactorError
from caspar.frontend.epsilon import SYMBOL, symbolic_epsilon, value
from caspar.frontend.trace import trace
from caspar.ir.dtype import DType

ROOT = Path(__file__).parents[2]

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Rot3.to_tangent": geo.Rot3.to_tangent,
    "Rot3.from_tangent": geo.Rot3.from_tangent.__func__,
    "Rot3.local_coordinates": geo.Rot3.local_coordinates,
    "Pose3.to_tangent": geo.Pose3.to_tangent,
    "Pose2.local_coordinates": geo.Pose2.local_coordinates,
    "Matrix.norm": geo.Matrix.norm,
    "Matrix.normalized": geo.Matrix.normalized,
    "Unit3.storage_D_tangent": geo.Unit3.storage_D_tangent,
    "LieGroupOps.retract": ops.LieGroupOps.retract,
}


def default_of(function: Callable[..., Any]) -> Any:
    return inspect.signature(function).parameters["epsilon"].default


def snapshot() -> tuple[Any, ...]:
    defaults = tuple(str(default_of(function)) for function in FUNCTIONS.values())
    return (str(sf.epsilon()), *defaults)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_defaults_are_the_symbol_inside_only(name: str) -> None:
    before = default_of(FUNCTIONS[name])
    assert before == 0
    with symbolic_epsilon():
        assert default_of(FUNCTIONS[name]) == SYMBOL
        assert sf.epsilon() == SYMBOL
    assert default_of(FUNCTIONS[name]) is before


def test_it_nests() -> None:
    before = snapshot()
    with symbolic_epsilon():
        with symbolic_epsilon():
            assert sf.epsilon() == SYMBOL
        assert sf.epsilon() == SYMBOL
        assert default_of(geo.Rot3.to_tangent) == SYMBOL
    assert snapshot() == before


class Point(sf.V3): ...


@pytest.mark.parametrize(
    "residual",
    [
        lambda a: a.normalized(),
        lambda a: sf.V3(sf.Rot3.from_tangent(a.to_flat_list()).to_tangent()),
        lambda a: a / (a.squared_norm() + sf.epsilon()),
        lambda a: sf.V1(a.norm(epsilon=sf.epsilon())),
    ],
    ids=["normalized", "rotation", "epsilon()", "given"],
)
def test_the_symbol_reaches_the_residual(residual: Any) -> None:
    @caspar.factor
    def prior(a: Annotated[Point, caspar.TunableShared]) -> Any:
        return residual(a)

    before = snapshot()
    rows = trace(prior).residual
    assert any(SYMBOL in row.free_symbols for row in rows)
    assert snapshot() == before


def test_restored_after_an_exception() -> None:
    @caspar.factor
    def broken(a: Annotated[Point, caspar.TunableShared]) -> Any:
        assert sf.epsilon() == SYMBOL
        raise KeyError("mine")

    before = snapshot()
    with pytest.raises(FactorError, match="mine"):
        trace(broken)
    assert snapshot() == before


def test_restored_when_the_result_is_refused() -> None:
    @caspar.factor
    def scalar(a: Annotated[Point, caspar.TunableShared]) -> Any:
        return a.norm()

    before = snapshot()
    with pytest.raises(FactorError):
        trace(scalar)
    assert snapshot() == before


def test_modules_loaded_after_the_first_trace_count() -> None:
    program = """
import inspect, sys
from caspar.frontend.epsilon import SYMBOL, symbolic_epsilon
with symbolic_epsilon():
    pass
assert "symforce.opt.noise_models" not in sys.modules
from symforce.opt.noise_models import ScalarNoiseModel
def default():
    return inspect.signature(ScalarNoiseModel.whiten_norm).parameters["epsilon"].default
assert default() == 0
with symbolic_epsilon():
    assert default() == SYMBOL
assert default() == 0
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value)
def test_value_is_ten_machine_epsilons(dtype: DType) -> None:
    assert value(dtype) == pytest.approx(10.0 * np.finfo(dtype.value).eps, rel=1e-6)


def test_an_epsilon_that_was_set_is_kept() -> None:
    """Numbers a program chose before are its own."""
    program = """
import symforce
symforce.set_epsilon_to_number(1e-5)
import symforce.symbolic as sf
from caspar.frontend.epsilon import SYMBOL, symbolic_epsilon
with symbolic_epsilon():
    assert sf.epsilon() == SYMBOL
    assert SYMBOL not in sf.V3.symbolic("a").norm().free_symbols
assert sf.epsilon() == 1e-5
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    assert symforce._epsilon == 0
