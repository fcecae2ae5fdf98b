"""A small problem as a BAL text file, and the lines of it with one changed."""

from pathlib import Path

DATA = Path(__file__).parents[2] / "data"

# 2 cameras, 2 points, 3 observations; each line names what stands on it.
LINES = [
    "2 2 3",
    "0 0 1.5 -2.5",
    "1 0 3.25 4",
    "1 1 -1e1 7.125",
    *("0", "0", "0", "1", "2", "3", "500", "-1e-7", "2e-14"),
    *("0.1", "-0.2", "0.3", "4", "5", "6", "600.5", "0", "0"),
    *("1", "2", "3"),
    *("-4", "-5", "-6.75"),
]
FIRST_CAMERA_LINE = 5  # counting from 1
FIRST_POINT_LINE = 23


def write_lines(folder: Path, lines: list[str], name: str = "problem.txt") -> Path:
    """Write a file of text lines."""
    path = folder / name
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("latin-1"))
    return path


def changed(line_number: int, text: str) -> list[str]:
    """Return the small problem with one line replaced."""
    return [*LINES[: line_number - 1], text, *LINES[line_number:]]
