"""Open files that may be compressed, and say in one way what is wrong with them.

Input: a path. Output: a stream of bytes, to read or to write: plain, bzip2 or gzip.
When reading, the first bytes of the file decide; the suffix only serves to notice a file that is
not what its name says. When writing, the suffix decides.
"""

import bz2
import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from caspar.errors import FileFormatError

FilePath: TypeAlias = "str | os.PathLike[str]"


class Compression(Enum):
    """How the bytes of a file are packed: (name, suffix, first bytes)."""

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
        """What every file of this kind begins with; empty for a plain file."""
        return self.value[2]


_PACKED = (Compression.BZIP2, Compression.GZIP)


@contextlib.contextmanager
def open_for_reading(path: FilePath) -> Iterator[io.BufferedIOBase]:
    """Open a file for reading its unpacked bytes.

    Args:
        path: a plain, bzip2 or gzip file.

    Yields:
        The unpacked bytes as a stream. Damage that shows only while the caller reads on is
        reported from here, too.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the path is a directory, or the packed data are damaged, cut short, or
            not of the kind that the suffix says.
    """
    # Asked before opening, because Windows reports a directory as a lack of permission.
    if os.path.isdir(path):
        raise FileFormatError(f"{os.fspath(path)}: this is a directory; a file is needed")
    with open(path, "rb") as raw:
        compression = _compression_from_content(raw, path)
        if compression is Compression.NONE:
            yield raw
            return
        try:
            if compression is Compression.BZIP2:
                with bz2.BZ2File(raw) as unpacked_bzip2:
                    yield unpacked_bzip2
            else:
                with gzip.GzipFile(fileobj=raw) as unpacked_gzip:
                    yield unpacked_gzip
        except EOFError as error:
            raise FileFormatError(
                f"{os.fspath(path)}: the {compression.label} data are cut short: the file ends "
                "before their end mark; copy or download it again"
            ) from error
        except (zlib.error, OSError) as error:
            # The decoders report damaged data as OSError without an error number; one with a
            # number is the operating system's own and says enough.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise FileFormatError(
                f"{os.fspath(path)}: the {compression.label} data are damaged ({error}); copy or "
                "download the file again"
            ) from error


@contextlib.contextmanager
def open_for_writing(path: FilePath) -> Iterator[io.BufferedIOBase]:
    """Create or replace a file, packed as its suffix says (.bz2, .gz, anything else: plain).

    The same bytes give the same file: neither a name nor a time is stored in it.

    Args:
        path: the file to write.

    Yields:
        A stream that takes the bytes to be packed.

    Raises:
        OSError: the file cannot be created.
    """
    suffix = Path(path).suffix.lower()
    with open(path, "wb") as raw:
        if suffix == Compression.BZIP2.suffix:
            with bz2.BZ2File(raw, "wb") as packed_bzip2:
                yield packed_bzip2
        elif suffix == Compression.GZIP.suffix:
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed_gzip:
                yield packed_gzip
        else:
            yield raw


def _compression_from_content(raw: io.BufferedReader, path: FilePath) -> Compression:
    """Tell the compression of an open file from its first bytes, leaving them unread."""
    head = raw.peek(max(len(kind.magic) for kind in _PACKED))
    for kind in _PACKED:
        if head.startswith(kind.magic):
            return kind
    suffix = Path(path).suffix.lower()
    for kind in _PACKED:
        if suffix == kind.suffix:
            state = "does not begin as one" if head else "is empty"
            raise FileFormatError(
                f"{os.fspath(path)}: the name says {kind.label}, but the file {state}"
            )
    return Compression.NONE
