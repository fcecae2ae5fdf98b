"""The version of caspar, the only place that states it, and the command that installs it."""

from pathlib import Path

__version__ = "0.1.0"

DISTRIBUTION = "caspar-solver"
"""The name on the package index, where `caspar` is somebody else's."""


def install_command(extra: str = "") -> str:
    """Return the command of pip that installs this caspar, a clone or a release, with an extra."""
    clone = Path(__file__).parents[1]
    is_clone = (clone / "pyproject.toml").is_file()
    what = f"{clone if is_clone else DISTRIBUTION}{f'[{extra}]' if extra else ''}"
    return f"pip install {'--editable ' if is_clone else ''}'{what}'"
