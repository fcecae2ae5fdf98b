"""Compiles CUDA C text for the host: `compile_cuda`.

A module is a shared object of three parts: the text with the headers of `native/` before it,
instrumented (native/checks.cpp says how); the runtime, compiled once; a link script. Modules, the
runtime and the headers, which are compiled ahead (that takes two fifths off a module's time), are
kept in a cache folder under a name that hashes all that went in, and are put there atomically.
"""

import functools
import hashlib
import os
import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs

from tests.budget import shared_work
from tests.harness import source as source_module
from tests.harness.errors import HarnessError
from tests.harness.module import CudaModule
from tests.harness.source import KernelSignature, find_kernels, translation_unit

_NATIVE = Path(__file__).parent / "native"
_HEADER = _NATIVE / "cuda_on_cpu.h"
_RUNTIME_SOURCES = ("runtime.cpp", "collectives.cpp", "checks.cpp")
# _FORTIFY_SOURCE, which some distributions switch on, forbids longjmp between stacks.
_BASE_FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-U_FORTIFY_SOURCE")
_RUNTIME_FLAGS = (*_BASE_FLAGS, "-O2")
_KERNEL_FLAGS = (
    *_BASE_FLAGS,
    "-O1",
    "-g1",
    "-gdwarf-4",  # addr2line of binutils 2.40 misreads the file numbers of version 5
    "-fno-var-tracking",  # where variables are is never asked, and takes a quarter of the time
    "-ffp-contract=off",
    "-fno-math-errno",  # a square root is an instruction, not a call
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fsigned-char",
    "-fno-threadsafe-statics",
    "-fdata-sections",  # native/shared.ld finds the __shared__ variables by their sections
    "-fsanitize=thread,bounds,alignment,shift-exponent,integer-divide-by-zero,float-cast-overflow",
    "-fno-sanitize-recover=all",
    "-Werror=uninitialized",
    "-Werror=return-type",
)
_MAX_MESSAGE_LINES = 40


def find_compiler() -> str | None:
    """Return the path of g++, or None. Other compilers call other functions for their checks."""
    return shutil.which("g++")


def compile_cuda(
    source: str,
    *,
    arch: int = 80,
    defines: Mapping[str, str] | None = None,
    cache_dir: Path | None = None,
) -> CudaModule:
    """Compile `source`, the text that NVRTC would get, to a module whose kernels run on the host.

    `arch` becomes `__CUDA_ARCH__` (80 -> 800) and decides which functions exist, as for NVRTC;
    `defines` are further macros. Raises `HarnessError` with the compiler's words, whose line
    numbers are those of `source`.
    """
    architecture, more, folder = _place(arch, defines, cache_dir)
    return _module(source, architecture, more, folder)


def compile_together(
    sources: Sequence[str], *, arch: int = 80, defines: Mapping[str, str] | None = None
) -> None:
    """Compile sources at once, for `compile_cuda` of each: that takes a third of the time.

    Nothing happens if the compiler refuses all of them together.
    """
    architecture, more, folder = _place(arch, defines, None)
    found = {source: _library(source, architecture, more, folder) for source in sources}
    missing = [source for source, (library, _) in found.items() if not library.exists()]
    if len(missing) < 2:
        return
    kernels = [kernel for source in missing for kernel in found[source][1]]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        together = Path(scratch) / "module.so"
        try:
            _build(together, translation_unit(missing, kernels), architecture, more, folder)
        except HarnessError:
            return
        for source in missing:
            with suppress(OSError):  # another process was here first, or no links here
                os.link(together, found[source][0])


def _place(
    arch: int, defines: Mapping[str, str] | None, cache_dir: Path | None
) -> tuple[str, tuple[str, ...], Path]:
    """The architecture's flag, those of further macros, and the cache folder."""
    more = tuple(f"-D{name}={value}" for name, value in sorted((defines or {}).items()))
    folder = platformdirs.user_cache_path("caspar") / "cuda_on_cpu"
    return f"-D__CUDA_ARCH__={arch}0", more, folder if cache_dir is None else cache_dir


@functools.cache
def _module(source: str, architecture: str, more: tuple[str, ...], folder: Path) -> CudaModule:
    """A module of this process, or of the cache folder, or compiled now."""
    library, kernels = _library(source, architecture, more, folder)
    if not library.exists():
        _build(library, translation_unit([source], kernels), architecture, more, folder)
    return CudaModule(library, source, kernels)


