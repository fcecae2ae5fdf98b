"""The CPU backend: compiling, caching, running lists of launches."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.codegen.llvm import translate
from caspar.codegen.source import KernelSource
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.errors import CompileError, OutOfMemoryError
from caspar.ir.dtype import DType
from caspar.memory.array import Binding
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.patterns import ReadSequential, WriteSequential, WriteUnique
from caspar.runtime.backend import Launch
from caspar.runtime.cpu import compile as cpu_compile
from caspar.runtime.cpu.backend import CpuBackend

Array = NDArray[np.float64]

ROOT = Path(__file__).parents[3]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and nothing loaded; where machine code goes below it."""
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path))
    forget_kernels(monkeypatch)
    return tmp_path / "code"


def affine(name: str, factor: float, offset: float) -> KernelSpec:
    """x = factor * x + offset, and whether x has reached 8 to `flag`."""
    kernel = KernelBuilder(name, DType.FLOAT64)
    kernel.guard("flag")
    x = kernel.read("x", 1, DType.FLOAT64, ReadSequential())[0] * factor + offset
    kernel.write("x", [x], DType.FLOAT64, WriteSequential())
    kernel.write("flag", [(7.5 < x).where(1.0, 0.0)], DType.FLOAT64, WriteUnique())
    return kernel.build()


def double(name: str) -> KernelSpec:
    """y = 2 x."""
    kernel = KernelBuilder(name, DType.FLOAT64)
    x = kernel.read("x", 1, DType.FLOAT64, ReadSequential())[0]
    kernel.write("y", [x * 2.0], DType.FLOAT64, WriteSequential())
    return kernel.build()


def sources_of(*specs: KernelSpec) -> list[KernelSource]:
    return [compile_kernel(spec, TARGETS["cpu"]) for spec in specs]


