"""Functions of floats, which `test_traced` traces into a graph."""

import math

LEAST = 2.0


def choice(a: float, b: float) -> float:
    """Nested choices; both sides are computed."""
    return a if a < b else (b if 0.0 < b <= LEAST else -a)


def first(a: float, b: float) -> float:
    """The first condition that holds."""
    if a > b and not a > LEAST:
        return a
    if b == LEAST:
        return b + 1.0
    if not math.isfinite(b):
        return 7.0
    a = a + 1.0
    return max(a, min(b, LEAST))


def first_kept(a: float, b: float) -> float:
    """What a condition and its value say is from before the names mean something else."""
    if a < b:
        return a
    a = a + b
    return a


def truth(a: float, b: float) -> float:
    """A choice between truth values."""
    is_small = a < LEAST if b > 1.0 else a != b
    return 1.0 if is_small else 0.0


def known(a: float, b: float, is_square: bool = True) -> float:
    """What is known while the text is traced."""
    if is_square:
        a = a * a
    return a if (is_square and a > b) or not is_square else b


def unknown(a: float, b: float) -> float:
    """A statement that depends on a number."""
    if a > b:
        a = b
    return a
