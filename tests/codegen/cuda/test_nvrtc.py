"""NVRTC compiles every kernel for several architectures: no warnings, registers as predicted."""

import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from caspar.codegen.cuda.body import FIRST_WORDS
from caspar.codegen.cuda.header import BLOCK_SIZE_OPTION
from caspar.codegen.cuda.structure.tiles import TILE_KERNELS, TILE_SOURCE
from caspar.codegen.targets import TARGETS
from caspar.equations.solver_form import usual_form
from caspar.equations.solver_kernels import kernel_specs
from caspar.errors import CompileError
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.trace import NodeType, TracedFactor, trace
from caspar.frontend.precision import TYPES
from caspar.ir.dtype import DType
from caspar.memory.accessors.nodes.exchanges import SumOverNode
from caspar.memory.accessors.nodes.node_sums import STAGED_SCALARS, AddOwnNode
from caspar.memory.accessors.sums.partials import ReadPartials
from caspar.memory.accessors.sums.runs import AddRuns
from caspar.memory.reduce import ReduceSpec
from caspar.options import Precision
from caspar.runtime.nvidia.nvrtc import CompiledText, compile_source, compile_text
from tests.support_kernels import generate, one_text
from tests.support_problems import PROBLEMS, Way, distinct_specs

FOLDER = Path(__file__).parents[3] / "examples"
ARCHITECTURES = ("sm_75", "sm_86", "sm_90")
EXAMPLES = (
    "caspar.bundle_adjustment",
    "tests.support_problems",
    *(f"examples.{path.stem}" for path in sorted(FOLDER.glob("*.py"))),
)
MAX_REGISTERS = 255
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


@pytest.mark.parametrize("precision", Precision, ids=lambda precision: precision.value)
@pytest.mark.parametrize("way", Way, ids=lambda way: way.value)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_solver_kernels_compile_to_few_registers(
    problem: str, way: Way, precision: Precision, record_property: Callable[[str, object], None]
) -> None:
    specs = {spec.name: spec for spec in distinct_specs(precision)[problem, way]}
    sources = generate(list(specs.values()), TARGETS["cuda"])
    text = one_text(list(sources.values()))
    with ThreadPoolExecutor(len(ARCHITECTURES)) as pool:
        compiled = list(pool.map(lambda arch: compiled_silently(text, arch), ARCHITECTURES))
    for arch, result in zip(ARCHITECTURES, compiled, strict=True):
        assert set(result.resources) == set(sources)
        for name, entry in result.resources.items():
            where = f"{name} for {arch}: {entry}, predicted {sources[name].num_registers}"
            dtype = specs[name].graph.dtype
            words = dtype.itemsize // 4
            allowed = sources[name].num_registers * words + REGISTERS_BESIDES
            kinds = {type(one) for one in specs[name].accessors}
            allowed += REGISTERS_OF_RUNS[dtype] if AddRuns in kinds else 0
            allowed += REGISTERS_OF_SUMS[dtype] if SumOverNode in kinds else 0
            allowed += STAGED_SCALARS * words if AddOwnNode in kinds else 0
            allowed += REGISTERS_OF_PARTIALS if ReadPartials in kinds else 0
            allowed += FIRST_WORDS if specs[name].few_items else 0
            assert entry.registers <= min(allowed, MAX_REGISTERS), where
            record_property(f"registers {arch} {name}", entry.registers)


@pytest.mark.parametrize("module", EXAMPLES)
def test_no_kernel_of_an_example_spills(
    module: str, record_property: Callable[[str, object], None]
) -> None:
    """In float32; what spills in float64 is recorded."""
    if module.endswith("torch_tensors"):
        pytest.importorskip("torch")
    found = vars(importlib.import_module(module)).values()
    traced = [trace(entry) for entry in found if isinstance(entry, Factor)]
    nodes = {node.name: node for factor in traced for node in _node_types(factor)}
    form = usual_form(traced, list(nodes.values()), "cuda")
    specs = kernel_specs(traced, list(nodes.values()), TYPES[Precision.MIXED], form)[0]
    sources = generate(specs, TARGETS["cuda"])
    dtypes = {spec.name: spec.graph.dtype for spec in specs}
    text = one_text(list(sources.values()))
    for arch in ARCHITECTURES:
        for name, entry in compiled_to_fit(text, arch).resources.items():
            if entry.stack_bytes == 0:
                continue
            alone = compile_source(sources[name], arch)[1].resources[name]
            if dtypes[name] is DType.FLOAT32:
                allowed = SPILLED_BYTES.get(name, 0)
                assert alone.spill_bytes <= allowed, f"{name} for {arch}: {alone}"
            elif alone.spill_bytes > 0:
                record_property(f"spilled bytes {arch} {name}", alone.spill_bytes)


def _node_types(factor: TracedFactor) -> list[NodeType]:
    return [argument.node for argument in factor.nodes if argument.node is not None]


def test_reductions_and_tile_kernels_compile() -> None:
    specs = [
        ReduceSpec(dim, dtype, lanes, accumulate)
        for dim, lanes, accumulate in (
            (1, 1, False),
            (3, 32, True),
            (9, 128, True),
            (45, 32, False),
        )
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
