"""Files of COLMAP models: round trips, what is refused and how, damage at every place."""

import dataclasses
import os
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from caspar.colmap import Model, ModelFormat, read_model, write_model
from caspar.errors import FileFormatError, InputError, OptionError
from tests.colmap.models import ROOT, SYNTHETIC, equal_arrays, packed, synthetic, tiny

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
    with pytest.raises(OptionError, match="format='ply': it must be one of 'binary', 'text'"):
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
    )
    assert done.stdout.split() == ["refused"] * 5, done.stderr
