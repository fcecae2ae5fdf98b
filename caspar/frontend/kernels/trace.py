"""Tracing of kernels: run a function on symbols, write down what its outputs are.

Input: a `KernelFunction`, whose arguments are marked with how they are read and whose result with
how it is written. Output: a `TracedKernel`. Once for each kernel, some milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from symforce.ops import StorageOps

from caspar.errors import KernelError
from caspar.frontend.kernels.markers import (
    Marked,
    ResultType,
    access_key,
    declared_outputs,
    declared_rows,
    marked,
    returned_rows,
)
from caspar.frontend.kernels.values import is_scalar_type, type_name
from caspar.frontend.markers import Pair, Table
from caspar.frontend.names import VALUE, internal_name, part_name
from caspar.frontend.symbolic.epsilon import SymForceGrewError
from caspar.frontend.symbolic.expression_key import expression_key
from caspar.frontend.symbolic.field_types import UnitRange, unit_ranges
from caspar.frontend.symbolic.lines import Lines
from caspar.frontend.tracing.on_numbers import Comparison, PointArgument
from caspar.frontend.tracing.signature import (
    Role,
    UserFunction,
    argument_annotations,
    argument_value,
    check_name,
    copied_value,
    run_on_symbols,
)
from caspar.memory.access import ReadAccessor, WriteAccessor

CALL_KEYWORDS = ("self", "out", "count", "check", "dtype", "block_size", "runs")
"""Keywords of a kernel's call: no argument may have the name of one."""


@dataclass(frozen=True, repr=False)
class KernelFunction(UserFunction):
    """A function that becomes a kernel."""

    kind: ClassVar[str] = "kernel"
    error: ClassVar[type[KernelError]] = KernelError
    example: ClassVar[str] = "Annotated[sf.V3, caspar.ReadSequential]"

    @cached_property
    def declared_inputs(self) -> dict[str, Marked]:
        """Type and access of each argument; a `KernelError` if there are not any."""
        return {
            name: marked(self, Role.ARGUMENT, name, annotation)
            for name, annotation in argument_annotations(self).items()
        }


def kernel_argument(name: str) -> str:
    """Return the kernel's name for an argument or output, no pair, of the user."""
    return part_name(internal_name(name), VALUE)


@dataclass(frozen=True)
class KernelPart:
    """An argument as the kernel reads it, or one half of a pair, and the symbols of its storage.

    The name is unique in the kernel, and ASCII: see `caspar.frontend.names`.
    """

    name: str
    access: ReadAccessor
    symbols: tuple[Any, ...]


@dataclass(frozen=True)
class KernelInput:
    """An argument of the user's function.

    Attributes:
        type_name: Name of the declared type; of a pair, of a half.
        storage_dim: Scalars of an object.
        unit_ranges: The parts of an object of unit length, such as quaternions.
        matrix_shape: (rows, columns) of a matrix of several columns, else ().
        is_scalar: Whether objects are declared as numbers, not as vectors of one.
        symbolic: A value of symbols, or a pair of them; not the one that the function gets.
        parts: What the kernel reads: one part, of a pair two.
    """

    name: str
    access: ReadAccessor
    type_name: str
    storage_dim: int
    unit_ranges: tuple[UnitRange, ...]
    matrix_shape: tuple[int, ...]
    is_scalar: bool
    symbolic: Any = field(repr=False, compare=False)
    parts: tuple[KernelPart, ...]

    @property
    def table(self) -> type[Table] | None:
        """The class of tables that it holds; None: it holds values."""
        return type(self.symbolic) if isinstance(self.symbolic, Table) else None

    @property
    def is_half(self) -> bool:
        """Return whether it holds tables in float16, as its bits."""
        return self.table is not None and self.table.is_half


@dataclass(frozen=True)
class KernelOutput:
    """An output of the user's function; see `KernelInput` for what they have in common.

    The name is `out`, of several `out0`, `out1`, ..., or the field of a NamedTuple. `rows` has an
    expression for each scalar; of a pair the first half's, then the second's.
    """

    name: str
    access: WriteAccessor
    type_name: str
    storage_dim: int
    matrix_shape: tuple[int, ...]
    is_scalar: bool
    rows: tuple[Any, ...]

    @property
    def kernel_argument(self) -> str:
        """Name of it in the kernel."""
        return kernel_argument(self.name)


