"""Calls of one traced kernel: as an earlier one, or planned.

Once for each call. `KernelCalls` keeps what calls of one kernel have in common: its compiled forms
and the recipes of earlier calls, which are the same launches with other addresses. The signature of
a call is everything that planning it depends on, except where arrays lie: some microseconds. For it
nothing is converted, and arguments that are not understood are left to the planner, which then says
what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from caspar.arrays.blocked_array import BlockedArray
from caspar.arrays.convert import conversion_launch, current_stream, shared_backend
from caspar.arrays.passed import is_array
from caspar.arrays.shared_indices import SharedIndices, check_range
from caspar.frontend.kernels.trace import KernelOutput, TracedKernel, kernel_argument
from caspar.ir.dtype import CHUNK_BYTES
from caspar.kernels.call.call import call_options, operands_of
from caspar.kernels.call.compiled import KernelCache
from caspar.kernels.call.operands import Operand
from caspar.kernels.call.plan import CallPlan, plan_call
from caspar.memory.array import Array, address
from caspar.memory.kernel import Direction
from caspar.memory.layout import rows_are_blocked
from caspar.options import BackendChoice
from caspar.runtime.arrays import HOST, as_library, library_of, location, to_library
from caspar.runtime.backend import Backend, Launch


@dataclass(frozen=True)
class CallSignature:
    """The key that the plan of a call depends on, and the arrays of the call.

    Attributes:
        key: Calls with equal keys are planned alike.
        arrays: Memory that the launches are given, in the order of the key.
        indices: The indices among them: a name for errors, the index and the number of objects.
        indexed: Names of the arguments and outputs that they were passed for.
        written: Places among `arrays` of what the call writes to.
        rows: Places among `arrays` of rows, with the argument's name.
        outputs: Blocked arrays that were passed to be written to, by name.
        prepared: Indices that the key names by identity.
    """

    key: tuple[Any, ...]
    arrays: tuple[Array, ...]
    indices: tuple[tuple[str, Array, int], ...]
    indexed: tuple[str, ...]
    written: tuple[int, ...]
    rows: tuple[tuple[int, str], ...]
    outputs: Mapping[str, BlockedArray]
    prepared: tuple[SharedIndices, ...]


class _SignatureReader:
    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.arrays: list[Array] = []
        self.indices: list[tuple[str, Array, int]] = []
        self.indexed: list[str] = []
        self.written: list[int] = []
        self.rows: list[tuple[int, str]] = []
        self.outputs: dict[str, BlockedArray] = {}
        self.prepared: list[SharedIndices] = []

    def add(self, name: str, value: Any, *, is_output: bool) -> bool:
        """Note an argument; False where a call with it has to be planned."""
        self.parts.append(name)
        value = self._own(value)
        if type(value) is BlockedArray:
            return self._add_blocked(name, value, is_output)
        if type(value) is not dict:
            return not is_output and self._add_rows(name, value)
        size = value.get("size")
        where = f"{'output' if is_output else 'argument'} {name}, index"
        for key, part in value.items():
            self.parts.append(key)
            part = self._own(part)
            if type(part) is BlockedArray:
                size = part.length
                if not self._add_blocked(name, part, is_output):
                    return False
            elif type(part) is SharedIndices:
                self.prepared.append(part)
                self.parts.append(id(part))
            elif type(part) is int:
                self.parts.append(part)
            elif key == "values":
                # an index is tested against the number of rows: (n, dim) tells it
                if is_output or getattr(part, "ndim", 0) != 2 or not self._add_rows(name, part):
                    return False
                size = part.shape[0]
            elif key != "index" or not self._add_index(where, part, size):
                return False
            else:
                self.indexed.append(name)
        return True

    def _own(self, value: Any) -> Any:
        """A torch tensor on a GPU as a CuPy array; anything else as it is."""
        if library_of(value) != "torch" or not getattr(value, "is_cuda", False):
            return value
        if value.requires_grad:
            return value
        self.parts.append("torch")
        return shared_backend(BackendChoice.CUDA).upload(value)

    def _add_blocked(self, name: str, array: BlockedArray, is_output: bool) -> bool:
        buffer = array.buffer
        self.parts += (array.length, array.capacity, array.first, array.dim)
        self.parts += (buffer.dtype.char, _device(buffer))
        if is_output:
            if not array.is_writable:
                return False
            self.written.append(len(self.arrays))
            self.outputs[name] = array
        self.arrays.append(buffer)
        return True

    def _add_rows(self, name: str, rows: Any) -> bool:
        if not _is_array(rows) or rows.dtype.char not in "fd" or not 1 <= rows.ndim <= 2:
            return False
        if not rows.flags.c_contiguous:
            return False
        # vectors are loaded straight from rows that lie as blocked arrays do, where aligned
        self.parts += (rows.shape, rows.dtype.char, _device(rows), address(rows) % CHUNK_BYTES)
        self.rows.append((len(self.arrays), name))
        self.arrays.append(rows)
        return True

    def _add_index(self, where: str, index: Any, size: int | None) -> bool:
        if not _is_array(index) or size is None or index.dtype.char != "i" or index.ndim != 1:
            return False
        if not index.flags.c_contiguous:
            return False
        self.parts += (index.shape[0], _device(index))
        self.indices.append((where, index, size))
        self.arrays.append(index)
        return True


def _is_array(value: Any) -> bool:
    return type(value) is np.ndarray or type(value).__module__.startswith("cupy")


def _device(array: Array) -> int:
    return -1 if isinstance(array, np.ndarray) else int(array.data.device_id)


def call_signature(
    inputs: Mapping[str, Any], out: Any, output_names: Sequence[str], options: tuple[Any, ...]
) -> CallSignature | None:
    """The signature of a call; None if the call has to be planned.

    `options` are whatever else planning depends on, besides the current stream.
    """
    reader = _SignatureReader()
    for name, value in inputs.items():
        if not reader.add(name, value, is_output=False):
            return None
    targets = {}
    if out is not None:
        if type(out) is dict and all(name in output_names for name in out):
            targets = out
        elif len(output_names) == 1:
            targets = {output_names[0]: out}
        else:
            return None
    for name, value in targets.items():
        if not reader.add(name, value, is_output=True):
            return None
    first = {id(array): number for number, array in reversed(list(enumerate(reader.arrays)))}
    same = tuple(first[id(array)] for array in reader.arrays)  # an array may be passed twice
    return CallSignature(
        (*options, current_stream(), *reader.parts, same),
        tuple(reader.arrays),
        tuple(reader.indices),
        tuple(reader.indexed),
        tuple(reader.written),
        tuple(reader.rows),
        reader.outputs,
        tuple(reader.prepared),
    )


MAX_RECIPES = 64
"""Ways of calling a kernel that are kept; then all are forgotten."""


@dataclass(frozen=True)
class _Memory:
    """Memory that each call takes anew: of an output, or of rows that are converted.

    Its shape is (num_scalars,) of a buffer, (n, dim) of rows; with `clear` it begins with zeros.
    """

    shape: tuple[int, ...]
    dtype: str
    clear: bool = False


@dataclass(frozen=True)
class _Result:
    """An output, in one of the memories of a call; None: in an array that was passed.

    `shape` and `library` (`numpy`, `cupy` or `torch`) are of rows.
    """

    name: str
    memory: int | None
    dim: int
    length: int
    shape: tuple[int, ...] | None
    library: str = ""


Places = tuple[tuple[Launch, int], ...]
"""Launches, and which of their parameters an address goes to."""


@dataclass(frozen=True)
class Recipe:
    """The launches of a call, and where addresses go.

    In order: rows to blocked arrays, the kernel, what completes it, back to rows. `places` are
    those of each array of the signature, then of each memory that a call takes anew; `keep_alive`
    are indices that the signature's key names by identity; the lock is held while addresses are
    written and used.
    """

    backend: Backend
    launches: tuple[Launch, ...]
    memories: tuple[_Memory, ...]
    places: tuple[Places, ...]
    results: tuple[_Result, ...]
    keep_alive: tuple[SharedIndices, ...]
    lock: Any = field(default_factory=Lock)

    def run(self, signature: CallSignature) -> list[Any]:
        """Run on the arrays of a call with this signature; returns the outputs in order."""
        xp = self.backend.xp
        made = [
            (xp.zeros if one.clear else xp.empty)(one.shape, one.dtype) for one in self.memories
        ]
        with self.lock:
            for array, places in zip((*signature.arrays, *made), self.places, strict=True):
                where = address(array)
                for launch, number in places:
                    launch.set_address(number, where)
            for launch in self.launches:
                launch.run()
        return [
            signature.outputs[one.name] if one.memory is None else _as_result(one, made[one.memory])
            for one in self.results
        ]


def _as_result(result: _Result, memory: Array) -> Any:
    if result.shape is None:
        return BlockedArray(memory, result.dim, result.length, 0, result.length)
    return to_library(memory.reshape(result.shape), result.library)


class _Writer:
    def __init__(self, signature: CallSignature, plan: CallPlan) -> None:
        self._signature = signature
        self._plan = plan
        self.before: list[Launch] = []
        self.after: list[Launch] = []
        self.memories: list[_Memory] = []
        self.results: list[_Result] = []
        bound = [
            one for launch in plan.launches for one in launch.values if not isinstance(one, int)
        ]
        # an index of another library is another object here, in the same memory
        self._holders = [
            [array, *(one for one in bound if address(one) == address(array))]
            for array in signature.arrays
        ]
        self._memory_holders: list[list[Array]] = []

    def recipe(self, given: Sequence[Any]) -> Recipe | None:
        plan, signature = self._plan, self._signature
        if not all(map(self._passes_index, signature.indexed)):
            return None
        if not all(self._read(number, name) for number, name in signature.rows):
            return None
        if not all(map(self._write, plan.outputs, given)):
            return None
        launches = [*self.before, *plan.launches, *self.after]
        arrays = [one for holders in (*self._holders, *self._memory_holders) for one in holders]
        # what is kept must not keep the arrays of this call alive
        kept = [launch.without(arrays) for launch in launches]
        places = tuple(
            tuple(
                (mine, number)
                for launch, mine in zip(launches, kept, strict=True)
                for number, value in enumerate(launch.values)
                if any(value is holder for holder in holders)
            )
            for holders in (*self._holders, *self._memory_holders)
        )
        if any(len(found) == 0 for found in places):
            return None  # an argument that is not used, or was converted
        return Recipe(
            plan.backend,
            tuple(kept),
            tuple(self.memories),
            places,
            tuple(self.results),
            signature.prepared,
        )

    def _passes_index(self, name: str) -> bool:
        """Return whether the kernel gets an argument's index, rather than something made of it."""
        assert self._plan.kernel is not None
        arg = kernel_argument(name)
        params = self._plan.kernel.source.params
        return any(param.arg == arg and param.field == "index" for param in params)

    def _memory(self, shape: tuple[int, ...], holder: Array, clear: bool = False) -> int:
        self.memories.append(_Memory(shape, self._plan.dtype.value, clear))
        self._memory_holders.append([holder])
        return len(self.memories) - 1

    def _read(self, number: int, name: str) -> bool:
        rows, blocked = self._signature.arrays[number], self._plan.inputs[name]
        if type(rows) is not self._plan.backend.xp.ndarray or rows.dtype != blocked.dtype:
            return False
        if address(blocked.buffer) == address(rows):
            self._holders[number].append(blocked.buffer)
            return True
        if rows_are_blocked(blocked.dim, blocked.scalar):
            return False
        lying = rows.reshape(-1, blocked.dim)
        self._holders[number].append(lying)
        self.before.append(conversion_launch(Direction.PACK, lying, blocked.binding(), blocked.dim))
        self._memory((int(blocked.buffer.shape[0]),), blocked.buffer)
        return True

    def _write(self, name: str, given: Any) -> bool:
        plan, blocked = self._plan, self._plan.outputs[name]
        clear = plan.arguments[name].access.begins_with_zeros
        shape = None if isinstance(given, BlockedArray) else getattr(given, "shape", None)
        library = library_of(given)
        if name in self._signature.outputs:
            self.results.append(_Result(name, None, blocked.dim, len(blocked), None))
            return True
        if shape is None and not isinstance(given, BlockedArray):
            return False
        number = self._memory((int(blocked.buffer.shape[0]),), blocked.buffer, clear)
        if shape is not None:
            own = plan.backend.xp.__name__
            if library not in ((own, "torch") if own == "cupy" else (own,)):
                return False
            if len(plan.arguments[name].matrix_shape) > 0 or len(blocked) == 0:
                return False
            if not rows_are_blocked(blocked.dim, blocked.scalar):
                rows = plan.backend.xp.empty((len(blocked), blocked.dim), blocked.dtype)
                self.after.append(
                    conversion_launch(Direction.UNPACK, rows, blocked.binding(), blocked.dim)
                )
                number = self._memory((len(blocked), blocked.dim), rows)
        rows_shape = None if shape is None else tuple(shape)
        self.results.append(_Result(name, number, blocked.dim, len(blocked), rows_shape, library))
        return True


