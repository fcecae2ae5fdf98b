"""Files are replaced whole or not at all, whatever happens meanwhile."""

import bz2
import dataclasses
import errno
import io
import itertools
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caspar.io import (
    PlyEncoding,
    read_g2o,
    read_gtsam,
    replace,
    write_bal,
    write_g2o,
    write_ply,
    write_toro,
)
from caspar.io.replace import checked_target, find_target, open_for_replacing, write_file
from caspar.plot import plot_bundle_adjustment
from caspar.sfm import (
    read_bundler,
    read_opensfm,
    write_bundler,
    write_opensfm,
    write_tracks,
)
from tests.covering import alternating
from tests.examples import make_bal_problem, make_result

ROOT = Path(__file__).parents[2]
PROBLEM = make_bal_problem()
GRAPH = read_g2o(ROOT / "data/smallGrid3D.g2o.bz2")
DRIVE = read_gtsam(ROOT / "data/victoria_park.txt.bz2")
PLACES = dataclasses.replace(DRIVE.landmarks, ids=DRIVE.landmarks.ids + 10_000)
MAP = dataclasses.replace(DRIVE, landmarks=PLACES)
BUNDLER = read_bundler(ROOT / "data/Balbianello.out.bz2")
BERLIN = read_opensfm(
    ROOT / "data/berlin_reconstruction.json.bz2", ROOT / "data/berlin_tracks.csv.bz2"
)

WRITERS: dict[str, Callable[[Path], None]] = {
    "scene.txt": lambda path: write_bal(path, PROBLEM),
    "scene.txt.bz2": lambda path: write_bal(path, PROBLEM),
    "scene.txt.gz": lambda path: write_bal(path, PROBLEM),
    "graph.g2o": lambda path: write_g2o(path, GRAPH),
    "scene.ply": lambda path: write_ply(path, PROBLEM.points, PROBLEM.cameras),
    "ascii.ply": lambda path: write_ply(
        path, PROBLEM.points, PROBLEM.cameras, encoding=PlyEncoding.ASCII
    ),
    "scene.png": lambda path: plot_bundle_adjustment(PROBLEM, PROBLEM, make_result(), path),
    "map.g2o": lambda path: write_g2o(path, MAP),
    "graph.toro": lambda path: write_toro(path, GRAPH),
    "scene.out": lambda path: write_bundler(path, BUNDLER),
    "tracks.csv": lambda path: write_tracks(path, BERLIN.tracks),
    "reconstruction.json": lambda path: write_opensfm(path, BERLIN),
    "any": lambda path: write_file(path, b"new"),
}


