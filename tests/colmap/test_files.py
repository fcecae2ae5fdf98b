"""Files of COLMAP models: round trips, what is refused and how, damage at every place."""

import contextlib
import dataclasses
import errno
import gc
import os
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import caspar.colmap.files.folder
import caspar.io.replace
from caspar.colmap import Model, ModelFormat, Points, read_model, write_model
from caspar.errors import FileFormatError, InputError, OptionError
from tests.colmap.models import ROOT, SYNTHETIC, equal_arrays, packed, synthetic, tiny
from tests.covering import covering
from tests.io.interrupted_steps import FailingCalls, InterruptAt, contents

FORMATS = [kind.value for kind in ModelFormat]
BINARY = ("cameras.bin", "images.bin", "points3D.bin", "rigs.bin", "frames.bin")
TEXT = ("cameras.txt", "images.txt", "points3D.txt", "rigs.txt", "frames.txt")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("with_rigs", [True, False])
def test_round_trip(tmp_path: Path, format: str, with_rigs: bool) -> None:
    model = tiny(with_rigs=with_rigs)
    write_model(model, tmp_path / "model", format)
    assert equal_arrays(read_model(tmp_path / "model"), model)
    assert len(list((tmp_path / "model").iterdir())) == (5 if with_rigs else 3)


@pytest.mark.parametrize("name", ["rigs", "mixed", "sphere"])
def test_binary_files_come_back_byte_by_byte(tmp_path: Path, name: str) -> None:
    write_model(synthetic(name), tmp_path)
    for file in BINARY:
        assert (tmp_path / file).read_bytes() == (SYNTHETIC / name / file).read_bytes()


def test_text_of_colmap() -> None:
    model = packed(ROOT / "data/crane_mast.tar.xz")
    assert repr(model) == "Model(1 cameras, 8 images, 2122 points, 6037 observations)"
    assert model.images.names[0] == "crane_mast_1.jpg"
    np.testing.assert_array_equal(model.cameras.parameters, [2332.47, 2028, 1520, 0.00400066])


def test_empty_model(tmp_path: Path) -> None:
    for file in TEXT[:3]:
        (tmp_path / file).write_text("# nothing\n\n")
    model = read_model(tmp_path)
    assert model.num_observations == 0
    write_model(model, tmp_path / "binary")
    assert equal_arrays(read_model(tmp_path / "binary"), model)


def test_binary_files_go_before_text(tmp_path: Path) -> None:
    write_model(tiny(with_rigs=False), tmp_path, "binary")
    with pytest.warns(UserWarning, match="has a binary model, which COLMAP and caspar read"):
        write_model(synthetic("rigs"), tmp_path, "text")
    assert equal_arrays(read_model(tmp_path), tiny(with_rigs=False))


