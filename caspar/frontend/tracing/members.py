"""Members of types that are replaced for a while, also of types that do not allow it.

Types of an extension are immutable to Python. Their members are set by clearing the flag that says
so: methods with underscores then reach the slots that C code uses (`int(x)`, `x == 1`).

Input: a table of members. Output: a context manager, which several threads may use at once.
"""

import ctypes
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_IMMUTABLE = 1 << 8
"""Py_TPFLAGS_IMMUTABLETYPE of CPython's `object.h`."""

_NUM_WORDS = 40
"""Of a type object, which has more; `tp_flags` is the 21st, or one of the next."""


class Members:
    """Members of types, to be installed.

    Args:
        ours: By type and name.
    """

    def __init__(self, ours: Mapping[tuple[type, str], Any]) -> None:
        self._ours = ours
        self._theirs = {(kind, name): vars(kind).get(name) for kind, name in ours}
        kinds = {kind for kind, _ in ours}
        self._flags = {kind: _flags_of(kind) for kind in kinds if kind.__flags__ & _IMMUTABLE}
        self._num_installed = 0
        self._renew_lock()
        if hasattr(os, "register_at_fork"):  # Windows has no forks
            os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        """A fork may have happened while another thread held it."""
        self._lock = threading.Lock()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The members are there while at least one thread needs them."""
        with self._lock:
            self._num_installed += 1
            if self._num_installed == 1:
                self._set(self._ours)
        try:
            yield
        finally:
            with self._lock:
                self._num_installed -= 1
                if self._num_installed == 0:
                    self._set(self._theirs)

    def _set(self, members: Mapping[tuple[type, str], Any]) -> None:
        """Set members; None: delete one."""
        for (kind, name), member in members.items():
            flags = self._flags.get(kind)
            if flags is not None:
                flags.value &= ~_IMMUTABLE
            try:
                if member is not None:
                    setattr(kind, name, member)
                elif name in vars(kind):
                    delattr(kind, name)
            finally:
                if flags is not None:
                    flags.value |= _IMMUTABLE


def _flags_of(kind: type) -> ctypes.c_ulong:
    """The flags in a type object: where in it they are depends on the build of CPython."""
    size = ctypes.sizeof(ctypes.c_ulong)
    cells = [ctypes.c_ulong.from_address(id(kind) + size * word) for word in range(_NUM_WORDS)]
    (found,) = [cell for cell in cells if cell.value == kind.__flags__]
    return found
