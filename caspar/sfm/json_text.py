"""Read JSON without trust: bounded in size, and only what its fields call for.

Input: a stream, plain or packed. Output: Python objects; `Fields` reads them with messages that say
where something is wrong. Cost: as `json.loads`.
"""

import codecs
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from caspar.errors import FileFormatError
from caspar.io.compressed import open_for_reading

LARGEST_BYTES = 1 << 30
"""The largest file that is read; its Python objects take several times as much memory."""

_CHUNK_BYTES = 1 << 20
_SHOWN = 60


def read_json(path: str) -> Any:
    """Read a file of JSON.

    Raises a `FileFormatError` if it is none, too large or too deeply nested, or has NaN or
    infinity.
    """
    with open_for_reading(path) as stream:
        text = _text(stream, path)
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object_of_pairs)
    except RecursionError as error:
        raise FileFormatError(f"{path}: the JSON is nested too deeply") from error
    except ValueError as error:
        raise FileFormatError(f"{path}: this is no JSON: {_short(str(error))}") from error


def _text(stream: io.BufferedIOBase, path: str) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    parts: list[str] = []
    num_bytes = 0
    while True:
        chunk = stream.read(_CHUNK_BYTES)
        num_bytes += len(chunk)
        if b"\0" in chunk:  # /dev/zero, or UTF-16
            raise FileFormatError(f"{path}: this is no JSON: it has a NUL byte")
        if num_bytes > LARGEST_BYTES:
            raise FileFormatError(
                f"{path}: the file is larger than {LARGEST_BYTES} bytes, the limit for JSON"
            )
        try:
            parts.append(decoder.decode(chunk, final=not chunk))
        except UnicodeDecodeError as error:
            raise FileFormatError(f"{path}: this is no JSON: it is no UTF-8 text") from error
        if not chunk:
            return "".join(parts)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it has the number {name}")


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object, refusing a name that is there twice: `dict` would lose the first one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object has the name {twice!r:.60} twice")
    return found


def _short(text: str) -> str:
    return text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN]}..."


class Fields:
    """An object of JSON, read field by field; errors say which field of what is wrong."""

    def __init__(self, value: Any, where: str, path: str) -> None:
        """Take an object; a `FileFormatError` if it is none."""
        self._path = path
        self._where = where
        if not isinstance(value, dict):
            raise self.error(f"must be an object, not {_kind(value)}")
        self._value: Mapping[str, Any] = value

    def error(self, wrong: str) -> FileFormatError:
        """Say what is wrong with this object."""
        where = _short(self._where).encode("ascii", "backslashreplace").decode()
        return FileFormatError(f"{self._path}: {where} {wrong}")

    def __contains__(self, name: str) -> bool:
        """Tell whether there is such a field."""
        return name in self._value

    def any(self, name: str) -> Any:
        """Return a field; a `FileFormatError` if there is none."""
        if name not in self._value:
            raise self.error(f"has no field {name!r}")
        return self._value[name]

    def items(self) -> Iterator[tuple[str, "Fields"]]:
        """Yield the objects of this one, by name."""
        for name, value in self._value.items():
            yield name, Fields(value, f"{self._where}[{name!r}]", self._path)

    def object(self, name: str) -> "Fields":
        """Return a field that is an object."""
        return Fields(self.any(name), f"{self._where}.{name}", self._path)

    def list(self, name: str) -> list["Fields"]:
        """Return a field that is a list of objects."""
        value = self.any(name)
        if not isinstance(value, list):
            raise self.error(f"has a field {name!r} that must be a list, not {_kind(value)}")
        return [
            Fields(one, f"{self._where}.{name}[{place}]", self._path)
            for place, one in enumerate(value)
        ]

    def text(self, name: str) -> str:
        """Return a field that is a text."""
        value = self.any(name)
        if not isinstance(value, str):
            raise self.error(f"has a field {name!r} that must be a text, not {_kind(value)}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a field that is a finite number."""
        if default is not None and name not in self._value:
            return default
        return float(self._finite(name, self.any(name)))

    def integer(self, name: str, limit: int) -> int:
        """Return a field that is an integer from 0 to a limit."""
        value = self.any(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
            raise self.error(f"has a field {name!r} that must be an integer from 0 to {limit}")
        return value

    def numbers(self, name: str, *shape: int) -> NDArray[np.float64]:
        """Return a field that is a list of finite numbers, or a list of such lists."""
        value = self.any(name)
        rows = value if len(shape) == 2 else [value]
        if not isinstance(rows, list) or (len(shape) == 2 and len(rows) != shape[0]):
            raise self.error(f"has a field {name!r} that must be {shape[0]} lists")
        for row in rows:
            if not isinstance(row, list) or len(row) != shape[-1]:
                raise self.error(f"has a field {name!r} that must be {shape[-1]} numbers")
        found = [[self._finite(name, one) for one in row] for row in rows]
        return np.array(found, np.float64).reshape(shape)

    def _finite(self, name: str, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        try:
            if is_number and math.isfinite(float(value)):
                return float(value)
        except OverflowError:
            pass
        raise self.error(f"has a field {name!r} that must be finite numbers, not {_kind(value)}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value"}
    return names.get(type(value), "nothing" if value is None else f"{value!r:.40}")
