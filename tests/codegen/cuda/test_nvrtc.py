"""NVRTC compiles every kernel: no warnings, registers as predicted, for several architectures.

Those of a few problems and ways are compiled, in another precision and for another architecture
each; `-m reliability` compiles all for all. Kernels that may need more registers than there are,
which is where architectures differ, are compiled for all of them here too.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from caspar.codegen.cuda.body import FIRST_WORDS
from caspar.codegen.cuda.header import BLOCK_SIZE_OPTION
from caspar.codegen.cuda.structure.tiles import TILE_KERNELS, TILE_SOURCE
from caspar.codegen.source import KernelSource
from caspar.codegen.targets import TARGETS
from caspar.equations.solver_form import usual_form
from caspar.equations.solver_kernels import kernel_specs
from caspar.errors import CompileError
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.own_unknowns import without_own_unknowns
from caspar.frontend.factors.trace import NodeType, TracedFactor, trace
from caspar.frontend.precision import TYPES
from caspar.ir.dtype import DType
from caspar.memory.accessors.nodes.exchanges import SumOverNode
from caspar.memory.accessors.nodes.node_sums import STAGED_SCALARS, AddOwnNode
from caspar.memory.accessors.sums.partials import ReadPartials
from caspar.memory.accessors.sums.runs import AddRuns
from caspar.memory.kernel import KernelSpec, ReduceSpec
from caspar.options import Precision
from caspar.runtime.nvidia.nvrtc import CompiledText, compile_source, compile_text
from tests.covering import usual
from tests.support_kernels import generate, one_text
from tests.support_problems import PROBLEMS, Way, distinct_specs

FOLDER = Path(__file__).parents[3] / "examples"
ARCHITECTURES = ("sm_75", "sm_86", "sm_90")
EXAMPLES = (
    "caspar.bundle_adjustment",
    "caspar.colmap.positioning",
    "tests.support_problems",
    *(f"examples.{path.stem}" for path in sorted(FOLDER.glob("*.py"))),
)

MAX_REGISTERS = 255
REGISTERS_OF_BLOCK = 1 << 16
"""Registers that the threads of a block share, on all three."""

SMALL_BLOCK = 128
"""Threads; all kernels allow it."""

REGISTERS_BESIDES = 48
"""Registers of a kernel for addresses, loop counters and the functions of the header, beside those
the scheduler predicts for its values: up to 47 here, most where sums are taken in float64."""

REGISTERS_OF_RUNS = {DType.FLOAT32: 16, DType.FLOAT64: 52}
"""More where sums are taken over runs of lanes, whose values wait for others: up to 14 and 50 here,
of `snavely__reduce` and `snavely__linearize`."""

REGISTERS_OF_SUMS = {DType.FLOAT32: 0, DType.FLOAT64: 16}
"""More where sums are taken over the items of a node: up to 12, of `sighting__inner`."""

REGISTERS_OF_PARTIALS = 16
"""More where a thread has several partials of an array, in float64, on their way."""

SPILLED_BYTES = {"preintegrated_imu__store": 12}
"""A Jacobian of 9 rows by two poses, velocities and biases takes all registers there are, and some
bytes more: stores and loads together."""


@pytest.mark.parametrize(
    ("problem", "way", "precision", "arch"),
    usual(
        [
            ("robust", Way.FULL, Precision.MIXED, "sm_90"),
            ("robust", Way.CUDA, Precision.FLOAT64, "sm_75"),
            ("pose_graph", Way.CUDA, Precision.FLOAT32, "sm_86"),
        ],
        *(PROBLEMS, Way, Precision, ARCHITECTURES),
    ),
)
def test_solver_kernels_compile_to_few_registers(
    problem: str,
    way: Way,
    precision: Precision,
    arch: str,
    record_property: Callable[[str, object], None],
) -> None:
    specs = {spec.name: spec for spec in distinct_specs(precision)[problem, way]}
    sources = generate(list(specs.values()), TARGETS["cuda"])
    compiled = _compiled_where_it_matters(specs, sources, (arch,))
    assert {name for name, _ in compiled} == set(sources)
    for (name, compiled_for), result in compiled.items():
        assert result.warnings == (), result.log
        entry = result.resources[name]
        where = f"{name} for {compiled_for}: {entry}, predicted {sources[name].num_registers}"
        allowed = _allowed_registers(specs[name], sources[name])
        assert entry.registers <= min(allowed, MAX_REGISTERS), where
        record_property(f"registers {compiled_for} {name}", entry.registers)


def _allowed_registers(spec: KernelSpec, source: KernelSource) -> int:
    """Registers that a kernel may take, by the scheduler's prediction."""
    dtype = spec.graph.dtype
    words = dtype.itemsize // 4
    allowed = source.num_registers * words + REGISTERS_BESIDES
    kinds = {type(one) for one in spec.accessors}
    allowed += REGISTERS_OF_RUNS[dtype] if AddRuns in kinds else 0
    allowed += REGISTERS_OF_SUMS[dtype] if SumOverNode in kinds else 0
    allowed += STAGED_SCALARS * words if AddOwnNode in kinds else 0
    allowed += REGISTERS_OF_PARTIALS if ReadPartials in kinds else 0
    return allowed + (FIRST_WORDS if spec.few_items else 0)


