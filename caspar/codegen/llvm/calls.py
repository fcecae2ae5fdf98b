"""The functions that kernels for the processor may call, as instructions of LLVM."""

from collections.abc import Callable, Mapping, Sequence

from caspar.codegen.llvm.functions import BITS, INTRINSICS, LIBM, SUFFIX
from caspar.codegen.llvm.instructions import Instructions, Value, literal
from caspar.errors import CompileError

Call = Callable[[Instructions, Sequence[Value], str], Value]
"""Writes a call with operands and a hint for the name of its result."""


def write_call(write: Instructions, name: str, operands: Sequence[Value], hint: str) -> Value:
    """Write a call.

    Args:
        write: What it is appended to.
        name: Of the function.
        operands: Of the call.
        hint: For the name of the result.

    Raises:
        CompileError: There is no such function.
    """
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
