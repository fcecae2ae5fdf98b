"""How processes learn where rank 0 listens, and the token: by a file, or from an MPI communicator.

The file is in a folder that only its owner can read, and has the port and the token; rank 0 writes
it and removes it when all have come. Cost: once for a group of processes.
"""

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from caspar.errors import GroupError

Found = TypeVar("Found")

POLL_S = 0.02


def meeting_file(job: str, size: int) -> Path:
    """Where processes of a job on one host meet.

    Raises:
        GroupError: The folder belongs to somebody else, or others may read it.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    base = os.environ.get("XDG_RUNTIME_DIR")
    root = Path(base) if base is not None and Path(base).is_dir() else Path(tempfile.gettempdir())
    folder = root / f"caspar-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if hasattr(os, "getuid") and (status.st_uid != user or status.st_mode & 0o077):
        raise GroupError(
            f"{folder} belongs to somebody else or can be read by others, so no token is put "
            "there. Remove it, or set CASPAR_TOKEN and CASPAR_ADDRESS"
        )
    digest = hashlib.sha256(f"{job}|{size}".encode()).hexdigest()[:24]
    return folder / f"{digest}.json"


def announce(path: Path, address: tuple[str, int], token: bytes) -> None:
    """Write the file, whole or not at all, readable by its owner."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".caspar")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"host": address[0], "port": address[1], "token": token.hex()}, file)
    os.replace(name, path)


def withdraw(path: Path) -> None:
    """Remove the file, if it is there."""
    with contextlib.suppress(OSError):
        path.unlink()


def read_announcement(path: Path) -> tuple[tuple[str, int], bytes] | None:
    """Address and token; None: there is no such file yet, or it is not whole.

    Raises:
        OSError: It cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return (str(found["host"]), int(found["port"])), bytes.fromhex(found["token"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def until(attempt: Callable[[], Found | None], timeout_s: float, otherwise: str) -> Found:
    """Try again and again, as files of earlier jobs may lie about and rank 0 may come later.

    Raises:
        GroupError: `otherwise`, and what went wrong last.
    """
    end_s, last = time.monotonic() + timeout_s, ""
    while True:
        try:
            found = attempt()
        except (OSError, GroupError) as error:
            found, last = None, f": {error}"
        if found is not None:
            return found
        if time.monotonic() > end_s:
            raise GroupError(f"{otherwise} within {timeout_s:g} s{last}")
        time.sleep(POLL_S)
