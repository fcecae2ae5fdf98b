"""Calls like an earlier one: the same launches with other addresses.

Planning a call takes 50 to 200 us of Python. What it decides depends on the shapes, types and
options of what is passed, not on where it lies: a second call that looks the same takes the
launches of the first, writes new addresses into their parameters, and runs them. Only calls on
blocked arrays that need no conversion; all others are planned.

Once for each way a kernel is called; then for each call some 20 us.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from caspar.kernels.array_memory import address
from caspar.kernels.blocked_array import BlockedArray
from caspar.kernels.plan import CallPlan
from caspar.kernels.shared_indices import SharedIndices, check_range
from caspar.memory.tiles import Array
from caspar.runtime.backend import Backend, Launch

MAX_RECIPES = 64
"""Ways of calling a kernel that are kept; then all are forgotten."""


@dataclass(frozen=True)
class Look:
    """What a call looks like, and its arrays.

    Attributes:
        key: All that planning depends on.
        arrays: Memory that the launches are given, in the order of the key.
        indices: Of those, what are indices: where, for errors, index and number of objects.
        written: Places among `arrays` of what the call writes to.
        outputs: Blocked arrays that were passed to be written to, by name.
        prepared: Indices that the key names by identity.
    """

    key: tuple[Any, ...]
    arrays: tuple[Array, ...]
    indices: tuple[tuple[str, Array, int], ...]
    written: tuple[int, ...]
    outputs: Mapping[str, BlockedArray]
    prepared: tuple[SharedIndices, ...]


class _Looker:
    """Looks at the arguments of a call, one after the other."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.arrays: list[Array] = []
        self.indices: list[tuple[str, Array, int]] = []
        self.written: list[int] = []
        self.outputs: dict[str, BlockedArray] = {}
        self.prepared: list[SharedIndices] = []

    def add(self, name: str, value: Any, *, is_output: bool) -> bool:
        """Note an argument; False where a call with it has to be planned."""
        self.parts.append(name)
        if type(value) is BlockedArray:
            return self._add_blocked(name, value, is_output)
        if type(value) is not dict:
            return False
        size = value.get("size")
        where = f"{'output' if is_output else 'argument'} {name}, index"
        for key, part in value.items():
            self.parts.append(key)
            if type(part) is BlockedArray:
                size = part.length
                if not self._add_blocked(name, part, is_output):
                    return False
            elif type(part) is SharedIndices:
                self.prepared.append(part)
                self.parts.append(id(part))
            elif type(part) is int:
                self.parts.append(part)
            elif key != "index" or not self._add_index(where, part, size):
                return False
        return True

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

    def _add_index(self, where: str, index: Any, size: int | None) -> bool:
        is_array = isinstance(index, np.ndarray) or type(index).__module__.startswith("cupy")
        if not is_array or size is None or index.dtype.char != "i" or index.ndim != 1:
            return False
        if not index.flags.c_contiguous:
            return False
        self.parts += (index.shape[0], _device(index))
        self.indices.append((where, index, size))
        self.arrays.append(index)
        return True


def _device(array: Array) -> int:
    return -1 if isinstance(array, np.ndarray) else int(array.data.device_id)


def look_at(
    inputs: Mapping[str, Any], out: Any, output_names: Sequence[str], options: tuple[Any, ...]
) -> Look | None:
    """What a call looks like; None where it has to be planned.

    Args:
        inputs: What is passed, by argument name.
        out: What is passed as `out`.
        output_names: Names of the outputs.
        options: Whatever else planning depends on.
    """
    looker = _Looker()
    for name, value in inputs.items():
        if not looker.add(name, value, is_output=False):
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
        if not looker.add(name, value, is_output=True):
            return None
    if len({id(array) for array in looker.arrays}) < len(looker.arrays):
        return None  # the same memory twice: which address is whose cannot be told
    return Look(
        (*options, *looker.parts),
        tuple(looker.arrays),
        tuple(looker.indices),
        tuple(looker.written),
        looker.outputs,
        tuple(looker.prepared),
    )


