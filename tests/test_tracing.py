"""Traced functions are compared once: the verdict is in the cache until the function changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import symforce.symbolic as sf

import caspar
from caspar import tracing
from caspar.errors import FactorError, KernelError
from caspar.frontend.tracing.on_numbers import compare_with_numbers

X = Annotated[sf.V2, caspar.TunableShared]


@pytest.fixture
def comparisons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the functions that are compared from now on, with an empty cache."""
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path / "cache"))
    compared: list[str] = []

    def counted(comparison: Any, code: Any) -> int:
        compared.append(comparison.user.name)
        return compare_with_numbers(comparison, code)

    monkeypatch.setattr("caspar.tracing.compare_with_numbers", counted)
    return compared


def factor_of(helper: Callable[[Any], Any]) -> caspar.Factor:
    def residual(x: X, m: Annotated[sf.V2, caspar.ConstSequential]) -> sf.V2:
        return x - m * helper(m)

    return caspar.factor(residual)


def test_a_factor_is_compared_once(comparisons: list[str]) -> None:
    for _ in range(3):
        tracing.traced_factor(factor_of(lambda m: 2 * m[0]))
    assert comparisons == ["residual"]


def test_a_changed_helper_is_compared_again(comparisons: list[str]) -> None:
    tracing.traced_factor(factor_of(lambda m: 3))
    with pytest.raises(FactorError, match="row 0 of the residual"):
        tracing.traced_factor(factor_of(lambda m: {1: 2}.get(m[0], 3)))
    assert len(comparisons) == 2


def test_a_difference_is_refused_each_time(comparisons: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(FactorError):
            caspar.Solver([factor_of(lambda m: len(set(m)))], backend="cpu")
    assert len(comparisons) == 2


def test_solvers_kernels_and_inspect_compare(comparisons: list[str]) -> None:
    @caspar.kernel
    def chosen(
        a: Annotated[sf.V2, caspar.ReadSequential],
    ) -> Annotated[sf.Symbol, caspar.WriteSequential]:
        return {1: a[1]}.get(a[0], 0)

    with pytest.raises(KernelError, match="output out is"):
        chosen(a=[[1.0, 2.0]])
    with pytest.raises(FactorError):
        factor_of(lambda m: len(set(m))).inspect()
    assert comparisons == ["chosen", "residual"]
