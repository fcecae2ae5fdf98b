"""Find a tangent's scalars of one unit: the directions of a vector, the axes of a rotation.

Input: a storage type. Output: ranges of its tangent. Once for each type.
"""

import inspect
from typing import Any

import symforce.symbolic as sf
from symforce.ops import LieGroupOps

from caspar.frontend.symbolic.field_types import field_types

_PARTS: tuple[tuple[type, tuple[int, ...]], ...] = (
    (sf.Pose3, (3, 3)),
    (sf.Pose2, (1, 2)),
    (sf.Rot3, (3,)),
    (sf.Unit3, (2,)),
    (sf.V3, (3,)),
    (sf.V2, (2,)),
)


def tangent_parts(declared: Any) -> tuple[range, ...]:
    """The parts of a type's tangent that have two or more scalars of one unit, in order.

    Of a dataclass, those of its fields. Vectors of two and three scalars are taken for places;
    what longer ones hold is not known.
    """
    if not inspect.isclass(declared):
        return ()
    sizes = next((sizes for base, sizes in _PARTS if issubclass(declared, base)), None)
    if sizes is not None:
        ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
        parts = (range(end - size, end) for size, end in zip(sizes, ends, strict=True))
        return tuple(part for part in parts if len(part) > 1)
    found: list[range] = []
    first = 0
    for kind in field_types(declared):
        found += [range(first + part.start, first + part.stop) for part in tangent_parts(kind)]
        first += LieGroupOps.tangent_dim(kind)
    return tuple(found)
