"""A compiled CUDA source on the host: `CudaModule` launches its kernels."""

import ctypes
import math
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.harness.arguments import (
    KernelArgument,
    NativeParameter,
    check_arguments,
    pointer_bytes,
)
from tests.harness.errors import HarnessError
from tests.harness.memory import StagedMemory
from tests.harness.schedule import DEFAULT_SCHEDULES, FORWARD, Schedule
from tests.harness.source import SOURCE_NAME, KernelSignature

Extent = int | Sequence[int]

_MAX_THREADS = 1024
_MAX_BLOCK = (1024, 1024, 64)
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_THREADS_IN_LAUNCH = 2**31 - 1  # thread numbers of the race check
_MESSAGE_BYTES = 8192
# Signal handlers belong to the process: one launch at a time.
_LAUNCH_LOCK = threading.Lock()

_STACKS: list[int] = []
"""Address of the stacks that all launches of this process run on, once they are made."""


class _Kernel(ctypes.Structure):
    """`Kernel` of native/interface.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("num_parameters", ctypes.c_uint32),
        ("parameters", ctypes.POINTER(NativeParameter)),
    )


class _Region(ctypes.Structure):
    """`Region` of native/runtime.h."""

    _fields_ = (
        ("begin", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("writable", ctypes.c_uint32),
        ("granule", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
    )


class _Request(ctypes.Structure):
    """`LaunchRequest` of native/runtime.h."""

    _fields_ = (
        ("call", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("regions", ctypes.POINTER(_Region)),
        ("num_regions", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("order", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("check_races", ctypes.c_uint32),
        ("timeout_s", ctypes.c_double),
        ("stacks", ctypes.c_void_p),
        ("message", ctypes.c_void_p),
        ("message_bytes", ctypes.c_uint64),
    )


class CudaModule:
    """The kernels of one source. Made by `compile_cuda`."""

    def __init__(self, library: Path, source: str, kernels: Sequence[KernelSignature]) -> None:
        self._library_path = library
        self._library = ctypes.CDLL(str(library))
        self._source_lines = source.splitlines()
        self._signatures = {kernel.name: kernel for kernel in kernels}
        count = ctypes.c_uint32.in_dll(self._library, "cuda_on_cpu_num_kernels").value
        table = (_Kernel * count).in_dll(self._library, "cuda_on_cpu_kernels")
        self._kernels = {kernel.name.decode(): kernel for kernel in table}

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Names of the kernels, in the order of the source."""
        return tuple(self._signatures)

    def launch(
        self,
        kernel_name: str,
        grid: Extent,
        block: Extent,
        args: Sequence[KernelArgument],
        *,
        schedule: Schedule = FORWARD,
        check_races: bool = True,
        timeout_s: float = 60.0,
    ) -> None:
        """Run a kernel to its end; arrays are read and written in place.

        Args:
            kernel_name: The kernel.
            grid: Blocks in x, or in (x, y, z).
            block: Threads of a block, likewise.
            args: For a pointer a C-contiguous array, whose dtype is that of the pointee or of the
                elements of a vector type, or None; for a number a NumPy scalar of exactly that
                type; for a struct a structured scalar (`np.void`) of its size.
            schedule: The order in which threads and blocks take turns.
            check_races: Switch off for a kernel that synchronises by flags and fences, or in
                which several threads store the same value to one place, which CUDA allows.
            timeout_s: Limit on the run.

        Raises:
            HarnessError: CUDA would refuse the launch, or the kernel did something wrong. No
                array is changed then.
        """
        kernel, signature = self._find(kernel_name)
        grid3, block3 = _launch_extents(signature, grid, block)
        parameters = [kernel.parameters[i] for i in range(kernel.num_parameters)]
        arrays, values = check_arguments(parameters, signature, args)
        memory = StagedMemory(arrays)
        values |= {i: pointer_bytes(address) for i, address in memory.addresses.items()}
        request = _Request(
            call=kernel.call,
            grid=grid3,
            block=block3,
            order=int(schedule.order),
            seed=schedule.seed,
            check_races=int(check_races),
            timeout_s=timeout_s,
        )
        message = self._run(request, memory, [values[i] for i in range(len(args))])
        if message is not None:
            raise HarnessError(f"{kernel_name}: {self._explain(message)}")
        memory.copy_back()

    def launch_under_schedules(
        self,
        kernel_name: str,
        grid: Extent,
        block: Extent,
        args: Sequence[KernelArgument],
        *,
        schedules: Sequence[Schedule] = DEFAULT_SCHEDULES,
        check_races: bool = True,
        timeout_s: float = 60.0,
    ) -> None:
        """Run a kernel once per schedule from the same input; all must give the same bits.

        The arrays, which must not overlap, receive the common result. Floating-point sums by
        atomics depend on the order by nature: launch such kernels schedule by schedule and
        compare with a tolerance.
        """
        if _any_overlap(args):
            raise HarnessError(f"{kernel_name}: launch_under_schedules takes separate arrays")
        first: list[bytes] = []
        for schedule in schedules:
            copies = [_copy(value) for value in args]
            self.launch(
                kernel_name,
                grid,
                block,
                copies,
                schedule=schedule,
                check_races=check_races,
                timeout_s=timeout_s,
            )
            result = [b"" if value is None else value.tobytes() for value in copies]
            first = first or result
            differing = [i for i, bits in enumerate(result) if bits != first[i]]
            if len(differing) > 0:
                raise HarnessError(
                    f"{kernel_name}: the result depends on the order of threads and blocks: "
                    f"{schedules[0]} and {schedule} differ in argument(s) {differing}"
                )
        for target, copy in zip(args, copies, strict=True):
            if isinstance(target, np.ndarray) and target.flags.writeable:
                target[...] = copy

    def _find(self, kernel_name: str) -> tuple[_Kernel, KernelSignature]:
        if kernel_name not in self._kernels:
            known = ", ".join(self._kernels)
            raise HarnessError(f"no kernel {kernel_name!r} in the source; it defines: {known}")
        return self._kernels[kernel_name], self._signatures[kernel_name]

    def _run(self, request: _Request, memory: StagedMemory, values: list[bytes]) -> str | None:
        """Launch; return the message of a failure."""
        holders = [ctypes.create_string_buffer(value, max(len(value), 16)) for value in values]
        addresses = [ctypes.addressof(holder) for holder in holders]
        regions = [
            _Region(r.begin, r.num_bytes, int(r.writable), r.granule, r.label.encode())
            for r in memory.regions
        ]
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        request.arguments = (ctypes.c_void_p * len(addresses))(*addresses)
        request.regions = (_Region * len(regions))(*regions)
        request.num_regions = len(regions)
        request.message = ctypes.addressof(message)
        request.message_bytes = _MESSAGE_BYTES
        with _LAUNCH_LOCK:
            request.stacks = _stacks(self._library)
            failed = self._library.cuda_on_cpu_launch(ctypes.byref(request))
        return message.value.decode(errors="replace") if failed != 0 else None

    def _explain(self, message: str) -> str:
        """Turn line numbers and code addresses into lines of the source."""

        def line_of_pc(match: re.Match[str]) -> str:
            line = _line_of_pc(self._library_path, int(match.group(1), 16))
            return "an unknown line" if line is None else self._quote(line)

        message = re.sub(r"\{pc:([0-9a-f]+)\}", line_of_pc, message)
        return re.sub(r"\{line:(\d+)\}", lambda match: self._quote(int(match.group(1))), message)

    def _quote(self, line: int) -> str:
        known = 1 <= line <= len(self._source_lines)
        text = self._source_lines[line - 1].strip() if known else "?"
        return f"line {line} `{text}`"


