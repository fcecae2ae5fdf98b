import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from caspar.runtime import cache
from caspar.runtime.cache import (
    cache_folder,
    cache_usage,
    clear_cache,
    writable_cache_folder,
    write_atomically,
    write_entry,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, not made yet."""
    path = tmp_path / "cache"
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(path))
    return path


def test_folder_can_be_chosen(folder: Path) -> None:
    assert cache_folder() == folder


@pytest.mark.parametrize("value", [None, ""])
def test_default_folder(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv("CASPAR_CACHE_DIR", raising=False)
    else:
        monkeypatch.setenv("CASPAR_CACHE_DIR", value)
    assert cache_folder().name == "caspar"
    assert cache_folder().is_absolute()


def test_written_files_are_read_back(folder: Path) -> None:
    path = folder / "plans" / "entry.json"
    write_atomically(path, "first")
    write_atomically(path, "second: é\n")
    assert path.read_text() == "second: é\n"
    assert os.listdir(path.parent) == ["entry.json"]


def test_readers_see_whole_files_only(folder: Path) -> None:
    path = folder / "entry"
    texts = [letter * 100_000 for letter in "abcd"]
    write_atomically(path, texts[0])
    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(write_atomically, path, text) for text in texts * 10]
        seen = {path.read_text() for _ in range(50)}
    assert all(write.exception() is None for write in writes)
    assert seen <= set(texts)


def test_usage(folder: Path) -> None:
    assert (cache_usage().num_files, cache_usage().num_bytes) == (0, 0)
    write_atomically(folder / "plans" / "one", "12345")
    write_atomically(folder / "cpu" / "two", "67")
    usage = cache_usage()
    assert (usage.folder, usage.num_files, usage.num_bytes) == (folder, 2, 7)


def test_clear(folder: Path) -> None:
    write_atomically(folder / "plans" / "one", "12345")
    assert clear_cache().num_files == 1
    assert cache_usage().num_files == 0
    assert clear_cache().num_files == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_folder_is_an_error_of_the_system(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(PermissionError):
        write_atomically(folder / "entry", "text")


def test_an_unusable_folder_is_replaced_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file" / "cache"
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(blocked))
    with pytest.warns(UserWarning, match=r"cannot be written.*CASPAR_CACHE_DIR"):
        folder = writable_cache_folder()
    assert folder.is_dir()
    assert folder != blocked


def test_a_full_disk_moves_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = write_entry("plans/first", "1")
    assert kept == folder / "plans" / "first"
    written = cache.write_atomically

    def full(path: Path, text: str) -> None:
        if path.is_relative_to(folder):
            raise OSError(errno.ENOSPC, "No space left on device")
        written(path, text)

    monkeypatch.setattr(cache, "write_atomically", full)
    with pytest.warns(UserWarning, match=r"cannot be written.*No space left"):
        moved = write_entry("plans/second", "2")
    assert moved.read_text() == "2"
    assert not moved.is_relative_to(folder)
    # once a process: the next ones go there at once
    assert write_entry("cpu/third", "3").parents[1] == moved.parents[1] == writable_cache_folder()
