"""Damaged files are read as the judge reads them, or refused in words.

The bounded part runs with all tests; the long one behind the marker `reliability`.
"""

from pathlib import Path

import pytest

from tests.reliability import judge
from tests.reliability.mutated_files import compare, run
from tests.reliability.mutations import BAL, G2O, NASTY


@pytest.mark.parametrize(
    ("count", "seed"),
    [(1000, 1), pytest.param(27_000, 0, marks=pytest.mark.reliability)],
    ids=["few", "many"],
)
def test_damaged_files(count: int, seed: int, tmp_path: Path) -> None:
    outcomes, findings = run(count, seed, tmp_path)
    assert findings == []
    assert outcomes["both read it"] > count // 10
    assert outcomes["both refuse it"] > count // 10
    assert outcomes["undecided"] <= count // 100


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(content, marks=[] if content in (BAL, G2O[2]) else pytest.mark.reliability)
        for content in (BAL, *G2O)
    ],
    ids=["bal", *map(str, range(len(G2O)))],
)
def test_every_nasty_token_at_every_place(content: bytes, tmp_path: Path) -> None:
    """One after the other, in place of each token of each file."""
    path = tmp_path / "file"
    lines = [line.split(b" ") for line in content.split(b"\n")]
    read = 0
    for token in NASTY:
        for line in lines:
            for column, old in enumerate(line):
                line[column] = token.encode()
                outcome = compare(b"\n".join(map(b" ".join, lines)), content is BAL, path)
                read += outcome == "both read it"
                line[column] = old
    assert read > 0


@pytest.mark.parametrize("content", [BAL, G2O[0]], ids=["bal", "g2o"])
def test_files_cut_at_every_byte(content: bytes, tmp_path: Path) -> None:
    for end in range(len(content) + 1):
        compare(content[:end], content is BAL, tmp_path / "file")
        compare(content[end:], content is BAL, tmp_path / "file")


def test_the_judge_refuses_and_reads() -> None:
    """It reads the files before they are damaged, and refuses some that are wrong."""
    assert len(judge.read_bal(BAL.decode()).observations) == 3
    assert all(judge.read_g2o(content.decode()).poses for content in G2O)
    for wrong in ("1 0 3.25 4 4", "1_0 0 3.25 4", "2 0 3.25 4", "1 0 3.25 nan"):
        with pytest.raises(judge.RefusedError):
            judge.read_bal(BAL.decode().replace("1 0 3.25 4", wrong))