@dataclass(frozen=True)
class _Fresh:
    """An output that each call makes anew.

    Attributes:
        name: The output.
        num_scalars: Of its buffer.
        dtype: NumPy name.
        dim: Scalars of an object.
        length: Objects.
        clear: Whether it begins with zeros.
    """

    name: str
    num_scalars: int
    dtype: str
    dim: int
    length: int
    clear: bool


@dataclass(frozen=True)
class Recipe:
    """The launches of a call, and where addresses go.

    Attributes:
        backend: Where it runs.
        launches: In order.
        places: For each array of the look, then for each fresh output: (launch, parameter) pairs.
        fresh: Outputs to make.
        names: All outputs in order.
        keep_alive: Indices that the look's key names by identity.
        lock: Held while addresses are written and used.
    """

    backend: Backend
    launches: tuple[Launch, ...]
    places: tuple[tuple[tuple[Launch, int], ...], ...]
    fresh: tuple[_Fresh, ...]
    names: tuple[str, ...]
    keep_alive: tuple[SharedIndices, ...]
    lock: Any = field(default_factory=Lock)

    def run(self, look: Look) -> list[BlockedArray]:
        """Run on the arrays of a look; the outputs in order."""
        xp = self.backend.xp
        made = dict(look.outputs)
        arrays = list(look.arrays)
        for one in self.fresh:
            make = xp.zeros if one.clear else xp.empty
            buffer = make(one.num_scalars, one.dtype)
            arrays.append(buffer)
            made[one.name] = BlockedArray(buffer, one.dim, one.length, 0, one.length)
        with self.lock:
            for array, places in zip(arrays, self.places, strict=True):
                where = address(array)
                for launch, number in places:
                    launch.set_address(number, where)
            for launch in self.launches:
                launch.run()
        return [made[name] for name in self.names]


class RecipeBook:
    """The recipes of one kernel.

    Args:
        kernel: Its name, for errors.
    """

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel
        self._recipes: dict[tuple[Any, ...], Recipe] = {}

    def find(self, look: Look, *, check: bool) -> Recipe | None:
        """The recipe for a call, if there is one; indices are checked.

        Raises:
            InputError: An index out of range.
        """
        recipe = self._recipes.get(look.key)
        if recipe is None or _overlap(look):
            return None
        if check:
            for where, index, size in look.indices:
                check_range(recipe.backend, f"kernel {self._kernel}, {where}", index, size)
        return recipe

    def keep(self, look: Look, plan: CallPlan, needs_planning: Callable[[CallPlan], bool]) -> None:
        """Make a recipe of a planned call, where that can be.

        Args:
            look: What the call looks like.
            plan: What was planned for it.
            needs_planning: Whether such a call must be planned each time.
        """
        if plan.count == 0 or needs_planning(plan):
            return
        fresh = [(name, one) for name, one in plan.outputs.items() if name not in look.outputs]
        arrays = [*look.arrays, *(one.buffer for _, one in fresh)]
        # what is kept must not keep the arrays of this call alive
        launches = tuple(launch.without(arrays) for launch in plan.launches)
        places = tuple(
            tuple(
                (launch, number)
                for planned, launch in zip(plan.launches, launches, strict=True)
                for number, value in enumerate(planned.values)
                if value is array
            )
            for array in arrays
        )
        if any(len(found) == 0 for found in places):
            return  # an argument that was converted, or is not used
        if len(self._recipes) >= MAX_RECIPES:
            self._recipes.clear()
        made = tuple(
            _Fresh(
                name,
                int(one.buffer.shape[0]),
                one.dtype.name,
                one.dim,
                one.length,
                not plan.writes_all[name],
            )
            for name, one in fresh
        )
        names = tuple(plan.outputs)
        self._recipes[look.key] = Recipe(plan.backend, launches, places, made, names, look.prepared)


def _overlap(look: Look) -> bool:
    """Whether what is written may share memory with something else."""
    if len(look.written) == 0:
        return False
    bounds = [(address(array), address(array) + array.nbytes) for array in look.arrays]
    return any(
        bounds[number][0] < stop and start < bounds[number][1]
        for number in look.written
        for other, (start, stop) in enumerate(bounds)
        if other != number
    )
