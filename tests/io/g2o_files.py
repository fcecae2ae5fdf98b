"""Small pose graphs as g2o text files, and what is said about files that are wrong."""

from pathlib import Path

import pytest

from caspar.errors import FileFormatError
from caspar.io import read_g2o

DATA = Path(__file__).parents[2] / "data"

INFORMATION_SE2 = "4 1 0 9 0 16"
INFORMATION_SE3 = "1 0 0 0 0 0 1 0 0 0 0 1 0 0 0 4 0 0 4 0 4"
LINES_SE2 = [
    "VERTEX_SE2 10 1 2 0.5",
    "VERTEX_SE2 7 -1 0 -3",
    "FIX 10",
    f"EDGE_SE2 10 7 3 4 1.5 {INFORMATION_SE2}",
]
LINES_SE3 = [
    "VERTEX_SE3:QUAT 0 1 2 3 0 0 0 1",
    "VERTEX_SE3:QUAT 1 4 5 6 0.5 -0.5 0.5 0.5",
    f"EDGE_SE3:QUAT 0 1 7 8 9 0 0.6 0 0.8 {INFORMATION_SE3}",
]


def write_lines(folder: Path, lines: list[str], name: str = "graph.g2o") -> Path:
    """Write a file of text lines."""
    path = folder / name
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("latin-1"))
    return path


def message_of(folder: Path, lines: list[str]) -> str:
    """Return what `read_g2o` says is wrong with a file."""
    path = write_lines(folder, lines)
    with pytest.raises(FileFormatError) as caught:
        read_g2o(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    return message
