"""NumPy evaluators of graphs and programs: the meaning of every op, vectorised over lanes.

Input: a graph or program and one (n, dim) array for each argument it reads (one row serves all
lanes). Output: one (n, stored scalars) array for each argument it stores. Everything is computed
in the graph's dtype. For tests and for the first try of an idea, not for speed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.ir.dtype import DType
from caspar.ir.graph import CallData, Graph, TableEntry
from caspar.ir.ops import Op
from caspar.ir.program import Program

Array = NDArray[Any]


def _rcp(x: Array) -> Array:
    return np.divide(np.ones((), x.dtype), x)


def _by_element(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of Python's library, which is more accurate than SciPy's, on arrays."""
    on_objects = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(on_objects(x)).astype(x.dtype)


def _norm(*components: Array) -> Array:
    return reduce(np.hypot, components)


OP_FUNCTIONS: dict[Op, Callable[..., Array | tuple[Array, ...]]] = {
    Op.SUM: lambda *terms: sum(terms[1:], start=terms[0]),
    Op.PROD: lambda *factors: np.prod(np.broadcast_arrays(*factors), axis=0),
    Op.ADD: np.add,
    Op.SUB: np.subtract,
    Op.MUL: np.multiply,
    Op.NMUL: lambda a, b: -a * b,
    # not fused: NumPy has no fused multiply-add, so results differ from hardware by rounding
    Op.FMA: lambda a, b, c: a * b + c,
    Op.FNMA: lambda a, b, c: c - a * b,
    Op.NEG: np.negative,
    Op.DIV: np.divide,
    Op.RCP: _rcp,
    Op.POW: np.power,
    Op.SQRT: np.sqrt,
    Op.RSQRT: lambda x: _rcp(np.sqrt(x)),
    Op.CBRT: np.cbrt,
    Op.RCBRT: lambda x: _rcp(np.cbrt(x)),
    **dict.fromkeys((Op.NORM2, Op.NORM3, Op.NORM4), _norm),
    **dict.fromkeys((Op.RNORM2, Op.RNORM3, Op.RNORM4), lambda *x: _rcp(_norm(*x))),
    Op.LDEXP: lambda x, k: np.ldexp(x, np.asarray(k, np.int32)),
    Op.EXP: np.exp,
    Op.LOG: np.log,
    Op.SIN: np.sin,
    Op.COS: np.cos,
    Op.SINCOS: lambda x: (np.sin(x), np.cos(x)),
    Op.TAN: np.tan,
    Op.ASIN: np.arcsin,
    Op.ACOS: np.arccos,
    Op.ATAN: np.arctan,
    Op.ATAN2: np.arctan2,
    Op.SINH: np.sinh,
    Op.COSH: np.cosh,
    Op.TANH: np.tanh,
    Op.ASINH: np.arcsinh,
    Op.ACOSH: np.arccosh,
    Op.ATANH: np.arctanh,
    Op.ERF: _by_element(math.erf),
    Op.ERFC: _by_element(math.erfc),
    Op.ABS: np.abs,
    Op.SIGN: np.sign,
    Op.COPYSIGN: np.copysign,
    Op.FLOOR: np.floor,
    Op.MIN: np.minimum,
    Op.MAX: np.maximum,
    Op.LT: np.less,
    Op.LE: np.less_equal,
    Op.EQ: np.equal,
    Op.NE: np.not_equal,
    Op.AND: np.logical_and,
    Op.OR: np.logical_or,
    Op.NOT: np.logical_not,
    Op.SELECT: np.where,
}
"""NumPy's function for each op. MIN and MAX keep a NaN operand: it must never be compared away."""


def evaluate_graph(
    graph: Graph,
    inputs: Mapping[str, Array],
    chunk_lengths: Mapping[str, int] | None = None,
    objects: Mapping[str, NDArray[np.integer]] | None = None,
) -> dict[str, Array]:
    """Evaluate a valid graph on n lanes; what is stored, before any accumulation, by argument.

    Inputs are (n, dim) or (1, dim); of tables (1, all numbers). `chunk_lengths` are scalars of a
    full chunk in an argument's own dtype, by default of the graph's. `objects` are the (n,) object
    of each lane, of exchanges, or where its table begins; by default every lane has one of its own,
    and the first table.
    """
    memory = _Memory(graph.dtype, inputs, chunk_lengths, objects)
    values: dict[int, Array] = {}
    with np.errstate(all="ignore"):
        for call in graph.calls:
            operands = [values[value] for value in call.operands]
            results = _apply(call.op, operands, call.data, len(call.outputs), memory)
            values.update(zip(call.outputs, results, strict=True))
    return memory.stored()


