"""The probe with a driver and a CuPy made up here: no machine has all of these troubles."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from caspar.runtime.nvidia import probe
from caspar.runtime.nvidia.probe import (
    CudaDevice,
    CudaDriver,
    cuda_problem,
    find_driver,
    graph_loop_problem,
    import_cupy,
    probe_cupy,
    sparse_problem,
)
from caspar.version import install_command

ROOT = Path(__file__).parents[3]
OLD_DEVICE = CudaDevice("Tesla V100", (7, 0), 16 << 30)
NEW_DEVICE = CudaDevice("NVIDIA B200", (10, 0), 180 << 30)
REMEMBERED = (find_driver, probe_cupy, graph_loop_problem)


@dataclass
class FakeLibrary:
    """The driver's C interface, as far as the probe uses it."""

    cuda_version: int = 12080
    devices: tuple[CudaDevice, ...] = (NEW_DEVICE,)
    init_code: int = 0

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self.cuda_version
        return 0

    def cuInit(self, flags: int) -> int:
        return self.init_code

    def cuGetErrorString(self, code: int, text: Any) -> int:
        if code != 100:
            return 1
        text._obj.value = b"no CUDA-capable device is detected"
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self.devices)
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:
        device._obj.value = number
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: ctypes.c_int) -> int:
        name.value = self.devices[device.value].name.encode()
        return 0

    def cuDeviceTotalMem_v2(self, num_bytes: Any, device: ctypes.c_int) -> int:
        num_bytes._obj.value = self.devices[device.value].memory_bytes
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: ctypes.c_int) -> int:
        value._obj.value = self.devices[device.value].capability[attribute - 75]
        return 0


def fake_cupy(
    capability: str = "100", nvrtc: tuple[int, int] = (12, 9), error: Exception | None = None
) -> Any:
    """CuPy, with an error of its choice from the device."""

    def answer() -> tuple[int, int]:
        if error is not None:
            raise error
        return 1, 2

    return SimpleNamespace(
        cuda=SimpleNamespace(
            runtime=SimpleNamespace(memGetInfo=answer),
            Device=lambda: SimpleNamespace(compute_capability=capability),
            nvrtc=SimpleNamespace(getVersion=lambda: nvrtc),
        )
    )


@pytest.fixture(autouse=True)
def fresh_probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No driver and nothing remembered, before and after."""
    install_driver(monkeypatch, None)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "kernels"))
    for function in REMEMBERED:
        function.cache_clear()
    yield
    for function in REMEMBERED:
        function.cache_clear()


def install_driver(monkeypatch: pytest.MonkeyPatch, library: FakeLibrary | None) -> None:
    """Put a driver in place; None: it is not installed."""

    def load(name: str) -> FakeLibrary:
        if library is None:
            raise OSError(f"{name}: cannot open shared object file")
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)


def install(monkeypatch: pytest.MonkeyPatch, library: FakeLibrary, cupy: Any) -> None:
    """Put a driver and CuPy in place; None: CuPy is not installed."""
    install_driver(monkeypatch, library)
    monkeypatch.setitem(sys.modules, "cupy", cupy)


def test_no_driver() -> None:
    assert find_driver() is None
    assert cuda_problem() == "there is no NVIDIA driver (libcuda.so.1)"


def test_everything_works(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeLibrary(devices=(NEW_DEVICE, OLD_DEVICE)), fake_cupy())
    assert find_driver() == CudaDriver(12080, (NEW_DEVICE, OLD_DEVICE), None)
    assert probe_cupy().nvrtc_version == "12.9"
    assert cuda_problem() is None


@pytest.mark.parametrize(
    ("library", "problem"),
    [
        (FakeLibrary(init_code=100), "no CUDA-capable device is detected"),
        (FakeLibrary(init_code=999), "error 999"),
        (FakeLibrary(devices=()), "shows no device"),
        (FakeLibrary(cuda_version=11040), "CUDA up to 11.4; install a driver for CUDA 12.0"),
    ],
    ids=["no device", "unknown error", "hidden devices", "old driver"],
)
def test_driver_troubles(
    monkeypatch: pytest.MonkeyPatch, library: FakeLibrary, problem: str
) -> None:
    install(monkeypatch, library, None)
    found = cuda_problem()
    assert found is not None
    assert problem in found


@pytest.mark.parametrize(
    ("cuda_version", "device", "extra"),
    [
        (12080, NEW_DEVICE, "cuda12"),
        (13000, NEW_DEVICE, "cuda13"),
        (13000, OLD_DEVICE, "cuda12"),
    ],
)
def test_cupy_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, cuda_version: int, device: CudaDevice, extra: str
) -> None:
    install(monkeypatch, FakeLibrary(cuda_version, (device,)), None)
    assert cuda_problem() == (f"CuPy is not installed; for this driver: {install_command(extra)}")


def test_cupy_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("raise RuntimeError('libstdc++ is too old\\nand more')")
    install_driver(monkeypatch, FakeLibrary())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    found = cuda_problem()
    assert found is not None
    assert found.startswith("CuPy cannot be imported: RuntimeError: libstdc++ is too old; for this")


CUPY = """
import os
os.makedirs(os.environ["CUPY_CACHE_DIR"], exist_ok=True)
"""


@pytest.mark.parametrize("is_usable", [True, False])
def test_cupy_whose_folder_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_usable: bool
) -> None:
    """CuPy makes it when it is imported."""
    (tmp_path / "cupy.py").write_text(CUPY)
    (tmp_path / "file").touch()
    folder = str(tmp_path / ("folder" if is_usable else "file") / "kernels")
    monkeypatch.setenv("CUPY_CACHE_DIR", folder)
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    if is_usable:
        import_cupy()
        assert Path(folder).is_dir()
    else:
        with pytest.warns(UserWarning, match="cannot be written.*CUPY_CACHE_DIR"):
            import_cupy()
    assert os.environ["CUPY_CACHE_DIR"] == folder
    assert os.environ["CUPY_CACHE_IN_MEMORY"] == ("0" if is_usable else "1")
    del sys.modules["cupy"]


@pytest.mark.parametrize(
    ("message", "helps"),
    [("cudaErrorInsufficientDriver: driver is old", True), ("cudaErrorUnknown: who knows", False)],
)
def test_device_does_not_answer(monkeypatch: pytest.MonkeyPatch, message: str, helps: bool) -> None:
    """Installing is advised only where it can help."""
    install(monkeypatch, FakeLibrary(), fake_cupy(error=RuntimeError(message)))
    found = cuda_problem()
    assert found is not None
    assert f"no answer from the device: RuntimeError: {message}" in found
    assert ("pip install" in found) == helps


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> tuple[int, int]:
        raise RuntimeError("libnvrtc.so.12 is not found")

    cupy = fake_cupy()
    cupy.cuda.nvrtc.getVersion = fail
    install(monkeypatch, FakeLibrary(), cupy)
    found = cuda_problem()
    assert found is not None
    assert "cannot load NVRTC" in found
    assert install_command("cuda12") in found


def test_compiler_too_new_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary(13000, (OLD_DEVICE,))
    install(monkeypatch, library, fake_cupy(capability="70", nvrtc=(13, 0)))
    assert cuda_problem() == (
        "CUDA 13 compiles for compute capability 7.5 and newer, and the device has 7.0; "
        f"for this driver: {install_command('cuda12')}"
    )


def test_two_digit_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy writes 10.0 as 100."""
    install(monkeypatch, FakeLibrary(13000), fake_cupy(capability="100", nvrtc=(13, 0)))
    assert cuda_problem() is None


