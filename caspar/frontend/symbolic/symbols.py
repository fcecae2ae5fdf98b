"""Symbols of values: no two scalars have one symbol, whatever types and arguments are called."""

from typing import Any

import symforce.symbolic as sf
from symforce.ops import StorageOps

from caspar.frontend.symbolic.epsilon import SYMBOL


def with_own_symbols(symbolic: Any, name: str, taken: set[str]) -> Any:
    """A value whose symbols nothing else has.

    SymForce makes their names of that of the value, with parts behind an underscore: `q_x` of a
    rotation `q` may be another argument, and `q_x` beside `q` another field of a dataclass. Names
    stay where they are unique, since the order of an expression's terms depends on them. Else they
    are the name, a dot and a number, which is never the name of a field.

    Args:
        symbolic: A value of symbols, as SymForce makes it.
        name: What symbols of nothing else begin with, if a dot follows.
        taken: Names of symbols that are something else's; those of the value are added.
    """
    taken.add(str(SYMBOL))
    symbols = list(map(str, StorageOps.to_storage(symbolic)))
    if len({*symbols}) < len(symbols) or not taken.isdisjoint(symbols):
        symbols = [f"{name}.{number}" for number in range(len(symbols))]
        symbolic = StorageOps.from_storage(symbolic, list(map(sf.Symbol, symbols)))
    taken.update(symbols)
    return symbolic
