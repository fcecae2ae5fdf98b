"""CuPy's folder of machine code: used only if nobody else can write there, and if it works at all.

CuPy keeps what NVRTC compiled in `~/.cupy/kernel_cache` or `CUPY_CACHE_DIR`, with a digest in each
file. If that folder must not or cannot be used, CuPy is told to keep machine code in memory.

Cost: a file is written once for each process, and tried again only where that failed.
"""

import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

from caspar.runtime.cache import folder_refusal, warn_once

FOLDER_VARIABLE = "CUPY_CACHE_DIR"
IN_MEMORY_VARIABLE = "CUPY_CACHE_IN_MEMORY"


def import_cupy() -> Any:
    """CuPy, told to keep machine code in memory if its folder must not or cannot be used."""
    folder = cupy_folder()
    refusal = _refusal(folder)
    if refusal:
        _keep_in_memory(refusal)
    if not refusal or folder.is_dir():
        return importlib.import_module("cupy")
    # CuPy makes its folder when it is imported, and cannot be imported if that fails
    chosen = os.environ.get(FOLDER_VARIABLE)
    with tempfile.TemporaryDirectory() as stand_in:
        os.environ[FOLDER_VARIABLE] = stand_in
        try:
            return importlib.import_module("cupy")
        finally:
            del os.environ[FOLDER_VARIABLE]
            if chosen is not None:
                os.environ[FOLDER_VARIABLE] = chosen


def cupy_folder() -> Path:
    """Where CuPy keeps machine code; the folder need not exist."""
    chosen = os.environ.get(FOLDER_VARIABLE, "")
    return Path(chosen or os.path.expanduser("~/.cupy/kernel_cache"))


def _refusal(folder: Path) -> str:
    """Why the folder must not or cannot be used; empty: nothing is wrong with it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refusal = folder_refusal(folder, FOLDER_VARIABLE)
        if not refusal:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"caspar")
        return refusal
    except OSError as error:
        return _cannot_be_written(folder, error)


def _cannot_be_written(folder: Path, error: OSError) -> str:
    return f"{folder} cannot be written ({error.strerror or error})"


def _keep_in_memory(reason: str) -> None:
    os.environ[IN_MEMORY_VARIABLE] = "1"
    warn_once(
        f"CuPy's folder of machine code is not used: {reason}. Every process compiles anew; "
        f"{FOLDER_VARIABLE} chooses another folder"
    )
