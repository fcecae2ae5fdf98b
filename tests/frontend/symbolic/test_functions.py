"""What users write, from SymForce to the processor: values and slopes against the truth."""

import math
from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
import sympy

from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.frontend.symbolic.lower import NUMBER_RULES, TRUTH_RULES, function_name
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_program
from caspar.passes.pipeline import compile_graph
from caspar.runtime.cpu.backend import CpuBackend
from tests import support_functions as functions
from tests import support_groups as groups
from tests import support_jets as jets
from tests.covering import alternating
from tests.harness import find_compiler
from tests.support_ops import run_rows, run_rows_in_harness

x, y = sf.symbols("x y")
INF, NAN = math.inf, math.nan
_MOD, _CBRT = sf.Mod(x, y), sympy.cbrt(sympy.Symbol("x"))
_OO = sf.sympy.oo

# expression, x, y, value, d/dx, d/dy
Special = tuple[Any, float, float, float, float, float]

CORNERS: dict[str, Special] = {
    "Mod has the sign of the divisor": (_MOD, -7.0, 3.0, 2.0, 1.0, 3.0),
    "also of a negative one": (_MOD, 7.0, -3.0, -2.0, 1.0, 3.0),
    "of two negative ones": (_MOD, -7.0, -3.0, -1.0, 1.0, -2.0),
    "of multiples": (_MOD, -12.0, 4.0, 0.0, 1.0, 3.0),
    "of fractions": (_MOD, -0.5, 2.0, 1.5, 1.0, 1.0),
    "floor": (sf.floor(x), -0.5, 0.0, -1.0, 0.0, 0.0),
    "ceiling": (sf.ceiling(x), -0.5, 0.0, -0.0, 0.0, 0.0),
    "Abs at 0": (sf.Abs(x), 0.0, 0.0, 0.0, 1.0, 0.0),
    "Abs at -0": (sf.Abs(x), -0.0, 0.0, 0.0, -1.0, 0.0),
    "a power of Abs at 0": (sf.Abs(x) ** 3, 0.0, 0.0, 0.0, 0.0, 0.0),
    "the root of Abs at 0": (sf.sqrt(sf.Abs(x)), 0.0, 0.0, 0.0, INF, 0.0),
    "sign at 0": (sf.sign(x), 0.0, 0.0, 0.0, 0.0, 0.0),
    "sign_no_zero at 0": (sf.sign_no_zero(x), 0.0, 0.0, 1.0, 0.0, 0.0),
    "sign_no_zero at -0": (sf.sign_no_zero(x), -0.0, 0.0, -1.0, 0.0, 0.0),
    "copysign_no_zero of 0": (sf.copysign_no_zero(x, y), 0.0, -3.0, -0.0, -1.0, 0.0),
    "copysign_no_zero at -0": (sf.copysign_no_zero(x, y), 2.0, -0.0, -2.0, -1.0, 0.0),
    "Heaviside at 0": (sympy.Heaviside(sympy.Symbol("x")), 0.0, 0.0, 0.5, 0.0, 0.0),
    "Heaviside of NaN": (sympy.Heaviside(sympy.Symbol("x"), 0), NAN, 0.0, NAN, 0.0, 0.0),
    "Max of NaN": (sf.Max(x, 1), NAN, 0.0, NAN, 0.0, 0.0),
    "Max of minus infinity": (sf.Max(x, -_OO), -3.0, 0.0, -3.0, 1.0, 0.0),
    "Min of infinity": (sf.Min(x, _OO), 3.0, 0.0, 3.0, 1.0, 0.0),
    "a tie of Max": (sf.Max(x, y), 2.0, 2.0, 2.0, 0.0, 1.0),
    "a tie of Min": (sf.Min(x, y), 2.0, 2.0, 2.0, 0.0, 1.0),
    "a tie of Max with a literal": (sf.Max(x, 0), 0.0, 0.0, 0.0, 1.0, 0.0),
    "a tie of Max with a literal, of a sum": (sf.Max(x + y, 3), 1.0, 2.0, 3.0, 1.0, 1.0),
    "a tie of Min with a literal": (sf.Min(x, 2), 2.0, 0.0, 2.0, 1.0, 0.0),
    "a tie of a clamp": (sf.clamp(x, -1, 1), -1.0, 0.0, -1.0, 1.0, 0.0),
    "cbrt of negative numbers": (_CBRT, -8.0, 0.0, -2.0, 1 / 12, 0.0),
    "cbrt at 0": (_CBRT, 0.0, 0.0, 0.0, INF, 0.0),
    "sqrt at 0": (sf.sqrt(x), 0.0, 0.0, 0.0, INF, 0.0),
    "sqrt of negative numbers": (sf.sqrt(x), -1.0, 0.0, NAN, NAN, 0.0),
    "the length of 0": (sf.sqrt(x**2 + y**2), 0.0, 0.0, 0.0, NAN, NAN),
    "x^2 of negative numbers": (x**2, -3.0, 0.0, 9.0, -6.0, 0.0),
    "x^-3 of negative numbers": (x**-3, -2.0, 0.0, -0.125, -0.1875, 0.0),
    "0^0": (x**y, 0.0, 0.0, 1.0, 0.0, 0.0),
    "0^2": (x**y, 0.0, 2.0, 0.0, 0.0, 0.0),
    "0^1": (x**y, 0.0, 1.0, 0.0, 1.0, 0.0),
    "0^-1": (x**y, 0.0, -1.0, INF, -INF, -INF),
    "a negative number to an integer": (x**y, -2.0, 3.0, -8.0, 12.0, NAN),
    "log at 0": (sf.log(x), 0.0, 0.0, -INF, INF, 0.0),
    "exp overflows": (sf.exp(x), 1000.0, 0.0, INF, INF, 0.0),
    "a literal that overflows": (x * sf.exp(1000), 1.0, 0.0, INF, INF, 0.0),
    "a power that overflows": (x / sf.pi**1000, 1.0, 0.0, 0.0, 0.0, 0.0),
    "atan2 on the negative axis": (sf.atan2(x, y, epsilon=0), 0.0, -2.0, math.pi, -0.5, -0.0),
    "atan2 below the negative axis": (
        *(sf.atan2(x, y, epsilon=0), -0.0, -2.0, -math.pi, -0.5, 0.0),
    ),
    "atan2 of zeros": (sf.atan2(x, y, epsilon=0), 0.0, 0.0, 0.0, NAN, NAN),
    "acot at 0": (sf.acot(x), 0.0, 0.0, math.pi / 2, -1.0, 0.0),
    "sech far out": (sf.sech(x), -1000.0, 0.0, 0.0, 0.0, 0.0),
    "csch far out": (sf.csch(x), -1000.0, 0.0, -0.0, 0.0, 0.0),
    "coth far out": (sf.coth(x), 1000.0, 0.0, 1.0, 0.0, 0.0),
    "tanh far out": (sf.tanh(x), -1000.0, 0.0, -1.0, 0.0, 0.0),
    "no condition holds": (sf.Piecewise((x, x < y)), 2.0, 1.0, NAN, 0.0, 0.0),
}
"""Kinks, poles and signed zeros."""

