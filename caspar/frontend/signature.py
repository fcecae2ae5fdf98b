"""What tracing a factor and tracing a kernel share: reading the signature, running the function.

Input: a `UserFunction`. Errors are of its own kind and name it, the argument and, where the
function itself failed, its own line.
"""

import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, ClassVar, ForwardRef, get_origin

import numpy as np
import symforce.symbolic as sf
from symforce.ops import StorageOps

from caspar.errors import CasparError, UnsupportedFunctionError
from caspar.frontend.epsilon import SYMBOL, symbolic_epsilon
from caspar.frontend.lines import Lines, run_with_lines
from caspar.frontend.lower import NOT_NUMBERS

OWN_SYMBOLS = {str(SYMBOL): "SymForce's epsilon"}
"""Symbols that arguments must not take, and whose they are."""


NO_STORAGE_TYPE = (
    "is not a storage type; use a SymForce type such as sf.V3 or sf.Pose3, a subclass of one, or a "
    "dataclass of them"
)
"""What errors say of a declared type that is none."""


class Role(Enum):
    """What an annotation is of."""

    ARGUMENT = "argument"
    OUTPUT = "output"


@dataclass(frozen=True, repr=False)
class UserFunction:
    """A function that is run on symbols.

    Attributes:
        function: Maps SymForce values to SymForce values.
        name: The function's name.
        local_names: Names visible where the function was defined, for postponed annotations.
        kind: What errors call it.
        error: What is raised where it cannot be traced.
        example: An annotation as it should be.
    """

    function: Callable[..., Any]
    name: str
    local_names: Mapping[str, Any] = field(compare=False)
    kind: ClassVar[str]
    error: ClassVar[type[CasparError]]
    example: ClassVar[str]

    @property
    def location(self) -> str:
        """File and line of the function, for errors."""
        code = self.function.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.location})"

    @property
    def title(self) -> str:
        """Kind and name, for errors."""
        return f"{self.kind} {self.name}"


# -- annotations -----------------------------------------------------------------------------------


