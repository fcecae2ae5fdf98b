"""Functions of the user as expressions, compared with the functions themselves.

Input: a factor or a kernel function. Output: it traced. A few milliseconds once for each factor or
kernel; the comparison takes some ten more, and what it found is in the cache: the key holds the
expressions and the function's code, so that a changed function is compared again.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from caspar.driver import cached_count
from caspar.errors import warn_user
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.own_unknowns import without_own_unknowns
from caspar.frontend.factors.terms import with_loss
from caspar.frontend.factors.trace import (
    TracedFactor,
    factor_comparison,
    trace,
)
from caspar.frontend.tracing.code_digest import user_code
from caspar.frontend.tracing.on_numbers import Comparison, compare_with_numbers
from caspar.frontend.tracing.reads import Reading, reading_of
from caspar.frontend.tracing.signature import argument_annotations
from caspar.progress import phase

if TYPE_CHECKING:
    from caspar.frontend.kernels.trace import KernelFunction, TracedKernel


@dataclass(frozen=True)
class _Kept:
    """A trace, and what its function read."""

    reading: Reading
    traced: TracedFactor


def traced_factor(factor: Factor) -> TracedFactor:
    """Trace a factor, and compare it with its function on numbers.

    It is not run again in this process while everything that it reads is as it was, nor for a copy
    of a solver.

    Raises:
        FactorError: It cannot be traced, or differs on numbers.
    """
    if factor.traced is not None:
        known: TracedFactor = factor.traced
        return known
    with phase(f"tracing {factor.name}"):
        traced = with_loss(factor, _kept_or_traced(factor))
    for source in traced.unused:
        warn_user(
            f"factor {traced.name}, argument {source}: the residual does not depend on it; remove "
            "it, or use it"
        )
    return traced


def _kept_or_traced(factor: Factor) -> TracedFactor:
    if factor.base is not None:
        # the same function
        return _kept_or_traced(factor.base)
    before = _reading(factor)
    kept: _Kept
    for kept in factor.found[:1]:
        if before is not None and kept.reading.is_same(before):
            return kept.traced
    traced = trace(factor)
    _compare_once(factor_comparison(factor, traced), traced.key)
    traced = without_own_unknowns(traced)
    # a function that changes what it reads gives something else the next time
    after = _reading(factor)
    if before is not None and after is not None and after.is_same(before):
        factor.found[:] = [_Kept(after, traced)]  # at once: other threads may be reading
    return traced


def _reading(factor: Factor) -> Reading | None:
    """Return what a factor may read; None: unknown, or a debugger keeps lines from tracing."""
    if sys.gettrace() is not None:
        return None
    return reading_of(factor.function, argument_annotations(factor))


def traced_kernel(function: "KernelFunction") -> "TracedKernel":
    """Trace a kernel, and compare it with its function on numbers.

    Raises:
        KernelError: It cannot be traced, or differs on numbers.
    """
    from caspar.frontend.kernels.trace import kernel_comparison, trace_kernel

    with phase(f"tracing {function.name}"):
        traced = trace_kernel(function)
        _compare_once(kernel_comparison(function, traced), traced.key)
    return traced


def _compare_once(comparison: Comparison, key: str) -> None:
    types = [type(one) for argument in comparison.arguments for one in argument.templates]
    code = user_code(comparison.user.function, types)
    cached_count(["on numbers", key, *code.parts], lambda: compare_with_numbers(comparison, code))
