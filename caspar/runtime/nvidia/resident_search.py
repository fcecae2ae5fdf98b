"""Find how many blocks of a kernel the compiler should leave room for on a multiprocessor.

Input: a kernel. Output: options of NVRTC, kept in the store. No device is needed: the assembler
says what a compilation takes, and `occupancy` how many blocks fit.

Cost: one compilation of a kernel, or a few.
"""

from collections.abc import Callable

from caspar.codegen.cuda.header import BLOCK_SIZE_OPTION, MIN_BLOCKS_OPTION
from caspar.codegen.source import KernelSource
from caspar.runtime.nvidia.machine_code import Choice, keep_choice, kept_choice
from caspar.runtime.nvidia.nvrtc import architectures, compile_text
from caspar.runtime.nvidia.occupancy import occupancy

SPILLED_BYTES = 8
"""Bytes of a thread that a kernel with code of its own for long nodes may spill for another block:
that code needs most registers, and runs seldom."""


def size_question(block_size: int, *, is_settled: bool) -> str:
    """Return the key of chosen options: a block size, and whether a search may change them."""
    return f"blocks of {block_size}{', settled' if is_settled else ''}"


def search(
    source: KernelSource, block_size: int, architecture: str, go_on: Callable[[], bool]
) -> bool:
    """Find the options of a kernel of node tiles, and keep them; return whether there are any.

    As many blocks as go without spilling, or nearly so: kernels of node tiles wait for memory and
    at barriers, and another block has something to do. The compiler arranges the same instructions
    better where it is told how many blocks there are (docs/design/0012-elimination.md). Nothing is
    searched for an architecture whose limits are not known; `go_on` is asked before each
    compilation.
    """
    question = size_question(block_size, is_settled=False)
    kept = kept_choice(source.text, architecture, question)
    if architecture not in architectures() or (kept is not None and kept.is_searched):
        return False
    of_size = () if block_size == source.block_size else (BLOCK_SIZE_OPTION.format(block_size),)

    def compiled(*options: str) -> tuple[int, int]:
        """Local memory of a thread, and blocks of a multiprocessor: none if nobody says."""
        text = compile_text(source.text, architecture, (*of_size, *options))
        # an NVRTC with a cache that cannot be turned off may give code without figures
        resources = text.resources.get(source.name)
        held = None if resources is None else occupancy(resources, block_size, architecture)
        if resources is None or held is None:
            return 0, 0
        return resources.stack_bytes, held.blocks(block_size)

    found: tuple[str, ...] = ()
    _, wanted = compiled()
    may_spill = SPILLED_BYTES if source.stretches else 0
    while wanted > 0:
        if not go_on():
            return False
        option = MIN_BLOCKS_OPTION.format(wanted)
        local_bytes, resident = compiled(option)
        if local_bytes > may_spill or resident < wanted:
            break
        found, wanted = (option,), resident + 1
    keep_choice(source.text, architecture, question, Choice(block_size, found, is_searched=True))
    return len(found) > 0
