"""The functions that camera models are written in, for symbols and for arrays.

A formula that takes an `Arithmetic` runs on SymForce's expressions and on NumPy arrays alike, so
that the factors and the NumPy evaluation of a camera model cannot disagree.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import symforce.symbolic as sf


@dataclass(frozen=True)
class Arithmetic:
    """Functions of scalars, either symbolic or arrays; `where` takes the first if it holds."""

    sqrt: Callable[[Any], Any]
    sin: Callable[[Any], Any]
    cos: Callable[[Any], Any]
    tan: Callable[[Any], Any]
    atan: Callable[[Any], Any]
    atan2: Callable[[Any, Any], Any]
    floor: Callable[[Any], Any]
    minimum: Callable[[Any, Any], Any]
    absolute: Callable[[Any], Any]
    where: Callable[[Any, Any, Any], Any]


def _piecewise(condition: Any, value: Any, otherwise: Any) -> Any:
    return sf.Piecewise((value, condition), (otherwise, True))


SYMBOLIC = Arithmetic(
    sqrt=sf.sqrt,
    sin=sf.sin,
    cos=sf.cos,
    tan=sf.tan,
    atan=sf.atan,
    atan2=lambda y, x: sf.atan2(y, x, epsilon=0),
    floor=sf.floor,
    minimum=sf.Min,
    absolute=sf.Abs,
    where=_piecewise,
)

NUMERIC = Arithmetic(
    sqrt=np.sqrt,
    sin=np.sin,
    cos=np.cos,
    tan=np.tan,
    atan=np.arctan,
    atan2=np.arctan2,
    floor=np.floor,
    minimum=np.minimum,
    absolute=np.abs,
    where=np.where,
)
