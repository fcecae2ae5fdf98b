"""Files between processes: where they lie, how they are written.

A cache entry is content-addressed and replaced atomically; a missing, corrupt or foreign entry is
a miss, never an error. `CASPAR_CACHE_DIR` overrides the folder.
"""

import atexit
import os
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock

from platformdirs import user_cache_path

SUBFOLDERS = ("cpu", "plans", "tuned")
"""All that caspar writes in the cache folder, and all that clearing it deletes: the folder may be
one that somebody chose by mistake, such as their home."""


def cache_folder() -> Path:
    """The folder of all caches; it need not exist."""
    override = os.environ.get("CASPAR_CACHE_DIR")
    return Path(override) if override else _default_folder()


@cache
def _default_folder() -> Path:
    return user_cache_path("caspar", appauthor=False)


_IN_USE: dict[Path, Path] = {}
"""For each folder that was asked for the one that is used."""

_LOCK = Lock()


def writable_cache_folder() -> Path:
    """The folder of all caches, or one for this process where nothing can be written there."""
    folder = cache_folder()
    with _LOCK:
        if folder not in _IN_USE:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=folder):
                    _IN_USE[folder] = folder
            except OSError as error:
                _IN_USE[folder] = _substitute(folder, error)
        return _IN_USE[folder]


def write_entry(name: str, text: str) -> Path:
    """Write an entry of the cache, also where its folder cannot take more, as on a full disk.

    Args:
        name: Folder and file, such as `plans/1234.json`.
        text: What it holds.

    Returns:
        Where it is.

    Raises:
        OSError: The folder for temporary files cannot take it either.
    """
    folder = writable_cache_folder()
    try:
        write_atomically(folder / name, text)
    except OSError as error:
        with _LOCK:
            if _IN_USE[cache_folder()] == folder:
                _IN_USE[cache_folder()] = _substitute(folder, error)
            folder = _IN_USE[cache_folder()]
        write_atomically(folder / name, text)
    return folder / name


def _substitute(folder: Path, error: OSError) -> Path:
    """A folder for this process."""
    substitute = Path(tempfile.mkdtemp(prefix="caspar-"))
    atexit.register(shutil.rmtree, substitute, ignore_errors=True)
    warnings.warn(
        f"caspar's cache folder {folder} cannot be written ({error}): every process compiles "
        "anew. Set CASPAR_CACHE_DIR to a folder that can",
        stacklevel=3,
    )
    return substitute


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that other processes see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class CacheUsage:
    """What the cache folder holds.

    Attributes:
        folder: Where it is.
        num_files: Files in it.
        num_bytes: Their total size.
    """

    folder: Path
    num_files: int
    num_bytes: int


def cache_usage() -> CacheUsage:
    """Count the files of the cache."""
    folder = cache_folder()
    sizes = [
        size
        for name in SUBFOLDERS
        for path in (folder / name).rglob("*")
        if (size := _file_size(path)) is not None
    ]
    return CacheUsage(folder, len(sizes), sum(sizes))


def _file_size(path: Path) -> int | None:
    """Bytes of a file; None for a folder, and where another process has just deleted it."""
    try:
        return path.stat().st_size if path.is_file() else None
    except FileNotFoundError:
        return None


def clear_cache() -> CacheUsage:
    """Delete what the cache holds; return what it was."""
    usage = cache_usage()
    for name in SUBFOLDERS:
        shutil.rmtree(usage.folder / name, ignore_errors=True)
    return usage