class RecipeBook:
    """The recipes of one kernel."""

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel
        self._recipes: dict[tuple[Any, ...], Recipe] = {}

    def find(self, signature: CallSignature, *, check: bool) -> Recipe | None:
        """The recipe for a call, if there is one; indices are checked."""
        recipe = self._recipes.get(signature.key)
        if recipe is None or _overlap(signature):
            return None
        if check:
            for where, index, size in signature.indices:
                check_range(recipe.backend, f"kernel {self._kernel}, {where}", index, size)
        return recipe

    def keep(
        self, signature: CallSignature, plan: CallPlan, given: Sequence[Any], *, check: bool
    ) -> None:
        """Make a recipe of a planned call, where that can be.

        If indices are checked for repetition, each call is planned.
        """
        unique = any(one.access.needs_unique_index for one in plan.arguments.values())
        if plan.count == 0 or (check and unique):
            return
        recipe = _Writer(signature, plan).recipe(given)
        if recipe is None:
            return
        if len(self._recipes) >= MAX_RECIPES:
            self._recipes.clear()
        self._recipes[signature.key] = recipe


def _overlap(signature: CallSignature) -> bool:
    if len(signature.written) == 0:
        return False
    bounds = [(address(array), address(array) + array.nbytes) for array in signature.arrays]
    return any(
        bounds[number][0] < stop and start < bounds[number][1]
        for number in signature.written
        for other, (start, stop) in enumerate(bounds)
        if other != number
    )


