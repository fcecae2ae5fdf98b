"""The tables of generated kernels compare what they say they compare."""

import inspect
import json
from pathlib import Path
from typing import get_args

import pytest
from symforce.caspar import memory

from benchmarks.kernels import own, reference
from benchmarks.kernels.cases import CASES, Case, Role
from benchmarks.kernels.machine_code import Counts, Resources, offsets_of_sums
from benchmarks.kernels.measure import ARCHITECTURES, Measured
from benchmarks.kernels.report import Report, markdown, write
from benchmarks.kernels.source import Side
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.frontend.factors.trace import trace
from caspar.ir.dtype import DType
from caspar.runtime.nvidia.nvrtc import compile_kernel_text
from caspar.runtime.nvidia.sass import disassemble

MEMOPS = """\
template <uint dim>
__forceinline__ __device__ void ReadShared2(float* in, float& x) {
  x = in[0];
}

template <uint dim_target, typename StorageT>
__forceinline__ __device__ void FlushSumShared(StorageT* const output,
                                               StorageT* const inout_shared) {
  atomicAdd(output, inout_shared[0]);
}
"""

KERNEL = """\
#include "memops.cuh"
__global__ void
__launch_bounds__(1024, 1)
ScoreKernel(float* data) {
  stage[0][item] = r0;
  r1 = r0 * r2;
}
"""

PRINTED = """\
	//## File "{folder}/kernel.cu", line 6
        /*0000*/                   FMUL R4, R5, R6 ;
	//## File "{folder}/memops.cuh", line 3 inlined at "{folder}/kernel.cu", line 6
	//## File "{folder}/kernel.cu", line 6
        /*0010*/                   LDS R4, [R5] ;
	//## File "/cuda/reduce.h", line 9 inlined at "{folder}/memops.cuh", line 9
	//## File "{folder}/memops.cuh", line 9 inlined at "{folder}/kernel.cu", line 6
	//## File "{folder}/kernel.cu", line 6
        /*0020*/                   SHFL.DOWN PT, R4, R4, 0x1, 0x1f ;
.L_x_1:
        /*0030*/                   FADD R4, R4, R5 ;
	//## File "{folder}/kernel.cu", line 5
        /*0040*/                   STS [R4], R5 ;
$slow_division:
        /*0050*/                   MUFU.RCP R4, R5 ;
"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_outputs_are_those_of_the_reference(case: Case) -> None:
    traced = trace(case.load())
    kernels = dict(own.specs(case))
    assert list(kernels) == list(Role)
    written = {arg.name: arg for arg in kernels[Role.FIRST].args if arg.write is not None}
    parts = [f"{node.name}__{part}" for node in traced.nodes for part in ("gradient", "block")]
    assert list(written) == ["residual", "cost", "jacobian", *parts]
    assert {arg.dtype for arg in written.values()} == {DType.FLOAT32}
    assert kernels[Role.FIRST].graph.dtype is DType.FLOAT32
    assert kernels[Role.SCORE].graph.dtype is DType.FLOAT32
    assert kernels[Role.SCORE_MIXED].graph.dtype is DType.FLOAT64


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_reference_gets_the_same_arguments(case: Case) -> None:
    ours = inspect.get_annotations(case.load().function)
    theirs = reference.with_their_markers(case).__annotations__
    assert [*theirs, "return"] == list(ours)
    markers = {"TunableShared": memory.TunableShared, "ConstSequential": memory.ConstantSequential}
    markers["ConstUnique"] = memory.ConstantUnique
    for name, annotation in theirs.items():
        declared, marker = get_args(ours[name])
        assert get_args(annotation) == (declared, markers[marker.__name__])


def test_instructions_of_sums_are_told_by_their_lines(tmp_path: Path) -> None:
    (tmp_path / "memops.cuh").write_text(MEMOPS)
    (tmp_path / "kernel.cu").write_text(KERNEL)
    found = offsets_of_sums(PRINTED.format(folder=tmp_path), tmp_path)
    assert found == {0x20, 0x30, 0x40}


def _measured(side: Side, stores: int, refused: bool = False) -> Measured:
    resources: dict[str, Resources | str] = dict.fromkeys(ARCHITECTURES, Resources(64, stores, 8))
    if refused:
        resources[ARCHITECTURES[0]] = "too much shared data"
    body = {"FFMA": 100, "FMUL": 20, "FADD": 3, "MUFU": 1, "DFMA": 7, "LDG": 5}
    counts = Counts(body=body, body_elsewhere={}, sums={"SHFL": 10, "integer": 30})
    plain = Resources(50, 0, 0)
    by_nvrtc = plain if side is Side.OURS else None
    return Measured(CASES[0].name, Role.FIRST, side, 40, resources, counts, plain, counts, by_nvrtc)


def test_tables(tmp_path: Path) -> None:
    kernels = (_measured(Side.REFERENCE, 40, refused=True), _measured(Side.OURS, 0))
    report = Report({"date": "2026-01-01"}, kernels)
    lines = markdown(report).splitlines()
    rows = [line for line in lines if line.startswith("| linearise and score | ")]
    start = "| linearise and score | ours | 40 | 64 / 64 / 64 | 0+8 / 0+8 / 0+8 | 100 | 20 | 3 | 1"
    assert rows[0].startswith(f"{start} | 124 | 7 | 5 |")
    assert "| refused / 64 / 64 | - / 40+8 / 40+8 |" in rows[1]
    assert f"| {CASES[0].name} | linearise and score | ours | 40 | 0 | 0 | 10 |" in "\n".join(lines)
    write(report, tmp_path)
    stored = json.loads((tmp_path / "kernels.json").read_text())
    assert stored["kernels"][0]["side"] == "reference"
    assert stored["kernels"][0]["resources"][ARCHITECTURES[0]] == "too much shared data"
    assert stored["kernels"][1]["counts"]["body"]["FFMA"] == 100


@pytest.mark.parametrize("role", [Role.FIRST, Role.AGAIN])
def test_bundle_adjustment_linearises_in_52_registers(role: Role) -> None:
    """The reference: 61 predicted, 64 compiled, spilled registers, 158 FFMA and 328 FMUL."""
    (case,) = (case for case in CASES if case.name == "snavely")
    (spec,) = (spec for found, spec in own.specs(case) if found is role)
    source = compile_kernel(spec, TARGETS["cuda"])
    compiled = compile_kernel_text(source.text, "sm_90")
    resources = compiled.resources[spec.name]
    counts = disassemble(compiled.cubin)[spec.name].straight_line
    assert source.num_registers <= 52
    assert resources.registers <= 52
    assert resources.spill_bytes == 0
    assert counts["FFMA"] + counts["FMUL"] + counts["FADD"] < 158 + 328
