"""Print a trace as text: arguments with kinds and sizes, results as expressions.

Sub-expressions that occur more than once are named, as they would be written by hand: a residual
is short, but its expression written out is not.
"""

from collections.abc import Sequence
from dataclasses import fields
from itertools import count
from typing import Any

import symforce.symbolic as sf

from caspar.frontend.factors.trace import Argument, NodeType, TracedFactor
from caspar.frontend.kernels.trace import KernelInput, KernelOutput, TracedKernel
from caspar.frontend.symbolic.lines import Lines
from caspar.memory.access import Accessor

_NAME = "x"


def print_factor(factor: TracedFactor) -> str:
    """A traced factor: one line for each argument, named sub-expression and residual row."""
    lines = [f"factor {factor.name}: {len(factor.residual)} residual rows"]
    lines += [f"  {_argument(argument)}" for argument in factor.inputs]
    symbols = [symbol for argument in factor.arguments for symbol in argument.symbols]
    names = _numbered("residual", len(factor.residual))
    lines += _expressions(names, factor.residual, symbols, _comments(factor.residual, factor.lines))
    if factor.loss is not None:
        lines.append(f"  loss {factor.loss.name} = {factor.loss.expression}")
    return "\n".join(lines) + "\n"


def print_retraction(node: NodeType) -> str:
    """A node type and its retraction: the storage after a step in its tangent space."""
    storage, step, moved = node.retracted_storage(node.name.lower())
    lines = [f"node type {node.name}: storage {node.storage_dim}, tangent {node.tangent_dim}"]
    lines += [f"  storage: {_names(storage)}", f"  step: {_names(step)}"]
    names = _numbered("moved", len(moved))
    lines += _expressions(names, moved, storage + step, [""] * len(moved))
    return "\n".join(lines) + "\n"


def print_kernel(kernel: TracedKernel) -> str:
    """A traced kernel: arguments and outputs with their access, sub-expressions, output scalars."""
    symbols = [symbol for one in kernel.inputs for part in one.parts for symbol in part.symbols]
    rows = [row for one in kernel.outputs for row in one.rows]
    names = [name for one in kernel.outputs for name in _scalar_names(one)]
    lines = [f"kernel {kernel.name}: {len(kernel.inputs)} arguments, {len(kernel.outputs)} outputs"]
    for one in kernel.inputs:
        halves = "; ".join(_names(part.symbols) for part in one.parts)
        lines.append(f"  {_declared(one)}, storage {one.storage_dim}: {halves}")
    lines += [f"  {_declared(one)}, storage {one.storage_dim}" for one in kernel.outputs]
    lines += _expressions(names, rows, symbols, _comments(rows, kernel.lines))
    return "\n".join(lines) + "\n"


def declared_text(name: str, type_name: str, access: Accessor) -> str:
    """An argument or output of a kernel with its type and access: `x: V3 ReadSequential`."""
    declared = f"Pair[{type_name}]" if access.is_pair else type_name
    return f"{name}: {declared} {access_text(access)}"


def access_text(access: Accessor) -> str:
    """An access as its marker is written, without what it has by default."""
    set_fields = [
        f"{one.name}={value!r}"
        for one in fields(access)  # type: ignore[arg-type]
        if (value := getattr(access, one.name)) != one.default
    ]
    return access.name + (f"({', '.join(set_fields)})" if len(set_fields) > 0 else "")


def _declared(one: KernelInput | KernelOutput) -> str:
    return declared_text(one.name, one.type_name, one.access)


def _scalar_names(output: KernelOutput) -> list[str]:
    """A name for each row of an output."""
    if not output.access.is_pair:
        return _numbered(output.name, output.storage_dim)
    halves = (f"{output.name}.first", f"{output.name}.second")
    return [name for half in halves for name in _numbered(half, output.storage_dim)]


def _numbered(name: str, size: int) -> list[str]:
    return [f"{name}[{number}]" for number in range(size)]


def _comments(rows: Sequence[Any], lines: Lines) -> list[str]:
    """The user's line of each row, where it is known."""
    origins = [lines.of.get(row) for row in rows]
    return ["" if line is None else f"  # {line.origin}" for line in origins]


def _argument(argument: Argument) -> str:
    sizes = f"storage {argument.storage_dim}"
    kind = argument.kind.value
    if argument.node is not None:
        kind += f" {argument.node_type.name}"
        sizes += f", tangent {argument.tangent_dim}"
    return f"{argument.source}: {kind}, {sizes}: {_names(argument.symbols)}"


def _names(symbols: Sequence[Any]) -> str:
    return ", ".join(map(str, symbols))


def _expressions(
    names: Sequence[str], rows: Sequence[Any], symbols: Sequence[Any], comments: Sequence[str]
) -> list[str]:
    """Named sub-expressions, then the rows, each with its comment."""
    taken = {str(symbol) for symbol in symbols}
    prefix = _NAME
    while any(symbol.startswith(prefix) for symbol in taken):
        prefix += "_"
    shared, short = sf.cse(list(rows), (sf.Symbol(f"{prefix}{number}") for number in count()))
    lines = [f"  {symbol} = {expression}" for symbol, expression in shared]
    lines += [
        f"  {name} = {row}{comment}"
        for name, row, comment in zip(names, short, comments, strict=True)
    ]
    return lines
