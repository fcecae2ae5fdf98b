"""Open files that may be compressed, and say in one way what is wrong with them.

Input: a path. Output: a stream of unpacked bytes: plain, bzip2 or gzip. The first bytes of the
file decide; the suffix only serves to notice a file that is not what its name says.

A file is opened once and read from its beginning to its end, without seeking: FIFOs, /dev/stdin
and process substitution work. What is unpacked is limited by what was read (`_LARGEST_RATIO`), so
that a few kilobytes cannot stand for gigabytes.
"""

import bz2
import codecs
import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from caspar.errors import FileFormatError, OptionError
from caspar.io.numbers import shown

FilePath: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"
"""A path for readers and writers; a descriptor of the process is /dev/fd/ and its number."""


def path_text(path: FilePath) -> str:
    """Check a user's path, which is text from here on.

    Raises an `OptionError` if it is of another type, such as bool or int, or no file can have that
    name.
    """
    try:
        encoded = os.fsencode(path)
    except TypeError as error:
        raise OptionError(f"path={path!r}: it must be a str, bytes or os.PathLike") from error
    except UnicodeEncodeError as error:
        raise OptionError(f"path={path!r}: no file can have that name: {error}") from error
    if b"\0" in encoded:
        raise OptionError(f"path={path!r}: no file can have that name: it has a NUL character")
    return os.fsdecode(encoded)


class Compression(Enum):
    """The compression of a file: (name, suffix, first bytes)."""

    NONE = ("plain text", "", b"")
    BZIP2 = ("bzip2", ".bz2", b"BZh")
    GZIP = ("gzip", ".gz", b"\x1f\x8b")

    @property
    def label(self) -> str:
        """Name for messages."""
        return self.value[0]

    @property
    def suffix(self) -> str:
        """File name suffix, with the dot; empty for a plain file."""
        return self.value[1]

    @property
    def magic(self) -> bytes:
        """Beginning of every file of this kind; empty for a plain file."""
        return self.value[2]


_PACKED = (Compression.BZIP2, Compression.GZIP)
_LONGEST_MAGIC = max(len(kind.magic) for kind in _PACKED)

# Numbers in text are packed to a third, very regular ones to a hundredth.
_LARGEST_RATIO = 500
_ALWAYS_UNPACKED_BYTES = 1 << 24  # so that small files of few different numbers are not refused


@contextlib.contextmanager
def open_for_reading(path: str) -> Iterator[io.BufferedIOBase]:
    """Open a file for reading its unpacked bytes, as a stream.

    Damage that shows only while the caller reads on is reported from here, too: a `FileFormatError`
    if the path is a directory, or the packed data are damaged, cut short, or not of the kind that
    the suffix says.
    """
    # Asked before opening, because Windows reports a directory as a lack of permission.
    if os.path.isdir(path):
        raise FileFormatError(f"{path}: this is a directory; a file is needed")
    with open(path, "rb", buffering=0) as file:
        source = _Source(file)
        compression = _compression_from_content(source.head(_LONGEST_MAGIC), path)
        packed = io.BufferedReader(source)
        if compression is Compression.NONE:
            yield packed
            return
        try:
            with io.BufferedReader(_Unpacked(packed, source, compression, path)) as unpacked:
                yield unpacked
        except EOFError as error:
            raise FileFormatError(
                f"{path}: the {compression.label} data are cut short: the file ends "
                "before their end mark; copy or download it again"
            ) from error
        except (zlib.error, OSError) as error:
            # The decoders report damaged data as OSError without an error number; one with a
            # number is the operating system's own and says enough.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise FileFormatError(
                f"{path}: the {compression.label} data are damaged ({error}); copy or "
                "download the file again"
            ) from error


def bounded_lines(
    stream: io.BufferedIOBase, path: str, longest: int
) -> Iterator[tuple[int, bytes]]:
    """Read lines, with numbers from 1, without the mark of UTF-8 that some editors write first.

    Raises a `FileFormatError` if a line is longer.
    """
    number = 0
    while text := stream.readline(longest + 1):
        number += 1
        if len(text) > longest:
            raise FileFormatError(
                f"{path}, line {number}: the line is longer than {longest} bytes, the limit; it "
                f"begins with {shown(text)}"
            )
        yield number, text.removeprefix(codecs.BOM_UTF8) if number == 1 else text


def _compression_from_content(head: bytes, path: str) -> Compression:
    for kind in _PACKED:
        if head.startswith(kind.magic):
            return kind
    suffix = Path(path).suffix.lower()
    for kind in _PACKED:
        if suffix == kind.suffix:
            state = "does not begin as one" if head else "is empty"
            raise FileFormatError(f"{path}: the name says {kind.label}, but the file {state}")
    return Compression.NONE


class _Source(io.RawIOBase):
    """A file whose first bytes can be looked at before they are read; it counts what is read."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._head = b""
        self.num_bytes = 0

    def head(self, size: int) -> bytes:
        """Return the first bytes, fewer only if the file has no more: a FIFO may give them singly.

        `io.BufferedReader.peek` returns what one read gives.
        """
        while len(self._head) < size and (more := self._file.read(size - len(self._head))):
            self._head += more
        return self._head

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._head:
            num_bytes = min(len(buffer), len(self._head))
            buffer[:num_bytes] = self._head[:num_bytes]
            self._head = self._head[num_bytes:]
        else:
            num_bytes = self._file.readinto(buffer)
        self.num_bytes += num_bytes
        return num_bytes


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of a file, refused once there are far too many for its size."""

    def __init__(
        self, packed: io.BufferedIOBase, source: _Source, compression: Compression, path: str
    ) -> None:
        self._source = source
        self._decoder: io.BufferedIOBase = (
            bz2.BZ2File(packed)
            if compression is Compression.BZIP2
            else gzip.GzipFile(fileobj=packed, mode="rb")
        )
        self._compression = compression
        self._path = path
        self._num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        num_bytes = self._decoder.readinto(buffer)
        self._num_bytes += num_bytes
        if self._num_bytes > max(_ALWAYS_UNPACKED_BYTES, _LARGEST_RATIO * self._source.num_bytes):
            raise FileFormatError(
                f"{self._path}: the {self._compression.label} data grow to more "
                f"than {_LARGEST_RATIO} times their size when unpacked, which text of numbers "
                "never does; if you trust the file, unpack it yourself"
            )
        return num_bytes