def forget_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are loaded again, as in a new process."""
    monkeypatch.setattr(cpu_compile, "_ADDRESSES", {})


def doubled(sources: Sequence[KernelSource], x: Array) -> Array:
    """Load and run a kernel y = 2 x."""
    backend = CpuBackend()
    kernel = next(iter(backend.load(sources).values()))
    y = np.full_like(x, np.nan)
    bindings = {"x": Binding(x, len(x)), "y": Binding(y, len(x))}
    backend.sequence([backend.bind(kernel, bindings, len(x))]).run()
    return y


class TestRunning:
    def launches(self, x: Array, flag: Array) -> tuple[CpuBackend, list[Launch]]:
        backend = CpuBackend()
        kernels = backend.load(sources_of(affine("add_one", 1.0, 1.0), affine("twice", 2.0, 0.0)))
        bindings = {"x": Binding(x, len(x)), "flag": Binding(flag, 1)}
        names = ("add_one", "twice")
        return backend, [backend.bind(kernels[name], bindings, len(x)) for name in names]

    def test_launches_run_in_order(self) -> None:
        x, flag = np.zeros(1), np.zeros(1)
        backend, launches = self.launches(x, flag)
        backend.sequence(launches).run()
        assert x[0] == 2.0
        backend.sequence(launches[::-1]).run()
        assert x[0] == 5.0

    def test_run_until_the_flag_is_set(self) -> None:
        """2, 6, then 7, at which the flag is not set yet, and 14."""
        x, flag = np.zeros(1), np.zeros(1)
        backend, launches = self.launches(x, flag)
        backend.sequence(launches).run_until(flag, 100)
        assert (x[0], flag[0]) == (14.0, 1.0)
        backend.sequence(launches).run_until(flag, 100)
        assert x[0] == 14.0

    def test_run_until_at_most(self) -> None:
        x, flag = np.full(1, -100.0), np.zeros(1)
        backend, launches = self.launches(x, flag)
        backend.sequence(launches).run_until(flag, 2)
        assert x[0] == 2.0 * (2.0 * -99.0 + 1.0)

    def test_a_flag_that_is_not_a_number_stops(self) -> None:
        x, flag = np.zeros(1), np.full(1, np.nan)
        backend, launches = self.launches(x, flag)
        backend.sequence(launches).run_until(flag, 3)
        assert x[0] == 0.0

    def test_nothing_to_run(self) -> None:
        CpuBackend().sequence([]).run()

    @pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 5000])
    def test_every_item_once(self, count: int) -> None:
        x = np.arange(count, dtype=np.float64)
        assert_array_equal(doubled(sources_of(double("double")), x), 2.0 * x)

    def test_arrays_of_a_launch_are_kept(self) -> None:
        """The parameter table holds addresses; nobody else may hold the arrays."""
        backend = CpuBackend()
        kernel = backend.load(sources_of(double("double")))["double"]
        y = np.zeros(100)
        bindings = {"x": Binding(np.full(100, 3.0), 100), "y": Binding(y, 100)}
        sequence = backend.sequence([backend.bind(kernel, bindings, 100)])
        del bindings
        rubbish = [np.full(100, 7.0) for _ in range(50)]
        sequence.run()
        assert_array_equal(y, 6.0)
        assert len(rubbish) == 50


class TestMemory:
    def test_bytes(self) -> None:
        memory = CpuBackend().allocate(1000)
        assert (memory.dtype, memory.shape) == (np.uint8, (1000,))
        assert memory.ctypes.data % 16 == 0

    def test_more_than_the_machine_has(self) -> None:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        with pytest.raises(OutOfMemoryError, match=f"{2 * physical:,} bytes") as caught:
            CpuBackend().allocate(2 * physical)
        assert f"{physical:,}" in str(caught.value)

    def test_transfers(self) -> None:
        backend, array = CpuBackend(), np.arange(3.0)
        assert backend.upload(array) is array
        copy = backend.to_host(array)
        assert_array_equal(copy, array)
        assert not np.may_share_memory(copy, array)
        assert not backend.accepts_device("cuda", 0)

    def test_says_what_it_is(self) -> None:
        assert CpuBackend().name == "cpu"
        assert "threads" in CpuBackend().device


class TestCache:
    def test_machine_code_is_taken_from_the_store(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (source,) = sources_of(double("kept"))
        doubled([source], np.ones(3))
        forget_kernels(monkeypatch)
        monkeypatch.setattr(cpu_compile, "compile_code", None)
        assert_array_equal(doubled([source], np.ones(3)), 2.0)

    def test_a_renamed_kernel_is_not_compiled_again(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        doubled(sources_of(double("first_name")), np.ones(3))
        monkeypatch.setattr(cpu_compile, "compile_code", None)
        assert_array_equal(doubled(sources_of(double("second_name")), np.ones(3)), 2.0)

    def test_a_failed_compilation_leaves_nothing(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (source,) = sources_of(double("again"))
        translated = translate.llvm_module
        monkeypatch.setattr(translate, "llvm_module", lambda text, name: "no module")
        with pytest.raises(CompileError, match="the kernel again cannot be compiled: LLVM does"):
            doubled([source], np.ones(3))
        assert not cache.exists()
        monkeypatch.setattr(translate, "llvm_module", translated)
        assert_array_equal(doubled([source], np.ones(3)), 2.0)

    def test_another_translator_is_another_entry(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (source,) = sources_of(double("translated"))
        doubled([source], np.ones(3))
        before = len(list(cache.iterdir()))  # the driver is one, if no test had loaded it
        monkeypatch.setattr(cpu_compile, "_translator_digest", lambda: b"another")
        doubled([source], np.ones(3))
        assert len(list(cache.iterdir())) == before + 1

    def test_sources_that_do_not_compile(self, cache: Path) -> None:
        (source,) = sources_of(double("wrong"))
        broken = KernelSource("wrong", "import nowhere\n" + source.text, source.params, (1024,))
        for _ in range(2):
            with pytest.raises(CompileError, match=r"the kernel wrong cannot .*'import nowhere'"):
                CpuBackend().load([broken])


FORK = """
import os, signal, threading
from caspar.errors import BackendError
from caspar.runtime.cpu import compile as cpu_compile
from tests.runtime.cpu.test_cpu import double, sources_of
(source,) = sources_of(double("forked"))
with cpu_compile._COMPILING:  # as while another thread compiles
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            cpu_compile.function_address(source)
        except BackendError as error:
            os._exit(0 if "'spawn'" in str(error) else 1)
        os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
child = os.fork()
if child == 0:
    signal.alarm(60)
    cpu_compile.function_address(source)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_fork_while_another_thread_compiles_says_so() -> None:
    command = [sys.executable, "-c", FORK]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