def evaluate_program(
    program: Program, inputs: Mapping[str, Array], chunk_lengths: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """Evaluate a program on n lanes; arguments and result as in `evaluate_graph`."""
    memory = _Memory(program.dtype, inputs, chunk_lengths)
    registers: dict[str, Array] = {}
    with np.errstate(all="ignore"):
        for step in program.instructions:
            operands = [
                memory.constant(operand) if isinstance(operand, float) else registers[operand]
                for operand in step.operands
            ]
            results = _apply(step.op, operands, step.data, len(step.outputs), memory)
            registers.update(zip(step.outputs, results, strict=True))
    return memory.stored()


class _Memory:
    def __init__(
        self,
        dtype: DType,
        inputs: Mapping[str, Array],
        chunk_lengths: Mapping[str, int] | None,
        objects: Mapping[str, NDArray[np.integer]] | None = None,
    ) -> None:
        self._dtype = np.dtype(dtype.value)
        self._default_length = dtype.chunk_length
        self._lengths = {} if chunk_lengths is None else dict(chunk_lengths)
        self._inputs = {name: np.asarray(array, self._dtype) for name, array in inputs.items()}
        self._num_lanes = max((array.shape[0] for array in self._inputs.values()), default=1)
        self._columns: dict[str, dict[int, Array]] = {}
        self._objects = {} if objects is None else objects

    def constant(self, number: float) -> Array:
        return np.asarray(number, self._dtype)

    def read(self, argument: str, chunk: int, width: int) -> Sequence[Array]:
        first = chunk * self._lengths.get(argument, self._default_length)
        array = self._inputs[argument]
        return [array[:, column] for column in range(first, first + width)]

    def exchange(self, argument: str, scalars: Sequence[Array]) -> Sequence[Array]:
        owner = self._objects.get(argument)
        if owner is None:
            return scalars
        lanes = [np.broadcast_to(scalar, owner.shape) for scalar in scalars]
        return [np.bincount(owner, weights=lane)[owner].astype(self._dtype) for lane in lanes]

    def gather(self, entry: TableEntry, places: Sequence[Array]) -> Array:
        numbers = self._inputs[entry.argument][0]
        start = self._objects.get(entry.argument, np.zeros((), np.int64))
        number, is_inside = np.zeros_like(start), np.ones((), bool)
        for axis, place in enumerate(places):
            size = numbers[start + axis].astype(np.int64)
            is_inside = is_inside & (place >= 0) & (place <= size - 1)
            nearest = np.clip(np.nan_to_num(place), 0, size - 1).astype(np.int64)
            number = number * size + nearest
        number = start + len(places) + number * entry.num_channels + entry.channel
        found = np.ones(()) if entry.is_one_inside else numbers[number]
        return np.where(is_inside, found, 0) if entry.is_zero_outside else found

    def store(self, argument: str, chunk: int, scalars: Sequence[Array]) -> None:
        first = chunk * self._lengths.get(argument, self._default_length)
        columns = self._columns.setdefault(argument, {})
        for offset, scalar in enumerate(scalars):
            columns[first + offset] = np.broadcast_to(scalar, (self._num_lanes,))

    def stored(self) -> dict[str, Array]:
        result: dict[str, Array] = {}
        for argument, columns in self._columns.items():
            array = np.full((self._num_lanes, max(columns) + 1), np.nan, self._dtype)
            for column, scalar in columns.items():
                array[:, column] = scalar
            result[argument] = array
        return result


def _apply(
    op: Op, operands: Sequence[Array], data: CallData, num_outputs: int, memory: _Memory
) -> Sequence[Array]:
    if op is Op.CONST:
        assert isinstance(data, float)
        return [memory.constant(data)]
    if isinstance(data, TableEntry):
        return [memory.gather(data, operands)]
    if op in (Op.READ, Op.STORE, Op.EXCHANGE):
        assert isinstance(data, tuple)
        if op is Op.EXCHANGE:
            return memory.exchange(data[0], operands)
        if op is Op.READ:
            return memory.read(*data, num_outputs)
        memory.store(*data, operands)
        return []
    result = OP_FUNCTIONS[op](*operands)
    return result if isinstance(result, tuple) else [result]
