"""Numbers that tell whether users' arrays have been written to.

Input: nested mappings of arrays, as users pass them. Output: a checksum for each array of the host
(CRC-32), and one for all arrays of a device. Nothing is kept. Cost tier: once for a solve, and
whenever somebody comes back to its arrays.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from caspar.runtime.arrays import HOST, location, reading, to_numpy
from caspar.runtime.backend import Backend
from caspar.solver.input.array_reader import Blocked, PreparedIndex

WHOLE_BYTES, PAGE_BYTES = 16 << 20, 4096
"""Of an array of the host that is read whole; of a larger one as many bytes, in spaced pages.
Reading all of a large problem may take longer than solving it
(docs/design/0020-repeated-calls.md)."""

Names = tuple[str, ...]
"""The names that lead to an array, such as a factor's and an argument's."""

Fingerprints = Mapping[tuple[Names, ...], object]
"""By the names of arrays checksums, or a text, that differ once they have been written to."""


def fingerprints_of(given: Any, backends: Sequence[Backend], names: Names = ()) -> Fingerprints:
    """Fingerprints of arrays that a solve has read.

    Args:
        given: A mapping of arrays and further mappings; numbers, lists and None count as arrays.
        backends: Those on whose devices arrays may live.
        names: The names that lead to it.

    Raises:
        InputError: An array can no longer be read, for example because it has been deleted.
    """
    leaves: list[tuple[Names, Any]] = []
    _collect(given, names, leaves)
    found: dict[tuple[Names, ...], object] = {}
    on_devices: dict[int, list[tuple[Names, Any]]] = {}
    for place, leaf in leaves:
        if type(leaf) is np.ndarray:
            found[(place,)] = _of_host(leaf)
            continue
        where = location(leaf)
        if where == HOST:
            with reading(text_of(place), leaf):
                found[(place,)] = _of_host(to_numpy(leaf))
            continue
        owners = [one.accepts_device(where.kind, where.number) for one in backends]
        on_devices.setdefault(owners.index(True), []).append((place, leaf))
    for number, there in on_devices.items():
        backend = backends[number]
        with backend.scope():
            arrays = [backend.upload(leaf) for _, leaf in there]
            found[tuple(place for place, _ in there)] = backend.checksum(arrays)
    return found


def changed(before: Fingerprints, now: Fingerprints) -> tuple[Names, ...]:
    """The names of arrays one of which has been written to; none if all are as they were."""
    for places, number in before.items():
        if now.get(places) != number:
            return places
    return ()


def text_of(names: Names) -> str:
    """The names that lead to an array, in words."""
    return ", ".join(names)


def _collect(given: Any, names: Names, leaves: list[tuple[Names, Any]]) -> None:
    """Append everything with a checksum of its own."""
    if type(given) is np.ndarray or given is None:
        leaves.append((names, given))
    elif isinstance(given, Mapping):
        for name, part in given.items():
            _collect(part, (*names, str(name)), leaves)
    elif hasattr(given, "to_rows") and isinstance(given, Blocked):
        _collect(list(given.chunks), names, leaves)
    elif hasattr(given, "tiles") and isinstance(given, PreparedIndex):
        leaves.append((names, given.index))
    elif isinstance(given, list | tuple) and not _is_one_array(given):
        for number, part in enumerate(given):
            _collect(part, (*names, f"part {number}"), leaves)
    else:
        leaves.append((names, given))


def _is_one_array(given: Sequence[Any]) -> bool:
    """Whether a list is read as one array of numbers; else it has parts, or holds None."""
    if len(given) > 0 and hasattr(given[0], "shape"):
        return False
    try:
        return np.asarray(given).dtype != object
    except (TypeError, ValueError, RuntimeError):  # of arrays of a device, or of unequal lengths
        return False


def _of_host(array: Any) -> object:
    if array.dtype == object:  # None, for example
        return repr(array.tolist())
    numbers = np.ascontiguousarray(array)
    if numbers.nbytes > WHOLE_BYTES:
        numbers = numbers.reshape(-1).view(np.uint8)
        pages = numbers[: numbers.size // PAGE_BYTES * PAGE_BYTES].reshape(-1, PAGE_BYTES)
        chosen = np.linspace(0, len(pages) - 1, WHOLE_BYTES // PAGE_BYTES).astype(np.int64)
        numbers = np.append(pages[chosen], numbers[-PAGE_BYTES:])
    return array.dtype, array.shape, zlib.crc32(numbers.data)
