"""CuPy's folder of machine code: used only if nobody else can write there, and if it works at all.

CuPy keeps what NVRTC compiled in `~/.cupy/kernel_cache` or `CUPY_CACHE_DIR`, with a digest in each
file. If that folder must not or cannot be used, CuPy is told to keep machine code in memory.

Cost: a file is written once for each backend, and tried again only where that failed.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import cupy

from caspar.runtime.cache import folder_refusal, warn_once

FOLDER_VARIABLE = "CUPY_CACHE_DIR"
IN_MEMORY_VARIABLE = "CUPY_CACHE_IN_MEMORY"


def cupy_folder() -> Path:
    """Where CuPy keeps machine code; the folder need not exist."""
    chosen = os.environ.get(FOLDER_VARIABLE, "")
    return Path(chosen or os.path.expanduser("~/.cupy/kernel_cache"))


def check_cupy_folder() -> None:
    """Tell CuPy to keep machine code in memory if its folder must not or cannot be used."""
    folder = cupy_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refusal = folder_refusal(folder, FOLDER_VARIABLE)
        if not refusal:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"caspar")
    except OSError as error:
        refusal = f"{folder} cannot be written ({error.strerror or error})"
    if refusal:
        _keep_in_memory(refusal)


def compiled_function(text: str, options: tuple[str, ...], name: str) -> Any:
    """A function of a CUDA text, compiled or taken from CuPy's folder.

    Args:
        text: CUDA C.
        options: Of NVRTC.
        name: The function's.

    Raises:
        cupy.cuda.compiler.CompileException: NVRTC does not take the text.
    """
    try:
        return _compiled(text, options, name)
    except OSError as error:  # a disk that has become full
        _keep_in_memory(f"{cupy_folder()} cannot be written ({error.strerror or error})")
        return _compiled(text, options, name)


def _compiled(text: str, options: tuple[str, ...], name: str) -> Any:
    return cupy.RawModule(code=text, options=options).get_function(name)


def _keep_in_memory(reason: str) -> None:
    os.environ[IN_MEMORY_VARIABLE] = "1"
    warn_once(
        f"CuPy's folder of machine code is not used: {reason}. Every process compiles anew; "
        f"{FOLDER_VARIABLE} chooses another folder"
    )
