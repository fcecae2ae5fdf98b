"""Read the signature and run the function, to trace a factor or a kernel.

Input: a `UserFunction`. Errors are of its own kind and name it, the argument and, if the function
itself failed, its own line.
"""

import inspect
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, ForwardRef, get_origin

import symforce.symbolic as sf
from symforce.ops import StorageOps

from caspar.errors import CasparError, SizeError, UnsupportedFunctionError
from caspar.frontend.markers import Pair
from caspar.frontend.names import identifier_refusal, name_refusal
from caspar.frontend.symbolic.epsilon import SymForceGrewError, with_symbolic_epsilon
from caspar.frontend.symbolic.field_types import field_names, with_own_symbols
from caspar.frontend.symbolic.lines import Lines, is_user_code, line_at, run_with_lines
from caspar.frontend.symbolic.lower import NOT_NUMBERS
from caspar.frontend.tracing.advice import ConditionError, advice_on_symbols
from caspar.frontend.tracing.conditions import Watch
from caspar.frontend.tracing.replaced_members import installed

NO_STORAGE_TYPE = (
    "is not a storage type; use a SymForce type such as sf.V3 or sf.Pose3, a subclass of one, or a "
    "dataclass of them"
)
"""The words of an error about a declared type that is not a storage type."""


MAX_ARGUMENTS = 500
"""Arguments of a function at most. Twice as many take some ten seconds to trace and compile."""


