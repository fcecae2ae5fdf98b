"""Damaged files of the newer formats are read, or refused in words: nothing else may happen.

The bounded part runs with all tests; the long one behind the marker `reliability`.
"""

import contextlib
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from caspar.errors import FileFormatError
from caspar.io import read_gtsam, read_pose_graph, read_toro
from caspar.sfm import read_bundler, read_openmvg, read_opensfm, read_tracks
from tests.io.graph_files import GTSAM_TEXT, PLANE, SPACE, TORO_PLANE, TORO_SPACE
from tests.reliability.mutations import damaged

ROOT = Path(__file__).parents[2]

BUNDLER = (
    "# Bundle file v0.3\n2 2\n500 0 0\n1 0 0\n0 1 0\n0 0 1\n0 0 0\n0 0 0\n0 0 0\n0 0 0\n0 0 0\n"
    "0 0 0\n1 2 3\n10 20 30\n2 0 5 1.5 -2.5 1 6 2 3\n-1 2 3\n1 2 3\n1 0 7 1 1\n"
)
TRACKS = (
    "OPENSFM_TRACKS_VERSION_v2\n"
    "1.jpg\t7\t3\t0.25\t-0.125\t0.5\t10\t20\t30\t-1\t4\n"
    "2.jpg\t7\t4\t1e-3\t0\t0.5\t10\t20\t30\t-1\t4\n"
)
OPENSFM = """\
[ { "cameras": { "c": { "projection_type": "perspective", "width": 640, "height": 480,
 "focal": 0.9, "k1": 0.1, "k2": 0.2 } },
 "shots": { "1.jpg": { "rotation": [ 0.1 , 0 , 0 ] , "translation": [ 0 , 0 , 1 ] ,
 "camera": "c" } , "2.jpg": { "rotation": [ 0 , 0.2 , 0 ] , "translation": [ 1 , 0 , 0 ] ,
 "camera": "c" } } ,
 "points": { "7": { "color": [ 1 , 2 , 3 ] , "coordinates": [ 0.5 , 1 , 4 ] } } } ]
"""
OPENMVG = """\
{ "views": [ { "key": 0 , "value": { "ptr_wrapper": { "data": { "filename": "a" , "id_pose": 0 ,
 "id_intrinsic": 0 } } } } ] , "intrinsics": [ { "key": 0 , "value": {
 "polymorphic_id": 2147483649 , "polymorphic_name": "pinhole" , "ptr_wrapper": { "data": {
 "width": 640 , "height": 480 , "focal_length": 600 , "principal_point": [ 320 , 240 ]
 } } } } ] , "extrinsics": [ { "key": 0 ,
 "value": { "rotation": [ [ 1 , 0 , 0 ] , [ 0 , 1 , 0 ] , [ 0 , 0 , 1 ] ] ,
 "center": [ 0 , 0 , 0 ] } } ] , "structure": [ { "key": 5 , "value": { "X": [ 0 , 0 , 1 ] ,
 "observations": [ { "key": 0 , "value": { "x": [ 320 , 240 ] } } ] } } ] }
"""


def _read_opensfm(path: Path) -> Any:
    tracks = path.with_name("tracks.csv")
    tracks.write_text(TRACKS)
    return read_opensfm(path, tracks)


CASES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "plane": (PLANE, read_pose_graph),
    "space": (SPACE, read_pose_graph),
    "toro": (TORO_PLANE, read_toro),
    "toro in space": (TORO_SPACE, read_toro),
    "gtsam": (GTSAM_TEXT, read_gtsam),
    "bundler": (BUNDLER, read_bundler),
    "tracks": (TRACKS, read_tracks),
    "opensfm": (OPENSFM, _read_opensfm),
    "openmvg": (OPENMVG, read_openmvg),
}


@pytest.mark.parametrize(
    "count", [150, pytest.param(10_000, marks=pytest.mark.reliability)], ids=["few", "many"]
)
@pytest.mark.parametrize("name", CASES)
def test_damaged(name: str, count: int, tmp_path: Path) -> None:
    text, reader = CASES[name]
    generator = random.Random(f"{name} {count}")
    path = tmp_path / "file"
    outcomes = {True: 0, False: 0}
    for _ in range(count):
        content = damaged(text.encode(), generator)
        path.write_bytes(content)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                reader(path)
        except FileFormatError as error:
            message = str(error)
            assert message.startswith(str(tmp_path)), message
            assert message.isascii(), message
            assert len(message) < 900 + 3 * len(str(path)), message
            outcomes[False] += 1
        except Exception as error:
            raise AssertionError(f"{error!r} from {content!r}") from error
        else:
            outcomes[True] += 1
    assert min(outcomes.values()) > count // 20, outcomes


@pytest.mark.parametrize("name", CASES)
def test_cut_at_every_byte(name: str, tmp_path: Path) -> None:
    text, reader = CASES[name]
    path = tmp_path / "file"
    for end in range(0, len(text), 3):
        path.write_text(text[:end])
        with contextlib.suppress(FileFormatError):
            reader(path)


PROGRAM = f"""\
import resource, sys
from caspar.errors import FileFormatError
from caspar.io import read_gtsam, read_toro
from caspar.sfm import read_bundler, read_openmvg, read_opensfm, read_tracks
in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + {1 << 29},) * 2)
for reader in (read_gtsam, read_toro, read_bundler, read_openmvg, read_tracks):
    for path in sys.argv[1:]:
        try:
            reader(path)
        except FileFormatError as error:
            print(error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
def test_endless_files_end_in_words() -> None:
    """In 512 MiB beyond the imports."""
    paths = ["/dev/zero", "/dev/urandom"]
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    lines = found.stdout.splitlines()
    assert len(lines) == 10
    assert all(line.startswith("/dev/") for line in lines)
