"""The text of a loop: every kernel once as a function, every helper once, barriers where needed."""

import re

import pytest

from caspar.codegen.cuda.loop.fuse import (
    CLUSTER_BLOCKS,
    CLUSTER_OPTION,
    ONE_BLOCK_LOOP_OPTION,
    LoopScalars,
    fuse,
)
from caspar.codegen.cuda.loop.kernel import LoopKernel, guard_name
from caspar.codegen.source import DATA, KernelSource
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.ir.dtype import DType
from caspar.memory.accessors.sums.shared_atomics import AddSharedRuns
from caspar.memory.kernel import KernelBuilder
from caspar.memory.patterns import ReadSequential, WriteSequential
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.covering import newest
from tests.support_loops import REDUCTION, SCALARS, loop_sources, own_lines

ARCHITECTURES = ("sm_75", "sm_86", "sm_90")
SOURCES = loop_sources("cuda")
BLOCK_SIZE = 256
PHASES = (
    ("product",),
    (REDUCTION.name, REDUCTION.name),
    ("alpha_of",),
    ("step", "step"),
    ("beta_of",),
    ("turn", "turn"),
)
SETTERS = ("alpha_of", "beta_of")


def loop_kernel(name: str) -> LoopKernel:
    source = SOURCES[name]
    return LoopKernel(
        source,
        name in SETTERS,
        guarded=guard_name(source) == "done",
        replicated=name in SETTERS,
        scalars=tuple(
            (param.name, SCALARS.index(param.arg))
            for param in source.params
            if param.arg in SCALARS and param.field == DATA
        ),
    )


def looped(*phases: tuple[LoopKernel, ...]) -> KernelSource:
    return fuse("loop", phases, BLOCK_SIZE, LoopScalars(len(SCALARS), SCALARS.index("done")))


def fused(*phases: tuple[str, ...]) -> KernelSource:
    return looped(*(tuple(map(loop_kernel, phase)) for phase in phases))


def test_everything_stands_there_once() -> None:
    text = fused(*PHASES).text
    assert text.count("__global__") == 1
    assert text.count("__shared__") == 2
    guards = re.findall(r"^#ifndef (CASPAR_\w+)$", text, re.M)
    assert len(guards) == len(set(guards))
    assert {"CASPAR_HEADER", "CASPAR_BLOCK_SUM", "CASPAR_SUM_PARTIALS"} <= set(guards)
    functions = re.findall(r"\brun_(\w+)\(\n", text)
    assert sorted(functions) == sorted(SOURCES)


def test_each_launch_has_parameters_of_its_own() -> None:
    source = fused(*PHASES)
    names = [param.name for param in source.params]
    assert len(names) == len(set(names))
    per_launch = [SOURCES[name].params for phase in PHASES for name in phase]
    assert len(names) == 3 + sum(1 + len(params) for params in per_launch)
    entry = own_lines(source.text)
    for number, name in enumerate(name for phase in PHASES for name in phase):
        call = re.search(rf"run_{name}\(.*\bk{number}_count\b.*\);", entry)
        assert call is not None


def test_no_load_may_pass_the_coherent_caches() -> None:
    kernel = KernelBuilder("copy", DType.FLOAT32)
    value = kernel.read("source", 1, DType.FLOAT32, ReadSequential())
    kernel.write("target", value, DType.FLOAT32, WriteSequential())
    source = compile_kernel(kernel.build(), TARGETS["cuda"])
    assert "__restrict__" in source.text
    assert "__restrict__" not in looped((LoopKernel(source),)).text


def test_the_loop_tests_the_flag_instead_of_the_guards() -> None:
    text = fused(*PHASES).text
    assert "if (done_data[0] != 0) return;" in SOURCES["step"].text
    assert "if (done_data[0] != 0) return;" not in text
    # at the start, behind alpha_of and behind beta_of
    assert own_lines(text).count("own[0] != 0.0") == 3
    kept = looped((LoopKernel(SOURCES["step"]),)).text
    assert "if (done_data[0] != 0) return;" in kept


@pytest.mark.parametrize(
    ("phases", "num_barriers"),
    [
        # every block makes the scalars by itself, and waits for nobody
        (PHASES, 4),
        ((("step",), ("alpha_of",), ("beta_of",)), 1),
        ((("alpha_of",), ("step",)), 1),
        ((("alpha_of",),), 0),
    ],
)
def test_number_of_barriers(phases: tuple[tuple[str, ...], ...], num_barriers: int) -> None:
    assert own_lines(fused(*phases).text).count("grid_barrier(") == num_barriers


def test_kernels_at_the_end_of_a_phase_are_dealt_first() -> None:
    entry = own_lines(fused(("product", "turn")).text)
    assert entry.index("run_turn(") < entry.index("run_product(")


def test_the_text_depends_on_the_kernels_alone() -> None:
    first = fused(*PHASES)
    fuse.cache_clear()
    assert fused(*PHASES) == first


def test_a_loop_is_written_once() -> None:
    assert fused(*PHASES) is fused(*PHASES)


@pytest.mark.parametrize("arch", newest(ARCHITECTURES))
def test_nvrtc_compiles_it(arch: str) -> None:
    text = fused(*PHASES).text
    alone = [compile_text(SOURCES[name].text, arch).resources[name] for name in SOURCES]
    for options in ((), (ONE_BLOCK_LOOP_OPTION,)):
        compiled = compile_text(text, arch, options)
        assert compiled.warnings == ()
        (entry,) = compiled.resources.values()
        # shared memory is that of the largest kernel, not of all, and the scalars
        largest = max(one.shared_bytes for one in alone)
        assert largest < entry.shared_bytes <= largest + 8 * len(SCALARS) + 16
        assert entry.spill_bytes == 0


def test_nvrtc_compiles_it_for_a_cluster() -> None:
    """Its barrier is the cluster's, and nobody asks a word of memory who has come."""
    option = CLUSTER_OPTION.format(CLUSTER_BLOCKS)
    compiled = compile_text(fused(*PHASES).text, "sm_90", (option,))
    assert compiled.warnings == ()
    assert f".reqnctapercluster {CLUSTER_BLOCKS}, 1, 1" in compiled.ptx
    assert compiled.ptx.count("barrier.cluster.arrive.release.aligned") == 4
    assert compiled.ptx.count("barrier.cluster.wait.acquire.aligned") == 4
    assert "atom.add.release.gpu" not in compiled.ptx


def test_nvrtc_keeps_the_shared_memory_apart_from_the_global() -> None:
    ptx = compile_text(fused(*PHASES).text, "sm_90").ptx
    entry = ptx[ptx.index(".entry loop") :]
    assert "ld.shared" in entry
    # an address whose space is not known takes a generic load
    assert re.search(r"^\s+(ld|st)\.(f|b|u)\d+", entry, re.M) is None
    assert "ld.global.nc" not in entry
    assert entry.count("atom.add.release.gpu") == 4
    assert "ld.acquire.gpu" in entry


def test_blocks_spread_over_regions_take_the_number_that_they_are_given() -> None:
    kernel = KernelBuilder("add_runs", DType.FLOAT32)
    value = kernel.read("source", 1, DType.FLOAT32, ReadSequential())
    kernel.write("total", value, DType.FLOAT32, AddSharedRuns())
    source = compile_kernel(kernel.build(), TARGETS["cuda"])
    text = looped((LoopKernel(source),)).text
    assert "spread_block(blockIdx.x, gridDim.x, total_regions)" in text
    assert compile_text(text, "sm_90").warnings == ()
