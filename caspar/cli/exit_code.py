"""Exit codes of the commands; scripts may rely on them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes, all commands alike."""

    SUCCESS = 0
    NOT_CONVERGED = 1
    """The solve ended without a minimum, or no backend works (`caspar doctor`)."""
    WRONG_INPUT = 2
    """Wrong usage or file, something missing on this machine, or an output not written."""
    DEFECT = 3
    """A defect of caspar."""
    INTERRUPTED = 130
    """Stopped by the user: 128 + SIGINT, as shells have it."""
