"""The checked arrays of one factor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caspar.frontend.factors.trace import TracedFactor
from caspar.frontend.precision import Types
from caspar.memory.array import Array
from caspar.solver.input.parted_array import PartedArray


@dataclass(frozen=True)
class ConstantArray:
    """Values of a constant argument.

    Attributes:
        rows: (m, dim) floating values of the type of values; of narrow arguments of storage.
        index: (n,) int32 row of each factor; None where rows are sequential or unique.
    """

    rows: Array
    index: Array | None


@dataclass(frozen=True)
class FactorArrays:
    """Arrays of one factor, by argument name.

    Either all arrays with one entry for each instance are a `PartedArray`, in the same parts, or
    none is.

    Attributes:
        count: Instances; may be 0.
        nodes: (count,) int32 node of each instance; None for unique nodes.
        constants: Values of the constant arguments, of weights and of what a loss depends on.
        by_instance: Those of the last two that have one number for each instance.
        num_counted: Instances whose weight is not zero.
    """

    count: int
    nodes: Mapping[str, Array | None]
    constants: Mapping[str, ConstantArray]
    by_instance: tuple[str, ...]
    num_counted: int

    @property
    def offsets(self) -> list[int] | None:
        """Offsets of the parts of a factor that is in parts; else None."""
        for array in (
            *self.nodes.values(),
            *(one.index for one in self.constants.values()),
            *(one.rows for one in self.constants.values()),
        ):
            if isinstance(array, PartedArray):
                return array.offsets
        return None

    @property
    def bytes_by_instance(self) -> int:
        """Bytes of arrays with a row for each instance that are whole, and not on the host."""
        arrays = [*self.nodes.values()]
        for constant in self.constants.values():
            arrays += [constant.index, constant.rows]
        return sum(
            int(array.nbytes)
            for array in arrays
            if array is not None
            and not isinstance(array, np.ndarray | PartedArray)
            and int(array.shape[0]) == self.count
        )

    def larger_than(self, num_bytes: int) -> tuple[str, ...]:
        """Names of the constants that take more bytes."""
        found = self.constants.items()
        return tuple(name for name, one in found if int(one.rows.nbytes) > num_bytes)

    def narrowed(self, factor: TracedFactor, types: Types) -> "FactorArrays":
        """The same, with the constants of a factor that are narrow in the type of storage."""
        names = {one.source for one in factor.inputs if one.is_narrow}
        if len(names) == 0:
            return self
        constants = {
            name: replace(one, rows=one.rows.astype(types.storage.value, copy=False))
            if name in names
            else one
            for name, one in self.constants.items()
        }
        return replace(self, constants=constants)


def with_bare_factors(arrays: Any, factors: Sequence[TracedFactor]) -> Any:
    """Arrays with `{}` for each factor that needs none and got None, `[]` or nothing.

    Patches of tables are taken apart, see `with_patches`.

    Args:
        arrays: As the user passed them.
        factors: All factors of the solver.
    """
    if not isinstance(arrays, Mapping):
        return arrays
    bare = [one.name for one in factors if len(one.required) == 0]
    missing: dict[str, Any] = {name: {} for name in bare if _is_nothing(arrays.get(name))}
    arrays = {**arrays, **missing} if len(missing) > 0 else arrays
    if not any(factor.patches for factor in factors):
        return arrays
    from caspar.frontend.patches import with_patches

    return with_patches(arrays, factors)


def _is_nothing(given: Any) -> bool:
    return given is None or (isinstance(given, list | tuple) and len(given) == 0)


def no_mapping(given: Any, what: str, expected: Sequence[str]) -> str:
    """Say what is wrong with an object that is passed instead of a mapping.

    Args:
        given: The object.
        what: What the mapping would have, such as `arguments`.
        expected: Their names.
    """
    got = type(given).__name__
    if len(expected) == 0:
        return f"there is nothing to pass, got {got}; pass {{}}, or leave it out"
    advice = "; if there are no instances, pass [] for each" if _is_nothing(given) else ""
    return f"expected a mapping of {what} ({', '.join(expected)}), got {got}{advice}"
