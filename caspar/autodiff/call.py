"""A call of a kernel, and the call that derives it.

Values are rows, (n, storage_dim), in the order of the kernel's arguments; what else a call takes,
such as indices, is in the `Call`. Cost tier: kernels are derived and compiled once for each set of
arguments to derive by, the rest is once for each call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from caspar.arrays.shared_indices import SharedIndices
from caspar.errors import InputError
from caspar.frontend.kernels.pulled import cotangent_name, pull_name, pulled_kernel
from caspar.frontend.kernels.trace import KernelInput, KernelOutput, TracedKernel
from caspar.kernels.call.calls import CallChoices, KernelCalls
from caspar.memory.access import WriteAccessor
from caspar.memory.patterns import AddSharedSum, AddStrided

Options = Mapping[str, Mapping[str, Any]]
"""What is passed besides values, by argument or output."""

_SIZED = (AddSharedSum, AddStrided)
"""Writes whose array may have more objects than items name."""


class Derivable:
    """A kernel whose derivatives are kernels too.

    Args:
        traced: With plain rows.

    Attributes:
        traced: As given.
        calls: What its calls have in common.
    """

    def __init__(self, traced: TracedKernel) -> None:
        self.traced = traced
        self.calls = KernelCalls(traced.name)
        self._pulled: dict[tuple[str, ...], Derivable] = {}

    def pulled(self, wanted: tuple[str, ...]) -> "Derivable":
        """The kernel of the derivatives by some arguments.

        Raises:
            KernelError: An access has no derivative.
        """
        if wanted not in self._pulled:
            self._pulled[wanted] = Derivable(pulled_kernel(self.traced, wanted))
        return self._pulled[wanted]


@dataclass(frozen=True)
class Call:
    """A call apart from its values.

    Attributes:
        kernel: What is called.
        options: By argument.
        out: By output; `size` among them.
        choices: How.
    """

    kernel: Derivable
    options: Options
    out: Options
    choices: CallChoices

    @property
    def inputs(self) -> tuple[KernelInput, ...]:
        """The arguments."""
        return self.kernel.traced.inputs

    @property
    def outputs(self) -> tuple[KernelOutput, ...]:
        """The outputs."""
        return self.kernel.traced.outputs

    def run(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """(n, storage_dim) rows of each output, of the library of the first value.

        Raises:
            InputError: Names the argument, what is wrong and what is allowed.
        """
        given = {}
        for one, rows in zip(self.inputs, values, strict=True):
            options = self.options.get(one.name, {})
            given[one.name] = {"values": rows, **options} if len(options) > 0 else rows
        out = dict(self.out) if len(self.out) > 0 else None
        found: tuple[Any, ...] = self.kernel.calls.run(
            self.kernel.traced, (), given, out, self.choices
        )
        return found

    def with_options(self, converted: Callable[[Any], Any]) -> "Call":
        """The same with each index, offset, stride and size converted."""

        def all_of(options: Options) -> Options:
            return {
                name: {key: converted(one) for key, one in own.items()}
                for name, own in options.items()
            }

        return replace(self, options=all_of(self.options), out=all_of(self.out))

    @property
    def arrays(self) -> list[Any]:
        """The arrays among the options, in order."""
        found = []
        for own in (*self.options.values(), *self.out.values()):
            found += [one for one in own.values() if _is_array(one)]
        return found

    def with_arrays(self, arrays: Sequence[Any]) -> "Call":
        """The same with other ones in their places."""
        left = iter(arrays)
        return self.with_options(lambda one: next(left) if _is_array(one) else one)

    def pulled(self, wanted: Sequence[str], lengths: Sequence[int]) -> "Call":
        """The call that derives a loss function by some arguments.

        Its values are those of this one and the derivatives by the outputs; its outputs are the
        derivatives by the wanted arguments, in their order.

        Args:
            wanted: Names of arguments.
            lengths: Objects of each value.
        """
        kernel = self.kernel.pulled(tuple(wanted))
        own = {one.name: length for one, length in zip(self.inputs, lengths, strict=True)}
        cotangents = {
            cotangent_name(name): {key: value for key, value in options.items() if key != "size"}
            for name, options in self.out.items()
        }
        out: dict[str, Mapping[str, Any]] = {}
        for one, pull in zip(self._wanted(wanted), kernel.traced.outputs, strict=True):
            if isinstance(pull.access, _SIZED):
                out[pull_name(one)] = {**self.options.get(one, {}), "size": own[one]}
        choices = replace(self.choices, count=self.count(lengths))
        return Call(kernel, {**self.options, **cotangents}, out, choices)

    def _wanted(self, wanted: Sequence[str]) -> list[str]:
        return [one.name for one in self.inputs if one.name in wanted]

    def count(self, lengths: Sequence[int]) -> int:
        """Items.

        Raises:
            InputError: Nothing says how many; or `count` is another number than arguments say.
        """
        exact: list[int] = []
        at_most: list[int] = []
        for one, length in zip(self.inputs, lengths, strict=True):
            options = {**one.access.defaults, **self.options.get(one.name, {})}
            try:
                items = one.access.num_items(length, options)
            except ValueError as error:
                raise InputError(
                    f"kernel {self.kernel.traced.name}, argument {one.name}: {error}"
                ) from error
            if items is not None:
                (exact if one.access.is_exact else at_most).append(items)
        indices = [own["index"] for own in self.out.values() if "index" in own]
        exact += [int(index.shape[0]) for index in indices]
        given = self.choices.count
        if given is None and len(exact) + len(at_most) == 0:
            raise InputError(
                f"kernel {self.kernel.traced.name}: no argument says how many items there are; "
                "pass count="
            )
        found = int(given) if given is not None else exact[0] if len(exact) > 0 else min(at_most)
        if any(items != found for items in exact) or any(items < found for items in at_most):
            raise InputError(
                f"kernel {self.kernel.traced.name}: {found:,} items, but its arguments are for "
                f"{', '.join(f'{items:,}' for items in (*exact, *at_most))}; pass arrays of "
                "matching lengths"
            )
        return found

    def output_lengths(self, lengths: Sequence[int]) -> list[int]:
        """Objects of each output.

        Args:
            lengths: Of each value.
        """
        count, found = self.count(lengths), []
        for one in self.outputs:
            given = self.out.get(one.name, {})
            options = {**one.access.defaults, **given}
            size = given.get("size")
            if size is None and isinstance(given.get("index"), SharedIndices):
                size = given["index"].size
            assert isinstance(one.access, WriteAccessor)
            found.append(int(one.access.num_objects(count, options) if size is None else size))
        return found


def _is_array(option: Any) -> bool:
    """Return whether it is an index, rather than a number or an index that is prepared."""
    return hasattr(option, "dtype") and not isinstance(option, SharedIndices)


def lengths_of(values: Sequence[Any]) -> list[int]:
    """Objects of each value."""
    return [int(rows.shape[0]) for rows in values]


def rows_of(one: KernelInput, array: Any) -> Any:
    """(n, storage_dim) of an array as it may be passed to a kernel, of any library.

    What does not fit comes back as it is: the kernel says what is wrong.

    Args:
        one: The argument, as it is declared.
        array: (n, storage_dim), of matrices also (n, rows, columns), of numbers also (n,); one
            object may come without its leading 1.
    """
    shape, dim = tuple(array.shape), one.storage_dim
    if len(one.matrix_shape) > 0 and len(shape) == 3 and shape[1:] == tuple(one.matrix_shape):
        return array.swapaxes(1, 2).reshape(-1, dim)
    if len(shape) <= 1 and (dim == 1 or shape == (dim,)):
        return array.reshape(-1, dim)
    return array


def as_declared(one: KernelOutput, rows: Any) -> Any:
    """Rows of an output as a call of the kernel returns them: matrices, numbers or rows."""
    if len(one.matrix_shape) > 0:
        num_rows, num_columns = one.matrix_shape
        return rows.reshape(-1, num_columns, num_rows).swapaxes(1, 2)
    return rows.reshape(-1) if one.is_scalar else rows
