"""Compiling CUDA source for a GPU that need not be there, and what the compiler says of it.

Input: CUDA C and an architecture. Output: PTX, machine code, log, and the resources of every
kernel. The options are those that CuPy adds to caspar's own, so the figures are those of what
runs. NVRTC is called through its C interface: CuPy 14.2 cuts the last byte off the machine code,
which nvdisasm then refuses, and cuda-bindings would have to be of NVRTC's major version.

Tens of milliseconds to a second for each text; concurrent threads compile at the same time.
"""

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from caspar.codegen.cuda.header import BLOCK_SIZE_OPTION, COMPILE_OPTIONS, ONE_BLOCK_OPTION
from caspar.codegen.source import KernelSource
from caspar.errors import CompileError, OptionError
from caspar.runtime.nvidia.limits import compile_refusal, first_that_fits
from caspar.runtime.nvidia.toolkit import load_nvrtc

DEFAULT_ARCHITECTURE = "sm_90"

CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")
"""Options that `cupy.RawModule` adds: denormal float32 numbers are flushed to zero."""

_NO_CACHE = ("--no-cache",)
"""Options that keep NVRTC from its own cache, whose entries lack the assembler's figures."""

_FIRST_WITH_CACHE = (12, 9)

_ENTRY = re.compile(r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry function|\Z)", re.S)
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_WARNING = re.compile(r"^.*\bwarning\s*[#:].*$", re.M)


@dataclass(frozen=True)
class KernelResources:
    """Resources of one kernel, as the assembler (ptxas) reports them.

    Attributes:
        registers: 32-bit registers of a thread.
        stack_bytes: Local memory of a thread, spilled registers included.
        spill_store_bytes: Bytes of the store instructions that were added because registers did
            not suffice; each counts once, however often it runs.
        spill_load_bytes: The same for loads.
        shared_bytes: Static shared memory of a block.
    """

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int

    @property
    def spill_bytes(self) -> int:
        """Bytes spilled, stores and loads."""
        return self.spill_store_bytes + self.spill_load_bytes


@dataclass(frozen=True)
class CompiledText:
    """A CUDA text after compilation, and all that compiler and assembler said.

    The machine code is an ELF file, empty where only PTX was asked for; resources are by the
    kernel's name, sorted by it.
    """

    arch: str
    ptx: str
    cubin: bytes
    log: str
    resources: Mapping[str, KernelResources]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The lines of the log that warn."""
        return tuple(_WARNING.findall(self.log))


def compile_source(
    source: KernelSource, arch: str = DEFAULT_ARCHITECTURE
) -> tuple[int, CompiledText]:
    """Compile a kernel as the CUDA backend does, and return the block size it took.

    That is the preferred one, or one that fits. Raises as `compile_text`, and a `ResourceError` if
    blocks of all sizes need too much shared memory.
    """

    def compile_for(size: int) -> tuple[int, CompiledText]:
        try:
            return size, compile_kernel_text(source.text, arch, size)
        except CompileError as error:
            raise compile_refusal(source, size, str(error)) from error

    return first_that_fits(source.block_sizes, compile_for)


def compile_kernel_text(
    text: str, arch: str = DEFAULT_ARCHITECTURE, block_size: int | None = None
) -> CompiledText:
    """Compile the text of one kernel as the CUDA backend does: again if it uses local memory.

    `block_size` None: as the text prefers. Raises as `compile_text`.
    """
    options = () if block_size is None else (BLOCK_SIZE_OPTION.format(block_size),)
    compiled = compile_text(text, arch, options)
    if _stack_bytes(compiled) == 0:
        return compiled
    unhurried = compile_text(text, arch, (*options, ONE_BLOCK_OPTION))
    return unhurried if _stack_bytes(unhurried) < _stack_bytes(compiled) else compiled


def _stack_bytes(compiled: CompiledText) -> int:
    return sum(entry.stack_bytes for entry in compiled.resources.values())


def compile_text(
    text: str, arch: str = DEFAULT_ARCHITECTURE, more_options: Sequence[str] = ()
) -> CompiledText:
    """Compile CUDA C to machine code.

    `compute_90` instead of `sm_90` gives PTX alone, of which no resources are known. Raises
    `BackendError` without NVRTC, `CompileError` with the compiler's message, `OptionError` for an
    unknown architecture.
    """
    known = architectures()
    if arch.replace("compute_", "sm_") not in known:
        raise OptionError(f"arch={arch!r}: must be one of {', '.join(known)}")
    options = (
        *(_NO_CACHE if _version() >= _FIRST_WITH_CACHE else ()),
        *COMPILE_OPTIONS,
        *CUPY_OPTIONS,
        *more_options,
        f"-arch={arch}",
        "--ptxas-options=-v",
    )
    program = ctypes.c_void_p()
    _call("nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None)
    try:
        return _compile(program, arch, options)
    finally:
        _call("nvrtcDestroyProgram", ctypes.byref(program))


@cache
def architectures() -> tuple[str, ...]:
    """The architectures that NVRTC compiles for, oldest first; `BackendError` without NVRTC."""
    count = ctypes.c_int()
    _call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
    numbers = (ctypes.c_int * count.value)()
    _call("nvrtcGetSupportedArchs", numbers)
    return tuple(f"sm_{number}" for number in sorted(numbers))


@cache
def nvrtc_version() -> str:
    """Version of NVRTC, `12.9` for example; `BackendError` without NVRTC."""
    return ".".join(map(str, _version()))


@cache
def _version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _compile(program: ctypes.c_void_p, arch: str, options: Sequence[str]) -> CompiledText:
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    code = load_nvrtc().nvrtcCompileProgram(program, len(options), encoded)
    log = _text(_bytes("ProgramLog", program))
    if code != 0:
        raise CompileError(f"NVRTC {nvrtc_version()} for {arch}: {_error_text(code)}\n{log}")
    ptx, cubin = _text(_bytes("PTX", program)), _bytes("CUBIN", program)
    return CompiledText(arch, ptx, cubin, log, _resources(log))


def _bytes(what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    _call(f"nvrtcGet{what}", program, buffer)
    return buffer.raw


def _text(zero_terminated: bytes) -> str:
    return zero_terminated.rstrip(b"\0").decode(errors="replace").strip()


def _call(function: str, *arguments: object) -> None:
    code = getattr(load_nvrtc(), function)(*arguments)
    if code != 0:
        raise CompileError(f"{function} of NVRTC failed: {_error_text(code)}")


def _error_text(code: int) -> str:
    text: bytes = load_nvrtc().nvrtcGetErrorString(code)
    return text.decode()


def _resources(log: str) -> dict[str, KernelResources]:
    """Resources by kernel, sorted by name: the assembler's order is its own."""
    resources = {}
    for name, text in sorted(_ENTRY.findall(log)):
        # the kernel's own lines come first, those of functions it calls after them
        stack, stores, loads = map(int, _STACK.findall(text)[0])
        shared = _SHARED.search(text)
        resources[name] = KernelResources(
            registers=int(_REGISTERS.findall(text)[0]),
            stack_bytes=stack,
            spill_store_bytes=stores,
            spill_load_bytes=loads,
            shared_bytes=0 if shared is None else int(shared.group(1)),
        )
    return resources
