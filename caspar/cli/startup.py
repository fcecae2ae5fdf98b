"""Report that the command line cannot be loaded: a package is missing or broken.

Only the standard library is used.
"""

import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from caspar.cli.exit_code import ExitCode
from caspar.cli.packages import (
    CUPY_PACKAGES,
    OPTIONAL_PACKAGES,
    PACKAGES,
    import_problems,
    versions_text,
)
from caspar.version import __version__, install_command


def report_broken(error: Exception, arguments: Sequence[str] | None = None) -> int:
    """Say why no command can run; for `doctor` also what is installed.

    Args:
        error: What was raised when the command line was loaded.
        arguments: Without the program's name; None: those of the process.

    Returns:
        The exit code.
    """
    reason = f"{type(error).__name__}: {error}"
    given = sys.argv[1:] if arguments is None else arguments
    if list(given[:1]) != ["doctor"]:
        print(
            f"caspar: cannot start: {reason}; caspar doctor says what is installed",
            file=sys.stderr,
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
