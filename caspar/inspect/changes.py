"""Show how a pass changed a graph: the calls it took away and those it put in.

A pass numbers all values anew. So values of the two graphs are matched by their numbers for two
arbitrary inputs: x^2 and x x are the same value, and calls that read it have not changed.
Conditions and what depends on one piece by piece may agree there by chance, and a number may not be
defined there: these are matched by their call. Linear in the size of the graphs.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from caspar.ir.evaluate import OP_FUNCTIONS
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import OP_INFO, Op
from caspar.ir.program import Instruction
from caspar.ir.text import print_instruction

_Key = str
"""Equal for equal values."""

_NUM_INPUTS = 2
_LOWEST, _HIGHEST = 0.1, 0.9
"""Inputs are from here: logarithms, roots, arcsine and arccosine are defined."""

_DIGITS = 9
"""Far more than agree by chance, far fewer than a sum in another order changes."""

_PIECEWISE = (Op.ABS, Op.SIGN, Op.COPYSIGN, Op.FLOOR, Op.MIN, Op.MAX, Op.SELECT)


@dataclass(frozen=True)
class _Keyed:
    graph: Graph
    values: tuple[_Key, ...]
    calls: tuple[_Key, ...]


def graph_changes(before: Graph, after: Graph) -> list[str]:
    """The calls that only one of two graphs has: `- ` before, `+ ` after; none: nothing changed.

    Values have their names in `before`; new ones are numbered from there on. Literals stand in the
    calls that read them. A new value stands before the first call that makes a known one.
    """
    old, new = _keyed(before), _keyed(after)
    lines = [
        ((place, 0, place), "- " + _line(before.calls[place], before, range(before.num_values)))
        for place in _only_first(old, new)
    ]
    places = _places(old, new)
    names = _names(old, new, places)
    lines += [
        ((places[number], 1, number), "+ " + _line(after.calls[number], after, names))
        for number in _only_first(new, old)
    ]
    return [line for _, line in sorted(lines)]


def _only_first(first: _Keyed, second: _Keyed) -> list[int]:
    """Indices of the calls that the second graph does not have, or not so often; no literals."""
    left = Counter(second.calls)
    only = []
    for number, key in enumerate(first.calls):
        left[key] -= 1
        if left[key] < 0 and first.graph.calls[number].op is not Op.CONST:
            only.append(number)
    return only


def _places(old: _Keyed, new: _Keyed) -> list[int]:
    """Find the old call that makes the same as each new call, or as the next new one."""
    made = {_made(call, old.values): n for n, call in reversed([*enumerate(old.graph.calls)])}
    places, place = [], len(old.graph.calls)
    for call in reversed(new.graph.calls):
        place = made.get(_made(call, new.values), place)
        places.append(place)
    return places[::-1]


def _names(old: _Keyed, new: _Keyed, places: Sequence[int]) -> list[int]:
    """The name of each value of the new graph; new ones are numbered in the order of lines."""
    known: dict[_Key, int] = {}
    for value, key in enumerate(old.values):
        known.setdefault(key, value)
    unused = count(old.graph.num_values)
    for number in sorted(range(len(places)), key=places.__getitem__):
        call = new.graph.calls[number]
        for key in (new.values[value] for value in call.outputs if call.op is not Op.CONST):
            if key not in known:
                known[key] = next(unused)
    return [known.get(key, value) for value, key in enumerate(new.values)]


def _made(call: Call, keys: tuple[_Key, ...]) -> _Key:
    return repr(call.data) if call.op is Op.STORE else keys[call.outputs[0]]


def _line(call: Call, graph: Graph, names: Sequence[int]) -> str:
    producers = [graph.call_of(value) for value in call.operands]
    operands = (
        made.data if isinstance(made.data, float) else f"v{names[value]}"
        for value, made in zip(call.operands, producers, strict=True)
    )
    outputs = tuple(f"v{names[value]}" for value in call.outputs)
    shown = Instruction(call.op, outputs, tuple(operands), call.data, call.origin)
    return print_instruction(shown)


# -- keys ------------------------------------------------------------------------------------------


def _keyed(graph: Graph) -> _Keyed:
    keys: list[_Key] = []
    calls: list[_Key] = []
    numbers: list[NDArray[np.float64]] = []
    for call in graph.calls:
        read = [keys[value] for value in call.operands]
        operands = sorted(read) if OP_INFO[call.op].commutative else read
        calls.append(f"{call.op.name} {call.data} {' '.join(operands)}")
        worth = _evaluate(call, [numbers[value] for value in call.operands])
        numbers += worth
        keys += [_key(call.op, number, f"({calls[-1]})[{n}]") for n, number in enumerate(worth)]
    return _Keyed(graph, tuple(keys), tuple(calls))


def _key(op: Op, number: NDArray[np.float64], call: _Key) -> _Key:
    if OP_INFO[op].boolean or op in _PIECEWISE or not np.isfinite(number).all():
        return call
    return ",".join(f"{entry:.{_DIGITS}g}" for entry in number)


def _evaluate(call: Call, operands: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    if call.op is Op.STORE:
        return []
    if call.op is Op.CONST:
        return [np.full(_NUM_INPUTS, call.data, np.float64)]
    if call.op is Op.EXCHANGE:
        return operands
    if call.op is Op.GATHER:  # any function of the places
        return [np.sin(sum(operands, start=np.float64(random.Random(f"{call.data}").random())))]
    if call.op is Op.READ:
        inputs = (random.Random(f"{call.data} {n}") for n in range(len(call.outputs)))
        return [
            np.array([source.uniform(_LOWEST, _HIGHEST) for _ in range(_NUM_INPUTS)])
            for source in inputs
        ]
    with np.errstate(all="ignore"):
        made = OP_FUNCTIONS[call.op](*operands)
    return [np.asarray(x, np.float64) for x in (made if isinstance(made, tuple) else (made,))]