@functools.cache
def _library(
    source: str, architecture: str, more: tuple[str, ...], folder: Path
) -> tuple[Path, tuple[KernelSignature, ...]]:
    """Where a module is or will be, and its kernels."""
    folder.mkdir(parents=True, exist_ok=True)
    kernels = _kernels(source, (architecture, *more), folder)
    parts = [translation_unit([source], kernels), *_flags(architecture, more)]
    return folder / f"module-{_digest(parts)}.so", kernels


def _kernels(source: str, flags: Sequence[str], folder: Path) -> tuple[KernelSignature, ...]:
    """The kernels of a text, kept: to ask the preprocessor takes as long as a launch or two."""
    kept = folder / f"kernels-{_digest([source, *flags])}"
    if kept.exists():
        found: tuple[KernelSignature, ...] = pickle.loads(kept.read_bytes())
        return found
    kernels = find_kernels(_preprocess(source, flags))
    handle, temporary = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "wb") as file:
        pickle.dump(kernels, file)
    Path(temporary).replace(kept)
    return kernels


def _flags(architecture: str, more: Sequence[str]) -> list[str]:
    return [*_KERNEL_FLAGS, *_target_flags(), architecture, *more]


def _build(library: Path, unit: str, architecture: str, more: Sequence[str], folder: Path) -> None:
    """Compile and link a module."""
    runtime = _build_runtime(folder)
    header = _build_header(folder, architecture)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        text, object_file = Path(scratch) / "unit.cpp", Path(scratch) / "unit.o"
        text.write_text(unit, encoding="utf-8")
        # compiled headers that do not suit are passed over for those behind them
        flags = [*_flags(architecture, more), f"-I{header}", f"-I{_NATIVE}"]
        _run_compiler([*flags, "-c", str(text), "-o", str(object_file)])
        script = f"-Wl,-T,{_NATIVE / 'shared.ld'}"
        _write_output(library, ["-shared", str(object_file), str(runtime), script])


def _preprocess(source: str, define_flags: Sequence[str]) -> str:
    flags = ["-E", "-P", "-std=c++17", "-x", "c++", "-D__CUDACC__=1", "-D__CUDACC_RTC__=1"]
    return _run_compiler([*flags, *define_flags, "-"], stdin=source)


def _build_runtime(folder: Path) -> Path:
    """Return the runtime as one relocatable object; compiled if the cache lacks it."""
    combined = folder / f"runtime-{_digest(_RUNTIME_FLAGS)}.o"
    if combined.exists():
        return combined
    with shared_work(), tempfile.TemporaryDirectory(dir=folder) as scratch:
        objects = []
        for name in _RUNTIME_SOURCES:
            objects.append(str(Path(scratch) / f"{name}.o"))
            _run_compiler([*_RUNTIME_FLAGS, "-c", str(_NATIVE / name), "-o", objects[-1]])
        _write_output(combined, ["-r", "-nostdlib", *objects])
    return combined


def _build_header(folder: Path, architecture: str) -> Path:
    """Return a folder with the precompiled headers; compiled if the cache lacks it."""
    flags = [*_KERNEL_FLAGS, *_target_flags(), architecture]
    kept = folder / f"headers-{_digest(flags)}"
    compiled = kept / f"{_HEADER.name}.gch"
    if not compiled.exists():
        kept.mkdir(exist_ok=True)
        with shared_work():
            _write_output(compiled, [*flags, "-x", "c++-header", str(_HEADER)])
    return kept


def _write_output(target: Path, arguments: Sequence[str]) -> None:
    handle, temporary = tempfile.mkstemp(dir=target.parent)
    os.close(handle)
    try:
        _run_compiler([*arguments, "-o", temporary])
        Path(temporary).replace(target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _run_compiler(arguments: Sequence[str], stdin: str | None = None) -> str:
    compiler = find_compiler()
    if compiler is None:
        raise HarnessError("no C++ compiler: install g++")
    run = subprocess.run(
        [compiler, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    if run.returncode != 0:
        lines = run.stderr.splitlines()
        shown = "\n".join(lines[:_MAX_MESSAGE_LINES])
        raise HarnessError(f"the host compiler refuses the CUDA source:\n{shown}")
    return run.stdout


def _digest(texts: Iterable[str]) -> str:
    """Hash the texts with the compiler's version and what else decides about a module."""
    digest = hashlib.sha256(_environment())
    for text in texts:
        digest.update(text.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:24]


@functools.cache
def _environment() -> bytes:
    digest = hashlib.sha256(_run_compiler(["--version"]).encode())
    for file in (Path(source_module.__file__), *sorted(_NATIVE.iterdir())):
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.digest()


@functools.cache
def _target_flags() -> tuple[str, ...]:
    """Inline fma instructions where the processor has them; a call of fmaf() costs far more."""
    try:
        information = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ()
    return ("-mfma",) if " fma " in information else ()
