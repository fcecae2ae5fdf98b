"""The kernels of a solver's factors for gradients, compiled when they are first needed.

Cost tier: once for a solver.
"""

from collections.abc import Sequence
from threading import Lock

from caspar.codegen.targets import TARGETS
from caspar.driver import compile_specs
from caspar.equations.adjoint.kernels import adjoint_kernel, hessian_kernel
from caspar.frontend.factors.trace import TracedFactor
from caspar.memory.kernel import KernelSpec
from caspar.progress import phase
from caspar.runtime.backend import Backend, Kernel

EXACT, GAUSS_NEWTON, ADJOINT = "exact", "gauss_newton", "adjoint"
"""Roles: see `equations.adjoint.kernels`."""


def _spec(factor: TracedFactor, role: str) -> KernelSpec:
    if role == ADJOINT:
        return adjoint_kernel(factor)
    return hessian_kernel(factor, is_exact=role == EXACT)


class GradientKernels:
    """Kernels by factor and role.

    Args:
        backend: Where they run.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kernels: dict[tuple[str, str], Kernel] = {}
        self._compiling = Lock()

    def load(self, factors: Sequence[TracedFactor], roles: Sequence[str]) -> None:
        """Compile what is missing.

        Raises:
            SizeError: A kernel would take minutes to compile.
        """
        with self._compiling:
            wanted = [(factor, role) for factor in factors for role in roles]
            missing = [
                (factor, role) for factor, role in wanted if (factor.key, role) not in self._kernels
            ]
            if len(missing) == 0:
                return
            sources = compile_specs(
                ["gradients", *(f"{role} {factor.key}" for factor, role in missing)],
                TARGETS[self._backend.traits.target],
                lambda: [_spec(factor, role) for factor, role in missing],
            )
            with phase("compiling the kernels of gradients"):
                loaded = self._backend.load(list(sources.kernels.values()))
            for (factor, role), source in zip(missing, sources.kernels.values(), strict=True):
                self._kernels[factor.key, role] = loaded[source.name]

    def of(self, factor: TracedFactor, role: str) -> Kernel:
        """One that has been loaded."""
        return self._kernels[factor.key, role]
