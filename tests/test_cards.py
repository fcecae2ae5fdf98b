"""Workers of the tests of CUDA begin at different cards."""

import os
import sys
from types import SimpleNamespace

import pytest

from tests.cards import CARDS, WORKER, free_pools, spread_workers


@pytest.mark.parametrize(
    ("worker", "expected"),
    [("gw0", "3,5,6"), ("gw1", "5,6,3"), ("gw5", "6,3,5"), ("master", "3,5,6"), (None, "3,5,6")],
)
def test_each_worker_begins_at_another_card(
    worker: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CARDS, "3,5,6")
    if worker is None:
        monkeypatch.delenv(WORKER, raising=False)
    else:
        monkeypatch.setenv(WORKER, worker)
    spread_workers()
    assert os.environ[CARDS] == expected


def test_pools_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = []
    pool = SimpleNamespace(free_all_blocks=lambda: freed.append("device"))
    pinned = SimpleNamespace(free_all_blocks=lambda: freed.append("pinned"))
    cupy = SimpleNamespace(
        cuda=None,
        get_default_memory_pool=lambda: pool,
        get_default_pinned_memory_pool=lambda: pinned,
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    free_pools()
    assert freed == ["device", "pinned"]
