"""The store that outlives a process: generated sources, machine code, measured block sizes.

Input: a kind, a key that determines the content, and bytes. Output: the bytes again, in this or a
later process, or nothing.

An entry is a file. It holds the SHA-256 digest of its kind, key and content, which is checked on
reading: whatever fails the check is a miss, never an error. Files are replaced atomically, so that
processes may share the folder without locks. Names are digests: nothing of a user's name is in
them. Where nothing can be stored, as on a full disk, everything works and is compiled anew.

A folder that somebody else could write into is not used: what it holds is executed.

Cost: reading takes some 50 microseconds for each entry. The first write of a process, and one in
some hundred after it, looks at all entries and deletes the least recently used above the limit.
"""

import hashlib
import os
import re
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock

from platformdirs import user_cache_path

KINDS = ("code", "plans", "tuned")
"""Folders of entries in the cache folder."""

FOLDER_VARIABLE = "CASPAR_CACHE_DIR"
SIZE_VARIABLE = "CASPAR_CACHE_SIZE"

DEFAULT_MAX_BYTES = 1 << 30

_MAGIC = b"caspar cache 1\n"
"""The first bytes of every entry; the number is that of the format."""

_HEADER_BYTES = len(_MAGIC) + hashlib.sha256().digest_size

_OPEN_FLAGS = os.O_RDONLY
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    _OPEN_FLAGS |= getattr(os, _flag, 0)  # each system has some of them

_LARGEST_ENTRY = 1 << 28
"""Bytes of a file that is still read."""

_NAME = re.compile(r"[0-9a-f]{40}(\.[0-9a-z_]{8})?\.caspar")
"""Names of our own files: entries, and entries that are being written."""

_UNUSED_S = 3600.0
"""Seconds after which a read entry is marked as used again."""

_ABANDONED_S = 3600.0
"""Seconds after which a file that was being written is taken for one of a process that ended."""

_BYTES_BETWEEN_SCANS = 1 << 26

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", re.IGNORECASE)


@dataclass(frozen=True)
class CacheUsage:
    """The contents of the cache folder.

    Attributes:
        folder: Its path; None: the user has no home folder.
        num_files: Entries.
        num_bytes: Their total size.
        max_bytes: The size above which the least recently used entries are deleted.
        refusal: Why the folder is not used, and what to do; empty if it is used.
        num_others: Files in the folders of entries that are not caspar's.
    """

    folder: Path | None
    num_files: int
    num_bytes: int
    max_bytes: int
    refusal: str
    num_others: int


@dataclass
class _OfProcess:
    """Bytes written by this process since the size was last looked at, and its warnings."""

    unscanned_bytes: int | None
    warned: set[str]


_STATE = _OfProcess(None, set())
_LOCK = Lock()


def _renew_lock() -> None:
    """Another thread may have held the lock at the fork."""
    global _LOCK
    _LOCK = Lock()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_renew_lock)


# -- where -----------------------------------------------------------------------------------------


def cache_folder() -> Path | None:
    """The cache folder, which need not exist; None if the user has no home folder."""
    chosen = os.environ.get(FOLDER_VARIABLE, "")
    folder = Path(os.path.expanduser(chosen)) if chosen else _default_folder()
    # no such user, or none at all: the tilde stays
    return None if str(folder).startswith("~") else folder.absolute()


@cache
def _default_folder() -> Path:
    return user_cache_path("caspar", appauthor=False)


def max_cache_bytes() -> int:
    """The size above which the least recently used entries are deleted."""
    text = os.environ.get(SIZE_VARIABLE, "")
    if not text:
        return DEFAULT_MAX_BYTES
    found = _SIZE.fullmatch(text)
    if found is None:
        warn_once(
            f"{SIZE_VARIABLE} is {text!r}; it must be a size such as 500M or 2G. caspar's cache "
            "keeps its default of 1 GiB"
        )
        return DEFAULT_MAX_BYTES
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))


