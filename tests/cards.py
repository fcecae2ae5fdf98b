"""Tests of CUDA by several workers: each begins at another card, and leaves no memory behind.

All cards stay visible, for tests that need several. Kernels are compiled once for all workers:
caspar's store and that of CuPy are folders of the user.
"""

import gc
import os
import subprocess
import sys
from collections.abc import Sequence

CARDS, WORKER = "CUDA_VISIBLE_DEVICES", "PYTEST_XDIST_WORKER"


def spread_workers() -> None:
    """Let a worker of pytest-xdist see the cards in an order of its own, before CUDA starts."""
    worker = os.environ.get(WORKER, "").removeprefix("gw")
    cards = _visible_cards() if worker.isdigit() else []
    if len(cards) > 1:
        os.environ[CARDS] = ",".join(rotated(cards, int(worker)))


def rotated(cards: Sequence[str], worker: int) -> list[str]:
    """The cards from that of a worker on."""
    first = worker % len(cards)
    return [*cards[first:], *cards[:first]]


def _visible_cards() -> list[str]:
    """Cards as CUDA is to see them; none without a driver."""
    chosen = os.environ.get(CARDS)
    if chosen is not None:
        return [card.strip() for card in chosen.split(",") if card.strip()]
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
            capture_output=True,
            encoding="utf-8",
            check=True,
            timeout=60.0,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return listed.stdout.split()


def free_pools() -> None:
    """Give the memory that CuPy keeps for later back to the other workers."""
    cupy = sys.modules.get("cupy")
    # tests put modules of this name there that have nothing
    if cupy is not None and hasattr(cupy, "cuda"):
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