NOT_TAKEN: dict[str, Special] = {
    "an infinite slope": (sf.Max(sf.sqrt(x), 1), 0.0, 0.0, 1.0, 0.0, 0.0),
    "an infinite value": (sf.Min(1 / x**2, y), 0.0, 2.0, 2.0, 0.0, 1.0),
    "an infinite exponential": (sf.Min(sf.exp(x), y), 1000.0, 2.0, 2.0, 0.0, 1.0),
    "an infinite slope above": (sf.sqrt(sf.Max(x, 0)), -1.0, 0.0, 0.0, 0.0, 0.0),
    "the same of a curve": (sf.sqrt(sf.Max(1 - x**2 * y, 0)), 2.0, 1.0, 0.0, 0.0, 0.0),
    "the same of a pole": (sf.sqrt(sf.Max(1 - 1 / x, 0)), 0.5, 1.0, 0.0, 0.0, 0.0),
    "no value": (sf.Piecewise((sf.log(x), x > 0), (x**2, True)), -2.0, 0.0, 4.0, -4.0, 0.0),
    "a pole": (sf.Piecewise((x / y, sf.sympy.Ne(y, 0)), (1, True)), 3.0, 0.0, 1.0, 0.0, 0.0),
    "data that are NaN": (sf.Piecewise((y * (x - 1), y > 0), (x, True)), 3.0, NAN, 3.0, 1.0, 0.0),
    "data without bound": (
        *(sf.Piecewise((y * (x - 1), y < 1), (x, True)), 3.0, INF, 3.0, 1.0, 0.0),
    ),
    "a clamp in a clamp": (
        *(sf.Max(sf.Min(1 / x, y), sf.Min(sf.sqrt(x), -1)), 0.0, 2.0, 2.0, 0.0, 1.0),
    ),
}
"""What the branch that is not taken has, and the taken one has not."""

DTYPES = pytest.mark.parametrize(
    "dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value
)


