"""Warnings that point to the user's line, however many of caspar's own calls lie between."""

import sys
import warnings


def warn_user(message: str) -> None:
    """Issue a `UserWarning` for the first line outside caspar.

    That line is also what Python's filters count by: by default a warning is shown once for each.
    """
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and _is_own(str(frame.f_globals.get("__name__"))):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _is_own(module: str) -> bool:
    # a context manager of caspar's is entered by contextlib
    return module.partition(".")[0] in ("caspar", "contextlib")
