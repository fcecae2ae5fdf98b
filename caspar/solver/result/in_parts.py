"""Values of a result that come back in parts, as they were given: what reads both kinds."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def parts_of(values: Any) -> list[Any]:
    """The parts of values of a node type; of a whole array that alone."""
    return values if isinstance(values, list) else [values]


def num_numbers(values: Any) -> int:
    """How many numbers there are in all parts."""
    return sum(math.prod(map(int, part.shape)) for part in parts_of(values))


def on_host(values: Any) -> NDArray[Any]:
    """Arrays or tensors of any device as one NumPy array."""
    found = []
    for part in parts_of(values):
        if hasattr(part, "detach"):  # a tensor
            part = part.detach().cpu()
        elif hasattr(part, "to_rows"):
            part = part.to_rows()
        found.append(part.get() if hasattr(part, "get") else np.asarray(part))
    return found[0] if len(found) == 1 else np.concatenate(found)
