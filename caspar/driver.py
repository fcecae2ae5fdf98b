"""The compiler from end to end, as one flat list of stages.

    factors -> (trace) -> kernels -> graph passes -> program -> source text

Input: traced factors, precision and target. Output: the sources of every kernel a solver needs.
Once for each solver; a cached result skips everything after tracing.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from caspar.codegen.cpu.kernel import generate_cpu, generate_cpu_convert, generate_cpu_reduce
from caspar.codegen.cuda.convert import generate_cuda_convert
from caspar.codegen.cuda.kernel import generate_cuda
from caspar.codegen.cuda.places import with_wide_places
from caspar.codegen.cuda.reduce import generate_cuda_reduce
from caspar.codegen.source import KernelSource, source_from_json, source_to_json
from caspar.equations.factor_kernels import factor_kernels, jacobian_kernel
from caspar.equations.linear.coarse_form import coarse_form
from caspar.equations.linear.coarse_kernels import coarse_factor_kernels, coarse_kernels
from caspar.equations.linear.explicit_kernels import (
    explicit_factor_kernels,
    explicit_kernels,
    explicit_node_kernels,
    fill_kernels,
)
from caspar.equations.memory_kernels import memory_kernels
from caspar.equations.node_kernels import node_kernels, step_kernel
from caspar.equations.scalar_kernels import scalar_kernels
from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.trace import NodeType, TracedFactor, retraction_key
from caspar.frontend.kernels.trace import TracedKernel, kernel_spec
from caspar.frontend.precision import TYPES, Types
from caspar.frontend.size_refusal import naming_owners
from caspar.ir.dtype import DType
from caspar.ir.program import Program
from caspar.memory.access import FinishSpec, WriteAccessor
from caspar.memory.conversion import ConvertSpec, Direction
from caspar.memory.kernel import KernelSpec
from caspar.memory.kernel_size import check_sizes
from caspar.memory.layout import rows_are_blocked
from caspar.memory.reduce import ReduceSpec
from caspar.options import Precision
from caspar.passes.cost import CPU, CUDA_FLOAT32, CUDA_FLOAT64, OpCosts
from caspar.passes.pipeline import Observer, compile_graph
from caspar.passes.price import graph_price
from caspar.runtime.cache import read_entry, write_entry

SCHEMA = 1
"""Version of the cached form."""

Made = TypeVar("Made")


@dataclass(frozen=True)
class Target:
    """A language to generate.

    Attributes:
        name: `cuda` or `cpu`, as the backend's name.
        generate: Writes a program's kernel.
        generate_reduce: Writes the kernel that sums partials.
        generate_convert: Writes the kernel between rows and the blocked layout.
        with_wide_places: Rewrites a kernel for items' places with 64 bits; None: they always have.
        costs: Prices by computing type.
    """

    name: str
    generate: Callable[[KernelSpec, Program], KernelSource]
    generate_reduce: Callable[[ReduceSpec], KernelSource]
    generate_convert: Callable[[ConvertSpec], KernelSource]
    with_wide_places: Callable[[KernelSource], KernelSource] | None
    costs: Mapping[DType, OpCosts]


TARGETS = {
    "cuda": Target(
        "cuda",
        generate_cuda,
        generate_cuda_reduce,
        generate_cuda_convert,
        with_wide_places,
        {DType.FLOAT32: CUDA_FLOAT32, DType.FLOAT64: CUDA_FLOAT64},
    ),
    "cpu": Target(
        "cpu",
        generate_cpu,
        generate_cpu_reduce,
        generate_cpu_convert,
        None,
        {DType.FLOAT32: CPU, DType.FLOAT64: CPU},
    ),
}


@dataclass(frozen=True)
class SolverSources:
    """Generated kernels of a solver, or a stand-alone one.

    Attributes:
        kernels: By name.
        jacobian_dims: Stored Jacobian entries of each factor, by the factor's name.
    """

    kernels: Mapping[str, KernelSource]
    jacobian_dims: Mapping[str, int]


@dataclass(frozen=True)
class JacobianPrice:
    """What an instance's Jacobian takes.

    Attributes:
        multiplications: To derive it, see `passes.price`.
        num_bytes: Of its entries that are not always zero, equal ones as well.
    """

    multiplications: float
    num_bytes: int


@dataclass(frozen=True)
class SolverDesign:
    """What the kernels of a solver depend on.

    Attributes:
        factors: Traced factors.
        nodes: Their node types, each once.
        precision: Which floating types are used for what.
        target: What to generate.
        form: How the kernels are made.
    """

    factors: Sequence[TracedFactor]
    nodes: Sequence[NodeType]
    precision: Precision
    target: Target
    form: SolverForm

    @property
    def types(self) -> Types:
        """Floating types."""
        return TYPES[self.precision]

    @property
    def key(self) -> str:
        """A digest of all of it, and of the compiler."""
        parts = [str(SCHEMA), _compiler_digest(), self.target.name, self.precision.value]
        parts += [self.form.key, *(factor.key for factor in self.factors)]
        parts += [f"{node.name}: {retraction_key(node)}" for node in self.nodes]
        return _digest(parts)


def solver_sources(design: SolverDesign) -> SolverSources:
    """Generate the kernels of a solver, or take them from the cache."""
    return _cached(design.key, lambda: generate_sources(design), _to_json, _from_json)


def explicit_sources(design: SolverDesign) -> SolverSources:
    """The same for the kernels that form the system as a matrix: for direct solvers alone."""

    def specs() -> list[KernelSpec]:
        otherwise = "; or use linear_solver='pcg' or 'schur_pcg', which form no matrix"
        with naming_owners(design.factors, design.nodes, otherwise):
            made = _explicit_specs(design)
            # they are compiled on top of those that every solver has
            usual, _ = kernel_specs(design.factors, design.nodes, design.types, design.form)
            check_sizes([*made, *usual])
        return made

    return _cached_specs([design.key, "explicit"], design.target, specs)


def coarse_sources(design: SolverDesign, width: int) -> SolverSources:
    """The same for the two-level preconditioner.

    Args:
        design: Of a solver; `coarse_refusal` does not refuse its factors.
        width: See `coarse_kernels`.
    """
    parts = [design.key, f"coarse {width}"]
    return _cached_specs(parts, design.target, lambda: _coarse_specs(design, width))


def slot_sources(design: SolverDesign, node: NodeType) -> SolverSources:
    """The same for the kernel of a type of few nodes: see `memory.accessors.sums.slots`."""

    def specs() -> list[KernelSpec]:
        return [step_kernel(node, design.types, many_slots=True)]

    return _cached_specs([design.key, "slots", node.name], design.target, specs)


def _coarse_specs(design: SolverDesign, width: int) -> list[KernelSpec]:
    coarse, types = coarse_form(design.factors, design.form), design.types
    specs = coarse_kernels(coarse, types, width)
    for factor in design.factors:
        own = design.form.factors[factor.name]
        slots = factor_kernels(factor, types, own).slots
        specs += coarse_factor_kernels(factor, types, own, slots, coarse)
    return specs


def _explicit_specs(design: SolverDesign) -> list[KernelSpec]:
    types, form = design.types, design.form
    specs = [*explicit_kernels(types), *fill_kernels(design.factors, design.nodes, types, form)]
    for node in design.nodes:
        if node.name not in form.eliminated:
            specs += explicit_node_kernels(node, types, form)
    ranks = {node.name: rank for rank, node in enumerate(design.nodes)}
    for factor in design.factors:
        own = form.factors[factor.name]
        slots = factor_kernels(factor, types, own).slots
        specs += explicit_factor_kernels(factor, types, own, slots, ranks)
    return specs


def jacobian_price(factor: TracedFactor, types: Types, target: Target) -> JacobianPrice:
    """The price of a factor's Jacobian by all its nodes, or what the cache has."""
    dtype = types.storage

    def find() -> JacobianPrice:
        with naming_owners([factor], []):
            spec = jacobian_kernel(factor, types)
        num_entries = sum(arg.dim for arg in spec.args if arg.name == "jacobian")
        price = graph_price(spec.graph, target.costs[dtype])
        return JacobianPrice(price, num_entries * dtype.itemsize)

    parts = [str(SCHEMA), _compiler_digest(), "price", target.name, dtype.value, factor.key]
    return _cached(_digest(parts), find, asdict, _price_from_json)


