"""LLVM IR from the text of a kernel for the processor.

Kernels are written in a small part of Python, see `codegen.cpu.kernel`. It is translated in one
pass: a name has the type of the first value that it is given.

* Types: int64, bool, float32, float64, and pointers to what arrays hold. Entries of int32 and
  uint16 arrays are int64 once they are read. An operation of two types is done in the wider one;
  what is stored is rounded to the type of the array.
* Integers do not overflow, and are not negative where they are divided or shifted.
* `and` and `or` look at both sides; `a if b else c` computes one of the two.
* Nothing is exchanged for a faster operation that rounds differently.

Input: the text, with one function of a parameter table and a tile. Output: a module for LLVM 20 or
later, whose function has the same two arguments.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from caspar.codegen.llvm.instructions import (
    BITS,
    FUNCTIONS,
    INTRINSICS,
    LIBM,
    SUFFIX,
    Instructions,
    Value,
    literal,
    quoted,
)
from caspar.errors import CompileError
from caspar.ir.traced import parsed

Call = Callable[[Instructions, Sequence[Value], str], Value]
"""Writes a call with operands and a hint for the name of its result."""


def write_call(write: Instructions, name: str, operands: Sequence[Value], hint: str) -> Value:
    """Write a call; a `CompileError` if there is no such function."""
    if name in INTRINSICS or name in LIBM:
        return _function(write, name, operands, hint)
    call = _CALLS.get(name)
    if call is None:
        raise CompileError(f"kernels for the processor have no function {name!r}")
    return call(write, operands, hint)


def _function(write: Instructions, name: str, operands: Sequence[Value], hint: str) -> Value:
    """A function of numbers of one type, which is the result's."""
    kind = operands[0].type
    if name in INTRINSICS:
        symbol = f"llvm.{INTRINSICS[name]}.{BITS[kind]}"
    else:
        symbol = f"{name}{SUFFIX[kind]}"
    return _pure(write, symbol, kind, operands, hint)


def _pure(
    write: Instructions, symbol: str, kind: str, operands: Sequence[Value], hint: str
) -> Value:
    """The result of a function that only its operands determine."""
    types = ", ".join(operand.type for operand in operands)
    write.declared.add(f"declare {kind} @{symbol}({types}) nounwind willreturn memory(none)")
    return _call(write, symbol, kind, operands, hint)


def _call(
    write: Instructions, symbol: str, kind: str, operands: Sequence[Value], hint: str
) -> Value:
    passed = ", ".join(
        f"{'ptr' if operand.type.endswith('*') else operand.type} {operand.text}"
        for operand in operands
    )
    return write.result(f"call {kind} @{symbol}({passed})", kind, hint)


def _select(write: Instructions, operands: Sequence[Value], hint: str) -> Value:
    condition, if_true, if_false = operands
    return write.choose(condition, if_true, if_false, hint)


def _min(write: Instructions, operands: Sequence[Value], hint: str) -> Value:
    first, second = operands
    return write.choose(write.compare("<", first, second), first, second, hint)


def _keeping_nan(comparison: str) -> Call:
    """The operand that wins a comparison; the first one if that is not a number."""

    def call(write: Instructions, operands: Sequence[Value], hint: str) -> Value:
        first, second = operands
        wins = write.compare(comparison, first, second)
        is_nan = write.compare("!=", first, first)
        either = write.result(f"or i1 {wins.text}, {is_nan.text}", "i1")
        return write.choose(either, first, second, hint)

    return call


def _sign(write: Instructions, operands: Sequence[Value], hint: str) -> Value:
    """-1, 0 or 1; what is not a number stays so."""
    (number,) = operands
    zero = literal(0.0, number.type)
    sign = write.choose(write.compare("==", number, zero), zero, number)
    for comparison, one in (("<", -1.0), (">", 1.0)):
        holds = write.compare(comparison, number, zero)
        sign = write.choose(holds, literal(one, number.type), sign)
    return sign


