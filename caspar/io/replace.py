"""Write files so that the old ones stay whole until all new ones are complete.

Input: a path. Output: a stream of bytes to write. Every file that caspar writes for a user goes
through `open_for_replacing`, and several files that belong together through `FileTransaction`.
Cost: once per file, two system calls more than writing in place, four more for one of several.

The bytes go to a temporary file in the same folder. When all of them are written, it takes the
place of the old file in one step (`os.replace`). A full disk, Ctrl-C or an error of the writer
therefore leaves the old file as it was; the temporary file is removed. Several files are replaced
one after the other when all are complete. Meanwhile hard links keep the old files, so that they
can be put back.
"""

import bz2
import contextlib
import contextvars
import errno
import gzip
import io
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from caspar.io.compressed import Compression, FilePath, path_text

_DESCRIPTORS = {"/dev/stdout": 1, "/dev/stderr": 2}
_UNDO_ATTEMPTS = 10
_NUMBERED_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")


@dataclass(frozen=True)
class Target:
    """The file or device that a path leads to.

    `file` is the regular file to replace or to create, symbolic links followed. None: the path is a
    device, a FIFO or an open descriptor, which is written to directly.
    """

    path: str
    file: str | None
    old: os.stat_result | None

    @property
    def is_direct(self) -> bool:
        """Return whether this is a device, FIFO or descriptor, outside any transaction."""
        return self.file is None and self.old is not None and not stat.S_ISDIR(self.old.st_mode)

    def is_same_file(self, other: "Target") -> bool:
        """Tell whether both paths lead to one file, by symbolic and hard links too.

        Character devices do not count: a terminal is read and written, and /dev/null keeps nothing.
        """
        if self.old is not None and other.old is not None:
            return os.path.samestat(self.old, other.old) and not stat.S_ISCHR(self.old.st_mode)
        return self.file is not None and self.file == other.file


