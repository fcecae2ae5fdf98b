"""Write a file so that the old one stays whole until the new one is complete.

Input: a path. Output: a stream of bytes to write. Every file that caspar writes for a user goes
through `open_for_replacing`. Cost: once per file, two system calls more than writing in place.

The bytes go to a temporary file in the same folder. When all of them are written, it takes the
place of the old file in one step (`os.replace`). A full disk, Ctrl-C or an error of the writer
therefore leaves the old file as it was; the temporary file is removed.
"""

import bz2
import contextlib
import errno
import gzip
import io
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from caspar.io.compressed import Compression, FilePath, path_text

_DESCRIPTORS = {"/dev/stdout": 1, "/dev/stderr": 2}
_NUMBERED_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")


@dataclass(frozen=True)
class Target:
    """What writing to a path does.

    Attributes:
        path: the path as it was given, for messages.
        file: the regular file to replace or to create, symbolic links followed. None: the path is
            a device, a FIFO or an open descriptor, which is written to directly.
        old: the existing file; None if there is none.
    """

    path: str
    file: str | None
    old: os.stat_result | None

    def is_same_file(self, other: "Target") -> bool:
        """Tell whether both paths lead to one file, by symbolic and hard links too.

        Character devices do not count: a terminal is read and written, and /dev/null keeps
        nothing.
        """
        if self.old is not None and other.old is not None:
            return os.path.samestat(self.old, other.old) and not stat.S_ISCHR(self.old.st_mode)
        return self.file is not None and self.file == other.file


def find_target(path: FilePath) -> Target:
    """Look at what a path leads to; nothing is checked and nothing is changed on disk.

    Args:
        path: a file that exists or not.

    Returns:
        The target.

    Raises:
        OSError: the path cannot be followed: too long, too many symbolic links, no permission.
    """
    name = path_text(path)
    try:
        old = os.stat(name)
    except FileNotFoundError:
        old = None
    if old is not None and (_descriptor(name) is not None or not stat.S_ISREG(old.st_mode)):
        return Target(name, None, old)
    return Target(name, os.path.realpath(name), old)


def checked_target(path: FilePath) -> Target:
    """Look at what a path leads to, and refuse what cannot be written.

    Args:
        path: the file to create or replace.

    Returns:
        The target; nothing is changed on disk.

    Raises:
        OSError: `strerror` says what is wrong: there is no such folder, the path is a folder,
            or there is no permission.
    """
    target = find_target(path)
    name, old = target.path, target.old
    is_folder = stat.S_ISDIR(old.st_mode) if old is not None else not os.path.basename(name)
    if is_folder:
        raise OSError(errno.EISDIR, "this is a folder; name a file in it", name)
    if target.file is None:
        return target
    folder = os.path.dirname(target.file)
    if not os.path.isdir(folder):
        raise OSError(errno.ENOENT, f"there is no folder {folder}; make it first", name)
    if old is not None and not os.access(target.file, os.W_OK):
        raise OSError(errno.EACCES, "no permission to write it", name)
    if not os.access(folder, os.W_OK | os.X_OK):
        reason = f"no permission to write in the folder {folder}, where the new file is made"
        raise OSError(errno.EACCES, reason, name)
    return target


