"""Values of a result that come back in parts, as they were given: what reads both kinds."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def parts_of(values: Any) -> list[Any]:
    """The parts of values of a node type; of a whole array that alone."""
    return values if isinstance(values, list) else [values]


def num_numbers(values: Any) -> int:
    """Return how many numbers there are in all parts."""
    return sum(math.prod(map(int, part.shape)) for part in parts_of(values))


def array_on_host(array: Any) -> NDArray[Any]:
    """An array or tensor of any device, or what NumPy reads, as a NumPy array."""
    if hasattr(array, "detach"):  # a tensor
        array = array.detach().cpu()
    elif hasattr(array, "to_rows"):
        array = array.to_rows()
    return array.get() if hasattr(array, "get") else np.asarray(array)


def on_host(values: Any) -> NDArray[Any]:
    """Values of a node type of a result, also in parts, as one NumPy array."""
    found = [array_on_host(part) for part in parts_of(values)]
    return found[0] if len(found) == 1 else np.concatenate(found)
