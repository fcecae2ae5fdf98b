"""Compile the generated sources of the reference into a Python extension, and import it.

Input: a directory written by `generate`. Output: `caspar_lib.<abi>.so` beside the sources. Cost:
once per architecture and Python version; minutes on two cores.

The CMake file is the reference's own, with its own flags (Release, `--use_fast_math`). Only the
search for tools is pinned: pybind11 is taken from the running interpreter, because the reference
downloads it when CMake does not find it, and downloads are switched off so that such a case is an
error. Usage: `python -m benchmarks.reference.build DIRECTORY [--architecture 90] [--jobs 8]`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType

LIBRARY_NAME = "caspar_lib"
MANIFEST_NAME = "reference.json"


class Precision(Enum):
    """Scalar type of one generated library: the reference fixes it when it generates."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"


@dataclass(frozen=True)
class Manifest:
    """What a generated directory holds; written beside the sources as JSON."""

    precision: str
    symforce_version: str
    epsilon: float
    generate_time_s: float


@dataclass(frozen=True)
class ReferenceLibrary:
    """An imported extension and what it was generated from."""

    module: ModuleType
    manifest: Manifest

    @property
    def precision(self) -> Precision:
        """Scalar type of all arrays that the extension takes and gives."""
        return Precision(self.manifest.precision)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Record in `directory` what was generated there."""
    text = json.dumps(asdict(manifest), indent=2, sort_keys=True)
    (directory / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> Manifest:
    """Read what `write_manifest` wrote; FileNotFoundError when `directory` was not generated."""
    return Manifest(**json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8")))


def extension_path(directory: Path) -> Path:
    """Where the extension for the running interpreter lies, whether built or not."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return directory / f"{LIBRARY_NAME}{suffix}"


def pybind11_cmake_directory() -> str:
    """Ask the running interpreter's pybind11 where its CMake files are."""
    command = [sys.executable, "-m", "pybind11", "--cmakedir"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@dataclass(frozen=True)
class Toolkit:
    """CUDA's compiler, and where its libraries are.

    Attributes:
        nvcc: The compiler.
        libraries: Its folder of libraries, where CMake and the linker have to be told; else None.
    """

    nvcc: str
    libraries: Path | None

    @property
    def options(self) -> list[str]:
        """For CMake."""
        made = [f"-DCMAKE_CUDA_COMPILER={self.nvcc}"]
        if self.libraries is not None:
            runtime = next(self.libraries.glob("libcudart.so.*"))
            made += [f"-DCUDA_CUDART={runtime}", f"-DCUDA_cudart_LIBRARY={runtime}"]
            made += [f"-DCMAKE_BUILD_RPATH={self.libraries}"]
        return made

    @property
    def environment(self) -> dict[str, str]:
        """For CMake and what it starts."""
        if self.libraries is None:
            return dict(os.environ)
        folders = [str(self.libraries), *filter(None, [os.environ.get("LIBRARY_PATH")])]
        return {**os.environ, "LIBRARY_PATH": os.pathsep.join(folders)}


def find_toolkit() -> Toolkit:
    """The compiler on the PATH, of a toolkit elsewhere, or of a wheel.

    A wheel's libraries are not where CMake looks, and its runtime has no name without a version.

    Raises:
        FileNotFoundError: There is none.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        with suppress(ModuleNotFoundError):
            finder = importlib.import_module("cuda.pathfinder")
            nvcc = finder.find_nvidia_binary_utility("nvcc")
    if nvcc is None:
        raise FileNotFoundError("nvcc is neither on the PATH, nor in a toolkit, nor a wheel")
    libraries = Path(nvcc).parents[1] / "lib"
    has_runtime = any(libraries.glob("libcudart.so.*"))
    return Toolkit(nvcc, libraries if has_runtime else None)


def configure_command(directory: Path, architecture: str, toolkit: Toolkit) -> list[str]:
    """Return the CMake call that configures `directory` for one GPU architecture, such as "90"."""
    command = [
        "cmake",
        "--fresh",  # a build folder that came from elsewhere names paths which are not here
        "-S",
        str(directory),
        "-B",
        str(directory / "build"),
        "-DCMAKE_BUILD_TYPE=Release",
        *toolkit.options,
        f"-DCMAKE_CUDA_ARCHITECTURES={architecture}-real",
        f"-Dpybind11_DIR={pybind11_cmake_directory()}",
        "-DPYBIND11_FINDPYTHON=ON",
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DFETCHCONTENT_FULLY_DISCONNECTED=ON",
    ]
    return [*command, "-GNinja"] if shutil.which("ninja") is not None else command


def build(directory: Path, architecture: str = "90", jobs: int | None = None) -> float:
    """Configure and compile; return the seconds taken.

    Raises subprocess.CalledProcessError when CMake or the compiler fails, and FileNotFoundError
    when they succeed without leaving an extension that the running interpreter can import, or
    there is no nvcc.
    """
    start = time.perf_counter()
    toolkit = find_toolkit()
    configure = configure_command(directory, architecture, toolkit)
    subprocess.run(configure, check=True, env=toolkit.environment)
    command = ["cmake", "--build", str(directory / "build"), "--parallel"]
    parallel = command if jobs is None else [*command, str(jobs)]
    subprocess.run(parallel, check=True, env=toolkit.environment)
    if not extension_path(directory).exists():
        raise FileNotFoundError(f"the build left no {extension_path(directory)}")
    return time.perf_counter() - start


def load(directory: Path) -> ReferenceLibrary:
    """Import the extension of `directory`; ImportError when the CUDA runtime is missing."""
    path = extension_path(directory)
    spec = importlib.util.spec_from_file_location(LIBRARY_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no extension module for this interpreter")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return ReferenceLibrary(module=module, manifest=read_manifest(directory))


def add_build_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `build` and `generate` share."""
    parser.add_argument("directory", type=Path, help="generated sources, and the extension")
    parser.add_argument("--architecture", default="90", help="compute capability (default: 90)")
    parser.add_argument("--jobs", type=int, default=None, help="parallel compilations")


def main() -> None:
    """Build a generated directory from the command line."""
    parser = argparse.ArgumentParser(description="Build the generated reference library.")
    add_build_arguments(parser)
    arguments = parser.parse_args()
    directory: Path = arguments.directory.resolve()
    time_s = build(directory, arguments.architecture, arguments.jobs)
    print(f"built in {time_s:.1f} s: {extension_path(directory)}")


if __name__ == "__main__":
    main()
