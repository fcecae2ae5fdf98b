"""Which packages are installed, from their metadata: nothing is imported for it.

Only the standard library is used, so that this works where everything else is broken.
"""

from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "matplotlib",
    "numba",
    "numpy",
    "platformdirs",
    "qdldl",
    "rich",
    "scipy",
    "symforce",
    "sympy",
    "threadpoolctl",
)
"""What caspar cannot do without. Each is imported by the same name."""

CUPY_PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy")
"""Names under which CuPy is installed."""

OPTIONAL_PACKAGES = (
    "cuda-bindings",
    "cuda-core",
    "cuda-pathfinder",
    "cuda-toolkit",
    "igraph",
    "nvidia-cuda-nvdisasm",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cudss-cu12",
    "nvidia-cudss-cu13",
    "nvmath-python",
)
"""What caspar uses where it is installed: on GPUs, and for `caspar inspect`."""


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


def without_working_folder(program: str) -> str:
    """A program for `python -c` that imports nothing from the folder it is started in.

    Python puts that folder first, so that `numpy.py` of a user's would be run. In its place comes,
    at the end, the folder that this caspar lies in.
    """
    own = str(Path(__file__).absolute().parents[2])
    return f"import sys; sys.path[:] = [*filter(None, sys.path), {own!r}]; {program}"