@dataclass(frozen=True)
class TracedKernel:
    """A kernel function as expressions.

    Attributes:
        result_type: What the outputs are returned in: `tuple` or a NamedTuple class; None: a
            single output is returned as it is.
        lines: Which line of the function each sub-expression comes from.
        pulled_from: The kernel whose derivatives it writes, see `frontend.kernels.pulled`; None:
            the outputs' rows say what it writes.
        is_factor: Whether it is the residual of a factor: where a lookup is outside of a table that
            refuses that, all rows are 0, and those of a kernel that look up NaN.
    """

    name: str
    location: str
    inputs: tuple[KernelInput, ...]
    outputs: tuple[KernelOutput, ...]
    result_type: ResultType
    lines: Lines = field(repr=False, compare=False)
    pulled_from: "TracedKernel | None" = None
    is_factor: bool = False

    def make_result(self, outputs: Sequence[Any]) -> Any:
        """Put outputs into the form in which the function returns its own."""
        if self.result_type is None:
            return outputs[0]
        return tuple(outputs) if self.result_type is tuple else self.result_type(*outputs)

    @cached_property
    def key(self) -> str:
        """Text that determines the generated kernel, but for types and writes of the call."""
        where = f"kernel {self.name}"
        inputs = "; ".join(
            f"{part.name} {access_key(f'{where}, argument {argument.name}', part.access)}"
            f" {part.symbols}{' half' if argument.is_half else ''}"
            for argument in self.inputs
            for part in argument.parts
        )
        outputs = "; ".join(
            f"{output.name} {access_key(f'{where}, output {output.name}', output.access)}"
            f" {len(output.rows)}"
            for output in self.outputs
        )
        if self.pulled_from is not None:
            return f"{self.name}({inputs}) -> {outputs} = pulled {self.pulled_from.key}"
        rows = [row for output in self.outputs for row in output.rows]
        kind = "residual of " if self.is_factor else ""
        return f"{kind}{self.name}({inputs}) -> {outputs} = {expression_key(rows, self.lines)}"


def trace_kernel(function: KernelFunction) -> TracedKernel:
    """Run a kernel function on symbols.

    Raises a `KernelError` that names the kernel and the argument or output if they are not what a
    kernel needs.
    """
    taken: set[str] = set()
    inputs = tuple(
        _input(function, name, declared, taken)
        for name, declared in function.declared_inputs.items()
    )
    declared, result_type = _outputs(function)
    _check_names(function, inputs, list(declared))
    # copies: the function may write into what it is called with
    values = {argument.name: copied_value(argument.symbolic) for argument in inputs}
    try:
        result, lines = run_on_symbols(function, values)
    except SymForceGrewError:
        return trace_kernel(function)
    rows = returned_rows(function, declared, result_type, result, lines, frozenset(taken))
    outputs = tuple(
        _output(name, one, own) for (name, one), own in zip(declared.items(), rows, strict=True)
    )
    return TracedKernel(function.name, function.location, inputs, outputs, result_type, lines)


def kernel_comparison(function: KernelFunction, traced: TracedKernel) -> Comparison:
    """Return what comparing a kernel with numbers needs."""
    arguments = tuple(
        PointArgument(
            one.name,
            tuple(one.symbolic) if one.access.is_pair else (one.symbolic,),
            one.storage_dim,
            one.unit_ranges,
        )
        for one in traced.inputs
    )
    names = tuple(
        f"scalar {number} of output {output.name}"
        for output in traced.outputs
        for number in range(len(output.rows))
    )
    rows = tuple(row for output in traced.outputs for row in output.rows)
    declared, result_type = _outputs(function)

    def rows_of(result: Any) -> list[Any]:
        found = declared_rows(function, declared, result_type, result)
        return [row for output in found for row in output]

    return Comparison(function, arguments, names, rows, rows_of)


def _outputs(function: KernelFunction) -> tuple[dict[str, Marked], ResultType]:
    annotations, result_type = declared_outputs(function)
    declared = {
        name: marked(function, Role.OUTPUT, name, annotation)
        for name, annotation in annotations.items()
    }
    return declared, result_type


def _input(function: KernelFunction, name: str, one: Marked, taken: set[str]) -> KernelInput:
    parts: tuple[KernelPart, ...]
    if one.access.is_pair:
        halves = ("first", "second")
        symbolic = Pair(
            argument_value(function, one.declared, name, taken, half) for half in halves
        )
        parts = tuple(
            KernelPart(
                part_name(internal_name(name), half),
                one.access.half(successor=number == 1),
                _symbols(symbolic[number]),
            )
            for number, half in enumerate(halves)
        )
    else:
        symbolic = argument_value(function, one.declared, name, taken)
        parts = (KernelPart(kernel_argument(name), one.access, _symbols(symbolic)),)
    return KernelInput(
        name=name,
        access=one.access,
        type_name=type_name(one.declared),
        storage_dim=one.storage_dim,
        unit_ranges=unit_ranges(one.declared),
        matrix_shape=one.matrix_shape,
        is_scalar=is_scalar_type(one.declared),
        symbolic=symbolic,
        parts=parts,
    )


def _symbols(symbolic: Any) -> tuple[Any, ...]:
    return tuple(StorageOps.to_storage(symbolic))


def _output(name: str, one: Marked, rows: tuple[Any, ...]) -> KernelOutput:
    return KernelOutput(
        name=name,
        access=one.access,
        type_name=type_name(one.declared),
        storage_dim=one.storage_dim,
        matrix_shape=one.matrix_shape,
        is_scalar=is_scalar_type(one.declared),
        rows=rows,
    )


def _check_names(
    function: KernelFunction, inputs: Sequence[KernelInput], outputs: Sequence[str]
) -> None:
    names = {argument.name for argument in inputs}
    for argument in inputs:
        if argument.name in CALL_KEYWORDS:
            raise KernelError(
                f"{function.title}, argument {argument.name}: a call of a kernel has a keyword of "
                f"this name, as of {', '.join(CALL_KEYWORDS)}; rename the argument"
            )
    for output in outputs:
        check_name(function, f"output {output!r}", output)
        if output in names:
            raise KernelError(
                f"{function.title}, output {output}: an argument has the same name; rename the "
                "output"
            )