def find_target(path: FilePath) -> Target:
    """Look at what a path leads to; nothing is checked and nothing is changed on disk.

    Raises an `OSError` if the path cannot be followed.
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
    """Look at what a path leads to; an `OSError` says why it cannot be written."""
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


class FileTransaction:
    """New files of which all take their places, or none.

    All files are written to temporary files first and closed. Then they replace the old ones. If
    that fails or is interrupted, the old files are put back. A transaction that is begun while
    another one runs is a part of it: if the part fails, its files are removed, and the other one
    may go on without them; if it succeeds, its files are replaced with those of the other one.

    What has happened is read from the folder instead of from variables, because an interrupt may
    come between a system call and the assignment that notes it.

    Attributes:
        is_committed: Every file has taken its place.
    """

    def __init__(self) -> None:
        self.is_committed = False
        self._outer = _RUNNING.get()
        self._made: list[_NewFile | _NewFolder] = []
        self._is_of_several = False
        self._is_complete = False
        self._is_undone = False

    def run(self, write: Callable[[], None]) -> None:
        """Call a function; the files that it writes by `open_for_replacing` appear together.

        Devices, FIFOs and open descriptors are written directly all the same. Every exception, such
        as an `OSError`, says at its end what became of the files.
        """
        self._is_of_several = True
        try:
            # In a context of its own, there is nothing to be set back after an interrupt.
            contextvars.copy_context().run(self._write, write)
            self.commit()
        except BaseException as error:
            self.undo(error)
            raise

    def _write(self, write: Callable[[], None]) -> None:
        _RUNNING.set(self)
        write()

    def make_folder(self, folder: Path) -> None:
        """Make a folder that is removed if the transaction fails; it may be there already."""
        if not folder.is_dir():
            self._add(_NewFolder(str(folder)))
            folder.mkdir()

    def temporary_file(self, target: Target) -> str:
        """Name a file that does not exist yet and that takes the place of the target."""
        assert target.file is not None
        # Short, because a name may already have all the bytes that a file system allows.
        name = f".caspar-{secrets.token_hex(8)}.tmp"
        new = _NewFile(target, os.path.join(os.path.dirname(target.file), name))
        self._add(new)
        return new.temporary

    def _add(self, made: "_NewFile | _NewFolder") -> None:
        part: FileTransaction | None = self
        while part is not None:
            part._made.append(made)
            part = part._outer

    def commit(self) -> None:
        """Replace all files; a part of another transaction leaves that to it."""
        if self._outer is not None:
            return
        files = [new for new in self._files() if not new.is_removed]
        self._is_complete = True
        for new in files[:-1]:  # once the last one is replaced, all are
            new.keep_old()
        for new in files:
            os.replace(new.temporary, new.file)
        self.is_committed = True
        for new in files:
            _removed(new.backup)

    def undo(self, error: BaseException) -> None:
        """Remove or put back everything, unless all files have taken their places already.

        The message of what ended the transaction is made to say what became of the files.
        """
        files = self._files()
        failures: list[str] = []
        for _ in range(_UNDO_ATTEMPTS):  # a second Ctrl-C does not leave a mixture
            with contextlib.suppress(KeyboardInterrupt):
                failures = self._undo(files)
                break
        if isinstance(error, OSError):
            for new in files:
                if error.filename in (new.temporary, new.backup):
                    error.filename = new.target.path
        if self._outer is None and (files or self._is_of_several):
            _add_remark(error, "; ".join(failures) or self._state(files))

    def _undo(self, files: "list[_NewFile]") -> list[str]:
        """Undo, from wherever an interrupted attempt stopped, and say what could not be undone."""
        if not self._is_undone and self._is_complete:
            self.is_committed = not any(os.path.lexists(new.temporary) for new in files)
        if self.is_committed:
            for new in files:
                _removed(new.backup)
            return []
        self._is_undone = True
        failures = [made.undo() for made in reversed(self._made)]
        return [failure for failure in failures if failure]

    def _files(self) -> "list[_NewFile]":
        return [made for made in self._made if isinstance(made, _NewFile)]

    def _state(self, files: "list[_NewFile]") -> str:
        if self._is_of_several:
            return "all files are written" if self.is_committed else "nothing is written"
        target = files[0].target
        if self.is_committed:
            return f"{target.path} is written"
        return f"{target.path} {'was not created' if target.old is None else 'is unchanged'}"


_RUNNING: contextvars.ContextVar[FileTransaction | None] = contextvars.ContextVar(
    "caspar_file_transaction", default=None
)


@dataclass
class _NewFolder:
    folder: str

    def undo(self) -> str:
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)
        return ""


@dataclass
class _NewFile:
    """A file that is written at `temporary`, beside the file that it will replace.

    `had_old`: `keep_old` found an old file; None: it was not called.
    """

    target: Target
    temporary: str
    had_old: bool | None = None
    is_removed: bool = False

    @property
    def file(self) -> str:
        assert self.target.file is not None
        return self.target.file

    @property
    def backup(self) -> str:
        """Path of the old file until all files are replaced."""
        return f"{self.temporary.removesuffix('.tmp')}.old"

    def keep_old(self) -> None:
        """Give the old file a second name, or another one if the file system has no hard links."""
        self.had_old = os.path.lexists(self.file)
        if self.had_old:
            try:
                os.link(self.file, self.backup)
            except OSError:
                os.rename(self.file, self.backup)

    def undo(self) -> str:
        """Put the old file back, and say why if that fails. It may be called again."""
        try:
            is_replaced = self.had_old is not None and not os.path.lexists(self.temporary)
            if os.path.lexists(self.backup):
                if is_replaced or not os.path.lexists(self.file):
                    self._put_back()
                _removed(self.backup)
            elif is_replaced and not self.had_old:
                _removed(self.file)
        except Exception as error:
            return (
                f"{self.target.path} could not be put back, its old content is in {self.backup}: "
                f"{error}"
            )
        _removed(self.temporary)
        self.is_removed = True
        return ""

    def _put_back(self) -> None:
        try:
            os.replace(self.backup, self.file)
        except (Exception, KeyboardInterrupt):
            if os.path.lexists(self.backup):  # try without renaming
                _removed(self.file)
                os.link(self.backup, self.file)


@contextlib.contextmanager
def open_for_replacing(path: FilePath) -> Iterator[io.BufferedIOBase]:
    """Write a stream of bytes to a file that appears at `path` only when it is complete.

    A symbolic link stays: the file that it points to is replaced. The new file has the mode of the
    old one, and its owner where the system permits that; a file that did not exist gets the mode of
    the umask. Devices, FIFOs and open descriptors (/dev/stdout) are written directly. Within
    `FileTransaction.run` the file appears with the others. Every exception that leaves the block,
    such as an `OSError`, says at its end that the file is unchanged.
    """
    target = checked_target(path)
    if target.file is None:
        with _opened_directly(target) as stream:
            yield stream
        return
    files = FileTransaction()
    try:
        temporary = files.temporary_file(target)
        opener = None if target.old is None else _open_for_owner
        with open(temporary, "xb", opener=opener) as stream:
            if target.old is not None:
                _keep_owner_and_mode(temporary, target.old)
            yield stream
        files.commit()
    except BaseException as error:
        files.undo(error)
        raise


@contextlib.contextmanager
def open_for_packing(path: FilePath) -> Iterator[io.BufferedIOBase]:
    """Like `open_for_replacing`, packed as the suffix says (.bz2, .gz, anything else: plain).

    The same bytes give the same file: neither a name nor a time is stored in it.
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
    """Write a whole file; see `open_for_replacing`."""
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
        _add_remark(error, f"{target.path} may have a part of the output")
        raise


def _descriptor(name: str) -> int | None:
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
    try:
        os.unlink(temporary)
    except OSError:
        return False
    return True


def _add_remark(error: BaseException, remark: str) -> None:
    """Say at the end of an exception's message what became of the files; its class stays."""
    if isinstance(error, OSError) and error.strerror is not None:
        error.strerror = f"{error.strerror}; {remark}"
    elif not error.args:
        error.args = (remark,)
    elif isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}; {remark}", *error.args[1:])
