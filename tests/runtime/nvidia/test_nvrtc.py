"""The compiler is asked, without a GPU: its figures, its errors, its options."""

import inspect
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from caspar.errors import CompileError, OptionError
from caspar.runtime.nvidia.nvrtc import CUPY_OPTIONS, architectures, compile_text, nvrtc_version
from caspar.version import install_command

TWO_KERNELS = """
extern "C" __global__ void small(float* a) { a[threadIdx.x] *= 2.0f; }

__device__ __noinline__ float pick(const float* values, int place) { return values[place]; }

extern "C" __global__ void large(float* a, const int* places) {
  __shared__ float shared[256];
  float local[40];
  for (int i = 0; i < 40; ++i) local[i] = a[places[i]];
  shared[threadIdx.x] = pick(local, places[threadIdx.x]);
  __syncthreads();
  a[threadIdx.x] = shared[255 - threadIdx.x];
}
"""

SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 2) kernel(float* a) {
  float values[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) values[i] = a[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) a[i * 1024 + threadIdx.x] = values[(i * 29) % 64];
}
"""


def test_resources_of_each_kernel() -> None:
    compiled = compile_text(TWO_KERNELS, "sm_90")
    assert list(compiled.resources) == ["large", "small"]
    small, large = compiled.resources["small"], compiled.resources["large"]
    assert 4 <= small.registers < large.registers
    assert (small.stack_bytes, small.shared_bytes, small.spill_bytes) == (0, 0, 0)
    assert large.stack_bytes >= 40 * 4
    assert large.shared_bytes == 256 * 4
    assert compiled.warnings == ()


def test_spilled_bytes_are_counted() -> None:
    entry = compile_text(SPILLS, "sm_90").resources["kernel"]
    assert entry.registers <= 32
    assert entry.spill_store_bytes > 0
    assert entry.spill_load_bytes > 0
    assert entry.spill_bytes == entry.spill_store_bytes + entry.spill_load_bytes


def test_portable_assembly_and_machine_code() -> None:
    compiled = compile_text(TWO_KERNELS, "sm_86")
    assert ".target sm_86" in compiled.ptx
    assert ".visible .entry small(" in compiled.ptx
    assert compiled.ptx.isprintable() or "\0" not in compiled.ptx
    assert compiled.cubin.startswith(b"\x7fELF")


def test_denormals_are_flushed_as_where_it_runs() -> None:
    text = 'extern "C" __global__ void kernel(float* a) { a[0] = a[1] * a[2]; }'
    assert "mul.ftz.f32" in compile_text(text).ptx


def test_options_are_those_that_cupy_adds() -> None:
    compiler = pytest.importorskip("cupy.cuda.compiler")
    text = inspect.getsource(compiler)
    assert all(f"'{option}'" in text for option in CUPY_OPTIONS)


def test_an_error_is_the_compilers_own() -> None:
    with pytest.raises(CompileError, match='identifier "undefined" is undefined'):
        compile_text("__global__ void kernel() { undefined(); }")


def test_warnings_are_kept() -> None:
    compiled = compile_text("__global__ void kernel() { int unused; }")
    (warning,) = compiled.warnings
    assert "never referenced" in warning


def test_an_unknown_architecture_names_those_that_are_known() -> None:
    with pytest.raises(OptionError, match=r"arch='sm_20': must be one of .*sm_75.*sm_90"):
        compile_text(TWO_KERNELS, "sm_20")
    assert {"sm_75", "sm_86", "sm_90"} <= set(architectures())


def test_the_version_is_that_of_the_library() -> None:
    assert int(nvrtc_version().split(".")[0]) >= 12


def test_concurrent_compilations_do_not_mix() -> None:
    names = [f"kernel{number}" for number in range(8)]
    texts = [f'extern "C" __global__ void {name}(float* a) {{ a[0] = 1.0f; }}' for name in names]
    with ThreadPoolExecutor(8) as pool:
        compiled = list(pool.map(compile_text, texts))
    assert [list(result.resources) for result in compiled] == [[name] for name in names]


@pytest.mark.parametrize(
    ("call", "missing"), [("load_nvrtc", "NVRTC"), ("find_nvdisasm", "nvidia-cuda-nvdisasm")]
)
def test_what_is_missing_says_what_to_install(call: str, missing: str, tmp_path: Path) -> None:
    """In a process whose toolkit finder finds nothing."""
    finder = tmp_path / "cuda" / "pathfinder"
    finder.mkdir(parents=True)
    (finder / "__init__.py").write_text(
        "def load_nvidia_dynamic_lib(name): raise RuntimeError('not found')\n"
        "def find_nvidia_binary_utility(name): return None\n"
    )
    assert missing in _error_of(call, tmp_path)


@pytest.mark.parametrize("call", ["load_nvrtc", "find_nvdisasm"])
def test_a_missing_finder_says_what_to_install(call: str, tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").touch()
    assert "cuda-pathfinder" in _error_of(call, tmp_path)


def _error_of(call: str, first_path: Path) -> str:
    program = (
        f"import sys; sys.path.insert(0, {str(first_path)!r})\n"
        "from caspar.errors import BackendError\n"
        "from caspar.runtime.nvidia import toolkit\n"
        f"try:\n    print('found', toolkit.{call}())\n"
        "except BackendError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[3],
        env={"PATH": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    assert install_command("inspect") in done.stdout
    return done.stdout
