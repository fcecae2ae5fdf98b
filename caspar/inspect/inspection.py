"""The kernels of a factor, its own and those of its node types, and that of a kernel function."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter

from caspar.codegen.targets import TARGETS
from caspar.equations.factor_kernels import factor_kernels
from caspar.equations.node_kernels import node_kernels
from caspar.equations.solver_form import usual_form
from caspar.errors import OptionError
from caspar.frontend.factors.factor import Factor
from caspar.frontend.kernels.spec import kernel_spec
from caspar.frontend.kernels.trace import TracedKernel
from caspar.frontend.precision import TYPES
from caspar.frontend.printing import print_factor, print_kernel, print_retraction
from caspar.inspect.resources import ResourcesView
from caspar.inspect.stages import KernelInspection
from caspar.inspect.views import TextView
from caspar.ir.dtype import DType
from caspar.memory.kernel import KernelSpec
from caspar.options import Precision, choice
from caspar.runtime.nvidia.nvrtc import DEFAULT_ARCHITECTURE
from caspar.tracing import traced_factor


class _UnknownKernelError(OptionError, KeyError):
    """No kernel of that name; a `KeyError` too, as mappings need for `get` and `in`."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would print its message in quotes


@dataclass(frozen=True)
class FactorInspection(Mapping[str, KernelInspection]):
    """The kernels of a factor by name.

    A kernel is also found by the last part of its name where only one has it:
    `snavely__linearize` by `linearize`. Any other name is an `OptionError` that lists all, and a
    `KeyError`.

    Attributes:
        name: The factor's name.
        kernels: By full name: those of the factor, then those of each node type, as a solver of
            this factor alone has them where nothing is chosen.
    """

    name: str
    kernels: Mapping[str, KernelInspection]

    def __getitem__(self, name: str) -> KernelInspection:
        found = [key for key in self.kernels if name == key or key.endswith(f"_{name}")]
        if name in self.kernels:
            return self.kernels[name]
        if len(found) != 1:
            wrong = "there is none" if len(found) == 0 else f"may be {' or '.join(found)}"
            known = ", ".join(self.kernels)
            raise _UnknownKernelError(
                f"kernel={name!r}: {wrong}; the kernels of factor {self.name} are {known}"
            )
        return self.kernels[found[0]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __repr__(self) -> str:
        return f"factor {self.name}; kernels: {', '.join(self.kernels)}"

    def kernel(self, name: str) -> KernelInspection:
        """The kernel of that name.

        Raises:
            OptionError: There is none, or several whose names end so; the message lists all.
        """
        return self[name]

    @property
    def trace(self) -> TextView:
        """The factor's arguments and residual."""
        return TextView(next(iter(self.kernels.values())).traced)

    @property
    def resources(self) -> ResourcesView:
        """Registers, spills and instruction counts of all kernels, for the target `cuda`.

        Raises:
            BackendError: NVRTC or nvdisasm is not installed.
        """
        with ThreadPoolExecutor() as pool:
            return ResourcesView(tuple(pool.map(attrgetter("report"), self.kernels.values())))


def inspect_factor(
    factor: Factor,
    precision: str | Precision = Precision.MIXED,
    target: str = "cuda",
    arch: str = DEFAULT_ARCHITECTURE,
) -> FactorInspection:
    """Trace a factor and make its kernels and those of its node types.

    Args:
        factor: What to look at.
        precision: `mixed`, `float32` or `float64`.
        target: `cuda` or `cpu`.
        arch: Architecture of machine code.

    Raises:
        FactorError: The factor cannot be traced.
        OptionError: A choice that does not exist.
    """
    types = TYPES[choice(Precision, "precision", precision)]
    if target not in TARGETS:
        raise OptionError(f"target={target!r}: must be one of {', '.join(map(repr, TARGETS))}")
    traced = traced_factor(factor)
    nodes = {one.node_type.name: one.node_type for one in traced.nodes}
    form = usual_form([traced], list(nodes.values()), TARGETS[target].dialect)
    own = factor_kernels(traced, types, form.factors[traced.name])
    text = print_factor(traced)
    specs: list[tuple[KernelSpec, str]] = [(spec, text) for spec in own.kernels.values()]
    for node in nodes.values():
        text = print_retraction(node)
        made = node_kernels(node, types, form)
        specs += [(spec, text) for spec in made]
    shown = (KernelInspection(spec, TARGETS[target], arch, text) for spec, text in specs)
    return FactorInspection(factor.name, {kernel.name: kernel for kernel in shown})


DTYPES = {dtype.value: dtype for dtype in (DType.FLOAT32, DType.FLOAT64)}
"""Types that kernels compute in, by name."""


def inspect_kernel(
    traced: TracedKernel,
    dtype: str = DType.FLOAT32.value,
    target: str = "cuda",
    arch: str = DEFAULT_ARCHITECTURE,
    *,
    deterministic: bool = False,
) -> KernelInspection:
    """The kernel itself, without those that complete its writes.

    Where a write chooses between ways by what is passed in a call, such as the statistics of an
    index, it is the way without an index.

    Args:
        traced: The kernel function.
        dtype: `float32` or `float64`.
        target: `cuda` or `cpu`.
        arch: Architecture of machine code.
        deterministic: Whether equal input must give equal bits.

    Raises:
        OptionError: A choice that does not exist.
    """
    for name, given, allowed in (("dtype", dtype, DTYPES), ("target", target, TARGETS)):
        if given not in allowed:
            raise OptionError(f"{name}={given!r}: must be one of {', '.join(map(repr, allowed))}")
    is_atomic = TARGETS[target].dialect.sums_are_atomic(deterministic)
    writes = {
        one.name: one.access.in_kernel(one.access.defaults, is_atomic) for one in traced.outputs
    }
    spec = kernel_spec(traced, DTYPES[dtype], writes)
    return KernelInspection(spec, TARGETS[target], arch, print_kernel(traced))
