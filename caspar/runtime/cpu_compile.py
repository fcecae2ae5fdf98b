"""Compiling a source for the processor: generated modules, and where they are kept.

They lie in the cache folder, named by the digest of their text; Numba keeps the machine code beside
them.
"""

import hashlib
import importlib.util
import sys
from pathlib import Path
from threading import Lock

from caspar.codegen.source import KernelSource
from caspar.errors import CompileError
from caspar.runtime.cache import writable_cache_folder, write_entry

SUPPORT_DIGEST = hashlib.sha256(Path(__file__).with_name("cpu_support.py").read_bytes()).hexdigest()
"""Part of the name of every generated module: machine code in the cache has the functions of
`cpu_support` compiled into it, and Numba does not see that they have changed."""


_IMPORTS = Lock()


def function_address(source: KernelSource) -> int:
    """Compile a kernel, or fetch it from the cache; the address of `f(parameter table, tile)`.

    Raises:
        CompileError: Numba does not take the source.
    """
    digest = hashlib.sha256((SUPPORT_DIGEST + source.text).encode()).hexdigest()[:32]
    module_name = f"caspar_generated_{digest}"
    # one thread at a time: a module is in sys.modules before it has been executed
    with _IMPORTS:
        if module_name not in sys.modules:
            name = f"cpu/{source.name[:60]}_{digest}.py"
            path = writable_cache_folder() / name
            if not _holds(path, source.text):
                path = write_entry(name, source.text)
            _import_file(module_name, path)
        address: int = getattr(sys.modules[module_name], source.name).address
    return address


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
