"""Find out which CUDA there is: driver, devices, CuPy, compiler; or say why there is none.

Nothing here raises if something is missing or broken. The driver is asked through its C interface
(CUDA Driver API), so that devices are seen before CuPy is installed; CuPy is imported only if there
is a device, since that takes half a second. Once for each process.

Also here: the check of CuPy's folder of machine code, which is used only if nobody else can write
there, and if it works at all.
"""

import ctypes
import importlib
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from caspar.runtime.cache import folder_refusal, warn_once
from caspar.runtime.select import load_cuda_driver
from caspar.version import install_command

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
    """Return the folder where CuPy keeps machine code; it need not exist."""
    chosen = os.environ.get(FOLDER_VARIABLE, "")
    return Path(chosen or os.path.expanduser("~/.cupy/kernel_cache"))


def _refusal(folder: Path) -> str:
    """Return why the folder must not or cannot be used; empty if nothing is wrong with it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refusal = folder_refusal(folder, FOLDER_VARIABLE)
        if not refusal:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"caspar")
        return refusal
    except OSError as error:
        return f"{folder} cannot be written ({error.strerror or error})"


def _keep_in_memory(reason: str) -> None:
    os.environ[IN_MEMORY_VARIABLE] = "1"
    warn_once(
        f"CuPy's folder of machine code is not used: {reason}. Every process compiles anew; "
        f"{FOLDER_VARIABLE} chooses another folder"
    )


OLDEST_CUDA = 12_000
"""CUDA version a driver must know, as drivers write it: 1000 * major + 10 * minor."""

CUDA_13 = 13_000
CUDA_13_CAPABILITY = (7, 5)
"""The oldest devices that the compiler of CUDA 13 knows."""

GRAPH_LOOP_CUDA = 12_040
"""CUDA version that driver and compiler must know for graphs that repeat a part of themselves."""

GRAPH_LIBRARY = "cuda.core.graph"
"""Makes them; its names are those of cuda-core 1.0."""

CUDSS_BINDINGS = "nvmath.bindings.cudss"

_MAJOR_VERSION = 0  # of `libraryPropertyType`
_SUCCESS = 0
_CAPABILITY_ATTRIBUTES = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_NAME_BYTES = 256


@dataclass(frozen=True)
class CudaDevice:
    """A device as the driver describes it: name, compute capability (major, minor), bytes."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int


@dataclass(frozen=True)
class CudaDriver:
    """The NVIDIA driver: the devices it shows to this process, and why they are of no use.

    `cuda_version` is the newest CUDA it can run, 1000 * major + 10 * minor; 0 where it does not
    say.
    """

    cuda_version: int
    devices: tuple[CudaDevice, ...]
    problem: str | None

    @property
    def extra(self) -> str:
        """The extra of the package that suits the driver and every device."""
        is_new = all(device.capability >= CUDA_13_CAPABILITY for device in self.devices)
        return "cuda13" if self.cuda_version >= CUDA_13 and is_new else "cuda12"


@dataclass(frozen=True)
class CupyState:
    """CuPy as far as it works.

    `nvrtc_version` is 12.9 for example, None where none loads; `problem` is None where a device
    answers and the compiler loads. `is_incomplete`: installing something would help.
    """

    nvrtc_version: str | None
    problem: str | None
    is_incomplete: bool = False


@cache
def find_driver() -> CudaDriver | None:
    """The driver and its devices; None where there is no driver."""
    library = load_cuda_driver()
    if library is None:
        return None
    version = ctypes.c_int(0)
    library.cuDriverGetVersion(ctypes.byref(version))
    code = library.cuInit(0)
    if code != _SUCCESS:
        problem = f"the NVIDIA driver does not start: {_error_text(library, code)}"
        return CudaDriver(version.value, (), problem)
    count = ctypes.c_int(0)
    library.cuDeviceGetCount(ctypes.byref(count))
    devices = tuple(_describe_device(library, number) for number in range(count.value))
    return CudaDriver(version.value, devices, _driver_problem(version.value, devices))


@cache
def probe_cupy() -> CupyState:
    """Find what CuPy can do with the current device. Ask only if a driver has devices."""
    try:
        cupy = import_cupy()
    except Exception as error:  # a broken installation raises anything
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        reason = f"CuPy cannot be imported: {first_line(error)}"
        return CupyState(None, "CuPy is not installed" if is_missing else reason, True)
    try:
        cupy.cuda.runtime.memGetInfo()
        capability = divmod(int(cupy.cuda.Device().compute_capability), 10)  # "90" is 9.0
    except Exception as error:
        reason = first_line(error)
        return CupyState(
            None, f"CuPy gets no answer from the device: {reason}", "InsufficientDriver" in reason
        )
    try:
        major, minor = cupy.cuda.nvrtc.getVersion()
    except Exception as error:
        reason = f"CuPy cannot load NVRTC, CUDA's run-time compiler: {first_line(error)}"
        return CupyState(None, reason, True)
    problem = _compiler_problem(major, capability)
    return CupyState(f"{major}.{minor}", problem, problem is not None)


