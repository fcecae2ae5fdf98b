"""Find the packages that are installed, by their metadata, and those that can be imported.

Imports are tried in processes of their own, so that a package that is broken breaks nothing here.
Also the report that the command line itself cannot be loaded. Only the standard library is used, so
that this works where everything else is broken.
"""

import platform
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from caspar.cli.exit_code import ExitCode
from caspar.version import __version__, install_command

PACKAGES = (
    "llvmlite",
    "numpy",
    "platformdirs",
    "qdldl",
    "rich",
    "rslab",
    "scipy",
    "symforce",
    "sympy",
    "threadpoolctl",
    "typing_extensions",
)
"""Packages that caspar always needs. Each is imported by the same name."""

CUPY_PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy")
"""Names under which CuPy is installed."""

OPTIONAL_PACKAGES = (
    "cuda-bindings",
    "cuda-core",
    "cuda-pathfinder",
    "cuda-toolkit",
    "igraph",
    "jax",
    "matplotlib",
    "nvidia-cuda-nvdisasm",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cudss-cu12",
    "nvidia-cudss-cu13",
    "nvmath-python",
    "plotly",
    "pycolmap",
    "rerun-sdk",
    "torch",
)
"""Packages that caspar uses if they are installed: those of its extras, except for tests."""

_TRY_LIMIT_S = 300.0  # the first import compiles and caches


def installed_version(package: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
    except Exception:  # half an installation: metadata that cannot be read
        version = None
    return version or "(version not known)"


def versions_text(packages: Iterable[str]) -> tuple[str, list[str]]:
    """Names and versions of the packages that are installed, and names of those that are not."""
    versions = {name: installed_version(name) for name in packages}
    installed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return installed, [name for name, version in versions.items() if version is None]


@dataclass(frozen=True)
class Tried:
    """Success of a program, and what it printed, or the last line of its error."""

    works: bool
    text: str


def tried_program(program: str, *arguments: str) -> Tried:
    """Run a Python program in a process of its own, which imports nothing from the working folder.

    Python puts that folder first, so that a user's `numpy.py` would be run. In its place comes, at
    the end, the folder that this caspar lies in.
    """
    own = str(Path(__file__).absolute().parents[2])
    program = f"import sys; sys.path[:] = [*filter(None, sys.path), {own!r}]; {program}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TRY_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Tried(False, str(error))
    if done.returncode == 0:
        return Tried(True, done.stdout.strip())
    return Tried(False, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])


def import_problems(missing: Collection[str]) -> list[str]:
    """A line for each required package that is installed and cannot be imported."""
    problems = []
    for name in PACKAGES:
        if name not in missing and not (tried := tried_program(f"import {name}")).works:
            problems.append(
                f"{name} cannot be imported: {tried.text}; pip install --force-reinstall {name}"
            )
    return problems


def report_broken(error: Exception, arguments: Sequence[str] | None = None) -> int:
    """Say why no command can run, for `doctor` also what is installed; the exit code.

    `error` was raised when the command line was loaded.
    """
    reason = f"{type(error).__name__}: {error}"
    given = sys.argv[1:] if arguments is None else arguments
    if list(given[:1]) != ["doctor"]:
        print(
            f"caspar: cannot start: {reason}; caspar doctor says what is installed", file=sys.stderr
        )
        return int(ExitCode.WRONG_INPUT)
    installed, missing = versions_text(PACKAGES)
    optional, _ = versions_text((*CUPY_PACKAGES, *OPTIONAL_PACKAGES))
    problems = [("", problem) for problem in import_problems(missing)]
    lines = [
        ("Python", f"{platform.python_version()} ({sys.executable})"),
        ("caspar", f"{__version__} ({Path(__file__).parents[1]}): cannot be loaded: {reason}"),
        ("packages", installed),
        ("missing", ", ".join(missing) or "none"),
        *problems,
        ("optional", optional or "none"),
        ("what to do", f"install caspar again, with its packages: {install_command()}"),
    ]
    for name, text in lines:
        print(f"{name:<14}{text}")
    return int(ExitCode.NOT_CONVERGED)