def _stacks(library: ctypes.CDLL) -> int:
    """The stacks of the threads of a block; guarded, so that making them takes a while."""
    if len(_STACKS) == 0:
        make = library.cuda_on_cpu_make_stacks
        make.restype = ctypes.c_void_p
        made: int | None = make()
        if made is None:
            raise HarnessError("no memory for the stacks of the threads")
        _STACKS.append(made)
    return _STACKS[0]


def _launch_extents(
    signature: KernelSignature, grid: Extent, block: Extent
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    grid3 = _extent3("grid", grid, _MAX_GRID)
    block3 = _extent3("block", block, _MAX_BLOCK)
    num_threads = math.prod(block3)
    limit = _MAX_THREADS if signature.max_threads is None else signature.max_threads
    if num_threads > limit:
        raise HarnessError(f"{signature.name}: {num_threads} threads a block; at most {limit}")
    if math.prod(grid3) * num_threads > _MAX_THREADS_IN_LAUNCH:
        raise HarnessError(f"{signature.name}: more than {_MAX_THREADS_IN_LAUNCH} threads")
    return grid3, block3


def _extent3(what: str, value: Extent, limits: tuple[int, ...]) -> tuple[int, ...]:
    given = (value,) if isinstance(value, int) else tuple(value)
    extent = given + (1,) * (3 - len(given))
    if len(extent) != 3 or not all(
        1 <= size <= limit for size, limit in zip(extent, limits, strict=True)
    ):
        raise HarnessError(f"{what} {given}: 1 to 3 sizes, from 1 to {limits}, are allowed")
    return extent


def _any_overlap(args: Sequence[KernelArgument]) -> bool:
    arrays = [value for value in args if isinstance(value, np.ndarray)]
    return any(
        np.may_share_memory(left, right)
        for i, left in enumerate(arrays)
        for right in arrays[i + 1 :]
    )


def _copy(value: KernelArgument) -> KernelArgument:
    return value.copy() if isinstance(value, np.ndarray) else value


def _line_of_pc(library: Path, offset: int) -> int | None:
    """Return the line of the source at a code address, through inlined header functions."""
    tool = shutil.which("addr2line")
    if tool is None:
        return None
    # A return address: the call lies before it.
    command = [tool, "-i", "-e", str(library), hex(offset - 1)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    for place in run.stdout.splitlines():
        match = re.match(r"(.*):(\d+)", place)
        if match is not None and Path(match.group(1)).name == SOURCE_NAME:
            return int(match.group(2))
    return None