_OPTION_TYPES = (int, bool, str, type(None))
"""Types of options that two calls can be compared by."""


@dataclass(frozen=True)
class CallChoices:
    """The options of a call, as the user passes them: see `CallOptions`."""

    count: Any = None
    check: bool = True
    dtype: Any = None
    backend: str = "auto"
    deterministic: bool = False


class KernelCalls:
    """Calls of one kernel, whose compiled forms are in `cache`."""

    def __init__(self, name: str) -> None:
        self.cache = KernelCache()
        self._name = name
        self._recipes = RecipeBook(name)

    def run(
        self,
        traced: TracedKernel,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        out: Any,
        choices: CallChoices,
    ) -> Any:
        """Run over arrays: see `caspar.Kernel.__call__`."""
        signature = _signature(traced, args, kwargs, out, choices)
        check = choices.check
        recipe = None if signature is None else self._recipes.find(signature, check=check)
        if signature is not None and recipe is not None:
            return traced.make_result(recipe.run(signature))
        inputs, outputs = operands_of(traced, args, kwargs, out)
        options = call_options(
            self._name, choices.count, check, choices.dtype, None, choices.deterministic
        )
        plan = plan_call(traced, self.cache, inputs, outputs, choices.backend, options)
        plan.runner()()
        results = [
            give_back(plan, one, outputs[one.name], inputs.values()) for one in traced.outputs
        ]
        if signature is not None:
            self._recipes.keep(signature, plan, results, check=check)
        return traced.make_result(results)

    def forget(self, key: str, size: int) -> None:
        """Take another block size from now on."""
        self.cache.sizes.keep(key, size)
        self.cache.kernels.clear()
        self._recipes = RecipeBook(self._name)


