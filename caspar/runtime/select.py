"""Choosing a backend."""

import importlib

from caspar.errors import BackendError
from caspar.options import BackendChoice
from caspar.runtime.backend import Backend
from caspar.runtime.nvidia.probe import cuda_problem


def select_backend(chosen: BackendChoice) -> Backend:
    """The backend of a choice; its library is imported only now.

    Raises:
        BackendError: CUDA was asked for and is not usable; says why and what to install.
    """
    if chosen is BackendChoice.CPU:
        return _load("cpu", "CpuBackend")
    problem = cuda_problem()
    if problem is None:
        return _load("cuda", "CudaBackend")
    if chosen is BackendChoice.CUDA:
        raise BackendError(
            f"backend='cuda': {problem}. `caspar doctor` tells what is missing; "
            "backend='cpu' needs no GPU"
        )
    return _load("cpu", "CpuBackend")


def _load(module: str, name: str) -> Backend:
    backend: Backend = getattr(importlib.import_module(f"caspar.runtime.{module}.backend"), name)()
    return backend