@contextlib.contextmanager
def open_for_replacing(path: FilePath) -> Iterator[io.BufferedIOBase]:
    """Write a file that appears at `path` only when it is complete.

    A symbolic link stays: the file that it points to is replaced. The new file has the mode of
    the old one, and its owner where the system permits that; a file that did not exist gets the
    mode of the umask. Devices, FIFOs and open descriptors (/dev/stdout) are written directly.

    Args:
        path: the file to create or replace.

    Yields:
        A stream of bytes.

    Raises:
        OSError: the file cannot be written. This and every other exception that leaves the block
            says at its end that the file is unchanged.
    """
    target = checked_target(path)
    if target.file is None:
        with _opened_directly(target) as stream:
            yield stream
        return
    # Short, because a name may already have all the bytes that a file system allows.
    temporary = os.path.join(os.path.dirname(target.file), f".caspar-{secrets.token_hex(8)}.tmp")
    is_complete = False
    try:
        opener = None if target.old is None else _open_for_owner
        with open(temporary, "xb", opener=opener) as stream:
            if target.old is not None:
                _keep_owner_and_mode(temporary, target.old)
            yield stream
        is_complete = True
        os.replace(temporary, target.file)
    except BaseException as error:
        was_there = _removed(temporary)
        # An interrupt may arrive just after the replacement.
        if was_there or not is_complete:
            state = "is unchanged" if target.old is not None else "was not created"
        else:
            state = "is written"
        _add_remark(error, target.path, state)
        raise


@contextlib.contextmanager
def open_for_packing(path: FilePath) -> Iterator[io.BufferedIOBase]:
    """Like `open_for_replacing`, packed as the suffix says (.bz2, .gz, anything else: plain).

    The same bytes give the same file: neither a name nor a time is stored in it.

    Args:
        path: the file to create or replace.

    Yields:
        A stream that takes the bytes to be packed.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    suffix = Path(path_text(path)).suffix.lower()
    with open_for_replacing(path) as raw:
        if suffix == Compression.BZIP2.suffix:
            with bz2.BZ2File(raw, "wb") as packed_bzip2:
                yield packed_bzip2
        elif suffix == Compression.GZIP.suffix:
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed_gzip:
                yield packed_gzip
        else:
            yield raw


def write_file(path: FilePath, content: bytes) -> None:
    """Write a whole file; see `open_for_replacing`.

    Args:
        path: the file to create or replace.
        content: its bytes.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    with open_for_replacing(path) as stream:
        stream.write(content)


@contextlib.contextmanager
def _opened_directly(target: Target) -> Iterator[io.BufferedIOBase]:
    """Open a device, a FIFO or a descriptor of this process."""
    descriptor = _descriptor(target.path)
    try:
        # A copy of the descriptor shares its position: after `caspar ... >> log` opening the
        # file anew would start at its beginning.
        opened = target.path if descriptor is None else os.dup(descriptor)
        with open(opened, "wb") as stream:
            yield stream
    except BaseException as error:
        _add_remark(error, target.path, "may have a part of the output")
        raise


def _descriptor(name: str) -> int | None:
    """Return the descriptor of this process that a path like /dev/stdout stands for."""
    numbered = _NUMBERED_DESCRIPTOR.fullmatch(name)
    return _DESCRIPTORS.get(name) if numbered is None else int(numbered[1])


def _open_for_owner(path: str, flags: int) -> int:
    """Open a file that nobody else can open until it has the mode of the old one."""
    return os.open(path, flags, 0o600)


def _keep_owner_and_mode(temporary: str, old: os.stat_result) -> None:
    """Give the new file what the old one has."""
    if hasattr(os, "chown"):
        # Only root may give a file away; without it the new file is the user's, as after `cp`.
        with contextlib.suppress(PermissionError):
            os.chown(temporary, old.st_uid, old.st_gid)
    os.chmod(temporary, stat.S_IMODE(old.st_mode))


def _removed(temporary: str) -> bool:
    """Remove the temporary file; False if it was not there."""
    try:
        os.unlink(temporary)
    except OSError:
        return False
    return True


def _add_remark(error: BaseException, path: str, state: str) -> None:
    """Say at the end of an exception's message what became of the file; its class stays."""
    remark = f"{path} {state}"
    if isinstance(error, OSError) and error.strerror is not None:
        error.strerror = f"{error.strerror}; {remark}"
        if error.filename is not None:
            error.filename = path  # not the temporary file
    elif not error.args:
        error.args = (remark,)
    elif isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}; {remark}", *error.args[1:])
