"""Errors for kernels that need more shared memory, registers or parameters than a GPU has.

Input: what the compiler or the driver says. Output: the error for the user, which says what is
needed, what there is and what to do. It needs neither a GPU nor CuPy.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from caspar.codegen.source import KernelSource
from caspar.errors import BackendError, CasparError, CompileError, OutOfMemoryError, ResourceError

T = TypeVar("T")

_SHARED = re.compile(r"uses too much shared data \((0x[0-9a-f]+) bytes, (0x[0-9a-f]+) max\)")
_PARAMETERS = re.compile(
    r"parameter space overflowed \((\d+) bytes required, max (\d+) bytes allowed\)", re.I
)
_LESS = "write fewer outputs in one kernel, or compute in float32"


def is_refusal_of_size(log: str) -> bool:
    """Return whether a text was refused for what it needs of the device: it always will be."""
    return _SHARED.search(log) is not None or _PARAMETERS.search(log) is not None


def compile_refusal(source: KernelSource, block_size: int, log: str) -> CasparError:
    """The error for a source that did not compile for blocks of that size, from the log."""
    shared = _SHARED.search(log)
    if shared is not None:
        needed, allowed = (int(number, 16) for number in shared.groups())
        return ResourceError(
            f"kernel {source.name}: a block of {block_size} threads needs {needed:,} bytes of "
            f"shared memory, the device allows {allowed:,}; "
            f"{_smaller_blocks(source, block_size, needed / allowed)}"
        )
    parameters = _PARAMETERS.search(log)
    if parameters is not None:
        needed, allowed = map(int, parameters.groups())
        return ResourceError(
            f"kernel {source.name}: its parameters take {needed:,} bytes, the device allows "
            f"{allowed:,}; use fewer arguments and outputs in one kernel"
        )
    return CompileError(f"kernel {source.name}: NVRTC rejected the generated source: {log}")


def _smaller_blocks(source: KernelSource, block_size: int, excess: float) -> str:
    """Advise for a block that needs `excess` times what there is."""
    fitting = [size for size in sorted(source.block_sizes) if size * excess <= block_size]
    if len(fitting) > 0:
        sizes = ", ".join(map(str, fitting))
        return f"blocks of {sizes} should fit: pass block_size={fitting[-1]}; or {_LESS}"
    sizes = ", ".join(map(str, sorted(source.block_sizes)))
    return f"its accesses allow blocks of {sizes} only: {_LESS}"


def load_refusal(name: str, device: str, error: str) -> CasparError:
    """The error for machine code of a kernel that the driver does not load."""
    if "OUT_OF_MEMORY" in error:
        return OutOfMemoryError(f"kernel {name}: {device} has no memory left to load it: {error}")
    return BackendError(
        f"kernel {name}: the driver does not load it on {device}: {error}. Driver, CUDA libraries "
        "and CuPy must fit together: `caspar doctor` lists them; backend='cpu' needs none."
    )


def launch_refusal(
    source: KernelSource, block_size: int, resources: Callable[[], tuple[int, int]], error: str
) -> CasparError:
    """The error for a kernel that the driver does not launch.

    `resources` are the registers of a thread and bytes of shared memory of a block; they are not
    asked for where CUDA has failed.
    """
    if "LAUNCH_OUT_OF_RESOURCES" in error:
        registers, shared_bytes = resources()
        smaller = [size for size in sorted(source.block_sizes) if size < block_size]
        what = f"pass block_size={smaller[-1]}, or {_LESS}" if len(smaller) > 0 else _LESS
        return ResourceError(
            f"kernel {source.name}: the device cannot hold a block of {block_size} threads with "
            f"{registers} registers each and {shared_bytes:,} bytes of shared memory: {error}; "
            f"{what}"
        )
    if "ILLEGAL_ADDRESS" in error or "MISALIGNED_ADDRESS" in error:
        return BackendError(
            f"kernel {source.name}: not launched, as earlier work failed on the device: {error}. "
            "A possible cause is an index out of range in a call with check=False. Start a new "
            "process: CUDA does not recover in this one"
        )
    return BackendError(f"kernel {source.name}: the driver does not launch it: {error}")


def first_that_fits(sizes: Sequence[int], compile_for: Callable[[int], T]) -> T:
    """Compile for the first of `sizes`, or else for the largest smaller one that fits.

    If none fits, the `ResourceError` is about the preferred one.
    """
    preferred, *others = sizes
    try:
        return compile_for(preferred)
    except ResourceError:
        for size in sorted((size for size in others if size < preferred), reverse=True):
            try:
                return compile_for(size)
            except ResourceError:
                continue
        raise
