"""Machine code is disassembled and counted: kinds, widths, regions."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from caspar.codegen.targets import TARGETS
from caspar.errors import BackendError
from caspar.options import Precision
from caspar.runtime.nvidia import sass
from caspar.runtime.nvidia.nvrtc import compile_text
from caspar.runtime.nvidia.sass import (
    DOUBLE_KINDS,
    KINDS,
    OTHER,
    Region,
    SassKernel,
    disassemble,
    parse_sass,
)
from tests.covering import alternating
from tests.support_kernels import generate, one_text
from tests.support_problems import Way, distinct_specs

PRINTED = """\
	.headerflags	@"EF_CUDA_SM90"
	.section	.text.kernel,"ax",@progbits
        .global         kernel
kernel:
.text.kernel:
        /*0000*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0010*/              @!P0 BRA `(.L_x_1) ;
        /*0020*/                   CALL.REL.NOINC `($slow) ;
.L_x_1:
        /*0030*/                   FFMA.FTZ R4, R5, R6, R7 ;
        /*0040*/                   BRA.DIV ~URZ, `(.L_x_3) ;
        /*0050*/                   SHFL.DOWN PT, R4, R4, 0x1, 0x1f ;
.L_x_2:
        /*0060*/                   LDS.U16 R8, [R4+0x10] ;
        /*0070*/                   DADD R8, R8, R10 ;
        /*0080*/               @P1 BRA `(.L_x_2) ;
        /*0090*/              @UP0 UMOV UR4, 0x1 ;
        /*00a0*/                   STG.E [R2], R4 ;
        /*00b0*/                   EXIT ;
.L_x_3:
        /*00c0*/                   SHFL.DOWN PT, R4, R4, 0x1, 0x1f ;
        /*00d0*/                   BRA `(.L_x_2) ;
$slow:
        /*00e0*/                   MUFU.RCP R4, R5 ;
        /*00f0*/                   RET.REL.NODEC R20 `(kernel) ;