def cuda_problem() -> str | None:
    """Return why the CUDA backend cannot be used on this machine; None if a device answers."""
    driver = find_driver()
    if driver is None:
        return "there is no NVIDIA driver (libcuda.so.1)"
    if driver.problem is not None:
        return driver.problem
    cupy = probe_cupy()
    if cupy.problem is None or not cupy.is_incomplete:
        return cupy.problem
    return f"{cupy.problem}; {install_advice(driver)}"


@cache
def graph_loop_problem() -> str | None:
    """Return why CUDA graphs cannot repeat a part of themselves; None if no reason is known.

    Call only if the CUDA backend can be used.
    """
    driver, nvrtc = find_driver(), probe_cupy().nvrtc_version
    assert driver is not None
    assert nvrtc is not None
    needs = f"graphs that repeat themselves need CUDA {version_text(GRAPH_LOOP_CUDA)}"
    if driver.cuda_version < GRAPH_LOOP_CUDA:
        return f"the NVIDIA driver runs CUDA up to {version_text(driver.cuda_version)}, and {needs}"
    major, minor = map(int, nvrtc.split("."))
    if 1000 * major + 10 * minor < GRAPH_LOOP_CUDA:
        return f"NVRTC is of CUDA {nvrtc}, and {needs}; {install_advice(driver)}"
    try:
        importlib.import_module(GRAPH_LIBRARY).GraphBuilder.create_condition  # noqa: B018
    except Exception as error:  # a broken installation raises anything
        return f"there is no cuda-core >= 1.0: {first_line(error)}; {_advice_for_cupy(nvrtc)}"
    return None


def sparse_problem() -> str | None:
    """Return why cuDSS, which factorises sparse matrices, cannot be used; None if it can.

    Call only if the CUDA backend can be used.
    """
    nvrtc = probe_cupy().nvrtc_version
    assert nvrtc is not None
    try:
        bindings = importlib.import_module(CUDSS_BINDINGS)
    except Exception as error:  # a broken installation raises anything
        return f"nvmath-python cannot be imported: {first_line(error)}; {_advice_for_cupy(nvrtc)}"
    try:
        bindings.get_property(_MAJOR_VERSION)
    except Exception as error:
        # behind the name of the library are the contents of all folders that were searched
        reason = ": ".join(first_line(error).split(": ")[:2])
        return f"cuDSS cannot be loaded: {reason}; {_advice_for_cupy(nvrtc)}"
    return None


def _advice_for_cupy(nvrtc: str) -> str:
    """Tell how to install what else CUDA needs: it must match CuPy, not the driver."""
    major, _, _ = nvrtc.partition(".")
    return f"for this CuPy: {install_command(f'cuda{major}')}"


def install_advice(driver: CudaDriver) -> str:
    """Return how to install what CUDA needs beside the driver."""
    return f"for this driver: {install_command(driver.extra)}"


def version_text(version: int) -> str:
    """A CUDA version as people write it: 12080 is 12.8."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _driver_problem(version: int, devices: tuple[CudaDevice, ...]) -> str | None:
    if not devices:
        return "the NVIDIA driver shows no device (see CUDA_VISIBLE_DEVICES)"
    if version < OLDEST_CUDA:
        return (
            f"the NVIDIA driver runs CUDA up to {version_text(version)}; install a driver for "
            f"CUDA {version_text(OLDEST_CUDA)} or newer"
        )
    return None


def _compiler_problem(nvrtc_major: int, capability: tuple[int, int]) -> str | None:
    if 1000 * nvrtc_major < CUDA_13 or capability >= CUDA_13_CAPABILITY:
        return None
    return (
        f"CUDA {nvrtc_major} compiles for compute capability {_dotted(CUDA_13_CAPABILITY)} and "
        f"newer, and the device has {_dotted(capability)}"
    )


def _error_text(library: Any, code: int) -> str:
    text = ctypes.c_char_p()
    if library.cuGetErrorString(code, ctypes.byref(text)) != _SUCCESS or text.value is None:
        return f"error {code}"
    return text.value.decode(errors="replace")


def _describe_device(library: Any, number: int) -> CudaDevice:
    device = ctypes.c_int(0)
    library.cuDeviceGet(ctypes.byref(device), number)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    library.cuDeviceGetName(name, _NAME_BYTES, device)
    memory_bytes = ctypes.c_size_t(0)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory_bytes), device)
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    for value, attribute in zip((major, minor), _CAPABILITY_ATTRIBUTES, strict=True):
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return CudaDevice(
        name.value.decode(errors="replace"), (major.value, minor.value), memory_bytes.value
    )


def _dotted(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))


def first_line(error: Exception) -> str:
    """An error's kind, and what it says first."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
