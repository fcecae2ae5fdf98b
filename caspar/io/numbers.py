"""Parse long runs of numbers in text, fast, and find the place of one that is wrong.

Input: bytes of text in which white space separates numbers. Output: float64 arrays.
Cost: 0.1 to 0.2 microseconds a number, in memory-bounded chunks; once per file.
"""

import io
import re
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caspar.io.compressed import FilePath, open_for_reading

_CHUNK_BYTES = 1 << 24
_LAST_SPACE = re.compile(rb"\s\S*\Z")
_NUMBER = re.compile(
    rb"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf|infinity|nan)", re.IGNORECASE
)
_SHOWN_BYTES = 40


@dataclass(frozen=True, eq=False)
class NumberRun:
    """The numbers of a stream, up to its end, the first token that is none, or a limit.

    Attributes:
        values: (num_values,) float64; NaN and infinities are passed on as such.
        stray: the token that is not a number and ended the run; None if there was none.
    """

    values: NDArray[np.float64]
    stray: bytes | None


def read_numbers(stream: io.BufferedIOBase, limit: int) -> NumberRun:
    """Read the numbers of a stream.

    Args:
        stream: text in which white space separates numbers.
        limit: no chunk is read any more once there are more numbers than this, so that a wrong
            count in a header does not cost the reading of everything behind it.

    Returns:
        All numbers up to the end, the first token that is not a number, or somewhat past limit.
    """
    parts: list[NDArray[np.float64]] = []
    num_values = 0
    pending = b""
    while num_values <= limit:
        chunk = stream.read(_CHUNK_BYTES)
        text = pending + chunk
        pending = b""
        # A number may go on in the next chunk: keep back what follows the last white space. A
        # chunk without any is no run of numbers, and goes to the parser as it is.
        last_space = _LAST_SPACE.search(text, max(0, len(text) - 4096)) if chunk else None
        if last_space is not None:
            text, pending = text[: last_space.start()], text[last_space.start() :]
        run = parse_numbers(text)
        parts.append(run.values)
        num_values += len(run.values)
        if run.stray is not None:
            return NumberRun(np.concatenate(parts), run.stray)
        if not chunk:
            break
    return NumberRun(np.concatenate(parts), None)


def parse_numbers(text: bytes) -> NumberRun:
    """Parse the numbers of a text, up to its end or the first token that is not a number.

    Args:
        text: white space separates the numbers.

    Returns:
        The numbers, correctly rounded to float64.
    """
    tokens = text.split()
    if not tokens:
        return NumberRun(np.empty(0), None)
    try:
        # What NumPy does with text that it cannot read has changed: it stopped there with a
        # warning, and now raises. Either way the number of tokens tells whether all was read.
        # Making an array from the tokens takes as long as splitting and this together, and far
        # more memory if one of them is long.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            values = np.fromstring(text, dtype=np.float64, sep=" ")
        if len(values) == len(tokens):
            return NumberRun(values, None)
    except ValueError:
        pass
    num_good = next(
        (index for index, token in enumerate(tokens) if _NUMBER.fullmatch(token) is None),
        len(tokens),
    )
    values = np.array([float(token) for token in tokens[:num_good]], dtype=np.float64)
    return NumberRun(values, tokens[num_good] if num_good < len(tokens) else None)


def line_of_token(path: FilePath, token_index: int) -> int:
    """Read a file again to tell in which line a token stands (for messages only).

    Args:
        path: the file, plain or packed.
        token_index: the token's place among all of the file, counting from 0.

    Returns:
        The line, counting from 1; the last one if the file has fewer tokens.
    """
    line_number = 0
    num_tokens = 0
    with open_for_reading(path) as stream:
        for line_number, line in enumerate(stream, start=1):  # noqa: B007 (wanted after the loop)
            num_tokens += len(line.split())
            if num_tokens > token_index:
                break
    return line_number


def shown(token: bytes) -> str:
    """Make a token from a file fit for a message: quoted, shortened, nothing unprintable.

    Args:
        token: the bytes as found.

    Returns:
        Its text between quotes, with escapes for what is not plain ASCII.
    """
    text = repr(token[:_SHOWN_BYTES])[1:]
    return text if len(token) <= _SHOWN_BYTES else f"{text}... ({len(token)} bytes)"
