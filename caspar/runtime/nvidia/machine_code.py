"""Machine code of GPUs: compiled by NVRTC, kept in caspar's store, with what was chosen for it.

Input: CUDA C, options, an architecture. Output: what the driver loads. A kernel that needs too much
shared memory is refused by the assembler after all the work; that refusal is kept too.

Cost: the compilation, once; then some 50 microseconds for a stored entry.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache

from caspar.errors import CompileError
from caspar.runtime.cache import read_entry, write_entry
from caspar.runtime.nvidia.limits import is_refusal_of_size
from caspar.runtime.nvidia.nvrtc import architectures, compile_text, nvrtc_version

KIND = "code"

_CHOICES = "tuned"


def machine_code(text: str, architecture: str, options: Sequence[str]) -> bytes:
    """Return machine code for a GPU such as `sm_90`, or PTX if the GPU is newer than NVRTC.

    `options` are those besides every compilation's. Raises `BackendError` without NVRTC,
    `CompileError` if it refuses the text.
    """
    target = compiled_architecture(architecture)
    key = _key(text, target, options)
    found = _AHEAD.pop(key, None) or read_entry(KIND, key)
    if found is None:
        found = _compiled(text, target, options)
        write_entry(KIND, key, found)
    if found[:1] == _REFUSED:
        raise CompileError(found[1:].decode())
    return found[1:]


def compile_together(texts: Sequence[str], architecture: str, options: Sequence[str]) -> None:
    """Compile texts at once, for `machine_code` of each: that takes less than one after the other.

    All of them together must be valid, too. Nothing happens if one of them is refused.
    """
    target = compiled_architecture(architecture)
    keys = {_key(text, target, options): text for text in texts}
    missing = [key for key in keys if read_entry(KIND, key) is None]
    if len(missing) < 2:
        return
    try:
        found = _compiled("\n".join(keys[key] for key in missing), target, options)
    except CompileError:
        return
    if found[:1] == _REFUSED:
        return
    for key in missing:
        _AHEAD[key] = found
        write_entry(KIND, key, found)


_AHEAD: dict[str, bytes] = {}
"""Code that `compile_together` has made and nobody has asked for yet: the store may not work."""

_CODE, _REFUSED = b"\1", b"\0"
"""First byte of an entry."""


def _key(text: str, target: str, options: Sequence[str]) -> str:
    return " ".join((nvrtc_version(), target, *options, text))


def _compiled(text: str, target: str, options: Sequence[str]) -> bytes:
    """Return what is stored: one byte that tells code from a refusal, and either."""
    try:
        compiled = compile_text(text, target, options)
    except CompileError as error:
        if is_refusal_of_size(str(error)):
            return _REFUSED + str(error).encode()
        raise
    return _CODE + (compiled.cubin or compiled.ptx.encode())


@cache
def compiled_architecture(architecture: str) -> str:
    """Return what to compile for: the GPU's architecture, or PTX of the newest older one known."""
    known = architectures()
    if architecture in known:
        return architecture
    older = [one for one in known if _number(one) < _number(architecture)]
    return f"compute_{_number(older[-1] if len(older) > 0 else known[0])}"


def _number(architecture: str) -> int:
    return int(architecture.removeprefix("sm_"))


@dataclass(frozen=True)
class Choice:
    """The block size and options of a compilation, besides those of every kernel.

    `is_searched`: there is nothing better to find.
    """

    block_size: int
    options: tuple[str, ...] = ()
    is_searched: bool = False


def kept_choice(text: str, architecture: str, question: str) -> Choice | None:
    """Return what this or an earlier process chose for a kernel; None: nothing.

    `question` is what the choice depends on besides text and architecture.
    """
    content = read_entry(_CHOICES, _choice_key(text, architecture, question))
    if content is None:
        return None
    found = json.loads(content)
    return Choice(found["block_size"], tuple(found["options"]), found["is_searched"])


def keep_choice(text: str, architecture: str, question: str, choice: Choice) -> None:
    """Keep what was chosen for later processes."""
    content = json.dumps(asdict(choice)).encode()
    write_entry(_CHOICES, _choice_key(text, architecture, question), content)


def _choice_key(text: str, architecture: str, question: str) -> str:
    return " ".join(("choice", nvrtc_version(), architecture, question, text))