def test_rigs_of_another_model_are_not_left(tmp_path: Path) -> None:
    write_model(tiny(), tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(InputError, match=r"frames\.bin belongs to another model"):
        write_model(tiny(with_rigs=False), tmp_path)
    assert before == {file: file.read_bytes() for file in tmp_path.iterdir()}


def test_failed_writing_leaves_all_files(tmp_path: Path) -> None:
    write_model(tiny(), tmp_path, "text")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    model = tiny()
    names = ("line\nbreak", *model.images.names[1:])
    broken = dataclasses.replace(model, images=dataclasses.replace(model.images, names=names))
    with pytest.raises(InputError, match="of image 4 cannot be written as text"):
        write_model(broken, tmp_path, "text")
    assert before == {file: file.read_bytes() for file in tmp_path.iterdir()}


def other_than_tiny() -> Model:
    """A model that differs from `tiny()` in every file."""
    model = tiny()
    assert model.rigs is not None
    assert model.frames is not None
    return Model(
        dataclasses.replace(model.cameras, widths=model.cameras.widths + 1),
        dataclasses.replace(model.images, cam_from_world=model.images.cam_from_world + 1),
        dataclasses.replace(model.points, xyz=model.points.xyz + 1),
        dataclasses.replace(model.rigs, sensor_from_rig=model.rigs.sensor_from_rig * 2),
        dataclasses.replace(model.frames, rig_from_world=model.frames.rig_from_world + 1),
    )


@pytest.mark.filterwarnings(
    "ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning"
)
class TestAllFilesOrNone:
    """Whatever fails and whenever, the folder is the old one or the new one, and said to be."""

    @pytest.fixture(autouse=True)
    def _models(self, tmp_path: Path, exists: bool) -> None:
        self.new = other_than_tiny()
        write_model(tiny(), tmp_path / "old")
        write_model(self.new, tmp_path / "new")
        self.before = contents(tmp_path / "old") if exists else None
        self.after = contents(tmp_path / "new")

    def _folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "model"
        for file in folder.iterdir() if folder.exists() else ():
            file.unlink()
        if self.before is not None:
            folder.mkdir(exist_ok=True)
            for name, content in self.before.items():
                (folder / name).write_bytes(content)
        elif folder.exists():
            folder.rmdir()
        return folder

    @pytest.mark.parametrize("exists", [True, pytest.param(False, marks=pytest.mark.reliability)])
    def test_interrupts_between_any_two_steps(self, tmp_path: Path) -> None:
        modules = (caspar.io.replace, caspar.colmap.files.folder, contextlib)
        files = {str(module.__file__) for module in modules}
        ends: list[str] = []
        said: str | None = ""
        while said is not None:
            folder = self._folder(tmp_path)
            said = InterruptAt(files, len(ends)).run(partial(write_model, self.new, folder))
            found = contents(folder)
            assert found in (self.before, self.after)
            if said is not None:
                state = "nothing is written" if found == self.before else "all files are written"
                ends.append(said)
                # Nothing is said before the first file is begun.
                assert said in ("", state)
        assert len(ends) > 400
        assert ends.count("nothing is written") > 400
        assert ends.count("all files are written") > 10
        gc.collect()  # files that an interrupt left open, while warnings of them are ignored

    @covering(
        error=[KeyboardInterrupt, OSError, MemoryError],
        is_done=[True, False],
        is_lasting=[True, False],
        exists=[True, False],
    )
    def test_calls_that_fail(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        error: type[BaseException],
        is_done: bool,
        is_lasting: bool,
    ) -> None:
        num_calls, num_failed = 0, 0
        while True:
            folder = self._folder(tmp_path)
            reason = error(errno.EIO, "Input/output error") if error is OSError else error()
            calls = FailingCalls(num_calls, reason, is_done=is_done, is_lasting=is_lasting)
            said = ""
            with monkeypatch.context() as patch:
                calls.install(patch)
                try:
                    write_model(self.new, folder)
                except error as caught:
                    said = str(caught)
            found = contents(folder)
            if calls.left >= 0:
                break
            num_calls += 1
            if said == "":  # what is tried without need may fail
                assert found == self.after
                continue
            num_failed += 1
            assert found in (self.before, self.after)
            state = "nothing is written" if found == self.before else "all files are written"
            assert state in said
        assert said == ""
        assert found == self.after
        assert num_failed > 30
        gc.collect()  # see above

    @pytest.mark.parametrize("exists", [True, False])
    def test_a_file_system_without_hard_links(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(*arguments: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        renamed = os.replace
        for place in range(5):
            folder = self._folder(tmp_path)
            left = place

            def failing(old: str, new: str) -> None:
                nonlocal left
                left -= 1
                if left == -1:
                    refused()
                renamed(old, new)

            with monkeypatch.context() as patch:
                patch.setattr(os, "link", refused)
                patch.setattr(os, "replace", failing)
                with pytest.raises(OSError, match="not permitted; nothing is written"):
                    write_model(self.new, folder)
            assert contents(folder) == self.before


def test_what_cannot_be_put_back_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says where the old file is."""
    write_model(tiny(), tmp_path)
    before = (tmp_path / "cameras.bin").read_bytes()
    renamed, left = os.replace, 1

    def refused(*arguments: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    def failing(old: str, new: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            refused()
        renamed(old, new)
        monkeypatch.setattr(os, "link", refused)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(
        OSError, match=r"cameras\.bin could not be put back, its old content is in"
    ) as caught:
        write_model(other_than_tiny(), tmp_path)
    (kept,) = tmp_path.glob(".caspar-*")
    assert str(kept) in str(caught.value)
    assert kept.read_bytes() == before


def test_a_limit_of_file_size(tmp_path: Path) -> None:
    """The largest file, one of the last, fails while it is closed."""
    write_model(tiny(), tmp_path)
    before = contents(tmp_path)
    model = SYNTHETIC / "rigs"
    largest = max(file.stat().st_size for file in model.glob("*.bin"))
    program = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from caspar.colmap import read_model, write_model
model = read_model({str(model)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, ({largest - 1},) * 2)
try:
    write_model(model, {str(tmp_path)!r})
except OSError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=500,
    )
    assert "File too large; nothing is written" in done.stdout, done.stderr
    assert contents(tmp_path) == before


class TestWhatAFormatCannotHold:
    """It is refused before anything is written, as the command line does before the solve."""

    @pytest.mark.parametrize(
        ("part", "field", "value", "said"),
        [
            ("images", "ids", [4, 2**32, 5], r"model, images.ids\[1\] is 4294967296; files of"),
            ("points", "keypoint_index", [0.0, 2.0, 0.0], "index: dtype float64; it must be of in"),
            ("cameras", "widths", [-1, 1], r"model, cameras.widths\[0\] is -1"),
            ("cameras", "model_ids", [2, 18], r"model, cameras.model_ids\[1\] is 18; .* 0 to 17"),
            ("cameras", "model_ids", [2, 3], "camera 3 has 8 parameters; its model has 5"),
            ("images", "point_ids", [2**40, -2, 1, 1], r"images.point_ids\[1\] is -2; .* hold -1"),
            ("points", "ids", [-5, 1, 8], r"points.ids\[0\] is -5"),
            ("points", "ids", np.array([2**63, 1, 8], np.uint64), r"is 9223372036854775808; files"),
            ("points", "colors", [[0, 0, 0], [0, 256, 0], [0, 0, 0]], r"colors\[1, 1\] is 256"),
            ("points", "keypoint_index", [0, 2**32, 0], r"points.keypoint_index\[1\] is 42949"),
            ("rigs", "sensor_types", [0, 0, 2], r"rigs.sensor_types\[2\] is 2; .* hold 0 to 1"),
            ("rigs", "sensor_ids", [7, 3, -1], r"rigs.sensor_ids\[2\] is -1"),
            ("frames", "ids", [2**32, 11], r"frames.ids\[0\] is 4294967296"),
            ("frames", "data_ids", [4, 9, -1, 5], r"frames.data_ids\[2\] is -1"),
        ],
    )
    @pytest.mark.parametrize("format", FORMATS)
    def test_integers(
        self, tmp_path: Path, part: str, field: str, value: object, said: str, format: str
    ) -> None:
        model = tiny()
        changed = dataclasses.replace(getattr(model, part), **{field: np.array(value)})
        model = dataclasses.replace(model, **{part: changed})
        with pytest.raises(InputError, match=said):
            write_model(model, tmp_path / "out", format)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("name", "format", "said"),
        [
            ("a\0b.jpg", "binary", "it has a NUL character"),
            ("a\ud800.jpg", "binary", "it has surrogates that stand for no bytes"),
            ("a\ud800.jpg", "text", "it has surrogates that stand for no bytes"),
            ("\udcc3\udca9.jpg", "binary", "it has surrogates that stand for no bytes"),
            ("a\n.jpg", "text", "it is empty, has a line break, or has white"),
            (" a.jpg", "text", "it is empty, has a line break, or has white"),
            ("", "text", "it is empty, has a line break, or has white"),
        ],
    )
    def test_names(self, tmp_path: Path, name: str, format: str, said: str) -> None:
        names = ("a.jpg", name, "c.jpg")
        model = dataclasses.replace(tiny(), images=dataclasses.replace(tiny().images, names=names))
        with pytest.raises(InputError, match=f"of image 9 cannot be written as {format}: {said}"):
            write_model(model, tmp_path / "out", format)
        assert not (tmp_path / "out").exists()

    def test_the_ends_of_the_range(self, tmp_path: Path) -> None:
        model = tiny()
        cameras = dataclasses.replace(model.cameras, ids=np.array([2**32 - 1, 0]))
        images = dataclasses.replace(
            model.images,
            camera_ids=np.array([2**32 - 1, 0, 0]),
            point_ids=np.array([2**63 - 1, -1, 2**53 + 1, 0]),
        )
        points = dataclasses.replace(model.points, ids=np.array([2**63 - 1, 2**53 + 1, 0]))
        model = Model(cameras, images, points)
        for format in FORMATS:
            write_model(model, tmp_path / format, format)
            assert equal_arrays(read_model(tmp_path / format), model)

    def test_offsets(self) -> None:
        points = tiny(with_rigs=False).points
        for wrong in ([1, 1, 3, 3], [0, 3, 1, 3]):
            with pytest.raises(
                InputError, match=r"points\.offsets: it must start with 0 and never"
            ):
                _with_points(dataclasses.replace(points, offsets=np.array(wrong)))


def _with_points(points: Points) -> Model:
    model = tiny(with_rigs=False)
    return Model(model.cameras, model.images, points)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    model = tiny()
    name = b"\xff\xfe.jpg".decode(errors="surrogateescape")
    names = (name, *model.images.names[1:])
    model = dataclasses.replace(model, images=dataclasses.replace(model.images, names=names))
    for format in FORMATS:
        write_model(model, tmp_path / format, format)
        assert read_model(tmp_path / format).images.names[0] == name


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        read_model(tmp_path / "none")
    (tmp_path / "cameras.txt").write_text("")
    with pytest.raises(FileFormatError, match=r"images\.txt, points3D\.txt missing"):
        read_model(tmp_path)
    write_model(tiny(), tmp_path)
    (tmp_path / "rigs.bin").unlink()
    with pytest.raises(FileFormatError, match=r"both rigs\.bin and frames\.bin"):
        read_model(tmp_path)


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="format='ply': must be one of 'binary', 'text'"):
        write_model(tiny(), tmp_path, "ply")
    with pytest.raises(OptionError, match="path=3: it must be a str"):
        read_model(3)  # type: ignore[arg-type]


def _replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def replace(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new, 1)

    return replace


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("cameras.txt", _replaced(b"OPENCV", b"FISH"), r"line 3: 'FISH' is not one of COLMAP's"),
        ("cameras.txt", _replaced(b" 600.0", b""), "line 3: the line ends where its parameters"),
        ("cameras.txt", _replaced(b"640", b"-1"), "line 2: its width is '-1', not an integer"),
        ("cameras.txt", _replaced(b"-0.0", b"-0.0 1"), "line 3: the line goes on with '1'"),
        ("cameras.txt", _replaced(b"7 S", b"3 S"), "model, cameras: id 3 is there twice"),
        ("images.txt", _replaced(b"1.5 ", b""), "line 4: the line has 8 entries; keypoints need"),
        ("images.txt", _replaced(b"-1 3", b"-2 3"), "line 4: -2 is no id of a point"),
        ("images.txt", _replaced(b" 7 a", b" 8 a"), "camera 8 is named in images, but is not"),
        ("images.txt", _replaced(b"2.25", b"2,25"), "line 4: '2,25' is not a number"),
        ("points3D.txt", _replaced(b"128", b"256"), "line 2: 256 is no colour; allowed are"),
        ("points3D.txt", _replaced(b" 5 0\n", b" 5\n"), "line 3: the line has 11 entries"),
        ("points3D.txt", _replaced(b"0.2", b"x"), "line 3: 'x' is not a number"),
        ("points3D.txt", _replaced(b"1 0.1", b"1.5 0.1"), "line 3: 1.5 is no id of a point"),
        ("points3D.txt", _replaced(b"1 0.1", b"1e17 0.1"), r"line 3: 1e\+17 is no id of a point"),
        ("points3D.txt", _replaced(b"1 0.1", b"%d 0.1" % 2**63), "3: 9.2233720368547758e.18 is no"),
        (
            "images.txt",
            _replaced(b" -1 3", b" %d 3" % 2**63),
            "line 4: 9.2233.* is no id of a point",
        ),
        ("points3D.txt", _replaced(b" 5 0\n", b" 6 0\n"), "image 6 is named in the tracks"),
        ("rigs.txt", _replaced(b"IMU", b"GPS"), "line 2: its sensor has type 'GPS'; allowed are"),
        ("frames.txt", _replaced(b"10 1 ", b"10 4 "), "rig 4 is named in frames, but is not"),
    ],
)
def test_malformed_text(
    tmp_path: Path, file: str, change: Callable[[bytes], bytes], message: str
) -> None:
    write_model(tiny(), tmp_path, "text")
    (tmp_path / file).write_bytes(change((tmp_path / file).read_bytes()))
    with pytest.raises(FileFormatError, match=message):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("file", "place", "value", "message"),
    [
        ("cameras.bin", 0, 2**40, "byte 0: 1099511627776 cameras need at least"),
        ("cameras.bin", 12, 99, r"byte 8: camera 0 \(counting from 0\) has camera model 99"),
        ("images.bin", 0, 1, "byte 160: .* bytes follow the last image"),
        ("points3D.bin", 51, 2**50, "byte 59: the track of point 0 .* needs"),
        ("rigs.bin", 16, 3, "byte 16: sensor 0 of rig 0 .* has sensor type 3; allowed are 0"),
    ],
)
def test_malformed_bytes(tmp_path: Path, file: str, place: int, value: int, message: str) -> None:
    write_model(tiny(), tmp_path)
    data = bytearray((tmp_path / file).read_bytes())
    size = 4 if value < 2**31 and place > 0 else 8
    data[place : place + size] = value.to_bytes(size, "little")
    (tmp_path / file).write_bytes(bytes(data))
    with pytest.raises(FileFormatError, match=rf"{file}.*{message}"):
        read_model(tmp_path)


@pytest.mark.parametrize("file", [*BINARY, *TEXT])
def test_files_cut_at_every_byte(tmp_path: Path, file: str) -> None:
    """A part of a text may be a model of fewer things; a part of a binary file never is."""
    kind = "binary" if file.endswith(".bin") else "text"
    write_model(tiny(), tmp_path, kind)
    data = (tmp_path / file).read_bytes()
    for size in range(len(data)):
        (tmp_path / file).write_bytes(data[:size])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                model = read_model(tmp_path)
            except FileFormatError:
                continue
        assert kind == "text"
        assert isinstance(model, Model)


@pytest.mark.parametrize("kind", FORMATS)
def test_random_damage(tmp_path: Path, kind: str) -> None:
    """A changed byte gives another model or a `FileFormatError`, nothing else."""
    rng = np.random.default_rng(3)
    messages = []
    write_model(tiny(), tmp_path, kind)
    for file in BINARY if kind == "binary" else TEXT:
        good = (tmp_path / file).read_bytes()
        for _ in range(150):
            data = bytearray(good)
            for place in rng.integers(0, len(data), rng.integers(1, 4)):
                data[place] = rng.choice(np.array([rng.integers(256), 0, 255, 32, 45, 57]))
            (tmp_path / file).write_bytes(bytes(data))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    read_model(tmp_path)
                except FileFormatError as error:
                    messages.append(str(error))
        (tmp_path / file).write_bytes(good)
    assert len(messages) > 100
    assert all(message.startswith(str(tmp_path)) for message in messages)


def test_a_device_is_refused(tmp_path: Path) -> None:
    write_model(tiny(), tmp_path)
    (tmp_path / "images.bin").unlink()
    (tmp_path / "images.bin").symlink_to("/dev/zero")
    with pytest.raises(FileFormatError, match="this is not a regular file"):
        read_model(tmp_path)


def test_announced_counts_take_no_memory(tmp_path: Path) -> None:
    """Counts of 2^60 in any file, in 400 MiB beyond the imports."""
    for name in BINARY:
        folder = tmp_path / name
        write_model(tiny(), folder)
        (folder / name).write_bytes((2**60).to_bytes(8, "little") + bytes(1 << 20))
    program = f"""
import resource, sys
from pathlib import Path
import caspar.colmap
used = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages + (400 << 20),) * 2)
for folder in sorted(Path({str(tmp_path)!r}).iterdir()):
    try:
        caspar.colmap.read_model(folder)
    except caspar.errors.FileFormatError as error:
        print("refused")
"""
    if not hasattr(resource, "RLIMIT_AS") or not Path("/proc/self/statm").exists():
        pytest.skip("no limit of memory here")
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=500,
    )
    assert done.stdout.split() == ["refused"] * 5, done.stderr