def _signature(
    traced: TracedKernel,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Any,
    choices: CallChoices,
) -> CallSignature | None:
    options = (choices.count, choices.check, choices.dtype)
    names = [one.name for one in traced.inputs]
    if len(args) > len(names) or any(type(one) not in _OPTION_TYPES for one in options):
        return None
    inputs = {**dict(zip(names, args, strict=False)), **kwargs}
    if len(inputs) != len(args) + len(kwargs):
        return None
    outputs = [one.name for one in traced.outputs]
    return call_signature(inputs, out, outputs, options)


def give_back(
    plan: CallPlan, output: KernelOutput, operand: Operand, inputs: Iterable[Operand]
) -> Any:
    """An output as the kind of array the user works with.

    The first array among the inputs decides the kind of a new array; sequences and numbers are
    none.
    """
    made = plan.outputs[output.name]
    if operand.given is not None:
        if operand.target is not None:
            _write_back(output, operand.target, plan, made.to_rows())
        return operand.given
    like = next((one.given for one in inputs if is_array(one.given)), None)
    if isinstance(like, BlockedArray):
        return made
    rows = made.to_rows()
    if len(output.matrix_shape) > 0:
        rows = _matrices(output, rows)
    elif output.is_scalar:
        rows = rows.reshape(-1)
    on_host = like is None or location(like) == HOST
    return as_library(plan.backend.to_host(rows) if on_host else rows, like)


def _matrices(output: KernelOutput, rows: Any) -> Any:
    """(n, rows, columns): SymForce stores matrices column by column."""
    num_rows, num_columns = output.matrix_shape
    return rows.reshape(-1, num_columns, num_rows).transpose(0, 2, 1)


def _write_back(output: KernelOutput, into: Array, plan: CallPlan, rows: Array) -> None:
    if isinstance(into, np.ndarray):
        rows = plan.backend.to_host(rows)
    into[...] = _matrices(output, rows) if into.ndim == 3 else rows.reshape(into.shape)