def _ldexp(write: Instructions, operands: Sequence[Value], hint: str) -> Value:
    number, exponent = operands
    narrow = write.result(f"trunc i64 {exponent.text} to i32", "i32 signext")
    return _pure(write, f"ldexp{SUFFIX[number.type]}", number.type, [number, narrow], hint)


def _float_of_half(write: Instructions, operands: Sequence[Value], hint: str) -> Value:
    write.called.add("float_of_half")
    return _call(write, "float_of_half", "float", operands, hint)


def _half_of_float(write: Instructions, operands: Sequence[Value], hint: str) -> Value:
    write.called.add("half_of_float")
    return _call(write, "half_of_float", "i64", operands, hint)


def _sum_partials(write: Instructions, operands: Sequence[Value], hint: str) -> Value:
    symbol = f"sum_partials_{operands[0].type.removesuffix('*')}"
    write.called.add(symbol)
    return _call(write, symbol, "double", operands, hint)


def _zeros(write: Instructions, operands: Sequence[Value], hint: str) -> Value:
    (length,) = operands
    write.declared |= {"declare ptr @calloc(i64, i64)", "declare void @free(ptr)"}
    return write.result(f"call ptr @calloc(i64 {length.text}, i64 8)", "double*", hint)


_CALLS: Mapping[str, Call] = {
    "float_of_half": _float_of_half,
    "half_of_float": _half_of_float,
    "ldexp": _ldexp,
    "max_nan": _keeping_nan(">"),
    "min": _min,
    "min_nan": _keeping_nan("<"),
    "select": _select,
    "sign": _sign,
    "sum_partials": _sum_partials,
    "zeros": _zeros,
}


_OPS: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.RShift: ">>",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.And: "&",
    ast.Or: "|",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}

_POINTERS = {
    "as_float32": "float*",
    "as_float64": "double*",
    "as_int32": "i32*",
    "as_int64": "i64*",
    "as_uint16": "i16*",
}
"""Functions that turn an entry of the parameter table into a pointer, and the type of it."""

_CASTS = {"float32": "float", "float64": "double", "int": "i64"}

_ARRAYS = {"array_float32": "float", "array_float64": "double"}
"""Functions that make an array for a call of the kernel; its number of entries is a literal."""


def llvm_module(text: str, symbol: str) -> str:
    """Translate a kernel; a `CompileError` if the text holds something that kernels do not have."""
    *constants, definition = parsed(text).body
    if not isinstance(definition, ast.FunctionDef):
        raise _unknown(definition)
    translator = _Translator()
    translator.statements(constants)
    function = translator.function(definition, symbol)
    write = translator.write
    own = [body for name, body in FUNCTIONS.items() if name in write.called]
    return "\n".join((*own, *sorted(write.declared), function))


def _unknown(node: ast.AST) -> CompileError:
    return CompileError(f"kernels for the processor do not have {ast.unparse(node)!r}")


def _number(node: ast.expr) -> float | None:
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -float(value)
    return None


