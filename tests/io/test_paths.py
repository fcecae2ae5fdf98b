"""Paths: all readers and writers take the same ones, and say what is wrong with others."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caspar.errors import OptionError
from caspar.io import read_bal, read_g2o, write_bal, write_ply
from caspar.plot import plot_bundle_adjustment
from tests.examples import make_bal_problem, make_result
from tests.io.bal_files import DATA, LINES, write_lines

PROBLEM = make_bal_problem()

READERS: dict[str, Callable[[Any], Any]] = {"read_bal": read_bal, "read_g2o": read_g2o}

WRITERS: dict[str, Callable[[Any], Any]] = {
    "write_bal": lambda path: write_bal(path, PROBLEM),
    "write_ply": lambda path: write_ply(path, PROBLEM.points, PROBLEM.cameras),
    "plot": lambda path: plot_bundle_adjustment(PROBLEM, PROBLEM, make_result(), path),
}

ALL = {**READERS, **WRITERS}


@pytest.mark.parametrize("call", ALL.values(), ids=ALL.keys())
@pytest.mark.parametrize("path", [True, False, 1, np.int64(1), None, 1.5, ["a"], PROBLEM], ids=repr)
def test_what_is_no_path(call: Callable[[Any], Any], path: Any) -> None:
    """A number is no path either: it would name an open descriptor, which would be closed."""
    with pytest.raises(OptionError) as caught:
        call(path)
    assert str(caught.value) == f"path={path!r}: it must be a str, bytes or os.PathLike"
    os.fstat(1)


@pytest.mark.parametrize("call", ALL.values(), ids=ALL.keys())
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("a\0b.png", "it has a NUL character"),
        (b"a\0b.png", "it has a NUL character"),
        (Path("a\0b.png"), "it has a NUL character"),
        ("\ud800.png", "surrogates not allowed"),
    ],
    ids=repr,
)
def test_names_that_no_file_can_have(call: Callable[[Any], Any], path: Any, says: str) -> None:
    with pytest.raises(OptionError) as caught:
        call(path)
    assert str(caught.value).startswith(f"path={path!r}: no file can have that name: ")
    assert says in str(caught.value)


@pytest.mark.parametrize("form", [str, os.fsencode, Path])
def test_forms(tmp_path: Path, form: Callable[[str], Any]) -> None:
    path = form(str(write_lines(tmp_path, LINES)))
    assert read_bal(path).num_cameras == 2
    assert read_g2o(form(str(DATA / "M3500.g2o.bz2"))).num_poses == 3500
    with pytest.raises(ValueError, match=r"problem\.txt, line 1: lines of the kind '2'"):
        read_g2o(path)
    for name, write in WRITERS.items():
        write(form(f"{tmp_path}/{name}.png"))
        assert (tmp_path / f"{name}.png").stat().st_size > 0