class InterruptedFile(io.FileIO):
    """A file whose n-th write, or closing, is interrupted after half of its bytes."""

    left: int
    error: BaseException

    def write(self, content: Any) -> int:
        """Write; the last one allowed is not finished."""
        InterruptedFile.left -= 1
        if InterruptedFile.left < 0:
            super().write(memoryview(content)[: len(content) // 2])
            raise self.error
        return super().write(content)


def interrupt_writes(
    monkeypatch: pytest.MonkeyPatch, after: int, error: BaseException
) -> type[InterruptedFile]:
    """Let temporary files fail after some writes of at most 64 bytes."""
    InterruptedFile.left, InterruptedFile.error = after, error

    def small_writes(path: str, mode: str, opener: Any) -> io.BufferedWriter:
        return io.BufferedWriter(InterruptedFile(path, mode.replace("b", ""), opener=opener), 64)

    monkeypatch.setattr(replace, "open", small_writes, raising=False)
    return InterruptedFile


FAILURES = (KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device"), MemoryError())


@pytest.mark.parametrize(
    ("name", "failure"), alternating(WRITERS, itertools.product(FAILURES, [True, False]))
)
def test_a_failure_at_every_write_leaves_the_old_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    failure: tuple[BaseException, bool],
) -> None:
    error, exists = failure
    path = tmp_path / name
    failures = 0
    step = 1
    after = 0
    while True:
        if exists:
            path.write_bytes(b"old")
        fresh = type(error)(*error.args)
        message = None
        with monkeypatch.context() as patch:
            file = interrupt_writes(patch, after, fresh)
            try:
                WRITERS[name](path)
            except type(error) as caught:
                message = str(caught)
        if message is None:
            break
        failures += 1
        assert f"{path} {'is unchanged' if exists else 'was not created'}" in message
        assert file.left < 0
        assert path.read_bytes() == b"old" if exists else not path.exists()
        assert os.listdir(tmp_path) == ([name] if exists else [])
        after += step
        step = 1 + after // 8  # every write at first, then fewer
    assert failures >= 1
    assert os.listdir(tmp_path) == [name]
    assert path.read_bytes() != b"old"


@pytest.mark.parametrize("error", [ValueError("bad number"), KeyboardInterrupt(), SystemExit()])
def test_a_failing_serialiser_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(b"old")

    def serialise() -> None:
        with open_for_replacing(path) as new:
            new.write(b"half")
            new.flush()
            raise error

    with pytest.raises(type(error), match=r"file\.txt is unchanged"):
        serialise()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_an_interrupt_after_the_replacement_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(b"old")
    real_replace = os.replace

    def replaced_and_interrupted(source: str, target: str) -> None:
        real_replace(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", replaced_and_interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"file\.txt is written"):
        write_file(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
@pytest.mark.parametrize("suffix", ["", ".bz2", ".gz"])
def test_a_full_disk(tmp_path: Path, suffix: str) -> None:
    """A process that may not write as much as it wants gets an OSError from the system itself."""
    path = tmp_path / f"problem.txt{suffix}"
    path.write_bytes(b"old")
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "import numpy as np; from caspar.io import BalProblem, write_bal\n"
        "g = np.random.default_rng(0); n = 20000\n"
        "p = BalProblem(g.normal(size=(2, 10)), g.normal(size=(n, 3)), np.zeros(n, int),"
        " np.arange(n), g.normal(size=(n, 2)))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: write_bal(sys.argv[1], p)\n"
        "except OSError as error: print(error.errno, error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    assert found.stdout.startswith(f"{errno.EFBIG} "), found
    assert f"{path} is unchanged" in found.stdout
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


class TestTargets:
    """What a path may lead to."""

    def test_mode(self, tmp_path: Path) -> None:
        """An old file's mode stays; a new file has that of the umask."""
        old, new = tmp_path / "old", tmp_path / "new"
        old.write_bytes(b"old")
        old.chmod(0o640)
        before = os.umask(0o027)
        try:
            write_file(old, b"1")
            write_file(new, b"2")
        finally:
            os.umask(before)
        assert stat.S_IMODE(old.stat().st_mode) == 0o640
        assert stat.S_IMODE(new.stat().st_mode) == 0o640
        old.chmod(0o755)
        write_file(old, b"3")
        assert stat.S_IMODE(old.stat().st_mode) == 0o755

    def test_nobody_else_can_open_the_file_before_it_has_its_mode(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who has it open by then would read what is written later."""
        path = tmp_path / "secret"
        path.write_bytes(b"old")
        path.chmod(0o600)
        modes = []
        chmod = os.chmod

        def noted(temporary: str, mode: int) -> None:
            modes.append(stat.S_IMODE(os.stat(temporary).st_mode))
            chmod(temporary, mode)

        monkeypatch.setattr(os, "chmod", noted)
        before = os.umask(0)
        try:
            write_file(path, b"new")
        finally:
            os.umask(before)
        assert modes == [0o600]

    def test_symbolic_links_stay(self, tmp_path: Path) -> None:
        """What they point to is written, in its own folder, existing or not."""
        (tmp_path / "folder").mkdir()
        file = tmp_path / "folder" / "file"
        link, second = tmp_path / "link", tmp_path / "second"
        link.symlink_to("folder/file")
        second.symlink_to(link)
        for content in (b"1", b"2"):
            write_file(second, content)
            assert file.read_bytes() == content
        assert link.is_symlink()
        assert second.is_symlink()
        assert os.listdir(tmp_path / "folder") == ["file"]

    def test_a_loop_of_links(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to("b")
        (tmp_path / "b").symlink_to("a")
        with pytest.raises(OSError, match="symbolic links"):
            write_file(tmp_path / "a", b"")

    def test_other_names_of_the_old_file_keep_it(self, tmp_path: Path) -> None:
        old, other = tmp_path / "old", tmp_path / "other"
        old.write_bytes(b"old")
        os.link(old, other)
        write_file(old, b"new")
        assert (old.read_bytes(), other.read_bytes()) == (b"new", b"old")

    @pytest.mark.parametrize("name", ["x" * 255, "\u00e4\u732b.txt", "a b\n.txt", "-", "..."])
    def test_names(self, tmp_path: Path, name: str) -> None:
        for content in (b"1", b"2"):
            write_file(tmp_path / name, content)
            assert (tmp_path / name).read_bytes() == content
        assert os.listdir(tmp_path) == [name]

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("none/file", "there is no folder .*none; make it first"),
            ("", "this is a folder"),
            ("new/", "this is a folder"),
            ("file/below", "Not a directory"),
            ("x" * 256, "too long"),
        ],
    )
    def test_refused(self, tmp_path: Path, name: str, said: str) -> None:
        (tmp_path / "file").write_bytes(b"old")
        with pytest.raises(OSError, match=said):
            checked_target(f"{tmp_path}/{name}")
        assert os.listdir(tmp_path) == ["file"]

    def test_permissions(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file or folder that may not be written; root may write everything."""
        path = tmp_path / "file"
        path.write_bytes(b"old")
        for forbidden, said in ((path, "no permission to write it"), (tmp_path, "in the folder")):
            with monkeypatch.context() as patch:
                patch.setattr(os, "access", lambda name, mode, f=forbidden: name != str(f))
                with pytest.raises(PermissionError, match=said):
                    write_file(path, b"new")
        assert path.read_bytes() == b"old"

    def test_relative_paths(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        write_file("file", b"1")
        write_file(Path("./file"), b"2")
        assert Path("file").read_bytes() == b"2"


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="paths of POSIX")
class TestSpecialFiles:
    """Devices, FIFOs and descriptors are written as they are."""

    def test_devices(self) -> None:
        write_file("/dev/null", b"gone")
        assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
        with pytest.raises(OSError, match=r"No space left.*; /dev/full may have a part"):
            write_file("/dev/full", b"x")

    def test_fifo(self, tmp_path: Path) -> None:
        path = tmp_path / "fifo"
        os.mkfifo(path)
        received: list[bytes] = []
        reader = threading.Thread(target=lambda: received.append(path.read_bytes()), daemon=True)
        reader.start()
        write_bal(path, PROBLEM)
        reader.join(10)
        write_bal(tmp_path / "file", PROBLEM)
        assert received == [(tmp_path / "file").read_bytes()]
        assert stat.S_ISFIFO(path.stat().st_mode)

    @pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
    @pytest.mark.parametrize("mode", ["w", "a"])
    def test_standard_output(self, tmp_path: Path, name: str, mode: str) -> None:
        """Also if it is a file: what was in it and what comes later stays."""
        log = tmp_path / "log"
        log.write_text("before\n")
        program = (
            "import sys; from caspar.io.replace import write_file\n"
            f"write_file({name!r}, b'file\\n'); print('after')"
        )
        with log.open(mode) as output:
            subprocess.run(
                [sys.executable, "-c", program], cwd=ROOT, stdout=output, check=True, timeout=500
            )
        assert log.read_text() == ("before\n" if mode == "a" else "") + "file\nafter\n"


def test_same_file(tmp_path: Path) -> None:
    """Symbolic links, hard links, other spellings; also of files that are not there yet."""
    names = {name: tmp_path / name for name in ("file", "soft", "hard", "other", "new", "to_new")}
    names["file"].write_bytes(b"")
    names["other"].write_bytes(b"")
    names["soft"].symlink_to("file")
    names["to_new"].symlink_to("new")
    os.link(names["file"], names["hard"])
    (tmp_path / "folder").mkdir()
    groups = (
        [names["file"], names["soft"], names["hard"], tmp_path / "folder" / ".." / "file"],
        [names["new"], names["to_new"], tmp_path / "folder" / ".." / "new"],
        [names["other"]],
        [tmp_path / "folder" / "new"],
    )
    for index, group in enumerate(groups):
        for other_index, other in enumerate(groups):
            for first in group:
                for second in other:
                    same = find_target(first).is_same_file(find_target(second))
                    assert same == (index == other_index), (first, second)
    assert not find_target("/dev/null").is_same_file(find_target("/dev/null"))


def test_packed_files_are_whole(tmp_path: Path) -> None:
    write_bal(tmp_path / "a.txt", PROBLEM)
    write_bal(tmp_path / "a.txt.BZ2", PROBLEM)
    assert (
        bz2.decompress((tmp_path / "a.txt.BZ2").read_bytes()) == (tmp_path / "a.txt").read_bytes()
    )


@pytest.mark.parametrize("length", [1e200, 1e-200, 1.0, 3.0])
def test_quaternions_of_any_length(tmp_path: Path, length: float) -> None:
    """Their squares may overflow or vanish; the rotation is the same."""
    cameras = np.array([[0.5, -0.5, 0.5, 0.5, 1.0, 2.0, 3.0, 500.0, 0.0, 0.0]])
    scaled = cameras * np.array([length] * 4 + [1.0] * 6)
    write_ply(tmp_path / "a.ply", np.zeros((1, 3)), cameras)
    write_ply(tmp_path / "b.ply", np.zeros((1, 3)), scaled)
    assert (tmp_path / "a.ply").read_bytes() == (tmp_path / "b.ply").read_bytes()