def argument_annotations(user: UserFunction) -> dict[str, Any]:
    """The annotation of each argument, evaluated where it was postponed."""
    written = _written(user)
    annotations = {}
    for name, parameter in inspect.signature(user.function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise user.error(f"{user.title}: {parameter} is not allowed; name each argument")
        if name not in written:
            advice = (
                "a method cannot be used; take a function, which may stand inside another one and "
                "use its variables"
                if name in ("self", "cls")
                else f"write Annotated[Type, Marker], for example {user.example}"
            )
            raise user.error(f"{user.title}, argument {name}: not annotated; {advice}")
        annotations[name] = evaluated(user, f"argument {name}", written[name])
    return annotations


def return_annotation(user: UserFunction) -> Any:
    """The annotation of the result, evaluated where it was postponed; None: there is none."""
    return evaluated(user, "the result", _written(user).get("return"))


def _written(user: UserFunction) -> dict[str, Any]:
    try:
        return inspect.get_annotations(user.function)
    except NameError as error:  # where annotations are evaluated when asked for: Python 3.14
        raise user.error(
            f"{user.title} ({user.location}): an annotation uses an unknown name: {error}"
        ) from error


def evaluated(user: UserFunction, what: str, annotation: Any) -> Any:
    """An annotation as an object, if it is text still."""
    if get_origin(annotation) is Annotated and isinstance(annotation.__origin__, ForwardRef):
        named = evaluated(user, what, annotation.__origin__)
        try:
            return Annotated[(named, *annotation.__metadata__)]
        except (AttributeError, TypeError) as error:
            raise user.error(
                f"{user.title}, {what} ({user.location}): {named!r} is not a storage type"
            ) from error
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if not isinstance(annotation, str):
        return annotation
    visible = {**inspect.unwrap(user.function).__globals__, **user.local_names}
    try:
        found = eval(annotation, visible)
    except Exception as error:  # the annotation is the user's code
        raise user.error(
            f"{user.title}, {what} ({user.location}): its annotation "
            f"{annotation!r} cannot be evaluated where the {user.kind} was defined: {error}"
        ) from error
    return evaluated(user, what, found) if get_origin(found) is Annotated else found


def markers_in(annotation: Any, *bases: type) -> list[Any]:
    """What of an annotation is a subclass of one of these, or an instance of one."""
    if get_origin(annotation) is not Annotated:
        return []
    return [
        item
        for item in annotation.__metadata__
        if isinstance(item, bases) or (isinstance(item, type) and issubclass(item, bases))
    ]


def marker_name(marker: Any) -> str:
    """The name of a marker's class."""
    return str((marker if isinstance(marker, type) else type(marker)).__name__)


# -- symbolic arguments ----------------------------------------------------------------------------


def symbolic_value(
    user: UserFunction, declared: Any, name: str, role: Role, source: str
) -> tuple[Any, int]:
    """A value of a type, made of symbols, and how many they are.

    Args:
        user: The function.
        declared: The type.
        name: What the names of the symbols begin with.
        role: What it is for.
        source: For which one, as the user named it.
    """
    where = f"{user.title}, {role.value} {source}"
    try:
        symbolic = StorageOps.symbolic(declared, name)
        storage_dim = StorageOps.storage_dim(declared)
    except Exception as error:  # SymForce raises whatever its implementation stumbles on
        raise user.error(f"{where}: {declared!r} {NO_STORAGE_TYPE} ({error})") from error
    if storage_dim == 0:
        raise user.error(f"{where}: {declared!r} holds no numbers, so it cannot be an {role.value}")
    return symbolic, storage_dim


def matrix_shape(value: Any) -> tuple[int, ...]:
    """(rows, columns) of a matrix with several columns; () of everything else."""
    shape = value.shape if isinstance(value, sf.Matrix) else (1, 1)
    return tuple(shape) if shape[1] > 1 else ()


def take_names(
    user: UserFunction, role: Role, source: str, names: Iterable[str], taken: dict[str, str]
) -> None:
    """Enter names as taken; none may be so already.

    Args:
        user: The function.
        role: What takes them.
        source: Which one, as the user named it.
        names: The names.
        taken: Names and whose they are; is added to.
    """
    for name in names:
        if name in taken:
            raise user.error(
                f"{user.title}, {role.value} {source}: its {name!r} is also {taken[name]}; "
                f"rename the {role.value}"
            )
        taken[name] = f"that of {role.value} {source}"


# -- the run ---------------------------------------------------------------------------------------


def run_on_symbols(user: UserFunction, values: Mapping[str, Any]) -> tuple[Any, Lines]:
    """Call the function; an error in it names the function and its own line.

    Args:
        user: The function.
        values: A symbolic value for each argument.

    Returns:
        What it returned, and where sub-expressions come from.
    """
    call = inspect.BoundArguments(inspect.signature(user.function), dict(values))
    try:
        with symbolic_epsilon():
            return run_with_lines(user.function, *call.args, **call.kwargs)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own_file = user.function.__code__.co_filename
        lines = [frame for frame in frames if frame.filename == own_file]
        where = f", line {lines[-1].lineno}: {lines[-1].line}" if lines else ""
        raise user.error(
            f"{user.title} ({user.location}){where}: {type(error).__name__}: {error}"
            f"{_ON_SYMBOLS if _took_symbols_for_numbers(error) else ''}"
        ) from error


_ON_SYMBOLS = (
    ". The function runs on symbols, not numbers: use sf.sqrt, sf.sin, ... instead of those of "
    "math and numpy, and sf.Min, sf.Max or sf.Piecewise instead of if"
)

_NOT_A_NUMBER = re.compile(
    r"cannot be evaluated"  # float(), int() and the functions of math
    r"|truth value"  # if, and, max(), sorted(), numpy.where
    r"|\bufuncs?\b"  # the functions of numpy
    r"|__round__|interpreted as an integer|format string"
)
_NO_ATTRIBUTE = re.compile(r"object has no attribute '(\w+)'")
"""Functions of numpy look for a method of their name."""


def _took_symbols_for_numbers(error: BaseException) -> bool:
    """Whether an error is what a function says that was given a symbol instead of a number."""
    if not isinstance(error, _RAISED_ON_SYMBOLS):
        return False
    missing = _NO_ATTRIBUTE.search(str(error))
    if missing is not None:
        return isinstance(getattr(np, missing.group(1), None), np.ufunc)
    return _NOT_A_NUMBER.search(str(error)) is not None


_RAISED_ON_SYMBOLS = (TypeError, AttributeError, RuntimeError)


def check_is_number(user: UserFunction, what: str, expression: Any, lines: Lines) -> None:
    """Raise if an expression is no number whatever the arguments are.

    Args:
        user: The function.
        what: The expression, such as "the residual".
        expression: A SymEngine expression.
        lines: Where it comes from.
    """
    meaning = NOT_NUMBERS.get(type(expression).__name__)
    if meaning is not None:
        place = lines.place(lines.of.get(expression))
        raise UnsupportedFunctionError(
            f"{user.title} ({user.location}){place}: {what} is {meaning}"
        )