def _may_spill(spec: KernelSpec, source: KernelSource) -> bool:
    """Whether it may take more registers than a thread has."""
    limit = min(MAX_REGISTERS, REGISTERS_OF_BLOCK // source.block_size)
    return _allowed_registers(spec, source) > limit


def _compiled_where_it_matters(
    specs: Mapping[str, KernelSpec], sources: Mapping[str, KernelSource], archs: Sequence[str]
) -> dict[tuple[str, str], CompiledText]:
    """By kernel and architecture: all kernels for some, those that may spill for all."""

    def compiled_for(arch: str) -> dict[tuple[str, str], CompiledText]:
        wanted = [
            source
            for name, source in sources.items()
            if arch in archs or _may_spill(specs[name], source)
        ]
        if len(wanted) == 0:
            return {}
        result = compiled_to_fit(one_text(wanted), arch)
        return {(source.name, arch): result for source in wanted}

    with ThreadPoolExecutor(len(ARCHITECTURES)) as pool:
        return {
            key: result
            for found in pool.map(compiled_for, ARCHITECTURES)
            for key, result in found.items()
        }


@pytest.mark.parametrize("module", EXAMPLES)
@pytest.mark.parametrize(
    "archs",
    [(), pytest.param(ARCHITECTURES, marks=pytest.mark.reliability)],
    ids=["float32", "all"],
)
def test_no_kernel_of_an_example_spills(
    module: str, archs: tuple[str, ...], record_property: Callable[[str, object], None]
) -> None:
    """In float32; what spills in float64 is recorded, for all architectures.

    Without architectures: float32 alone, for the newest one, and for all where a kernel may spill.
    What an example has in common with one before it is compiled there.
    """
    needed = {
        "torch_tensors": "torch",
        "learned_noise": "torch",
        "differentiable_calibration": "jax",
        "database_to_model": "pycolmap",
        "positioning": "pycolmap",
    }
    if (name := module.rpartition(".")[2]) in needed:
        pytest.importorskip(needed[name])
    found = vars(importlib.import_module(module)).values()
    traced = [without_own_unknowns(trace(entry)) for entry in found if isinstance(entry, Factor)]
    nodes = {node.name: node for factor in traced for node in _node_types(factor)}
    form = usual_form(traced, list(nodes.values()), TARGETS["cuda"].dialect)
    specs = kernel_specs(traced, list(nodes.values()), TYPES[Precision.MIXED], form)[0]
    if len(archs) == 0:
        specs = [spec for spec in specs if spec.graph.dtype is DType.FLOAT32]
    sources = {
        name: source
        for name, source in generate(specs, TARGETS["cuda"]).items()
        if _COMPILED.setdefault((_nameless(source), archs), module) == module
    }
    by_name = {spec.name: spec for spec in specs}
    compiled = _compiled_where_it_matters(by_name, sources, archs or ARCHITECTURES[-1:])
    for (name, arch), result in compiled.items():
        if result.resources[name].stack_bytes == 0:
            continue
        alone = compile_source(sources[name], arch)[1].resources[name]
        if by_name[name].graph.dtype is DType.FLOAT32:
            allowed = SPILLED_BYTES.get(name, 0)
            assert alone.spill_bytes <= allowed, f"{name} for {arch}: {alone}"
        elif alone.spill_bytes > 0:
            record_property(f"spilled bytes {arch} {name}", alone.spill_bytes)


_COMPILED: dict[tuple[str, tuple[str, ...]], str] = {}
"""By the text of a kernel without its name, and architectures: the first module that has it, which
compiles it."""


def _nameless(source: KernelSource) -> str:
    return source.text.replace(source.name, "kernel")


def _node_types(factor: TracedFactor) -> list[NodeType]:
    return [argument.node for argument in factor.nodes if argument.node is not None]


def test_reductions_and_tile_kernels_compile() -> None:
    specs = [
        ReduceSpec(dim, dtype, lanes)
        for dim, lanes in ((1, 1), (3, 32), (9, 128), (45, 32))
        for dtype in (DType.FLOAT32, DType.FLOAT64)
    ]
    text = one_text([TARGETS["cuda"].generate_reduce(spec) for spec in specs])
    for arch in ARCHITECTURES:
        reductions = compiled_silently(text, arch).resources
        assert set(reductions) == {spec.name for spec in specs}
        tiles = compiled_silently(TILE_SOURCE, arch).resources
        assert set(tiles) == set(TILE_KERNELS)
        assert all(entry.spill_bytes == 0 for entry in (*reductions.values(), *tiles.values()))


def compiled_to_fit(text: str, arch: str) -> CompiledText:
    """For blocks as the kernels prefer them, or smaller ones where shared memory is too little."""
    try:
        return compile_text(text, arch)
    except CompileError as error:
        if "too much shared data" not in str(error):
            raise
        return compile_text(text, arch, (BLOCK_SIZE_OPTION.format(SMALL_BLOCK),))


def compiled_silently(text: str, arch: str) -> CompiledText:
    compiled = compiled_to_fit(text, arch)
    assert compiled.warnings == (), compiled.log
    return compiled
