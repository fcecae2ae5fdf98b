"""What CUDA there is: driver, devices, CuPy, compiler; and why not, in words.

Nothing here raises where something is missing or broken. The driver is asked through its C
interface, so that devices are seen before CuPy is installed; CuPy is imported only where a driver
lies, since that takes half a second. Once for each process.
"""

import ctypes
import importlib.util
from dataclasses import dataclass
from functools import cache
from typing import Any

CUPY_DISTRIBUTIONS = ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy")
"""Names under which CuPy is installed."""

OLDEST_CUDA = 12_000
"""CUDA version a driver must know, as drivers write it: 1000 * major + 10 * minor."""

_CUDA_13 = 13_000
_CUDA_13_CAPABILITY = (7, 5)  # the oldest devices its compiler knows

_SUCCESS = 0
_CAPABILITY_ATTRIBUTES = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_NAME_BYTES = 256


@dataclass(frozen=True)
class CudaDevice:
    """A device as the driver describes it.

    Attributes:
        name: Product name.
        capability: Compute capability, major and minor.
        memory_bytes: Total memory.
    """

    name: str
    capability: tuple[int, int]
    memory_bytes: int


@dataclass(frozen=True)
class CudaDriver:
    """The NVIDIA driver.

    Attributes:
        cuda_version: Newest CUDA it can run, 1000 * major + 10 * minor; 0 where it does not say.
        devices: The devices it shows to this process.
        problem: Why there is no device; None where there is one.
    """

    cuda_version: int
    devices: tuple[CudaDevice, ...]
    problem: str | None

    @property
    def cuda_text(self) -> str:
        """The version as people write it."""
        return version_text(self.cuda_version)

    @property
    def extra(self) -> str:
        """The extra of the package that suits driver and devices."""
        is_new = all(device.capability >= _CUDA_13_CAPABILITY for device in self.devices)
        return "cuda13" if self.cuda_version >= _CUDA_13 and is_new else "cuda12"


@dataclass(frozen=True)
class CupyState:
    """CuPy as far as it works.

    Attributes:
        nvrtc_version: Version of the compiler it loads, such as 12.9; None where it loads none.
        problem: Why it is of no use; None where a device answers and the compiler loads.
    """

    nvrtc_version: str | None
    problem: str | None


@cache
def find_driver() -> CudaDriver | None:
    """The driver and its devices; None where there is no driver."""
    library = _load_driver()
    if library is None:
        return None
    version = ctypes.c_int()
    knows_version = library.cuDriverGetVersion(ctypes.byref(version)) == _SUCCESS
    cuda_version = version.value if knows_version else 0
    code = library.cuInit(0)
    if code != _SUCCESS:
        return CudaDriver(cuda_version, (), f"the driver says {_error_text(library, code)}")
    count = ctypes.c_int()
    code = library.cuDeviceGetCount(ctypes.byref(count))
    if code != _SUCCESS or count.value == 0:
        said = _error_text(library, code) if code != _SUCCESS else "there is no device"
        return CudaDriver(cuda_version, (), f"the driver says {said}")
    devices = tuple(_describe_device(library, number) for number in range(count.value))
    if cuda_version < OLDEST_CUDA:
        problem = (
            f"the driver runs CUDA up to {version_text(cuda_version)}, and CUDA "
            f"{version_text(OLDEST_CUDA)} is needed: install a newer NVIDIA driver"
        )
        return CudaDriver(cuda_version, devices, problem)
    return CudaDriver(cuda_version, devices, None)


@cache
def probe_cupy() -> CupyState:
    """What CuPy can do here; it was imported only if there is a driver."""
    if cupy is None:
        return CupyState(None, _import_problem or "CuPy is not imported without an NVIDIA driver")
    try:
        cupy.cuda.runtime.getDeviceCount()
        cupy.cuda.runtime.memGetInfo()
    except Exception as error:
        return CupyState(None, f"CuPy finds no device that answers: {_first_line(error)}")
    try:
        major, minor = cupy.cuda.nvrtc.getVersion()
    except Exception as error:
        problem = f"CuPy cannot load NVRTC, CUDA's run-time compiler: {_first_line(error)}"
        return CupyState(None, problem)
    return CupyState(f"{major}.{minor}", None)


def cuda_problem() -> str | None:
    """Why the CUDA backend cannot be used on this machine; None where a device answers."""
    driver = find_driver()
    if driver is None:
        return "there is no NVIDIA driver on this machine (libcuda.so.1)"
    if driver.problem is not None:
        return driver.problem
    problem = probe_cupy().problem
    return None if problem is None else f"{problem}; {install_advice(driver)}"


def install_advice(driver: CudaDriver) -> str:
    """The command that installs what CUDA needs beside the driver."""
    return f"install the extra for this driver: pip install 'caspar[{driver.extra}]'"


def version_text(version: int) -> str:
    """A CUDA version as people write it: 12080 is 12.8."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _load_driver() -> Any:
    """The driver's library; None where it is not installed."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _error_text(library: Any, code: int) -> str:
    text = ctypes.c_char_p()
    if library.cuGetErrorString(code, ctypes.byref(text)) != _SUCCESS or text.value is None:
        return f"error {code}"
    return text.value.decode(errors="replace")


def _describe_device(library: Any, number: int) -> CudaDevice:
    device = ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(device), number)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    library.cuDeviceGetName(name, _NAME_BYTES, device)
    memory_bytes = ctypes.c_size_t()
    library.cuDeviceTotalMem_v2(ctypes.byref(memory_bytes), device)
    major, minor = ctypes.c_int(), ctypes.c_int()
    for value, attribute in zip((major, minor), _CAPABILITY_ATTRIBUTES, strict=True):
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return CudaDevice(
        name.value.decode(errors="replace"), (major.value, minor.value), memory_bytes.value
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


cupy: Any = None
_import_problem: str | None = None
if _load_driver() is not None:
    try:
        import cupy
    except ImportError as error:
        is_installed = importlib.util.find_spec("cupy") is not None
        _import_problem = (
            f"CuPy is installed but cannot be imported: {_first_line(error)}"
            if is_installed
            else "CuPy is not installed"
        )
    except Exception as error:  # a broken installation raises anything
        _import_problem = f"CuPy is installed but cannot be imported: {_first_line(error)}"