def folder_refusal(folder: Path, variable: str = FOLDER_VARIABLE) -> str:
    """Return why a folder is unsafe as a cache: others could write into it. Empty: it is safe.

    It need not exist; `variable` of the environment chooses another one.
    """
    try:
        status = os.stat(folder)
    except FileNotFoundError:
        return ""
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a folder; delete it, or choose another with {variable}"
    if not hasattr(os, "geteuid"):
        return ""  # Windows: folders of a user are the user's, and modes say nothing of others
    if status.st_uid not in (os.geteuid(), 0):
        return (
            f"{folder} belongs to user {status.st_uid}, whose code could be executed; run "
            f"chown -R {os.geteuid()} {folder}, or choose another folder with {variable}"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{folder} can be written by other users; run chmod -R go-w {folder}"
    return ""


def _usable(kind: str, *, make: bool) -> Path | None:
    """The folder of a kind; None if it is missing or not to be used."""
    folder = cache_folder()
    if folder is None:
        if make:
            warn_once(
                "the user has no home folder, so caspar cannot cache compiled kernels. Set "
                f"{FOLDER_VARIABLE} to a folder that can be written"
            )
        return None
    for place in (folder, folder / kind):
        if make:
            with suppress(FileExistsError):
                place.mkdir(mode=0o700, parents=True)
        refusal = folder_refusal(place)
        if refusal:
            warn_once(f"caspar's cache is not used, everything is compiled anew: {refusal}")
            return None
    return folder / kind


def warn_once(message: str) -> None:
    """Warn, once in a process."""
    with _LOCK:
        is_new = message not in _STATE.warned
        _STATE.warned.add(message)
    if is_new:
        warnings.warn(message, stacklevel=2)


def _is_trusted(status: os.stat_result) -> bool:
    """Return whether a file is the user's own, or root's."""
    return not hasattr(os, "geteuid") or status.st_uid in (os.geteuid(), 0)


# -- entries ---------------------------------------------------------------------------------------


def read_entry(kind: str, key: str) -> bytes | None:
    """Return the content stored under a key; None if there is none, or none passes the check."""
    try:
        folder = _usable(kind, make=False)
        if folder is None:
            return None
        path = folder / _name(kind, key)
        # a FIFO in its place must not stop the program
        descriptor = os.open(path, _OPEN_FLAGS)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not _is_trusted(status):
                return None
            if status.st_size > _LARGEST_ENTRY:
                return None
            data = file.read(_LARGEST_ENTRY + 1)
    except OSError:
        return None
    content = data[_HEADER_BYTES:]
    if data[:_HEADER_BYTES] != _MAGIC + _digest(kind, key, content):
        return None
    if time.time() - status.st_mtime > _UNUSED_S:
        with suppress(OSError):
            os.utime(path)
    return content


def write_entry(kind: str, key: str, content: bytes) -> None:
    """Store something under a key; where that is not possible, nothing happens but a warning."""
    limit = max_cache_bytes()
    if len(content) + _HEADER_BYTES > min(limit, _LARGEST_ENTRY):
        return
    data = _MAGIC + _digest(kind, key, content) + content
    try:
        for last in (False, False, True):
            try:
                folder = _usable(kind, make=True)
                if folder is not None:
                    _replace(folder / _name(kind, key), data)
                    _shrink_at_times(len(data), limit)
                break
            except FileNotFoundError:  # another process clears the cache
                if last:
                    raise
    except OSError as error:
        warn_once(
            f"caspar's cache {cache_folder()} cannot be written ({error.strerror or error}): what "
            f"is compiled now is compiled anew by the next process. Set {FOLDER_VARIABLE} to a "
            "folder that can be written"
        )


def _name(kind: str, key: str) -> str:
    return f"{hashlib.sha256(f'{kind} {key}'.encode()).hexdigest()[:40]}.caspar"


def _digest(kind: str, key: str, content: bytes) -> bytes:
    digest = hashlib.sha256(f"{kind} {len(key)} {key}".encode())
    digest.update(content)
    return digest.digest()


def _replace(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(".caspar", f"{path.stem}.", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


# -- size ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    path: Path
    num_bytes: int
    used: float


def _entries(folder: Path) -> Iterator[_Entry]:
    """Our own files in the folders of entries, which are never links."""
    for path, status in _files(folder):
        if _NAME.fullmatch(path.name) is not None and stat.S_ISREG(status.st_mode):
            yield _Entry(path, status.st_size, status.st_mtime)


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for kind in KINDS:
        place = folder / kind
        with suppress(OSError):
            if place.is_symlink():
                continue
            with os.scandir(place) as found:
                for entry in found:
                    with suppress(OSError):  # another process has just deleted it
                        yield Path(entry.path), entry.stat(follow_symlinks=False)


def _shrink_at_times(num_bytes: int, limit: int) -> None:
    with _LOCK:
        before = _STATE.unscanned_bytes
        is_due = before is None or before + num_bytes > min(_BYTES_BETWEEN_SCANS, limit // 8)
        _STATE.unscanned_bytes = 0 if is_due or before is None else before + num_bytes
    folder = cache_folder()
    if is_due and folder is not None:
        _shrink(folder, limit)


def _shrink(folder: Path, limit: int) -> None:
    """Delete the least recently used entries if they take more than the limit; to 7/8 of it."""
    entries = sorted(_entries(folder), key=lambda entry: entry.used)
    total = sum(entry.num_bytes for entry in entries)
    goal = limit - limit // 8 if total > limit else total
    for entry in entries:
        is_abandoned = entry.path.stem.count(".") and time.time() - entry.used > _ABANDONED_S
        if total > goal or is_abandoned:
            with suppress(OSError):
                entry.path.unlink()
            total -= entry.num_bytes


def cache_usage() -> CacheUsage:
    """Count the entries of the cache."""
    folder = cache_folder()
    if folder is None:
        refusal = f"the user has no home folder; set {FOLDER_VARIABLE}"
        return CacheUsage(None, 0, 0, max_cache_bytes(), refusal, 0)
    entries = list(_entries(folder))
    num_others = sum(1 for _ in _files(folder)) - len(entries)
    refusals = []
    for place in (folder, *(folder / kind for kind in KINDS)):
        try:
            refusals.append(folder_refusal(place))
        except OSError as error:
            refusals.append(f"{place} cannot be read ({error.strerror or error})")
    return CacheUsage(
        folder,
        len(entries),
        sum(entry.num_bytes for entry in entries),
        max_cache_bytes(),
        next(filter(None, refusals), ""),
        num_others,
    )


def clear_cache() -> CacheUsage:
    """Delete all entries, and nothing else; return what there was."""
    usage = cache_usage()
    if usage.folder is not None:
        for entry in _entries(usage.folder):
            with suppress(OSError):
                entry.path.unlink()
        for kind in KINDS:
            with suppress(OSError):  # it is a link, or holds files of somebody else
                (usage.folder / kind).rmdir()
    return usage
