"""Compiling a source for the processor, or taking its machine code from the store."""

import hashlib
import os
import sys
from pathlib import Path
from threading import Lock
from types import ModuleType

from caspar.codegen.source import KernelSource
from caspar.errors import BackendError, CompileError
from caspar.runtime.cpu.machine_code import LoadedKernel, load_kernel, store_kernel
from caspar.runtime.cpu.uninterrupted import uninterrupted

SUPPORT_DIGEST = hashlib.sha256(Path(__file__).with_name("support.py").read_bytes()).hexdigest()
"""Part of the key of every kernel: its machine code has the functions of `support` compiled
into it."""

_LOADED: dict[str, LoadedKernel] = {}
"""By the digest of the kernel's text."""

_COMPILING = Lock()

_numba_is_stuck = False
"""Whether the process was forked while another thread compiled."""


def function_address(source: KernelSource) -> int:
    """Compile a kernel, or fetch it from the store; the address of `f(parameter table, tile)`.

    Raises:
        CompileError: Numba does not take the source.
        BackendError: The process was forked while another thread compiled.
    """
    digest = hashlib.sha256((SUPPORT_DIGEST + source.text).encode()).hexdigest()
    kernel = _LOADED.get(digest)
    if kernel is None:
        kernel = uninterrupted(_load_or_compile, digest, source)
    return kernel.address


def _load_or_compile(digest: str, source: KernelSource) -> LoadedKernel:
    """One thread at a time."""
    if _numba_is_stuck:
        raise BackendError(
            "this process was forked while another thread of its parent compiled a kernel, so "
            "Numba cannot compile here. Start workers with multiprocessing.get_context('spawn') "
            "or 'forkserver'"
        )
    with _COMPILING:
        kernel = _LOADED.get(digest)
        if kernel is None:
            kernel = _LOADED[digest] = load_kernel(digest) or _compiled(digest, source)
        return kernel


def _after_fork() -> None:
    """Numba's own lock stays as it was, and nobody is there to release it."""
    global _COMPILING, _numba_is_stuck
    _numba_is_stuck = _numba_is_stuck or _COMPILING.locked()
    _COMPILING = Lock()


os.register_at_fork(after_in_child=_after_fork)


def _compiled(digest: str, source: KernelSource) -> LoadedKernel:
    """Compile a kernel and store it.

    The text runs as a module that is in no file. Numba looks the module up by its name.
    """
    name = f"caspar_generated_{digest[:32]}"
    module = ModuleType(name)
    sys.modules[name] = module
    try:
        exec(compile(source.text, f"<{name}>", "exec"), module.__dict__)
        kernel = getattr(module, source.name)
    except Exception as error:
        raise CompileError(f"Numba did not compile the kernel {source.name}: {error}") from error
    finally:
        del sys.modules[name]
    store_kernel(digest, kernel)
    return LoadedKernel(kernel._library, kernel.native_name)