def generate_sources(design: SolverDesign) -> SolverSources:
    """Generate the kernels of a solver, without a cache."""
    with naming_owners(design.factors, design.nodes):
        specs, jacobian_dims = kernel_specs(design.factors, design.nodes, design.types, design.form)
        check_sizes(specs)
    kernels = {spec.name: compile_kernel(spec, design.target) for spec in specs}
    for conversion in convert_specs(design.factors, design.nodes, design.types):
        kernels[conversion.name] = design.target.generate_convert(conversion)
    return SolverSources(kernels, jacobian_dims)


def kernel_specs(
    factors: Sequence[TracedFactor],
    nodes: Sequence[NodeType],
    types: Types,
    form: SolverForm,
) -> tuple[list[KernelSpec], dict[str, int]]:
    """The kernels of a solver that compute, before compilation.

    Returns:
        The kernels, and by the factor's name each factor's stored Jacobian entries.
    """
    specs: list[KernelSpec] = []
    jacobian_dims = {}
    for factor in factors:
        kernels = factor_kernels(factor, types, form.factors[factor.name])
        specs += kernels.kernels.values()
        jacobian_dims[factor.name] = kernels.jacobian_dim
    for node in nodes:
        specs += node_kernels(node, types, form)
    specs += [*scalar_kernels(types), *memory_kernels()]
    return specs, jacobian_dims


