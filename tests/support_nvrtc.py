"""Compiling CUDA source for a GPU that need not be there."""

import re
from dataclasses import dataclass
from typing import Any

from caspar.codegen.cuda_header import COMPILE_OPTIONS

_ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?"
    r"(?P<spill_stores>\d+) bytes spill stores, (?P<spill_loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers",
    re.DOTALL,
)


@dataclass(frozen=True)
class CompiledEntry:
    """What the assembler says of one kernel.

    Attributes:
        registers: 32-bit registers of a thread.
        spill_bytes: Bytes stored and loaded because registers did not suffice.
    """

    registers: int
    spill_bytes: int


class NvrtcError(Exception):
    """The compiler refused a source; the message is its own."""


def compile_with_nvrtc(nvrtc: Any, text: str, arch: int) -> dict[str, CompiledEntry]:
    """Compile to machine code for `sm_<arch>`; the kernels by name.

    Args:
        nvrtc: The module `cuda.bindings.nvrtc`.
        text: CUDA C.
        arch: Compute capability without the dot.

    Raises:
        NvrtcError: The source does not compile, or not without a warning.
    """
    options = [*COMPILE_OPTIONS, f"--gpu-architecture=sm_{arch}", "--ptxas-options=-v"]
    error, program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernels.cu", 0, [], [])
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS
    try:
        encoded = [option.encode() for option in options]
        (error,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = _log(nvrtc, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS or "warning" in log:
        raise NvrtcError(f"sm_{arch}: {error}\n{log}")
    return {
        match["name"]: CompiledEntry(
            int(match["registers"]), int(match["spill_stores"]) + int(match["spill_loads"])
        )
        for match in _ENTRY.finditer(log)
    }


def _log(nvrtc: Any, program: Any) -> str:
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.rstrip(b"\0").decode()
