"""Files between processes: where they lie, how they are written.

A cache entry is content-addressed and replaced atomically; a missing, corrupt or foreign entry is
a miss, never an error. `CASPAR_CACHE_DIR` overrides the folder.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder() -> Path:
    """The folder of all caches; it need not exist."""
    override = os.environ.get("CASPAR_CACHE_DIR")
    return Path(override) if override else _default_folder()


@cache
def _default_folder() -> Path:
    return user_cache_path("caspar", appauthor=False)


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that other processes see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(temporary, path)


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
    """Count the files of the cache folder."""
    folder = cache_folder()
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return CacheUsage(folder, len(sizes), sum(sizes))


def clear_cache() -> CacheUsage:
    """Delete the cache folder; return what it held."""
    usage = cache_usage()
    shutil.rmtree(usage.folder, ignore_errors=True)
    return usage