def test_every_rule_has_a_case() -> None:
    pending = [sf.sympify(case.expression) for case in functions.CASES.values()]
    used = set()
    while pending:
        expression = pending.pop()
        used.add(function_name(expression))
        pending += expression.args
    known_by_symengine = {"BooleanFalse"}  # such branches it drops
    assert {*NUMBER_RULES, *TRUTH_RULES} - used == known_by_symengine


@DTYPES
def test_values_and_slopes(dtype: DType) -> None:
    """At half of the points in float32, whose functions `test_ops` compares too."""
    spec, rows = functions.function_kernel(dtype), functions.points(dtype)
    rows = np.ascontiguousarray(rows[:: 2 if dtype is DType.FLOAT32 else 1])
    truth = jets.truth(rows)
    results = {"LLVM": run_rows(CpuBackend(), spec, compile_kernel(spec, TARGETS["cpu"]), rows)}
    if find_compiler() is not None:
        source = compile_kernel(spec, TARGETS["cuda"])
        results["CUDA source on the host"] = run_rows_in_harness(spec, source, rows)
    if dtype is DType.FLOAT64:
        program = compile_graph(spec.graph, TARGETS["cpu"].costs[dtype])
        results["NumPy"] = evaluate_program(program, {"rows": rows})["results"]
    wrong = [
        f"{target}: {line}"
        for target, found in results.items()
        for line in jets.too_far(rows, found, truth, jets.PROCESSOR_ROUNDINGS)
    ]
    assert not wrong, "\n".join([f"{len(wrong)} in {dtype.value}:", *wrong])


@pytest.mark.parametrize(
    ("kind", "dtype"), alternating(groups.KINDS, [DType.FLOAT32, DType.FLOAT64])
)
def test_lie_groups(kind: str, dtype: DType) -> None:
    spec, blocks = groups.group_kernel(kind, dtype)
    rows = groups.elements(kind, dtype)
    found = run_rows(CpuBackend(), spec, compile_kernel(spec, TARGETS["cpu"]), rows)
    wrong = groups.too_far(spec, blocks, rows, found)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("dtype", "by_angle", "of_slopes"),
    [(DType.FLOAT32, 5e-7, 2e-4), (DType.FLOAT64, 2e-15, 1e-8)],
    ids=["float32", "float64"],
)
def test_the_logarithm_of_rotations_near_the_identity(
    dtype: DType, by_angle: float, of_slopes: float
) -> None:
    """What docs/NUMERICS.md says of it: the formula's own errors, those of epsilon included."""
    spec, blocks = groups.group_kernel("Rot3", dtype)
    (block,) = (block for block in blocks if block.name == "Rot3.to_tangent")
    angles = 10.0 ** np.linspace(-9.0, np.log10(np.pi), 150)
    axes = np.random.default_rng(3).normal(size=(len(angles), 3))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    rows = np.zeros((len(angles), spec.arg("rows").dim))
    rows[:, :3], rows[:, 3] = np.sin(angles / 2)[:, None] * axes, np.cos(angles / 2)
    rows[:, 10] = 1.0
    rows = rows.astype(dtype.value)
    found = run_rows(CpuBackend(), spec, compile_kernel(spec, TARGETS["cpu"]), rows)
    first_slope = block.first + block.num_values
    error = np.abs(found[:, block.first : first_slope] - angles[:, None] * axes)
    assert np.max(error / angles[:, None]) <= by_angle
    slopes = slice(first_slope, first_slope + block.num_slopes)
    exact = groups.truth(spec.graph, rows)[:, slopes]
    assert np.max(np.abs(found[:, slopes] - exact)) <= of_slopes


@pytest.mark.parametrize("table", [CORNERS, NOT_TAKEN], ids=["corners", "branch not taken"])
@DTYPES
def test_special_arguments(table: dict[str, Special], dtype: DType) -> None:
    """To the bit, but for NaN, the sign of slopes of zero, and the rounding of results."""
    spec = functions.function_kernel(dtype, [case[0] for case in table.values()])
    rows = np.array([case[1:3] for case in table.values()], dtype.value)
    results = run_rows(CpuBackend(), spec, compile_kernel(spec, TARGETS["cpu"]), rows)
    wrong = []
    for number, (name, case) in enumerate(table.items()):
        found, wanted = results[number, 3 * number : 3 * number + 3], np.array(case[3:])
        is_near = np.isclose(found, wanted, rtol=4 * np.finfo(rows.dtype).eps, atol=0.0)
        is_near |= np.isnan(found) & np.isnan(wanted)
        is_signed = np.signbit(found[0]) == np.signbit(wanted[0]) or np.isnan(wanted[0])
        if not (np.all(is_near) and is_signed):
            wrong.append(f"{name}: {found} instead of {wanted}")
    assert not wrong, "\n".join(wrong)