def _assigned(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """Names that statements give a value, each as often as one does."""
    for node in statements:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AugAssign(target=ast.Name(id=name)):
                yield name
            case ast.For() | ast.If() | ast.While():
                yield from _assigned(node.body)
                yield from _assigned(node.orelse)


class _Translator:
    """Translates one module; `write` is what it appends instructions to."""

    def __init__(self) -> None:
        self.write = Instructions()
        self._values: dict[str, Value] = {}
        self._cells: dict[str, Value] = {}  # of names that are given several values
        self._several: set[str] = set()
        self._entry: list[str] = []
        self._latches: list[str] = []  # where `continue` jumps to, of each loop we are in
        self._borrowed: list[Value] = []  # memory to give back
        self._statements: Mapping[type, Callable[[Any], None]] = {
            ast.Assign: self._assign,
            ast.AugAssign: self._update,
            ast.Continue: self._continue,
            ast.For: self._loop,
            ast.If: self._if,
            ast.Pass: lambda node: None,
            ast.Return: self._return,
            ast.While: self._repeat,
        }
        self._expressions: Mapping[type, Callable[[Any, str], Value]] = {
            ast.BinOp: self._binary,
            ast.BoolOp: self._logic,
            ast.Call: self._call,
            ast.Compare: self._compare,
            ast.Constant: self._constant,
            ast.IfExp: self._either,
            ast.Name: self._name,
            ast.Subscript: lambda node, hint: self.write.load(self._place(node), hint),
            ast.UnaryOp: self._unary,
        }

    def function(self, definition: ast.FunctionDef, symbol: str) -> str:
        table, tile = (argument.arg for argument in definition.args.args)
        self._values |= {table: Value(f"%{table}", "i64*"), tile: Value(f"%{tile}", "i64")}
        times = Counter(_assigned(definition.body))
        self._several = {name for name, count in times.items() if count > 1}
        self.statements(definition.body)
        self._leave()
        header = f"define void @{quoted(symbol)}(ptr %{table}, i64 %{tile}) nounwind {{"
        return "\n".join((header, "entry:", *self._entry, *self.write.lines, "}\n"))

    # -- statements --------------------------------------------------------------------------------

    def statements(self, nodes: list[ast.stmt]) -> None:
        for node in nodes:
            translate = self._statements.get(type(node))
            if translate is None:
                raise _unknown(node)
            translate(node)

    def _assign(self, node: ast.Assign) -> None:
        (target,) = node.targets
        if isinstance(target, ast.Subscript):
            self.write.store(self._place(target), self._value(node.value))
        elif not isinstance(target, ast.Name):
            raise _unknown(node)
        elif target.id in self._several:
            self._set(target.id, self._value(node.value))
        else:
            self._values[target.id] = self._value(node.value, target.id)

    def _update(self, node: ast.AugAssign) -> None:
        op = _OPS[type(node.op)]
        if isinstance(node.target, ast.Subscript):
            place = self._place(node.target)
            updated = self.write.binary(op, self.write.load(place), self._value(node.value))
            self.write.store(place, updated)
        elif isinstance(node.target, ast.Name):
            previous = self._name(node.target, "")
            self._set(node.target.id, self.write.binary(op, previous, self._value(node.value)))
        else:
            raise _unknown(node)

    def _set(self, name: str, value: Value) -> None:
        cell = self._cells.get(name)
        if cell is None:
            cell = self._cells[name] = Value(f"%{quoted(name)}", f"{value.type}*")
            self._entry.append(f"  {cell.text} = alloca {value.type}")
        self.write.store(cell, value)

    def _loop(self, node: ast.For) -> None:
        if not isinstance(node.iter, ast.Call) or not isinstance(node.target, ast.Name):
            raise _unknown(node)
        write = self.write
        *begin, end = (self._value(bound) for bound in node.iter.args)
        head, inside, latch, after = write.labels("loop", "do", "next", "end")
        number, following = Value(write.name(), "i64"), write.name()
        first = begin[0].text if begin else "0"
        before = write.block
        write.jump(head)
        write.begin(head)
        write.emit(f"{number.text} = phi i64 [ {first}, %{before} ], [ {following}, %{latch} ]")
        write.branch(write.compare("<", number, end), inside, after)
        write.begin(inside)
        self._values[node.target.id] = number
        self._latches.append(latch)
        self.statements(node.body)
        self._latches.pop()
        write.jump(latch)
        write.begin(latch)
        write.emit(f"{following} = add nsw i64 {number.text}, 1")
        write.jump(head)
        write.begin(after)

    def _repeat(self, node: ast.While) -> None:
        write = self.write
        head, inside, after = write.labels("while", "do", "end")
        write.jump(head)
        write.begin(head)
        write.branch(self._value(node.test), inside, after)
        write.begin(inside)
        self._latches.append(head)
        self.statements(node.body)
        self._latches.pop()
        write.jump(head)
        write.begin(after)

    def _if(self, node: ast.If) -> None:
        write = self.write
        then, otherwise, end = write.labels("then", "else", "end")
        write.branch(self._value(node.test), then, otherwise)
        for label, body in ((then, node.body), (otherwise, node.orelse)):
            write.begin(label)
            self.statements(body)
            write.jump(end)
        write.begin(end)

    def _continue(self, _node: ast.Continue) -> None:
        self.write.jump(self._latches[-1])
        self.write.begin(*self.write.labels("after"))

    def _return(self, _node: ast.Return) -> None:
        self._leave()
        self.write.begin(*self.write.labels("after"))

    def _leave(self) -> None:
        for memory in self._borrowed:
            self.write.emit(f"call void @free(ptr {memory.text})")
        self.write.emit("ret void")

    # -- expressions -------------------------------------------------------------------------------

    def _value(self, node: ast.expr, hint: str = "") -> Value:
        translate = self._expressions.get(type(node))
        if translate is None:
            raise _unknown(node)
        return translate(node, hint)

    def _name(self, node: ast.Name, _hint: str) -> Value:
        cell = self._cells.get(node.id)
        if cell is not None:
            return self.write.load(cell)
        if node.id not in self._values:
            raise CompileError(f"{node.id!r} has no value yet")
        return self._values[node.id]

    def _constant(self, node: ast.Constant, _hint: str) -> Value:
        match node.value:
            case int():
                return Value(str(node.value), "i64")
            case float():
                return literal(node.value, "double")
        raise _unknown(node)

    def _binary(self, node: ast.BinOp, hint: str) -> Value:
        left, right = self._value(node.left), self._value(node.right)
        return self.write.binary(_OPS[type(node.op)], left, right, hint)

    def _logic(self, node: ast.BoolOp, _hint: str) -> Value:
        joined, *others = (self._value(operand) for operand in node.values)
        for other in others:
            joined = self.write.binary(_OPS[type(node.op)], joined, other)
        return joined

    def _unary(self, node: ast.UnaryOp, hint: str) -> Value:
        operand = self._value(node.operand)
        match node.op, operand.type:
            case ast.Not(), "i1":
                return self.write.result(f"xor i1 {operand.text}, true", "i1", hint)
            case ast.USub(), "float" | "double" as kind:
                return self.write.result(f"fneg {kind} {operand.text}", kind, hint)
        raise _unknown(node)

    def _compare(self, node: ast.Compare, hint: str) -> Value:
        (right,), (op,) = node.comparators, node.ops
        return self.write.compare(_OPS[type(op)], self._value(node.left), self._value(right), hint)

    def _either(self, node: ast.IfExp, hint: str) -> Value:
        write = self.write
        then, otherwise, end = write.labels("then", "else", "end")
        write.branch(self._value(node.test), then, otherwise)
        ways, kind = [], ""
        for label, branch in ((then, node.body), (otherwise, node.orelse)):
            write.begin(label)
            value = self._value(branch)
            kind = value.type
            ways.append(f"[ {value.text}, %{write.block} ]")
            write.jump(end)
        write.begin(end)
        return write.result(f"phi {kind} {', '.join(ways)}", kind, hint)

    def _place(self, node: ast.Subscript) -> Value:
        return self.write.place(self._value(node.value), self._value(node.slice))

    def _call(self, node: ast.Call, hint: str) -> Value:
        if not isinstance(node.func, ast.Name):
            raise _unknown(node)
        name = node.func.id
        if name in _POINTERS:
            (entry,) = node.args
            assert isinstance(entry, ast.Subscript)
            place = self._place(entry)
            return self.write.result(f"load ptr, ptr {place.text}", _POINTERS[name], hint)
        if name in _ARRAYS:
            (size,) = node.args
            return self._array(_ARRAYS[name], size)
        if name in _CASTS:
            (operand,) = node.args
            number = _number(operand)
            if number is not None:
                return literal(number, _CASTS[name])
            return self.write.cast(self._value(operand), _CASTS[name], hint)
        value = write_call(self.write, name, [self._value(part) for part in node.args], hint)
        if name == "zeros":
            self._borrowed.append(value)
        return value

    def _array(self, kind: str, size: ast.expr) -> Value:
        """Memory of the call: there once, however often a loop comes by."""
        number = _number(size)
        if number is None:
            raise _unknown(size)
        name = self.write.name()
        self._entry.append(f"  {name} = alloca [{int(number)} x {kind}]")
        return Value(name, f"{kind}*")
