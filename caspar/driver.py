"""The compiler from end to end, as one flat list of stages.

    factors -> (trace) -> kernels -> graph passes -> program -> source text

Input: traced factors, precision and target. Output: the sources of every kernel a solver needs.
Once for each solver; a cached result skips everything after tracing.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from caspar.codegen.source import KernelSource, source_from_json, source_to_json
from caspar.codegen.targets import Target
from caspar.equations.solver_form import SolverForm
from caspar.equations.solver_kernels import convert_specs, kernel_specs, rounded_arguments
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.frontend.precision import TYPES, Types
from caspar.frontend.size_refusal import naming_owners
from caspar.ir.program import Program
from caspar.ir.text import parse_program, print_graph, print_program
from caspar.memory.kernel import KernelSpec, check_sizes
from caspar.options import Precision
from caspar.progress import phase
from caspar.runtime.cache import cache_folder, read_entry, write_entry

if TYPE_CHECKING:
    from caspar.passes.pipeline import Observer

SCHEMA = 1
"""Version of the cached form."""

MAX_KEPT = 64
"""Results that a process keeps: a solver has a handful, whose texts take a megabyte."""

Made = TypeVar("Made")

MIN_STORED_CALLS = 200
"""Calls of the smallest graph whose program is stored: scheduling fewer is as quick as reading."""

ProgramOf = Callable[[KernelSpec, Target], Program]
"""Schedules a kernel."""

WhenMade = Callable[[KernelSource], object]
"""A function that is called with each kernel as soon as it is generated."""


def ignored(source: KernelSource) -> None:
    """Told of a kernel, does nothing."""


@dataclass(frozen=True)
class SolverSources:
    """Generated kernels of a solver, or a stand-alone one.

    Attributes:
        kernels: By name.
        jacobian_dims: Stored Jacobian entries of each factor, by the factor's name.
        rounded: The arguments of each factor that its kernels read rounded to the type of storage.
    """

    kernels: Mapping[str, KernelSource]
    jacobian_dims: Mapping[str, int]
    rounded: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class SolverDesign:
    """The inputs that determine a solver's kernels."""

    factors: Sequence[TracedFactor]
    nodes: Sequence[NodeType]
    precision: Precision
    target: Target
    form: SolverForm

    @property
    def types(self) -> Types:
        """Floating types."""
        return TYPES[self.precision]

    @cached_property
    def key(self) -> str:
        """A digest of all of it."""
        parts = [self.target.name, self.precision.value, self.form.key]
        parts += [factor.key for factor in self.factors]
        parts += [f"{node.name}: {node.retraction_key}" for node in self.nodes]
        return digest_of(parts)


def solver_sources(design: SolverDesign, made: WhenMade = ignored) -> SolverSources:
    """Generate the kernels of a solver, or take them from the cache.

    `made` is called with each kernel that is generated, as soon as it is.
    """
    return cached(
        [design.key], lambda: generate_sources(design, made, stored_program), _to_json, _from_json
    )


def compiled_program(
    spec: KernelSpec, target: Target, observer: "Observer | None" = None
) -> Program:
    """Graph passes, schedule and registers of a kernel."""
    from caspar.passes.pipeline import compile_graph

    return compile_graph(spec.graph, target.costs[spec.graph.dtype], observer)


def stored_program(spec: KernelSpec, target: Target) -> Program:
    """The same, or what the cache has of such a graph.

    Names of kernels and of the user's functions are not in the key: a renamed factor, and the
    others beside a changed one, are not scheduled again.
    """
    graph = spec.graph
    if len(graph.calls) < MIN_STORED_CALLS:
        return compiled_program(spec, target)
    origins = list(dict.fromkeys(call.origin for call in graph.calls))
    numbers = {origin: str(number) for number, origin in enumerate(origins)}
    calls = tuple(replace(call, origin=numbers[call.origin]) for call in graph.calls)
    plain = replace(graph, calls=calls)
    program = _stored(
        _key(["program", repr(target.costs[graph.dtype]), print_graph(plain)]),
        lambda: compiled_program(replace(spec, graph=plain), target),
        lambda made: {"program": print_program(made)},
        lambda data: parse_program(data["program"]),
    )
    return replace(
        program,
        instructions=tuple(
            replace(one, origin=origins[int(one.origin)] if one.origin else "")
            for one in program.instructions
        ),
    )


