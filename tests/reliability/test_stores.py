"""Results do not depend on what happens to the cache: the bounded part of `stores`.

That no damaged entry is read, `tests/runtime/test_cache.py` finds bit by bit.
"""

import os
from pathlib import Path

import pytest

from tests.reliability import stores
from tests.reliability.stores import worked

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has all that the work needs."""
    folder = tmp_path_factory.mktemp("store") / "cache"
    worked(folder)
    return folder


@pytest.fixture(scope="module")
def wanted(cache: Path) -> stores.Outcome:
    """What the work gives."""
    outcome = worked(cache)
    assert outcome["warnings"] == []
    return outcome


@pytest.mark.reliability
def test_flipped_bits(wanted: stores.Outcome, cache: Path) -> None:
    num_entries = len(stores.files_of(cache))
    assert num_entries > 5
    assert stores.damaged_entries(wanted, cache, 1, seed=7) == num_entries
    assert len(stores.files_of(cache)) == num_entries


def test_a_full_disk(wanted: stores.Outcome, tmp_path: Path) -> None:
    assert stores.full_disk(wanted, tmp_path / "full") == 1


def test_processes_at_once(wanted: stores.Outcome, tmp_path: Path) -> None:
    assert stores.many_at_once(wanted, tmp_path / "many", 2) == 2


@pytest.mark.reliability
@NEEDS_ROOT
def test_somebody_elses_folder(wanted: stores.Outcome, tmp_path: Path) -> None:
    assert stores.foreign_folder(wanted, tmp_path / "foreign") == 4


@pytest.mark.reliability
def test_no_home(wanted: stores.Outcome) -> None:
    assert stores.no_home(wanted) == 3


@pytest.mark.reliability
def test_a_cache_that_is_cleared_meanwhile(wanted: stores.Outcome, tmp_path: Path) -> None:
    assert stores.cleared_meanwhile(wanted, tmp_path / "cleared", 4) > 0


@pytest.mark.reliability
def test_many_flipped_bits(wanted: stores.Outcome, cache: Path) -> None:
    assert stores.damaged_entries(wanted, cache, 200, seed=1) >= 200
