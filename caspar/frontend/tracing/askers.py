"""Whose code asks about an expression: the user's, or a library's for itself.

Input: the frame that asks. Output: the frame of the user's code, or none. Each function of each
file is looked at once in a run.
"""

import dis
import os
from enum import Enum
from pathlib import Path
from types import FrameType

import numpy as np

from caspar.frontend.symbolic.lines import is_library, is_user_code

_NUMPY = f"{Path(str(np.__file__)).parent}{os.sep}"
_ON_BEHALF = (
    *("__eq__", "__ne__", "__contains__", "__hash__", "__str__", "__repr__", "__format__"),
    *("<genexpr>", "<listcomp>"),
)
"""Functions of libraries that ask on behalf of their caller."""


class _Asker(Enum):
    """Whose code a frame runs."""

    USER = "decides"
    CALLER = "asks on behalf of its caller"
    LIBRARY = "compares expressions"


class Askers:
    """Those of one run of the user's function.

    Args:
        own_file: Where the function is: the user's, wherever that is.
    """

    def __init__(self, own_file: str) -> None:
        self._own_file = own_file
        self._known: dict[tuple[str, str], _Asker] = {}

    def user(self, frame: FrameType | None) -> FrameType | None:
        """The frame of the user's code that asks; None: a library does, for itself."""
        asker = _Asker.CALLER
        while frame is not None:
            asker = self._asker(frame)
            if asker is not _Asker.CALLER:
                break
            frame = frame.f_back
        return frame if asker is _Asker.USER else None

    def _asker(self, frame: FrameType) -> _Asker:
        code = frame.f_code
        key = (code.co_filename, code.co_name)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._find_asker(frame, *key)
        return known

    def _find_asker(self, frame: FrameType, file: str, name: str) -> _Asker:
        if file == self._own_file:
            return _Asker.USER
        if is_library(file):
            is_for_caller = file.startswith(_NUMPY) or name in _ON_BEHALF
            return _Asker.CALLER if is_for_caller else _Asker.LIBRARY
        return _Asker.USER if is_user_code(file, frame) else _Asker.CALLER


_MAKING_KEYS = (
    *("BUILD_", "MAP_ADD", "SET_", "DICT_", "BINARY_", "CONTAINS_OP"),
    *("STORE_SUBSCR", "DELETE_SUBSCR"),
)
"""Beginnings of the instructions that hash."""


def makes_key(frame: FrameType) -> bool:
    """Whether a frame makes or looks up a key itself, not in a function that it calls."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith(_MAKING_KEYS)
