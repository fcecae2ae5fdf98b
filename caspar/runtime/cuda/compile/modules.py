"""Machine code on the current device: loaded once for each device of a process.

Cost tier: once for each text; a compilation for one that is not stored.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import Any

import cupy

from caspar.codegen.cuda.header import COMPILE_OPTIONS
from caspar.runtime.nvidia.machine_code import machine_code

_SHARED_BYTES, _LOCAL_BYTES, _REGISTERS = 1, 3, 4
"""CU_FUNC_ATTRIBUTE_..., which CuPy has no names for."""


@dataclass(frozen=True)
class LoadedFunction:
    """A kernel that the driver has loaded: CuPy's function, and the resources that it takes.

    Local memory is of a thread, static shared memory of a block.
    """

    function: Any
    registers: int
    local_bytes: int
    shared_bytes: int

    @property
    def address(self) -> int:
        """Address in the form in which the driver takes it."""
        return int(self.function.ptr)


def load_functions(
    text: str, names: Sequence[str], options: tuple[str, ...] = COMPILE_OPTIONS
) -> Mapping[str, LoadedFunction]:
    """The kernels of a text on the current device, by name.

    Raises `BackendError` without NVRTC, `CompileError`, and CuPy's `CUDADriverError` if the driver
    refuses the machine code.
    """
    device = cupy.cuda.Device()
    key = (device.id, text, options)
    while True:
        with _LOCK:
            found = _LOADED.get(key)
            is_first = found is None
            if found is None:
                found = _LOADED[key] = Future()
        if is_first:
            break
        if found.exception() is None:
            return found.result()
    try:
        code = machine_code(text, f"sm_{device.compute_capability}", options)
        module = cupy.cuda.function.Module()
        module.load(code)
        loaded = {name: _loaded(module.get_function(name)) for name in names}
    except BaseException as error:
        with _LOCK:
            del _LOADED[key]
        found.set_exception(error)
        raise
    found.set_result(loaded)
    return loaded


_LOADED: "dict[tuple[int, str, tuple[str, ...]], Future[Mapping[str, LoadedFunction]]]" = {}
_LOCK = Lock()


def _loaded(function: Any) -> LoadedFunction:
    shared_bytes, local_bytes, registers = (
        int(cupy.cuda.driver.funcGetAttribute(attribute, function.ptr))
        for attribute in (_SHARED_BYTES, _LOCAL_BYTES, _REGISTERS)
    )
    return LoadedFunction(function, registers, local_bytes, shared_bytes)