def convert_specs(
    factors: Sequence[TracedFactor], nodes: Sequence[NodeType], types: Types
) -> list[ConvertSpec]:
    """The kernels of a solver that move values between rows and the blocked layout."""
    packed = {argument.storage_dim for factor in factors for argument in factor.arguments}
    unpacked = {node.storage_dim for node in nodes}
    return [
        ConvertSpec(direction, dim, types.storage)
        for direction, dims in ((Direction.PACK, packed), (Direction.UNPACK, unpacked))
        for dim in sorted(dims)
        if not rows_are_blocked(dim, types.storage)
    ]


def kernel_source(
    traced: TracedKernel,
    dtype: DType,
    writes: Mapping[str, WriteAccessor],
    target: Target,
) -> KernelSource:
    """Generate a stand-alone kernel, or take it from the cache.

    Args:
        traced: The kernel function.
        dtype: Type it computes in and its arrays have.
        writes: How the kernel itself writes each output, by the output's name.
        target: What to generate.
    """
    parts = (str(SCHEMA), _compiler_digest(), target.name, dtype.value, traced.key, repr(writes))
    made = _cached_specs(parts, target, lambda: [kernel_spec(traced, dtype, writes)])
    (source,) = made.kernels.values()
    return source


def finish_source(spec: FinishSpec, target: Target) -> KernelSource:
    """Generate a kernel that completes a write of another."""
    if isinstance(spec, ReduceSpec):
        return target.generate_reduce(spec)
    assert isinstance(spec, KernelSpec)
    return compile_kernel(spec, target)


def compile_kernel(
    spec: KernelSpec, target: Target, observer: Observer | None = None
) -> KernelSource:
    """One kernel: graph passes, schedule, registers, text."""
    program = compile_graph(spec.graph, target.costs[spec.graph.dtype], observer)
    return target.generate(spec, program)


# -- cache -----------------------------------------------------------------------------------------


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:40]


def _cached(
    key: str,
    generate: Callable[[], Made],
    to_json: Callable[[Made], dict[str, Any]],
    from_json: Callable[[Mapping[str, Any]], Made],
) -> Made:
    """What the cache has under a key, or what is generated now."""
    content = read_entry("plans", key)
    if content is not None:
        return from_json(json.loads(content))
    made = generate()
    write_entry("plans", key, json.dumps(to_json(made)).encode())
    return made


def cached_count(parts: Sequence[str], find: Callable[[], int]) -> int:
    """A number by what determines it besides caspar's own code, or what the cache has."""
    key = _digest([str(SCHEMA), _compiler_digest(), *parts])
    return _cached(key, find, lambda count: {"count": count}, lambda data: int(data["count"]))


def _cached_specs(
    parts: Sequence[str], target: Target, specs: Callable[[], list[KernelSpec]]
) -> SolverSources:
    """Kernels by what determines them, without stored Jacobians."""

    def generate() -> SolverSources:
        made = specs()
        check_sizes(made)
        return SolverSources({spec.name: compile_kernel(spec, target) for spec in made}, {})

    return _cached(_digest(parts), generate, _to_json, _from_json)


@cache
def _compiler_digest() -> str:
    """Digest of caspar's own source: an entry made by another version is never taken."""
    root = Path(__file__).parent
    files = [Path(__file__)]
    for package in ("ir", "memory", "passes", "frontend", "equations", "codegen"):
        files += (root / package).rglob("*.py")
    # of contents alone: where a file lies does not matter
    return _digest(sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in files))


def _price_from_json(data: Mapping[str, Any]) -> JacobianPrice:
    return JacobianPrice(float(data["multiplications"]), int(data["num_bytes"]))


def _to_json(sources: SolverSources) -> dict[str, Any]:
    kernels = [source_to_json(source) for source in sources.kernels.values()]
    return {"kernels": kernels, "jacobian_dims": dict(sources.jacobian_dims)}


def _from_json(data: Mapping[str, Any]) -> SolverSources:
    kernels = [source_from_json(entry) for entry in data["kernels"]]
    dims = {str(name): int(dim) for name, dim in data["jacobian_dims"].items()}
    return SolverSources({source.name: source for source in kernels}, dims)
