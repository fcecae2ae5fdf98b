"""The request for a covariance: instances by node type.

Input: a mapping such as `{"Cam": "all", "Point": [3, 7]}`. Output: instance numbers. Cost tier:
once for a covariance.
"""

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.errors import InputError
from caspar.runtime.arrays import to_numpy


def requested_instances(given: Any, counts: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
    """The instance numbers of each node type that is asked for.

    Args:
        given: By node type "all", (k,) instance numbers, or an (n,) boolean mask.
        counts: Instances of each node type.

    Raises:
        InputError: Names the node type, what is wrong, what is allowed.
    """
    if not isinstance(given, Mapping) or len(given) == 0:
        raise InputError(
            "covariance, blocks: expected a mapping of node types to instances, such as "
            f"{{{next(iter(counts))!r}: 'all'}}, got {given!r}"
        )
    found = {}
    for name, chosen in given.items():
        if name not in counts:
            close = difflib.get_close_matches(str(name), list(counts), 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise InputError(
                f"covariance, blocks: {name!r} is no node type{hint}; these are {', '.join(counts)}"
            )
        found[name] = _instances(name, chosen, counts[name])
    return found


def _instances(name: str, given: Any, count: int) -> NDArray[np.int64]:
    where = f"covariance, node type {name}"
    allowed = f"allowed are 'all', instance numbers from 0 to {count - 1}, or a mask of {count}"
    if isinstance(given, str):
        if given != "all":
            raise InputError(f"{where}: {given!r}; {allowed}")
        return np.arange(count)
    try:
        array = np.asarray(to_numpy(given.get() if hasattr(given, "get") else given))
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(f"{where}: {error}; {allowed}") from error
    if array.dtype.kind == "b" and array.shape == (count,):
        return np.flatnonzero(array)
    if array.shape == (0,):
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InputError(f"{where}: an array {array.shape} of {array.dtype}; {allowed}")
    outside = np.flatnonzero((array < 0) | (array >= count))
    if len(outside) > 0:
        raise InputError(f"{where}: instance {int(array[outside[0]])} is out of range; {allowed}")
    return array.astype(np.int64)
