"""What NVRTC makes of a text, kept between runs of the tests, which compile the same texts again.

The key is all that the result depends on: text, options, architecture, NVRTC, and how it is called.
What is refused is compiled again, and short texts, which are those of the tests of NVRTC itself.
"""

import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import platformdirs

from caspar.codegen.cuda.header import COMPILE_OPTIONS
from caspar.runtime.nvidia import nvrtc
from caspar.runtime.nvidia.nvrtc import DEFAULT_ARCHITECTURE, CompiledText, nvrtc_version

FOLDER = platformdirs.user_cache_path("caspar") / "nvrtc_of_tests"
"""Beside the modules of the simulated GPU (tests/harness/compile.py)."""

SHORT = 3000
"""Characters of texts that are not kept."""

Compile = Callable[[str, str, Sequence[str]], CompiledText]


@cache
def _way() -> bytes:
    """How NVRTC is called."""
    digest = hashlib.sha256(Path(nvrtc.__file__).read_bytes())
    digest.update(repr((nvrtc_version(), COMPILE_OPTIONS)).encode())
    return digest.digest()


def kept(compile_text: Compile, folder: Path = FOLDER) -> Compile:
    """The function `nvrtc.compile_text` with results of earlier runs.

    Args:
        compile_text: Compiles a text.
        folder: Where results are.
    """

    def compile_once(
        text: str, arch: str = DEFAULT_ARCHITECTURE, more_options: Sequence[str] = ()
    ) -> CompiledText:
        if len(text) < SHORT:
            return compile_text(text, arch, more_options)
        digest = hashlib.sha256(_way())
        digest.update(repr((text, arch, tuple(more_options))).encode())
        path = folder / digest.hexdigest()[:40]
        if path.exists():
            found: CompiledText = pickle.loads(path.read_bytes())
            return found
        made = compile_text(text, arch, more_options)
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "wb") as file:
            pickle.dump(made, file)
        Path(temporary).replace(path)
        return made

    return compile_once
