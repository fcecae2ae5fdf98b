"""The retraction of a node type: its storage after a step in the tangent space."""

import operator
from collections.abc import Sequence
from functools import reduce

from caspar.frontend.factors.trace import NodeType
from caspar.frontend.symbolic.epsilon import SYMBOL, value
from caspar.frontend.symbolic.field_types import DIRECTION
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.scalar import Scalar, dot


def retracted(
    node: NodeType,
    storage: Sequence[Scalar],
    step: Sequence[Scalar],
    free: Sequence[Scalar] | None = None,
) -> list[Scalar]:
    """The storage of a node after a step, in a kernel.

    A number keeps its bits if all components of the tangent that could move it are held, by `free`:
    adding 0 would turn -0 into 0, and a rotation may be rounded.

    SymForce's retraction of a `Unit3` moves it also by no step, by 1e-6 in float32, since its chart
    divides by a distance plus epsilon. That part is taken away, what is left gets unit length, and
    what has no step stays.
    """
    graph = storage[0].builder
    names, tangent, moved = node.retracted_storage("node")
    symbols = {str(SYMBOL): graph.const(value(graph.dtype))}
    for symbol_list, scalars in ((names, storage), (tangent, step)):
        symbols |= {str(name): s.value for name, s in zip(symbol_list, scalars, strict=True)}
    lowering = Lowering(graph, symbols, f"node type {node.name}")
    result = [Scalar(graph, lowering.lower(entry)) for entry in moved]
    no_step = dict.fromkeys(tangent, 0)
    for part in node.unit_ranges:
        if part.meaning != DIRECTION:
            continue
        has_step = 0.0 < dot(step, step)
        places = range(part.start, part.stop)
        unmoved = [Scalar(graph, lowering.lower(moved[place].subs(no_step))) for place in places]
        direction = [
            storage[place] + (result[place] - start)
            for place, start in zip(places, unmoved, strict=True)
        ]
        scale = dot(direction, direction).sqrt().reciprocal()
        for place, entry in zip(places, direction, strict=True):
            result[place] = has_step.where(entry * scale, storage[place])
    if free is None:
        return result
    for place, entry in enumerate(moved):
        by = [moves for name, moves in zip(tangent, free, strict=True) if entry.has(name)]
        moves = reduce(operator.or_, by) if len(by) > 0 else None
        result[place] = (
            storage[place] if moves is None else moves.where(result[place], storage[place])
        )
    return result
