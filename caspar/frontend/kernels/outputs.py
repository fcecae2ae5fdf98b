"""The outputs of a kernel function: what its annotation declares, what it returned."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin, get_type_hints

from caspar.errors import KernelError, UnsupportedFunctionError
from caspar.frontend.kernels.markers import Marked
from caspar.frontend.kernels.values import MisfitError, described, storage_of, type_name
from caspar.frontend.symbolic.lines import Lines
from caspar.frontend.tracing.signature import (
    UserFunction,
    check_is_number,
    evaluated,
    return_annotation,
)

ResultType = type[tuple[Any, ...]] | None
"""The class that outputs are returned in: `tuple` or a NamedTuple; None: a single one as it is."""


def declared_outputs(function: UserFunction) -> tuple[dict[str, Any], ResultType]:
    """The annotation of each output by its name, and what the function returns them in.

    Raises:
        KernelError: The annotation declares none.
    """
    annotation = return_annotation(function)
    where = f"{function.title} ({function.location})"
    how = (
        "write -> Annotated[Type, Marker], of several outputs -> tuple[Annotated[Type, Marker], "
        "Annotated[Type, Marker]] with one for each, or a NamedTuple class of such fields"
    )
    if annotation is None:
        raise KernelError(f"{where}: the annotation of what it returns is missing; {how}")
    declared: dict[str, Any]
    if isinstance(annotation, type) and issubclass(annotation, tuple):
        hints = _hints(function, annotation)
        declared = {name: hints.get(name) for name in getattr(annotation, "_fields", ())}
        result_type = annotation
    elif get_origin(annotation) is tuple:
        declared = {
            f"out{number}": evaluated(function, f"output out{number}", part)
            for number, part in enumerate(get_args(annotation))
        }
        result_type = tuple
    else:
        return {"out": annotation}, None
    if len(declared) == 0 or Ellipsis in declared.values():
        raise KernelError(f"{where}: returns {annotation}, which does not name its outputs; {how}")
    return declared, result_type


def _hints(function: UserFunction, fields: type) -> dict[str, Any]:
    """The annotations of a class, evaluated where they were postponed."""
    try:
        return get_type_hints(fields, localns=dict(function.local_names), include_extras=True)
    except Exception as error:  # the annotations are the user's code
        raise KernelError(
            f"{function.title} ({function.location}): the annotations of {fields.__name__} cannot "
            f"be evaluated where the kernel was defined: {error}"
        ) from error


def returned_rows(
    function: UserFunction,
    outputs: Mapping[str, Marked],
    result_type: ResultType,
    result: Any,
    lines: Lines,
    known: frozenset[str],
) -> list[tuple[Any, ...]]:
    """The scalars of every output; of a pair those of the first half, then of the second.

    Args:
        function: The kernel function.
        outputs: What is declared, by name.
        result_type: What outputs are returned in.
        result: What was returned.
        lines: Where sub-expressions come from.
        known: Symbols that may appear.

    Raises:
        KernelError: It is not what is declared.
        UnsupportedFunctionError: It is no number, or holds an unknown symbol.
    """
    rows = declared_rows(function, outputs, result_type, result)
    for name, found in zip(outputs, rows, strict=True):
        for row in found:
            check_is_number(function, f"the output {name}", row, lines)
            unknown = sorted({str(symbol) for symbol in row.free_symbols} - known)
            if len(unknown) > 0:
                raise UnsupportedFunctionError(
                    f"{function.title} ({function.location}), output {name}: contains the free "
                    f"symbol {unknown[0]!r}; only arguments of the function may appear in it"
                )
    return rows


def declared_rows(
    function: UserFunction, outputs: Mapping[str, Marked], result_type: ResultType, result: Any
) -> list[tuple[Any, ...]]:
    """The same, whatever the scalars are.

    Raises:
        KernelError: It is not what is declared.
    """
    values = [result]
    if result_type is not None:
        values = _elements(function, list(outputs), result_type, result)
    return [
        _rows(f"{function.title} ({function.location}), output {name}", output, value)
        for (name, output), value in zip(outputs.items(), values, strict=True)
    ]


def _elements(
    function: UserFunction, names: Sequence[str], result_type: type, result: Any
) -> list[Any]:
    """Return what the function returned for each of several outputs."""
    expected = getattr(result_type, "_fields", None)
    if isinstance(result, list | tuple) and len(result) == len(names):
        fields = getattr(result, "_fields", None)
        if None in (fields, expected) or fields == expected:
            return list(result)
    raise KernelError(
        f"{function.title} ({function.location}): returned {described(result)}; its annotation "
        f"declares {len(names)} outputs, so it must return a {result_type.__name__} of "
        f"{', '.join(names)}{_hint(result)}"
    )


def _rows(where: str, output: Marked, value: Any) -> tuple[Any, ...]:
    if not output.access.is_pair:
        halves = [value]
    elif isinstance(value, list | tuple) and len(value) == 2:
        halves = list(value)
    else:
        raise KernelError(
            f"{where}: returned {described(value)}; {output.access.name} needs two values of type "
            f"{type_name(output.declared)}: return caspar.Pair((first, second)){_hint(value)}"
        )
    try:
        return tuple(row for half in halves for row in storage_of(output.declared, half))
    except MisfitError as error:
        raise KernelError(f"{where}: {error}{_hint(value)}") from error


def _hint(value: Any) -> str:
    return "; is the return statement missing?" if value is None else ""
