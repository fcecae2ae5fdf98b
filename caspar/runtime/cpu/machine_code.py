"""Machine code of the processor in caspar's store, in place of Numba's own files.

Numba's files carry no digest, so a damaged one ends the process, and they need a folder beside the
source or a home. Here a kernel is stored as its object file; the few functions that Numba compiles
for Python callers are stored as Numba writes them.

Cost: a millisecond to load a kernel.
"""

import hashlib
import json
import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite
import numba
from numba import njit
from numba.core import serialize
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from caspar.runtime.cache import read_entry, write_entry

KIND = "code"


@cache
def _platform() -> str:
    """What machine code depends on besides its source."""
    return repr((numba.__version__, llvmlite.__version__, _codegen().magic_tuple()))


def _codegen() -> Any:
    return cpu_target.target_context.codegen()


class LoadedKernel:
    """A C function taken from the store.

    Attributes:
        address: Where it is.
    """

    def __init__(self, library: Any, name: str) -> None:
        self._library = library  # the code lives as long as this
        self.address: int = library.get_pointer_to_function(name)


def load_kernel(key: str) -> LoadedKernel | None:
    """A kernel as it was stored; None if it was not.

    Args:
        key: Text that determines it.
    """
    content = read_entry(KIND, f"{_platform()} {key}")
    if content is None:
        return None
    header, _, code = content.partition(b"\n")
    described = json.loads(header)
    split = described["object_bytes"]
    state = (described["library"], "object", (code[:split], code[split:]))
    with global_compiler_lock:
        cpu_target.target_context.refresh()
        return LoadedKernel(_codegen().unserialize_library(state), described["function"])


def store_kernel(key: str, kernel: Any) -> None:
    """Store what `load_kernel` loads.

    Args:
        key: Text that determines it.
        kernel: What `numba.cfunc` compiled.
    """
    with global_compiler_lock:
        library, _, (code, bitcode) = kernel._library.serialize_using_object_code()
    described = {
        "library": library,
        "function": kernel.native_name,
        "object_bytes": len(code),
    }
    header = json.dumps(described).encode()
    write_entry(KIND, f"{_platform()} {key}", b"\n".join((header, code + bitcode)))


class _Stored(_Cache):
    """What Numba asks for a compiled function before it compiles one."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def cache_path(self) -> str:
        """No path: entries are caspar's."""
        return ""

    def _key(self, signature: Any) -> str:
        return f"{_platform()} {self._name} {signature}"

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The function for these types; None if it was not stored."""
        context.refresh()
        content = read_entry(KIND, self._key(signature))
        if content is None:
            return None
        return CompileResult._rebuild(context, *pickle.loads(content))

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Store the function for these types."""
        write_entry(KIND, self._key(signature), serialize.dumps(compiled._reduce()))

    def enable(self) -> None:
        """Nothing to do."""

    def disable(self) -> None:
        """Nothing to do."""

    def flush(self) -> None:
        """Nothing to do."""


def stored_njit(
    source: bytes, *signatures: str, **options: Any
) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` whose machine code is kept in caspar's store.

    Args:
        source: The text that determines the function, with all that it calls.
        signatures: Types to compile for at once; none: for those of the calls.
        options: Of `numba.njit`, without `cache`.
    """
    digest = hashlib.sha256(source).hexdigest()

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(**options)(function)
        dispatcher._cache = _Stored(f"{function.__qualname__} {sorted(options.items())} {digest}")
        for signature in signatures:
            dispatcher.compile(signature)
        if signatures:
            dispatcher.disable_compile()
        return dispatcher

    return decorate