.L_x_4:
        /*0100*/                   BRA `(.L_x_4);
        /*0110*/                   NOP;
"""

ONE = (Region.STRAIGHT_LINE, Region.LOOP, Region.OUT_OF_LINE)


def compiled(bodies: Mapping[str, str], arch: str = "sm_90") -> Mapping[str, SassKernel]:
    """Kernels by name."""
    text = "\n".join(
        f'extern "C" __global__ void {name}(float* a, double* d, int n) {{\n{body}\n}}'
        for name, body in bodies.items()
    )
    return disassemble(compile_text(text, arch).cubin)


def test_printed_code_is_parsed_into_regions() -> None:
    kernel = parse_sass(PRINTED)["kernel"]
    regions = {entry.offset: entry.region for entry in kernel.instructions}
    straight, loop, away = ONE
    assert [regions[offset] for offset in range(0, 0x60, 0x10)] == [straight] * 6
    assert [regions[offset] for offset in range(0x60, 0x90, 0x10)] == [loop] * 3
    assert [regions[offset] for offset in range(0x90, 0xC0, 0x10)] == [straight] * 3
    assert [regions[offset] for offset in range(0xC0, 0x100, 0x10)] == [away] * 4
    assert set(regions) == set(range(0, 0x100, 0x10))
    predicates = {entry.offset: entry.predicate for entry in kernel.instructions}
    assert (predicates[0x0], predicates[0x10], predicates[0x90]) == ("", "@!P0", "@UP0")


def test_counts_by_kind_width_and_region() -> None:
    kernel = parse_sass(PRINTED)["kernel"]
    assert list(kernel.counts()) == list(KINDS)
    assert kernel.counts()["SHFL"] == 2
    assert kernel.straight_line["SHFL"] == 1
    assert kernel.counts([Region.LOOP])["DADD"] == 1
    assert kernel.straight_line["DADD"] == kernel.straight_line["MUFU"] == 0
    assert kernel.details() == {
        "DADD": 1,
        "FFMA": 1,
        "LDG.128": 1,
        "LDS.16": 1,
        "MUFU.RCP": 1,
        "SHFL": 2,
        "STG.32": 1,
        "branch": 7,
        "move": 1,
    }


def test_the_text_keeps_instructions_and_labels() -> None:
    text = parse_sass(PRINTED)["kernel"].text
    assert text.startswith("kernel:\n")
    assert ".L_x_2:" in text
    assert ".headerflags" not in text
    assert ".section" not in text


WRITTEN = {
    "FFMA": "a[0] = a[1] * a[2] + a[3];",
    "FADD": "a[0] = a[1] + a[2];",
    "FMUL": "a[0] = a[1] * a[2];",
    "DMUL": "d[0] = d[1] * d[2];",
    "DFMA": "d[0] = d[1] * d[2] + d[3];",
    "MUFU": "a[0] = __sinf(a[1]);",
    "convert": "d[0] = a[1];",
    "atomic": "atomicAdd(a, a[1]);",
    "BAR": "a[0] = 1.0f; __syncthreads(); a[1] = 2.0f;",
    "SHFL": "a[0] = __shfl_down_sync(0xffffffffu, a[threadIdx.x], 1);",
}
"""By kind of instruction code that needs one."""


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_real_code_has_what_was_written(arch: str) -> None:
    kernels = compiled(WRITTEN, arch)
    for kind in WRITTEN:
        assert kernels[kind].straight_line[kind] == 1, kind
        assert kernels[kind].counts()[OTHER] == 0, kind


def test_widths_of_real_accesses() -> None:
    vector = "reinterpret_cast<float4*>(a)"
    kernels = compiled({"four": f"{vector}[0] = {vector}[1];", "two": "d[0] = d[1];"})
    assert {"LDG.128", "STG.128"} <= set(kernels["four"].details())
    assert {"LDG.64", "STG.64"} <= set(kernels["two"].details())


def test_real_loops_and_slow_paths_are_not_in_the_straight_line() -> None:
    kernels = compiled(
        {
            "loop": "#pragma unroll 1\nfor (int i = 0; i < n; ++i) a[i] += a[i + n];",
            "division": "a[0] = a[1] / a[2];",
        }
    )
    loop, division = kernels["loop"], kernels["division"]
    assert loop.counts([Region.LOOP])["FADD"] == loop.counts()["FADD"] == 1
    assert division.counts([Region.OUT_OF_LINE])["MUFU"] > 0
    assert division.straight_line["MUFU"] == 1
    assert division.counts([Region.LOOP])["branch"] == 0


@pytest.mark.parametrize(
    ("arch", "kernels_of"),
    alternating(
        ["sm_90", "sm_75", "sm_120", "sm_86"],
        [
            *(("pose_graph", Way.CUDA), ("bundle_adjustment", Way.CUDA), ("robust", Way.FULL)),
            *(("pose_graph", Way.FULL), ("bundle_adjustment", Way.FULL), ("robust", Way.CUDA)),
        ],
    ),
)
def test_every_instruction_of_a_solver_has_a_kind(arch: str, kernels_of: tuple[str, Way]) -> None:
    specs = distinct_specs(Precision.MIXED)[kernels_of]
    sources = generate(specs, TARGETS["cuda"])
    kernels = disassemble(compile_text(one_text(list(sources.values())), arch).cubin)
    assert set(kernels) == set(sources)
    for kernel in kernels.values():
        unknown = {entry.name for entry in kernel.instructions if entry.kind == OTHER}
        assert not unknown
        assert sum(kernel.counts().values()) == len(kernel.instructions)
        assert kernel.instructions[0].region is Region.STRAIGHT_LINE
        assert kernel.counts()["STG"] + kernel.counts()["atomic"] > 0


def test_each_kind_is_listed_once() -> None:
    assert len(set(KINDS)) == len(KINDS)
    assert set(DOUBLE_KINDS) < set(KINDS)


def test_what_is_no_machine_code_is_refused() -> None:
    with pytest.raises(BackendError, match=r"nvdisasm .*failed"):
        disassemble(b"no ELF file")


def test_output_without_a_kernel_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    silent = tmp_path / "nvdisasm"
    silent.write_text("#!/bin/sh\necho nothing\n")
    silent.chmod(0o755)
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: silent)
    with pytest.raises(BackendError, match="printed no kernel"):
        disassemble(b"")