class Role(Enum):
    """The role of an annotation."""

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

    def __post_init__(self) -> None:
        """Refuse a name that cannot be one."""
        refusal = name_refusal(self.name)
        if refusal != "":
            raise self.error(f"{self.kind} {self.name!r} ({self.location}): {refusal}")

    @property
    def location(self) -> str:
        """File and line of the function, for errors."""
        code = self.function.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.location})"

    @property
    def place(self) -> str:
        """Module and name, as `pkgutil.resolve_name` takes them."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    def pickled(self, thing: object) -> tuple[Callable[..., Any], tuple[str]]:
        """A factor or kernel of this function as `__reduce_ex__` returns it: module and name.

        Raises:
            pickle.PicklingError: Another process that imports the module does not find it there.
        """
        problem = self._pickling_problem(thing)
        if problem == "":
            return resolve_name, (self.place,)
        raise pickle.PicklingError(
            f"{self.title} ({self.location}) cannot be pickled: pickles name it by module and "
            f"name, and {self.place} {problem}"
        )

    def _pickling_problem(self, thing: object) -> str:
        """Say why another process does not find the object, and what to do; empty: it does."""
        module, name = self.function.__module__, self.function.__qualname__
        advice = (
            "Define it at the top level of a module that both processes import, under its own name"
        )
        not_found = (
            f"is not found in another process. {advice}; not in a function, a notebook or at the "
            "prompt"
        )
        if module == "__main__" and not hasattr(sys.modules.get(module), "__file__"):
            return not_found  # a notebook or a prompt
        try:
            found = resolve_name(self.place)
        except (AttributeError, ImportError, ValueError):  # it stands in a function
            return not_found
        if found is self.function:
            made = f"caspar.{self.kind}"
            return (
                f"is the plain function. Write @{made} above its def, or {name} = {made}({name}) "
                "below it"
            )
        return "" if found is thing else f"is another object. {advice}"

    @property
    def title(self) -> str:
        """Kind and name, for errors."""
        return f"{self.kind} {self.name}"


# -- annotations -----------------------------------------------------------------------------------


def argument_annotations(user: UserFunction) -> dict[str, Any]:
    """The annotation of each argument, evaluated where it was postponed.

    Raises a `SizeError` if there are more than `MAX_ARGUMENTS`.
    """
    written = _written(user)
    annotations = {}
    parameters = inspect.signature(user.function).parameters
    if len(parameters) > MAX_ARGUMENTS:
        raise SizeError(
            f"{user.title} ({user.location}) has {len(parameters):,} arguments; at most "
            f"{MAX_ARGUMENTS} are compiled, because each is a parameter of every kernel. Pass many "
            "numbers as one vector or matrix, such as sf.V9, or what is alike as instances of one "
            "argument"
        )
    for name, parameter in parameters.items():
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
        check_name(user, f"argument {name!r}", name)
        annotations[name] = evaluated(user, f"argument {name}", written[name])
    return annotations


def check_name(user: UserFunction, what: str, name: object) -> None:
    """Raise if something, such as "argument 'x'", cannot have its name."""
    refusal = name_refusal(name)
    if refusal != "":
        raise user.error(f"{user.title}, {what} ({user.location}): {refusal}")


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
        if not (isinstance(named, type) or get_origin(named) is Annotated):
            raise user.error(
                f"{user.title}, {what} ({user.location}): {named!r} is not a storage type"
            )
        return Annotated[(named, *annotation.__metadata__)]
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
    """Return the parts of an annotation that are subclasses or instances of these."""
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
    """A value of a type, made of symbols that begin with `name`, and how many they are.

    `role` and `source` say for errors what it is for.
    """
    where = f"{user.title}, {role.value} {source}"
    if isinstance(declared, sf.Storage):
        raise user.error(
            f"{where}: {' '.join(repr(declared).split())} is a value, not a type; write the type "
            f"{type(declared).__name__}, without brackets behind it"
        )
    for field_name in field_names(declared):
        refusal = identifier_refusal(field_name)
        if refusal != "":
            raise user.error(f"{where}, a field of {declared!r}: {refusal}")
    try:
        symbolic = StorageOps.symbolic(declared, name)
        storage_dim = StorageOps.storage_dim(declared)
    except Exception as error:  # SymForce raises whatever its implementation stumbles on
        reason = f" ({error})" if str(error) else ""
        raise user.error(f"{where}: {declared!r} {NO_STORAGE_TYPE}{reason}") from error
    if storage_dim == 0:
        raise user.error(f"{where}: {declared!r} holds no numbers, so it cannot be an {role.value}")
    return symbolic, storage_dim


def argument_value(
    user: UserFunction, declared: Any, source: str, taken: set[str], half: str = ""
) -> Any:
    """Return the value of symbols that the function is called with for an argument, or a `half`.

    `taken` are names of other arguments' symbols; those of this one are added.
    """
    name, own = (source, source) if half == "" else (f"{source}_{half}", f"{source}.{half}")
    symbolic, _ = symbolic_value(user, declared, name, Role.ARGUMENT, source)
    return with_own_symbols(symbolic, own, taken)


def copied_value(symbolic: Any) -> Any:
    """Another value of the same symbols, or pair of them, for a function that may write into it."""
    if isinstance(symbolic, Pair):
        return Pair(map(copied_value, symbolic))
    return StorageOps.from_storage(symbolic, StorageOps.to_storage(symbolic))


def matrix_shape(value: Any) -> tuple[int, ...]:
    """(rows, columns) of a matrix with several columns; () of everything else."""
    shape = value.shape if isinstance(value, sf.Matrix) else (1, 1)
    return tuple(shape) if shape[1] > 1 else ()


# -- the run ---------------------------------------------------------------------------------------


def run_on_symbols(user: UserFunction, values: Mapping[str, Any]) -> tuple[Any, Lines]:
    """Call the function, which may write into the values; return its result and the lines.

    An error names the function and the user's line; after a `SymForceGrewError` call again, with
    new values.
    """
    call = bound(user, values)
    watch = Watch(user.function.__code__.co_filename, _symbol_names(values.values()))
    error: Exception
    try:
        with installed():
            result: tuple[Any, Lines] = with_symbolic_epsilon(
                watch.run, run_with_lines, user.function, *call.args, **call.kwargs
            )
        value, lines = result
        caught = [error for error in lines.errors if advice_on_symbols(error) != ""]
        if watch.refused is not None:
            error = watch.refused
        elif caught:
            error = caught[0]
        else:
            return value, replace(lines, errors=())  # which hold frames
    except SymForceGrewError:
        raise
    except Exception as raised:
        error = watch.refused if isinstance(watch.refused, ConditionError) else raised
    where = _users_lines(user, error)
    kind = "" if isinstance(error, ConditionError) else f"{type(error).__name__}: "
    raise user.error(
        f"{user.title} ({user.location}){where}: {kind}{error}{advice_on_symbols(error)}"
    ) from error


def bound(user: UserFunction, values: Mapping[str, Any]) -> inspect.BoundArguments:
    """Values by the names of the arguments, as the function takes them."""
    return inspect.BoundArguments(inspect.signature(user.function), dict(values))


def _symbol_names(values: Iterable[Any]) -> frozenset[str]:
    halves = [half for one in values for half in (one if isinstance(one, Pair) else (one,))]
    return frozenset(str(symbol) for one in halves for symbol in StorageOps.to_storage(one))


def _users_lines(user: UserFunction, error: BaseException) -> str:
    """The function's line that an error comes from, and that of another file that it called."""
    own_file = user.function.__code__.co_filename
    lines = Lines(file=own_file)
    own, innermost = "", ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        line = line_at(frame, number, "")
        if file == own_file:
            own = innermost = lines.place(line)
        elif is_user_code(file, frame) and line.text:  # SymEngine's own have no source here
            innermost = lines.place(line)
    return own if innermost == own else f"{own}{innermost}"


def check_is_number(user: UserFunction, what: str, expression: Any, lines: Lines) -> None:
    """Raise if an expression is no number whatever the arguments are."""
    meaning = NOT_NUMBERS.get(type(expression).__name__)
    if meaning is not None:
        place = lines.place(lines.of.get(expression))
        raise UnsupportedFunctionError(
            f"{user.title} ({user.location}){place}: {what} is {meaning}"
        )
