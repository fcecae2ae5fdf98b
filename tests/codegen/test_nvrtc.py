"""NVRTC compiles every kernel for several architectures: no warnings, registers as predicted."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from caspar.codegen.cuda_tiles import TILE_KERNELS, TILE_SOURCE
from caspar.driver import TARGETS
from caspar.ir.dtype import DType
from caspar.memory.reduce import ReduceSpec
from caspar.options import Precision
from caspar.runtime.nvrtc import CompiledText, compile_text
from tests.support_kernels import generate, one_text
from tests.support_problems import PROBLEMS, distinct_specs

ARCHITECTURES = ("sm_75", "sm_86", "sm_90")
MAX_REGISTERS = 255
REGISTERS_BESIDES = 48
"""Registers of a kernel for addresses, loop counters and the functions of the header, beside those
the scheduler predicts for its values: up to 45 here, most where sums are taken in float64."""

MAX_SPILL_BYTES = {DType.FLOAT32: 16, DType.FLOAT64: 160}
"""Bytes stored and loaded that ptxas spends to let one more block of a kernel run at a time. It
spills nothing when told that one block is enough, by __launch_bounds__(256, 1)."""


@pytest.mark.parametrize("precision", Precision, ids=lambda precision: precision.value)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_solver_kernels_compile_to_few_registers(
    problem: str, precision: Precision, record_property: Callable[[str, object], None]
) -> None:
    specs = {spec.name: spec for spec in distinct_specs(precision)[problem]}
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
            assert entry.registers <= min(allowed, MAX_REGISTERS), where
            assert entry.spill_bytes <= MAX_SPILL_BYTES[dtype], where
            record_property(f"registers {arch} {name}", entry.registers)


def test_reductions_and_tile_kernels_compile() -> None:
    specs = [
        ReduceSpec(dim, dtype, lanes, accumulate)
        for dim, lanes, accumulate in ((1, 1, False), (3, 32, True), (45, 32, False))
        for dtype in (DType.FLOAT32, DType.FLOAT64)
    ]
    text = one_text([TARGETS["cuda"].generate_reduce(spec) for spec in specs])
    for arch in ARCHITECTURES:
        reductions = compiled_silently(text, arch).resources
        assert set(reductions) == {spec.name for spec in specs}
        tiles = compiled_silently(TILE_SOURCE, arch).resources
        assert set(tiles) == set(TILE_KERNELS)
        assert all(entry.spill_bytes == 0 for entry in (*reductions.values(), *tiles.values()))


def compiled_silently(text: str, arch: str) -> CompiledText:
    compiled = compile_text(text, arch)
    assert compiled.warnings == (), compiled.log
    return compiled
