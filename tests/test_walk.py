"""A warm iteration on the host: how far it walks, and whether ARCHITECTURE tells of that walk."""

import re
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="qualified names of code are of Python 3.11"
)

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "caspar"
PAGE = ROOT / "docs" / "ARCHITECTURE.md"

MAX_FILES, MAX_MOVES = 13, 52
"""Of one iteration: files that are entered, and moves from one to another."""

MAX_FILES_OF_CALL, MAX_MOVES_OF_CALL = 78, 400
"""The same of a whole call of one iteration: reading, checks of the end, the result."""

Call = tuple[Path, str]


class Point(sf.V3):
    """A point in space."""


@caspar.factor
def pixel(
    pose: Annotated[sf.Pose3, caspar.TunableShared],
    point: Annotated[Point, caspar.TunableShared],
    seen: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A point in a picture."""
    x, y, z = pose * point
    return sf.V2(x / z, y / z) - seen


def bundle() -> dict[str, Any]:
    """A few cameras that see some points."""
    rng = np.random.default_rng(0)
    points = rng.uniform(-1.0, 1.0, (30, 3))
    poses = np.tile([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 4.0], (4, 1))
    poses[:, 4] = np.linspace(-1.0, 1.0, 4)
    pose, point = np.repeat(np.arange(4), 30), np.tile(np.arange(30), 4)
    x, y, z = (points[point] + poses[pose, 4:]).T
    seen = np.stack([x / z, y / z], axis=1) + 1e-3 * rng.normal(size=(120, 2))
    start = points + rng.normal(scale=0.1, size=points.shape)
    return {
        "Pose3": poses,
        "Point": start,
        "pixel": {"pose": pose, "point": point, "seen": seen},
    }


def traced(work: Callable[[], object]) -> list[Call]:
    """The functions of the package that are called in this thread, in order."""
    calls: list[Call] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(PACKAGE):
            calls.append((file, frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    """Of a warm solve of several iterations; with a time limit the host takes every step."""
    solver, arrays = caspar.Solver(pixel, backend="cpu", linear_solver="sparse"), bundle()
    solver.solve(arrays)
    return traced(lambda: solver.solve(arrays, max_iterations=4, max_time_s=1e3))


@pytest.fixture(scope="module")
def iteration(calls: list[Call]) -> list[Call]:
    """Of the second iteration: the first one looks at D as well."""
    begins = [place for place, (_, name) in enumerate(calls) if name == "_take_plain_steps"]
    assert len(begins) == 4
    return calls[begins[1] : begins[2]]


def extent(calls: Sequence[Call]) -> tuple[int, int]:
    """Files that are entered, and moves from one to another, the first one among them."""
    files = [file for file, _ in calls]
    return len(set(files)), 1 + sum(one != other for one, other in pairwise(files))


def walk() -> list[Call]:
    """What the page has of an iteration."""
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("One iteration of a warm solve") :].split("\n\n")[1]
    rows = re.findall(r"^\| \[`[^`]+`\]\(\.\./([^)]+)\) \| (.+) \|$", table, re.MULTILINE)
    return [(ROOT / file, name) for file, said in rows for name in re.findall("`([^`]+)`", said)]


def test_an_iteration_stays_in_few_files(iteration: list[Call]) -> None:
    num_files, num_moves = extent(iteration)
    assert num_files <= MAX_FILES
    assert num_moves <= MAX_MOVES


def test_a_whole_call_does_not_walk_farther_than_it_did() -> None:
    solver, arrays = caspar.Solver(pixel, backend="cpu", linear_solver="sparse"), bundle()
    for _ in range(2):
        whole = traced(lambda: solver.solve(arrays, max_iterations=1))
    num_files, num_moves = extent(whole)
    assert num_files <= MAX_FILES_OF_CALL
    assert num_moves <= MAX_MOVES_OF_CALL


def test_the_page_walks_as_the_solver_does(iteration: list[Call]) -> None:
    steps = walk()
    assert {file for file, _ in steps} == {file for file, _ in iteration}
    left = iter(iteration)
    for step in steps:
        # in the order of the page
        assert step in left, f"{step[1]} of {step[0].name} is not called there"
