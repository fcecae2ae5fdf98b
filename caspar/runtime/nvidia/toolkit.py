"""Parts of the CUDA toolkit that work without a GPU: the run-time compiler and the disassembler.

They are looked for where NVIDIA's `cuda-pathfinder` looks (wheels, conda, CUDA_HOME), which is
also how CuPy finds its NVRTC: what is inspected is compiled by what runs. Once for each process.
"""

import ctypes
import importlib
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from caspar.errors import BackendError
from caspar.version import install_command

_INSTALL = f"install it with: {install_command('inspect')}"


@cache
def load_nvrtc() -> ctypes.CDLL:
    """NVRTC, CUDA's run-time compiler; a `BackendError` says what to install."""
    finder = _pathfinder()
    try:
        found = finder.load_nvidia_dynamic_lib("nvrtc")
    except RuntimeError as error:  # pathfinder's own class differs between its versions
        raise BackendError(
            f"NVRTC, which compiles CUDA sources, is not installed; {_INSTALL}"
        ) from error
    library = ctypes.CDLL(found.abs_path)
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


@cache
def find_nvdisasm() -> Path:
    """CUDA's disassembler; a `BackendError` says what to install."""
    found = _pathfinder().find_nvidia_binary_utility("nvdisasm") or shutil.which("nvdisasm")
    if found is None:
        raise BackendError(
            "nvdisasm, which disassembles CUDA machine code, is not installed (package "
            f"nvidia-cuda-nvdisasm); {_INSTALL}"
        )
    return Path(found)


def _pathfinder() -> Any:
    try:
        return importlib.import_module("cuda.pathfinder")
    except ImportError as error:
        raise BackendError(
            f"cuda-pathfinder, which finds the CUDA toolkit, is not installed; {_INSTALL}"
        ) from error