def generate_sources(
    design: SolverDesign, made: WhenMade = ignored, program_of: ProgramOf = compiled_program
) -> SolverSources:
    """Generate the kernels of a solver, without a cache unless `program_of` has one."""
    with phase("generating kernels"):
        with naming_owners(design.factors, design.nodes):
            specs, jacobian_dims = kernel_specs(
                design.factors, design.nodes, design.types, design.form
            )
            check_sizes(specs)
        kernels: dict[str, KernelSource] = {}
        # the longest first: it takes most of the time to compile, and others are made meanwhile
        for spec in sorted(specs, key=lambda one: len(one.graph.calls), reverse=True):
            kernels[spec.name] = design.target.generate(spec, program_of(spec, design.target))
            made(kernels[spec.name])
        kernels = {spec.name: kernels[spec.name] for spec in specs}
        for conversion in convert_specs(design.factors, design.nodes, design.types, design.form):
            kernels[conversion.name] = design.target.generate_convert(conversion)
            made(kernels[conversion.name])
    return SolverSources(kernels, jacobian_dims, rounded_arguments(design.factors, specs))


def compile_specs(
    parts: Sequence[str], target: Target, specs: Callable[[], list[KernelSpec]]
) -> SolverSources:
    """Kernels without stored Jacobians, or what the cache has.

    `parts` are what determines them, besides the target and caspar's own code.

    Raises:
        SizeError: They would take minutes to compile.
    """

    def generate() -> SolverSources:
        with phase("generating kernels"):
            made = specs()
            check_sizes(made)
            kernels = [target.generate(spec, stored_program(spec, target)) for spec in made]
            return SolverSources({kernel.name: kernel for kernel in kernels}, {})

    return cached([target.name, *parts], generate, _to_json, _from_json)


def compile_kernel(
    spec: KernelSpec, target: Target, observer: "Observer | None" = None
) -> KernelSource:
    """One kernel: graph passes, schedule, registers, text."""
    return target.generate(spec, compiled_program(spec, target, observer))


# -- cache -----------------------------------------------------------------------------------------


_kept: dict[tuple[str, str], tuple[Any, ...]] = {}
"""Results of `cached`, by the cache folder and the key; each in a tuple."""


def digest_of(parts: Sequence[str]) -> str:
    """A name for what some texts determine."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:40]


def cached(
    parts: Sequence[str],
    generate: Callable[[], Made],
    to_json: Callable[[Made], dict[str, Any]],
    from_json: Callable[[Mapping[str, Any]], Made],
) -> Made:
    """Return what this process or the cache has, or generate it now.

    Callers share the result: it must not be changed. `parts` are what determines it, besides
    caspar's own code; `from_json` is the inverse of `to_json`.
    """
    key = _key(parts)
    place = (str(cache_folder()), key)
    kept = _kept.get(place)
    if kept is not None:
        found: Made = kept[0]
        return found
    made = _stored(key, generate, to_json, from_json)
    if len(_kept) >= MAX_KEPT:
        _kept.clear()  # at once: other threads may be reading
    _kept[place] = (made,)
    return made


def _key(parts: Sequence[str]) -> str:
    return digest_of([str(SCHEMA), _compiler_digest(), *parts])


def _stored(
    key: str,
    generate: Callable[[], Made],
    to_json: Callable[[Made], dict[str, Any]],
    from_json: Callable[[Mapping[str, Any]], Made],
) -> Made:
    """Return what the cache has, or generate it now; see `cached`."""
    content = read_entry("plans", key)
    if content is not None:
        return from_json(json.loads(content))
    made = generate()
    write_entry("plans", key, json.dumps(to_json(made)).encode())
    return made


def cached_count(parts: Sequence[str], find: Callable[[], int]) -> int:
    """A number by what determines it besides caspar's own code, or what the cache has."""
    return cached(parts, find, lambda count: {"count": count}, lambda data: int(data["count"]))


@cache
def _compiler_digest() -> str:
    """Digest of caspar's own source: an entry made by another version is never taken."""
    root = Path(__file__).parent
    files = [Path(__file__)]
    packages = (
        "ir",
        "memory",
        "passes",
        "frontend",
        "equations",
        "codegen",
        "solver/lm",
        "solver/linear",
        "solver/result",
        "batch",
    )
    for package in packages:
        files += (root / package).rglob("*.py")
    # of contents alone: where a file lies does not matter
    return digest_of(sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in files))


def _to_json(sources: SolverSources) -> dict[str, Any]:
    kernels = [source_to_json(source) for source in sources.kernels.values()]
    rounded = {name: list(arguments) for name, arguments in sources.rounded.items()}
    return {"kernels": kernels, "jacobian_dims": dict(sources.jacobian_dims), "rounded": rounded}


def _from_json(data: Mapping[str, Any]) -> SolverSources:
    kernels = [source_from_json(entry) for entry in data["kernels"]]
    dims = {str(name): int(dim) for name, dim in data["jacobian_dims"].items()}
    rounded = {str(name): [str(one) for one in given] for name, given in data["rounded"].items()}
    return SolverSources({source.name: source for source in kernels}, dims, rounded)
