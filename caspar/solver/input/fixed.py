"""Turn the user's `fixed` into masks over the tangents of nodes.

Input: the user's mapping. Output: for each node type that it names, 1 for each component that moves
and 0 for each that is held. Once for each solve, on the host.
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from caspar.errors import InputError
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.symbolic.field_types import tangent_pieces
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.runtime.arrays import to_numpy

_ALLOWED = (
    "allowed are indices of nodes such as [0, 7], (n,) booleans for whole nodes, (n, {dim}) "
    "booleans for components of their tangents, or True for all of it"
)


def read_fixed(
    fixed: Mapping[str, Any] | None,
    nodes: Sequence[NodeType],
    counts: Mapping[str, int],
    storage: DType,
) -> dict[str, Array]:
    """Masks of the node types that are named.

    Args:
        fixed: As the user gave it; None: nothing is held.
        nodes: The solver's node types.
        counts: Instances of each, by name.
        storage: Type of the masks.

    Returns:
        By name, (n, tangent_dim) on the host: 1 where a component moves, 0 where it is held.

    Raises:
        InputError: Names the node type and field, what is wrong and what is allowed.
    """
    if fixed is None:
        return {}
    if not isinstance(fixed, Mapping):
        raise InputError(
            f"fixed: expected a mapping from node types to what is held, got {type(fixed).__name__}"
        )
    by_name = {node.name: node for node in nodes}
    masks = {}
    for name, given in fixed.items():
        if name not in by_name:
            raise InputError(f"fixed: {unknown_name('node type', name, list(by_name))}")
        node, count = by_name[name], counts[name]
        held = np.zeros((count, node.tangent_dim), dtype=np.bool_)
        _hold(f"fixed, node type {name}", node.python_type, given, held)
        masks[name] = np.where(held, 0.0, 1.0).astype(storage.value)
    return masks


def num_held(free: Array) -> int:
    """Components that a mask holds."""
    return int(free.size - np.count_nonzero(free))


def _hold(where: str, declared: Any, given: Any, held: Array) -> None:
    """Set `held`, (n, tangent dimension of the type), by what the user gave for it."""
    if isinstance(given, Mapping):
        fields = tangent_pieces(declared)
        if len(fields) == 0:
            raise InputError(f"{where}: has no fields; {_ALLOWED.format(dim=held.shape[1])}")
        for name, inner in given.items():
            if name not in fields:
                outer = [one for one, (kind, _) in fields.items() if name in tangent_pieces(kind)]
                hint = f"; write {{{outer[0]!r}: {{{name!r}: ...}}}}" if outer else ""
                raise InputError(f"{where}: {unknown_name('field', name, list(fields))}{hint}")
            kind, place = fields[name]
            _hold(f"{where}, field {name}", kind, inner, held[:, place.start : place.stop])
        return
    if isinstance(given, bool | np.bool_):
        held[...] |= bool(given)
        return
    rows = _array(where, given, held)
    if rows.dtype.kind == "b":
        held[...] |= rows if rows.ndim == 2 else rows[:, None]
    else:
        held[rows] = True


def _array(where: str, given: Any, held: Array) -> Array:
    """Booleans of one or two axes that fit, or indices in range."""
    count, dim = held.shape
    allowed = _ALLOWED.format(dim=dim)
    if isinstance(given, np.ma.MaskedArray):
        raise InputError(f"{where}: a masked array; {allowed}")
    try:
        array = to_numpy(given) if hasattr(given, "shape") else np.asarray(given)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: got {type(given).__name__}; {allowed}") from error
    if array.ndim == 0:
        raise InputError(f"{where}: got {given!r}; {allowed}")
    if array.size == 0 and array.ndim == 1 and array.dtype.kind == "f":
        # NumPy has no integers for an empty list
        array = array.astype(np.int64)
    if array.dtype.kind == "b":
        if array.shape not in ((count,), (count, dim)):
            raise InputError(
                f"{where}: booleans of shape {array.shape} for {count} nodes; {allowed}"
            )
        return array
    if array.dtype.kind not in "iu" or array.ndim != 1:
        names = "; fields are named by a mapping: {name: True}" if array.dtype.kind == "U" else ""
        raise InputError(f"{where}: {array.dtype} of shape {array.shape}; {allowed}{names}")
    outside = (array < 0) | (array >= count)
    if outside.any():
        first = int(array[outside][0])
        raise InputError(
            f"{where}: index {first} is out of range; there are {count} nodes. Indices are those "
            f"of nodes; components are held by (n, {dim}) booleans"
        )
    return array


def unknown_name(what: str, name: object, known: list[str]) -> str:
    """A sentence on a name that does not exist, and what may have been meant."""
    close = difflib.get_close_matches(str(name), known, 1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"unknown {what} {str(name)!r}{hint}; there are {', '.join(known)}"
