"""The store: what is read back, what is a miss, what is refused, what is deleted."""

import errno
import os
import stat
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caspar.runtime import cache
from caspar.runtime.cache import (
    KINDS,
    cache_folder,
    cache_usage,
    clear_cache,
    max_cache_bytes,
    read_entry,
    write_entry,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, not made yet, in a process that has written and said nothing."""
    path = tmp_path / "cache"
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(path))
    monkeypatch.setattr(cache, "_STATE", cache._OfProcess(None, set()))
    return path


def entry_of(folder: Path) -> Path:
    """The only entry."""
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    return path


class TestFolder:
    def test_it_can_be_chosen(self, folder: Path) -> None:
        assert cache_folder() == folder

    @pytest.mark.parametrize("value", [None, ""])
    def test_default(self, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
        if value is None:
            monkeypatch.delenv("CASPAR_CACHE_DIR")
        else:
            monkeypatch.setenv("CASPAR_CACHE_DIR", value)
        found = cache_folder()
        assert found is not None
        assert found.name == "caspar"
        assert found.is_absolute()

    def test_the_tilde_is_the_home(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("CASPAR_CACHE_DIR", "~/kept")
        assert cache_folder() == tmp_path / "kept"

    def test_nobodys_home_is_no_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CASPAR_CACHE_DIR", "~no-such-user/kept")
        assert cache_folder() is None
        with pytest.warns(UserWarning, match=r"no home folder.*CASPAR_CACHE_DIR"):
            write_entry("plans", "key", b"content")
        assert read_entry("plans", "key") is None
        assert cache_usage().folder is None
        assert clear_cache().num_files == 0

    def test_a_relative_one(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("CASPAR_CACHE_DIR", "kept")
        assert cache_folder() == tmp_path / "kept"

    def test_only_the_user_may_look_into_a_new_one(self, folder: Path) -> None:
        write_entry("plans", "key", b"content")
        for path in (folder, folder / "plans"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE(entry_of(folder).stat().st_mode) == 0o600


class TestEntries:
    @pytest.mark.parametrize("content", [b"", b"text", bytes(range(256)) * 1000])
    @pytest.mark.parametrize("key", ["key", "", "../../etc/passwd", "a\nb\0c", "größe" * 1000])
    def test_they_are_read_back(self, folder: Path, key: str, content: bytes) -> None:
        assert read_entry("plans", key) is None
        write_entry("plans", key, content)
        assert read_entry("plans", key) == content
        assert read_entry("code", key) is None
        assert read_entry("plans", key + "x") is None
        assert entry_of(folder).parent == folder / "plans"
        assert len(entry_of(folder).name) == 47

    def test_the_last_one_counts(self, folder: Path) -> None:
        for content in (b"long content", b"short", b""):
            write_entry("plans", "key", content)
            assert read_entry("plans", "key") == content
        assert entry_of(folder)

    def test_every_flipped_bit_is_a_miss(self, folder: Path) -> None:
        write_entry("plans", "key", b"some content")
        whole = entry_of(folder).read_bytes()
        for number in range(8 * len(whole)):
            damaged = bytearray(whole)
            damaged[number // 8] ^= 1 << number % 8
            entry_of(folder).write_bytes(damaged)
            assert read_entry("plans", "key") is None
        for length in range(len(whole)):
            entry_of(folder).write_bytes(whole[:length])
            assert read_entry("plans", "key") is None
        entry_of(folder).write_bytes(whole + b"x")
        assert read_entry("plans", "key") is None
        write_entry("plans", "key", b"again")
        assert read_entry("plans", "key") == b"again"

    def test_an_entry_under_another_name_is_a_miss(self, folder: Path) -> None:
        write_entry("plans", "one", b"1")
        first = entry_of(folder)
        write_entry("plans", "two", b"2")
        (second,) = (path for path in first.parent.iterdir() if path != first)
        os.replace(first, second)
        assert read_entry("plans", "two") is None
        second.rename(folder / second.name)
        assert read_entry("plans", "one") is None

    def test_what_is_no_file_is_a_miss(self, folder: Path, tmp_path: Path) -> None:
        write_entry("plans", "key", b"content")
        path = entry_of(folder)
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        assert read_entry("plans", "key") is None
        path.unlink()
        os.mkfifo(path)
        assert read_entry("plans", "key") is None
        path.unlink()
        path.mkdir()
        assert read_entry("plans", "key") is None
        with pytest.warns(UserWarning, match="cannot be written"):
            write_entry("plans", "key", b"content")

    def test_a_huge_file_is_not_read(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_entry("plans", "key", b"x" * 1000)
        monkeypatch.setattr(cache, "_LARGEST_ENTRY", 999)
        assert read_entry("plans", "key") is None
        write_entry("plans", "other", b"x" * 1000)
        assert read_entry("plans", "other") is None

    def test_readers_see_whole_entries_only(self) -> None:
        contents = [letter * 100_000 for letter in (b"a", b"b", b"c", b"d")]
        write_entry("plans", "key", contents[0])
        with ThreadPoolExecutor(4) as pool:
            writes = [pool.submit(write_entry, "plans", "key", one) for one in contents * 10]
            seen = {read_entry("plans", "key") for _ in range(50)}
        assert all(write.exception() is None for write in writes)
        assert seen <= set(contents)


class TestRefusals:
    @pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
    @pytest.mark.parametrize("place", ["", "plans"])
    def test_what_others_may_write_into(self, folder: Path, mode: int, place: str) -> None:
        write_entry("plans", "key", b"content")
        (folder / place).chmod(mode)
        with pytest.warns(UserWarning, match=rf"chmod -R go-w {folder / place}$"):
            assert read_entry("plans", "key") is None
        write_entry("plans", "other", b"content")  # said once
        assert entry_of(folder)
        assert "chmod" in cache_usage().refusal
        (folder / place).chmod(0o755)
        assert read_entry("plans", "key") == b"content"
        assert cache_usage().refusal == ""

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
    def test_what_belongs_to_somebody_else(self, folder: Path) -> None:
        write_entry("plans", "key", b"content")
        os.chown(entry_of(folder), 12345, -1)
        assert read_entry("plans", "key") is None
        write_entry("plans", "key", b"content")
        for place in (folder / "plans", folder):
            os.chown(place, 12345, -1)
            with pytest.warns(UserWarning, match=r"belongs to user 12345.*chown -R 0 "):
                assert read_entry("plans", "key") is None
            os.chown(place, 0, -1)
        assert read_entry("plans", "key") == b"content"

    def test_a_file_in_the_place_of_a_folder(self, folder: Path) -> None:
        folder.write_text("mine")
        with pytest.warns(UserWarning, match="is not a folder"):
            assert read_entry("plans", "key") is None
        write_entry("plans", "key", b"content")
        assert folder.read_text() == "mine"

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES])
    def test_a_full_disk(self, folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        write_entry("plans", "old", b"1")

        class Full:
            def __init__(self, descriptor: int, mode: str) -> None:
                os.close(descriptor)

            def __enter__(self) -> "Full":
                return self

            def __exit__(self, *error: object) -> None: ...

            def write(self, data: bytes) -> None:
                raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fdopen", Full)
        with pytest.warns(UserWarning, match=os.strerror(number)):
            write_entry("plans", "old", b"2")
        write_entry("plans", "new", b"3")  # said once
        monkeypatch.undo()
        monkeypatch.setenv("CASPAR_CACHE_DIR", str(folder))
        assert entry_of(folder)  # no temporary files
        assert read_entry("plans", "old") == b"1"

    def test_a_folder_that_is_cleared_meanwhile(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = tempfile.mkstemp

        def clearing(*args: Any) -> tuple[int, str]:
            monkeypatch.setattr(tempfile, "mkstemp", made)
            clear_cache()
            return made(*args)

        write_entry("plans", "one", b"1")
        monkeypatch.setattr(tempfile, "mkstemp", clearing)
        write_entry("plans", "two", b"2")
        assert read_entry("plans", "two") == b"2"


class TestSize:
    @pytest.mark.parametrize(
        ("text", "num_bytes"),
        [("", 1 << 30), ("1000", 1000), ("2G", 2 << 30), ("1.5 MiB", 3 << 19), ("7kB", 7168)],
    )
    def test_it_can_be_chosen(
        self, monkeypatch: pytest.MonkeyPatch, text: str, num_bytes: int
    ) -> None:
        monkeypatch.setenv("CASPAR_CACHE_SIZE", text)
        assert max_cache_bytes() == num_bytes

    @pytest.mark.parametrize("text", ["much", "-1", "1e9"])
    def test_what_is_no_size(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        monkeypatch.setenv("CASPAR_CACHE_SIZE", text)
        with pytest.warns(UserWarning, match="it must be a size such as 500M"):
            assert max_cache_bytes() == 1 << 30

    def test_the_least_recently_used_go(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CASPAR_CACHE_SIZE", "100k")
        now = time.time()
        for number in range(8):
            write_entry("plans", str(number), b"x" * 10_000)
        for number, path in enumerate(sorted((folder / "plans").iterdir())):
            os.utime(path, (now - 8000, now - 8000 - number))
        assert read_entry("plans", "3") is not None  # marks it as used
        for number in range(8, 14):
            write_entry("code", str(number), b"x" * 10_000)
        assert cache_usage().num_bytes <= 9 / 8 * 102_400  # looked at after every eighth of it
        assert read_entry("plans", "3") is not None
        assert read_entry("code", "13") is not None
        kept = [number for number in range(8) if read_entry("plans", str(number)) is not None]
        assert len(kept) < 8

    def test_what_is_larger_than_the_limit_is_not_kept(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CASPAR_CACHE_SIZE", "0")
        write_entry("plans", "key", b"content")
        assert not folder.exists()

    def test_abandoned_files_are_deleted(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_entry("plans", "key", b"content")
        path = entry_of(folder)
        half = path.with_name(f"{path.stem}.abcd_123.caspar")
        half.write_bytes(b"half")
        monkeypatch.setattr(cache, "_STATE", cache._OfProcess(None, set()))
        write_entry("plans", "second", b"content")
        assert half.exists()  # another process may be writing it
        os.utime(half, (0.0, 0.0))
        monkeypatch.setattr(cache, "_STATE", cache._OfProcess(None, set()))
        write_entry("plans", "third", b"content")
        assert not half.exists()
        assert cache_usage().num_files == 3


class TestClearing:
    def test_usage(self, folder: Path) -> None:
        assert cache_usage() == cache.CacheUsage(folder, 0, 0, 1 << 30, "", 0)
        write_entry("plans", "one", b"12345")
        write_entry("code", "two", b"67")
        assert cache_usage() == cache.CacheUsage(folder, 2, 101, 1 << 30, "", 0)

    def test_only_own_files_go(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / f"{'0' * 40}.caspar").write_text("not ours")
        mine = [folder / kind / name for kind in KINDS for name in ("house.json", "deadbeef")]
        mine.append(folder / f"{'0' * 40}.caspar")
        for path in mine:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("mine")
        (folder / "plans" / f"{'1' * 40}.caspar").symlink_to(tmp_path / "thesis")
        for kind in KINDS:
            write_entry(kind, "key", b"content")
        assert clear_cache().num_files == 3
        assert all(path.read_text() == "mine" for path in mine)
        assert cache_usage().num_files == 0
        assert cache_usage().num_others == 7

    def test_links_are_not_followed(self, folder: Path, tmp_path: Path) -> None:
        write_entry("plans", "key", b"content")
        (folder / "plans").rename(tmp_path / "moved")
        (folder / "plans").symlink_to(tmp_path / "moved")
        assert clear_cache().num_files == 0
        assert len(os.listdir(tmp_path / "moved")) == 1

    def test_empty_folders_go(self, folder: Path) -> None:
        write_entry("plans", "key", b"content")
        clear_cache()
        assert list(folder.iterdir()) == []


def test_numbers_of_numpy_are_content(folder: Path) -> None:
    values = np.arange(5.0)
    write_entry("tuned", "key", values.tobytes())
    found = read_entry("tuned", "key")
    assert found is not None
    assert np.frombuffer(found).tolist() == values.tolist()
