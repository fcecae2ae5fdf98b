"""Compiling a source for the processor: generated modules, and where they are kept.

They lie in the cache folder, named by the digest of their text; Numba keeps the machine code beside
them.
"""

import hashlib
import importlib.util
import os
import sys
from pathlib import Path
from threading import Lock

from caspar.codegen.source import KernelSource
from caspar.errors import BackendError, CompileError
from caspar.runtime.cache import writable_cache_folder, write_entry
from caspar.runtime.uninterrupted import uninterrupted

SUPPORT_DIGEST = hashlib.sha256(Path(__file__).with_name("cpu_support.py").read_bytes()).hexdigest()
"""Part of the name of every generated module: machine code in the cache has the functions of
`cpu_support` compiled into it, and Numba does not see that they have changed."""


_IMPORTS = Lock()

_numba_is_stuck = False
"""Whether the process was forked while another thread compiled."""


def function_address(source: KernelSource) -> int:
    """Compile a kernel, or fetch it from the cache; the address of `f(parameter table, tile)`.

    Raises:
        CompileError: Numba does not take the source.
        BackendError: The process was forked while another thread compiled.
    """
    digest = hashlib.sha256((SUPPORT_DIGEST + source.text).encode()).hexdigest()[:32]
    module_name = f"caspar_generated_{digest}"
    # a module is in sys.modules before it has been executed
    if not hasattr(sys.modules.get(module_name), source.name):
        uninterrupted(_compile, module_name, digest, source)
    address: int = getattr(sys.modules[module_name], source.name).address
    return address


def _compile(module_name: str, digest: str, source: KernelSource) -> None:
    """Import the module of a kernel, one thread at a time."""
    if _numba_is_stuck:
        raise BackendError(
            "this process was forked while another thread of its parent compiled a kernel, and "
            "Numba cannot compile here any more. Start workers by "
            "multiprocessing.get_context('spawn') or 'forkserver'"
        )
    with _IMPORTS:
        if not hasattr(sys.modules.get(module_name), source.name):
            name = f"cpu/{source.name[:60]}_{digest}.py"
            path = writable_cache_folder() / name
            if not _holds(path, source.text):
                path = write_entry(name, source.text)
            _import_file(module_name, path)


def _after_fork() -> None:
    """Numba's own lock stays as it was, and nobody is there to release it."""
    global _IMPORTS, _numba_is_stuck
    _numba_is_stuck = _numba_is_stuck or _IMPORTS.locked()
    _IMPORTS = Lock()


os.register_at_fork(after_in_child=_after_fork)


def _import_file(module_name: str, path: Path) -> None:
    """Import a generated module, if need be once more without Numba's machine code beside it.

    Numba takes whatever lies there for its own, and stumbles over a file that a full disk or a
    crash left broken.
    """
    try:
        try:
            _execute_file(module_name, path)
        except Exception:
            machine_code = list(path.parent.glob(f"__pycache__/{path.stem}.*.nb[ic]"))
            if not machine_code:
                raise
            for file in machine_code:
                file.unlink(missing_ok=True)
            _execute_file(module_name, path)
    except Exception as error:
        raise CompileError(f"Numba did not compile {path}: {error}") from error


def _execute_file(module_name: str, path: Path) -> None:
    """Import a module; it stays in `sys.modules`, which keeps its machine code alive.

    Numba looks its functions' modules up there when it takes machine code from its cache.
    """
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False