# -- graphs that repeat themselves ---------------------------------------------------------------


def graph_library(**names: object) -> SimpleNamespace:
    return SimpleNamespace(GraphBuilder=SimpleNamespace(**names))


def test_graphs_can_repeat_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeLibrary(12040), fake_cupy(nvrtc=(12, 4)))
    monkeypatch.setitem(sys.modules, probe.GRAPH_LIBRARY, graph_library(create_condition=None))
    assert graph_loop_problem() is None


def test_driver_too_old_for_graph_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeLibrary(12030), fake_cupy())
    assert graph_loop_problem() == (
        "the NVIDIA driver runs CUDA up to 12.3, and graphs that repeat themselves need CUDA 12.4"
    )


def test_compiler_too_old_for_graph_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeLibrary(), fake_cupy(nvrtc=(12, 2)))
    assert graph_loop_problem() == (
        "NVRTC is of CUDA 12.2, and graphs that repeat themselves need CUDA 12.4; "
        f"for this driver: {install_command('cuda12')}"
    )


@pytest.mark.parametrize(
    "library", [None, graph_library(create_conditional_handle=None)], ids=["missing", "too old"]
)
def test_library_of_graph_loops(
    monkeypatch: pytest.MonkeyPatch, library: SimpleNamespace | None
) -> None:
    install(monkeypatch, FakeLibrary(13000), fake_cupy(nvrtc=(13, 0)))
    monkeypatch.setitem(sys.modules, probe.GRAPH_LIBRARY, library)
    found = graph_loop_problem()
    assert found is not None
    assert found.startswith("there is no cuda-core >= 1.0: ")
    assert found.endswith(f"; for this CuPy: {install_command('cuda13')}")


# -- sparse factorisation ------------------------------------------------------------------------


def cudss(error: Exception | None) -> SimpleNamespace:
    """Bindings that find the library, or do not."""

    def get_property(_: int) -> int:
        if error is not None:
            raise error
        return 0

    return SimpleNamespace(get_property=get_property)


def test_sparse_matrices_can_be_factorised(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeLibrary(), fake_cupy())
    monkeypatch.setitem(sys.modules, probe.CUDSS_BINDINGS, cudss(None))
    assert sparse_problem() is None


FOLDERS = "\n".join(f'  listdir("/usr/lib/{number}"):' for number in range(130))


@pytest.mark.parametrize(
    ("bindings", "expected"),
    [
        (None, "nvmath-python cannot be imported: ModuleNotFoundError: "),
        (
            cudss(RuntimeError(f'Failure finding "libcudss.so.0": No such file: a, b\n{FOLDERS}')),
            'cuDSS cannot be loaded: RuntimeError: Failure finding "libcudss.so.0"; ',
        ),
    ],
    ids=["bindings", "library"],
)
def test_missing_cudss_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, bindings: SimpleNamespace | None, expected: str
) -> None:
    """For the CuPy that is there, as a second one for the driver would break it."""
    install(monkeypatch, FakeLibrary(13000), fake_cupy(nvrtc=(12, 9)))
    monkeypatch.setitem(sys.modules, probe.CUDSS_BINDINGS, bindings)
    found = sparse_problem()
    assert found is not None
    assert found.startswith(expected)
    assert found.endswith(f"; for this CuPy: {install_command('cuda12')}")
    assert len(found.splitlines()) == 1
    assert len(found) < 250


def test_without_a_driver_cupy_is_not_imported() -> None:
    program = (
        "import ctypes, sys; from caspar.runtime.nvidia import probe\n"
        "def load(name): raise OSError(name)\n"
        "ctypes.CDLL = load; probe.cuda_problem(); print('cupy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.stdout.strip() == "False"


@pytest.mark.gpu
def test_a_real_device_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert cuda_problem() is None
    driver = find_driver()
    assert driver is not None
    assert driver.cuda_version >= 12000
    assert all(device.memory_bytes > 0 and device.name for device in driver.devices)
