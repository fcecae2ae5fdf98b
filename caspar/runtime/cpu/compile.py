"""Compiling a source for the processor, or taking its machine code from the store."""

import hashlib
import os
from functools import cache
from pathlib import Path
from threading import Lock

from caspar.codegen import llvm
from caspar.codegen.source import KernelSource
from caspar.errors import BackendError, CompileError
from caspar.runtime.cpu.machine_code import compile_code, load_code

_ADDRESSES: dict[str, int] = {}
"""Addresses of kernels by the digest of their text without the name: a renamed kernel is the same
code."""

_COMPILING = Lock()

_compiler_is_stuck = False
"""True if the process was forked while another thread compiled."""


@cache
def _translator_digest() -> bytes:
    digest = hashlib.sha256()
    for file in sorted(Path(llvm.__path__[0]).glob("*.py")):
        digest.update(file.read_bytes())
    return digest.digest()


def function_address(source: KernelSource) -> int:
    """Compile a kernel, or fetch it from the store; the address of `f(parameter table, tile)`.

    Raises a `BackendError` if the process was forked while another thread compiled.
    """
    text = source.text.replace(f"def {source.name}(", "def kernel(", 1)
    digest = hashlib.sha256(_translator_digest() + text.encode()).hexdigest()
    address = _ADDRESSES.get(digest)
    return _load_or_compile(digest, source.name, text) if address is None else address


def _load_or_compile(digest: str, name: str, text: str) -> int:
    """Return the address of a kernel; one thread compiles at a time."""
    if _compiler_is_stuck:
        raise BackendError(
            "this process was forked while another thread of its parent compiled a kernel, so "
            "LLVM cannot compile here. Start workers with multiprocessing.get_context('spawn') "
            "or 'forkserver'"
        )
    with _COMPILING:
        address = _ADDRESSES.get(digest)
        if address is None:
            found = load_code(digest, ["kernel"])
            (address,) = found or _compiled(digest, name, text)
            _ADDRESSES[digest] = address
        return address


def _compiled(digest: str, name: str, text: str) -> list[int]:
    from caspar.codegen.llvm.translate import llvm_module

    try:
        return compile_code(digest, ["kernel"], llvm_module(text, "kernel"))
    except CompileError as error:
        raise CompileError(f"the kernel {name} cannot be compiled: {error}") from error


def _after_fork() -> None:
    """LLVM's own lock stays as it was, and nobody is there to release it."""
    global _COMPILING, _compiler_is_stuck
    _compiler_is_stuck = _compiler_is_stuck or _COMPILING.locked()
    _COMPILING = Lock()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_after_fork)
