"""Every exception caspar raises on purpose, and how it warns.

Wrong input is an exception; a numerical outcome (no convergence, a time limit) is not: it is a
`SolveStatus` in the result. Each message names where (factor, argument, file), what is wrong, what
is allowed and what to do.
"""

import difflib
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from caspar.version import install_command


def meant(name: object, known: Iterable[str]) -> str:
    """Return the known name that somebody may have meant, in brackets, or nothing."""
    close = difflib.get_close_matches(str(name), list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def warn_user(message: str) -> None:
    """Issue a `UserWarning` for the first line outside caspar, however many calls lie between.

    That line is also what Python's filters count by: by default a warning is shown once for each.
    """
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and _is_own(str(frame.f_globals.get("__name__"))):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _is_own(module: str) -> bool:
    # a context manager of caspar's is entered by contextlib
    return module.partition(".")[0] in ("caspar", "contextlib")


class CasparError(Exception):
    """Base class of all errors raised by caspar."""


class MissingPackageError(CasparError, ImportError):
    """A package that only some of caspar needs is not installed.

    Args:
        purpose: What it is needed for, as the subject of a sentence.
        package: Its name.
        extra: The extra of caspar that installs it.
    """

    def __init__(self, purpose: str, package: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed. Run "
            f"{install_command(extra)}, or pip install {package}"
        )
        self._given = (purpose, package, extra)

    def __reduce__(self) -> tuple[type["MissingPackageError"], tuple[str, str, str]]:
        """Return what `pickle` makes it from."""
        return type(self), self._given


class FactorError(CasparError, TypeError):
    """A factor that cannot be compiled (markers, arguments, return value)."""


class UnsuitedError(FactorError):
    """A linear solver that does not suit the factors.

    Args:
        reason: What does not suit, and why.
        advice: What to use instead.
    """

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason, advice)
        self.reason = reason

    def __str__(self) -> str:
        """Reason and advice."""
        return ". ".join(self.args)


class KernelError(CasparError, TypeError):
    """A kernel function that cannot be compiled (markers, arguments, return value)."""


class UnsupportedFunctionError(FactorError, KernelError):
    """A residual or kernel uses a function or expression caspar has no rule for."""


class SizeError(FactorError, KernelError):
    """Kernels that are too large: they would take minutes to compile.

    Args:
        message: What is too large, and what to do.
        kernel: Name of the kernel that is too large by itself; empty: all of them together are.
    """

    def __init__(self, message: str, kernel: str = "") -> None:
        super().__init__(message)
        self.kernel = kernel


class InputError(CasparError, ValueError):
    """Arrays given to `Solver.solve` that do not fit the factors."""


class UnknownNameError(InputError, KeyError):
    """A result is asked for a node type, a factor or an argument that it does not have."""

    def __str__(self) -> str:
        """The message; a `KeyError` by itself would show it in quotes."""
        return str(self.args[0])


class RankDeficiencyError(CasparError, ValueError):
    """The residuals do not determine all unknowns, so these have no covariance.

    Args:
        message: The free directions by node type, instance and field, and what to do.
        num_free: How many directions are free.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Place(sf.V1): ...
        >>> solver = caspar.Solver(caspar.factors.between(Place, noise="unit", name="step"))
        >>> step = {"a": [0], "b": [1], "a_from_b": [[2.0]]}
        >>> solver.covariance({"Place": [[0.0], [2.0]], "step": step}, {"Place": "all"})
        Traceback (most recent call last):
            ...
        caspar.errors.RankDeficiencyError: ...
    """

    def __init__(self, message: str, num_free: int) -> None:
        super().__init__(message, num_free)
        self.num_free = num_free

    def __str__(self) -> str:
        """The message."""
        return str(self.args[0])


class OptionError(CasparError, ValueError):
    """An option with an unknown name or a value outside its allowed range."""


class FileFormatError(CasparError, ValueError):
    """A data file that does not follow its format."""


class BackendError(CasparError, RuntimeError):
    """The requested backend cannot be used on this machine."""


class GroupError(BackendError):
    """One of several devices or processes has failed, which ended the work of this one too.

    Attributes:
        values: By node type what this process had after the last accepted step, (n, storage_dim) on
            the host: all nodes of types that remain, its own ones of eliminated types, the others
            as they were given. None: the failure came before the first iteration.
    """

    values: Mapping[str, Any] | None = None


class ResourceError(BackendError):
    """A kernel that needs more registers or shared memory than a device has for it."""


class CompileError(CasparError, RuntimeError):
    """Generated source that did not compile: a defect of caspar, reported with the source."""


class OutOfMemoryError(CasparError, MemoryError):
    """A plan that needs more memory than the device has; names needed and available bytes.

    Attributes:
        needed_bytes: Bytes that the plan wanted at once; None: not known.
        free_bytes: Bytes that the device could give.
        num_devices: On how many devices with as much memory the problem fits, by the arrays of the
            plan; None: on none, because what each device holds is too large, or not known.
    """

    needed_bytes: int | None = None
    free_bytes: int | None = None
    num_devices: int | None = None


class VerificationError(CasparError, AssertionError):
    """An intermediate representation that breaks its own rules: a defect of caspar."""
