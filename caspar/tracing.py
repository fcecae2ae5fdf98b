"""Functions of the user as expressions, compared with the functions themselves.

Input: a factor or a kernel function. Output: it traced. A few milliseconds once for each solver or
kernel; the comparison takes some ten more, and what it found is in the cache: the key holds the
expressions and the function's code, so that a changed function is compared again.
"""

from caspar.driver import cached_count
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.trace import TracedFactor, factor_comparison, trace
from caspar.frontend.kernels.trace import (
    KernelFunction,
    TracedKernel,
    kernel_comparison,
    trace_kernel,
)
from caspar.frontend.tracing.code_digest import user_code
from caspar.frontend.tracing.on_numbers import Comparison, compare_with_numbers
from caspar.progress import phase


def traced_factor(factor: Factor) -> TracedFactor:
    """Trace a factor, and compare it with its function on numbers.

    Raises:
        FactorError: It cannot be traced, or differs on numbers.
    """
    with phase(f"tracing {factor.name}"):
        traced = trace(factor)
        _compare_once(factor_comparison(factor, traced), traced.key)
    return traced


def traced_kernel(function: KernelFunction) -> TracedKernel:
    """Trace a kernel, and compare it with its function on numbers.

    Raises:
        KernelError: It cannot be traced, or differs on numbers.
    """
    with phase(f"tracing {function.name}"):
        traced = trace_kernel(function)
        _compare_once(kernel_comparison(function, traced), traced.key)
    return traced


def _compare_once(comparison: Comparison, key: str) -> None:
    types = [type(one) for argument in comparison.arguments for one in argument.templates]
    code = user_code(comparison.user.function, types)
    cached_count(["on numbers", key, *code.parts], lambda: compare_with_numbers(comparison, code))
