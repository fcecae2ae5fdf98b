"""Files of positions: what is read, and damage."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from caspar.colmap import PosePriors, read_positions
from caspar.errors import FileFormatError, InputError
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
