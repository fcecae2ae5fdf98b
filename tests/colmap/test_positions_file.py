"""Files of positions: what is read, and damage."""

import bz2
import codecs
import dataclasses
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from caspar.colmap import PosePriors, read_positions
from caspar.errors import FileFormatError, InputError, OptionError
from tests.colmap.models import tiny


def test_names_and_numbers(tmp_path: Path) -> None:
    """Names may have spaces and letters beyond ASCII; other images are left out."""
    path = tmp_path / "places.txt"
    path.write_text("# a comment\n\nä.png 1 2 3\na b.jpg  -1e3\t2 .5\nother.jpg 7 8 9\n", "utf-8")
    model = tiny()
    found = read_positions(path, model, stddev=2.0)
    assert found.image_ids.tolist() == [9, 4]
    np.testing.assert_array_equal(found.positions, [[1, 2, 3], [-1000, 2, 0.5]])
    np.testing.assert_array_equal(found.covariances, np.tile(4 * np.eye(3), (2, 1, 1)))
    assert np.isnan(read_positions(path, model).covariances).all()


def test_damage(tmp_path: Path) -> None:
    """Random bytes give other positions or a `FileFormatError`, nothing else."""
    path, rng, messages = tmp_path / "places.txt", np.random.default_rng(5), []
    good = b"a b.jpg 1.5 -2 3e4\n\xc3\xa4.png 4 5 6\nfolder/c.png 0 0 0\n"
    for _ in range(500):
        data = bytearray(good)
        for place in rng.integers(0, len(data), rng.integers(1, 3)):
            data[place] = rng.choice(np.array([rng.integers(256), 10, 32, 46, 101, 255]))
        size = rng.integers(1, len(data) + 1) if rng.random() < 0.2 else len(data)
        path.write_bytes(bytes(data)[:size])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                found = read_positions(path, tiny())
            except FileFormatError as error:
                messages.append(str(error))
            else:
                assert isinstance(found, PosePriors)
    assert 50 < len(messages) < 450
    assert all(message.startswith(str(path)) for message in messages)


def test_latitudes_out_of_range(tmp_path: Path) -> None:
    path = tmp_path / "places.txt"
    path.write_text("ä.png 91 0 0\n", "utf-8")
    with pytest.raises(InputError, match=r"latitudes: 91\.0; they must be from -90 to 90"):
        read_positions(path, tiny(), is_gps=True)


@pytest.mark.parametrize(
    "text",
    [
        codecs.BOM_UTF8 + "ä.png 1 2 3\na b.jpg 4 5 6\n".encode(),
        "ä.png 1 2 3\r\na b.jpg 4 5 6\r\n\r\n".encode(),
        "ä.png 1 2 3\ra b.jpg 4 5 6\r".encode(),
        "\n\n \t \nä.png\t1\t2\t3  \n# other.png 7 8 9\n\ta b.jpg 4 5 6".encode(),
        codecs.BOM_UTF8 + "# name x y z\nä.png 1 2 3\na b.jpg 4 5 6\n\x0c\n".encode(),
        bz2.compress("ä.png 1 2 3\na b.jpg 4 5 6\n".encode()),
    ],
    ids=["mark", "windows", "old mac", "blanks", "mark and comment", "packed"],
)
def test_what_text_editors_put_into_files(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "places.txt"
    path.write_bytes(text)
    found = read_positions(path, tiny())
    assert found.image_ids.tolist() == [9, 4]
    np.testing.assert_array_equal(found.positions, [[1, 2, 3], [4, 5, 6]])


def test_a_name_that_begins_as_a_comment(tmp_path: Path) -> None:
    path, model = tmp_path / "places.txt", tiny()
    images = dataclasses.replace(model.images, names=("#1.jpg", "b", "c"))
    path.write_text("#1.jpg 1 2 3\n#2.jpg 1 2 3\n# a comment of more words\n")
    found = read_positions(path, dataclasses.replace(model, images=images))
    assert found.image_ids.tolist() == [4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a b.jpg 1 2 1_000", "line 1: it must be a name and three numbers, x y z, separated by"),
        (b"a b.jpg 1 2 1_000", "'1_000' is no number"),
        ("a b.jpg 1 2 \uff13".encode(), "is no number"),
        (b"a b.jpg 1 2 0x10", "'0x10' is no number"),
        (b"a b.jpg,1,2,3", "line 1: it must be a name and three numbers"),
        (b"a b.jpg 1 2 3\n\x1a", "line 2: it must be a name and three numbers"),
        (b"a b.jpg 1 2 3 # 4", "'#' is no number"),
        ("ä.png 1 2 3\n".encode("utf-16"), "line 1: it must be a name and three numbers"),
        (
            b"a b.jpg 1 2 3\n\xe4.png 1 2 3",
            r"line 2: no image of the model has the name '\xe4.png'",
        ),
        (
            b"a b.jpg 1 2 3\n" + codecs.BOM_UTF8 + b"b 1 2 3",
            "line 2: no image of the model has the",
        ),
        (b"a b.jpg 1 2 3\r\rb\x00 1 2 3", r"line 3: no image of the model has the name 'b\x00'"),
        (
            b"a b.jpg 1 2 3\n" + b"x" * (1 << 20) + b"x",
            "line 2: the line is longer than 1048576 bytes",
        ),
    ],
)
def test_nothing_is_lost_silently(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "places.txt"
    path.write_bytes(text)
    with pytest.raises(FileFormatError, match=re.escape(said)):
        read_positions(path, tiny())


def test_images_of_one_name(tmp_path: Path) -> None:
    path, model = tmp_path / "places.txt", tiny()
    path.write_text("a 1 2 3\n")
    images = dataclasses.replace(model.images, names=("a", "b", "a"))
    with pytest.raises(FileFormatError, match="line 1: 2 images have the name a"):
        read_positions(path, dataclasses.replace(model, images=images))


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no /dev/zero")
def test_a_device_without_an_end() -> None:
    with pytest.raises(FileFormatError, match="line 1: the line is longer than"):
        read_positions("/dev/zero", tiny())


@pytest.mark.parametrize("stddev", [-1, 0, 0.0, np.nan, np.inf, True, "1", [1.0]])
def test_standard_deviations(tmp_path: Path, stddev: object) -> None:
    path = tmp_path / "places.txt"
    path.write_text("a b.jpg 1 2 3\n")
    with pytest.raises(
        OptionError, match=r"stddev=.*: it must be a finite number above 0, or None"
    ):
        read_positions(path, tiny(), stddev=stddev)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="path=3: it must be a str"):
        read_positions(3, tiny())  # type: ignore[arg-type]
