"""What was traced as text: arguments with kinds and sizes, and the residual as expressions.

Sub-expressions that occur more than once are named, as they would be written by hand: a residual
is short, but its expression written out is not.
"""

from collections.abc import Sequence
from itertools import count
from typing import Any

import symforce.symbolic as sf

from caspar.frontend.trace import Argument, NodeType, TracedFactor, retracted_storage

_NAME = "x"


def print_factor(factor: TracedFactor) -> str:
    """A traced factor: one line for each argument, named sub-expression and residual row."""
    lines = [f"factor {factor.name}: {len(factor.residual)} residual rows"]
    lines += [f"  {_argument(argument)}" for argument in factor.arguments]
    symbols = [symbol for argument in factor.arguments for symbol in argument.symbols]
    origins = [factor.lines.of.get(row) for row in factor.residual]
    comments = ["" if line is None else f"  # {line.origin}" for line in origins]
    lines += _expressions("residual", factor.residual, symbols, comments)
    return "\n".join(lines) + "\n"


def print_retraction(node: NodeType) -> str:
    """A node type and its retraction: the storage after a step in its tangent space."""
    storage, step, moved = retracted_storage(node, node.name.lower())
    lines = [f"node type {node.name}: storage {node.storage_dim}, tangent {node.tangent_dim}"]
    lines += [f"  storage: {_names(storage)}", f"  step: {_names(step)}"]
    lines += _expressions("moved", moved, storage + step, [""] * len(moved))
    return "\n".join(lines) + "\n"


def _argument(argument: Argument) -> str:
    sizes = f"storage {argument.storage_dim}"
    kind = argument.kind.value
    if argument.node is not None:
        kind += f" {argument.node.name}"
        sizes += f", tangent {argument.node.tangent_dim}"
    return f"{argument.name}: {kind}, {sizes}: {_names(argument.symbols)}"


def _names(symbols: Sequence[Any]) -> str:
    return ", ".join(map(str, symbols))


def _expressions(
    name: str, rows: Sequence[Any], symbols: Sequence[Any], comments: Sequence[str]
) -> list[str]:
    """Named sub-expressions, then the rows, each with its comment."""
    taken = {str(symbol) for symbol in symbols}
    prefix = _NAME
    while any(symbol.startswith(prefix) for symbol in taken):
        prefix += "_"
    shared, short = sf.cse(list(rows), (sf.Symbol(f"{prefix}{number}") for number in count()))
    lines = [f"  {symbol} = {expression}" for symbol, expression in shared]
    lines += [
        f"  {name}[{number}] = {row}{comment}"
        for number, (row, comment) in enumerate(zip(short, comments, strict=True))
    ]
    return lines
