"""Parse long runs of numbers in text, fast, and find the place of one that is wrong.

Input: bytes of text in which white space separates numbers. Output: float64 arrays.
Cost: 0.1 to 0.2 microseconds a number, in memory-bounded chunks; once per file.

A number is written as C prints it, in at most `LONGEST_NUMBER` characters: decimal digits with an
optional sign, point and exponent, or a name of infinity or NaN. Underscores, hexadecimal numbers
and digits of other scripts are not numbers.
"""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LONGEST_NUMBER = 1024
"""Characters of a number at most; 24 are enough for every number of float64."""

_CHUNK_BYTES = 1 << 22
_WHITE_SPACE = b" \t\n\r\x0b\x0c"
_LAST_SPACE = re.compile(rb"\s\S*\Z")
_TOKEN = re.compile(rb"\S+")
_NUMBER = re.compile(
    rb"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf|infinity|nan)", re.IGNORECASE
)
_SHOWN_BYTES = 40

# What a byte may be part of: 0 for white space, 1 for finite numbers, 2 for the rest.
_KIND = np.full(256, 2, dtype=np.uint8)
_KIND[list(b"0123456789+-.eE")] = 1
_KIND[list(_WHITE_SPACE)] = 0


@dataclass(frozen=True, eq=False)
class NumberRun:
    """The numbers of a piece of text, up to its end or `stray`, the first token that is none.

    NaN and infinities are passed on as such. Lines are counted from 1.
    """

    values: NDArray[np.float64]
    stray: bytes | None
    text: bytes
    first_line: int

    def line_of(self, index: int) -> int:
        """Return the line of a token of this piece, which may be the stray one."""
        tokens = _TOKEN.finditer(self.text)
        start = next(match.start() for place, match in enumerate(tokens) if place == index)
        return self.first_line + self.text.count(b"\n", 0, start)


def number_runs(stream: io.BufferedIOBase, first_line: int) -> Iterator[NumberRun]:
    """Read the numbers of a stream, some megabytes at a time, each byte once, in their order.

    White space separates them. The last run ends at the end of the stream or at the first token
    that is not a number.
    """
    pending = b""
    line = first_line
    is_last = False
    while not is_last:
        chunk = stream.read(_CHUNK_BYTES)
        text, pending = pending + chunk, b""
        is_last = not chunk
        if not is_last:
            # A number may go on in the next chunk: keep back what follows the last white space,
            # unless it is too long for a number already.
            last_space = _LAST_SPACE.search(text, max(0, len(text) - LONGEST_NUMBER - 1))
            end = 0 if last_space is None else last_space.start()
            if len(text) - end <= LONGEST_NUMBER + 1:
                text, pending = text[:end], text[end:]
        run = parse_numbers(text, line)
        yield run
        line += text.count(b"\n")
        is_last = is_last or run.stray is not None


def parse_numbers(text: bytes, first_line: int = 1) -> NumberRun:
    """Parse the numbers of a text, correctly rounded, up to the first token that is none."""
    num_tokens, longest, is_finite = _measure_tokens(text)
    if num_tokens == 0:
        return NumberRun(np.empty(0), None, text, first_line)
    if longest <= LONGEST_NUMBER and is_finite:
        try:
            # NumPy either stops at what it cannot read, with a warning, or raises, depending on its
            # version. It gives the NaN at the end only if it has read everything before it, because
            # the text itself has no letters for one. Then each token gave one number or more, so
            # that the number of tokens tells whether each gave one.
            values = np.fromstring(text + b" nan", dtype=np.float64, sep=" ")
        except (ValueError, DeprecationWarning):
            values = np.empty(0)
        if len(values) == num_tokens + 1 and np.isnan(values[-1]):
            return NumberRun(values[:-1], None, text, first_line)
    numbers: list[float] = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if len(token) > LONGEST_NUMBER or _NUMBER.fullmatch(token) is None:
            return NumberRun(np.array(numbers, dtype=np.float64), token, text, first_line)
        numbers.append(float(token))
    return NumberRun(np.array(numbers, dtype=np.float64), None, text, first_line)


def _measure_tokens(text: bytes) -> tuple[int, int, bool]:
    """Measure the tokens of a text without splitting it: four times as fast, without 40 bytes each.

    Returns their number, the length of the longest, and whether all are of such characters as
    finite numbers have.
    """
    kinds = np.zeros(len(text) + 2, dtype=np.uint8)
    kinds[1:-1] = _KIND[np.frombuffer(text, dtype=np.uint8)]
    is_token = kinds > 0
    edges = np.flatnonzero(is_token[1:] != is_token[:-1])
    starts, ends = edges[::2], edges[1::2]
    return len(starts), int(np.max(ends - starts, initial=0)), bool(np.max(kinds) < 2)


def shown(token: bytes) -> str:
    """Quote a token from a file for a message, shortened, with escapes for other than ASCII."""
    text = repr(token[:_SHOWN_BYTES])[1:]
    return text if len(token) <= _SHOWN_BYTES else f"{text}... ({len(token)} bytes)"
