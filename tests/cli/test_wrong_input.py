"""Wrong files, paths and arguments: one message, exit code 2, and no solver was made."""

import bz2
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.fake_solver import FakeSolver, run


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "cut short"),
        (lambda text: text + b"1 2 3\n", "there is text after the last of the 20 points"),
        (lambda text: text.replace(b"3 20 60", b"3 21 60", 1), "cut short"),
        (lambda text: text.replace(b"3 20 60", b"3 20", 1), "line 1"),
        (
            lambda text: text.replace(b"\n0 0 ", b"\n0 zero ", 1),
            "'zero', which is not a number",
        ),
        (lambda text: text.replace(b"\n0 0 ", b"\n7 0 ", 1), "allowed are the integers 0 to 2"),
        (lambda text: text.replace(b"\n0 0 ", b"\n0 nan ", 1), "must be finite"),
        (lambda text: bz2.compress(text)[:-20], "cut short"),
        (lambda text: b"", "the file is empty"),
        (lambda text: b"\x89PNG\r\n\x1a\n", "line 1"),
    ],
    ids=[
        *("truncated", "trailing", "count", "header", "word", "index", "nan"),
        *("packed", "empty", "binary"),
    ],
)
def test_file_format(
    solver: type[FakeSolver],
    problem_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[bytes], bytes],
    message: str,
) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(change(problem_file.read_bytes()))
    assert run("bal", path, "--quiet") == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"caspar: {path}")
    assert message in printed
    assert printed.count("\n") == 1
    assert solver.made == []


def test_missing_file(
    solver: type[FakeSolver], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.txt"
    assert run("bal", path, "--quiet") == 2
    assert capsys.readouterr().err == f"caspar: {path}: No such file or directory\n"


def test_folder_as_file(
    solver: type[FakeSolver], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bal", tmp_path, "--quiet") == 2
    assert "this is a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "FOLDER/a.xyz"), "must end in .txt, .txt.bz2, .txt.gz, .ply"),
        (("--out", "FOLDER/a.bz2"), "must end in"),
        (("--plot", "FOLDER/a.jpg"), "must end in .png, .svg, .pdf"),
        (("--json", "FOLDER/none/a.json"), "there is no folder"),
        (("--json", "FOLDER"), "this is a folder"),
        (("--out", "PROBLEM"), "this is the problem itself"),
        (("--json", "FOLDER/a.txt", "--out", "FOLDER/x/../a.txt"), "the file of --json"),
    ],
)
def test_outputs_are_checked_before_the_problem_is_read(
    solver: type[FakeSolver],
    monkeypatch: pytest.MonkeyPatch,
    problem_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    (tmp_path / "x").mkdir()
    monkeypatch.setattr("caspar.cli.bal.read_bal", None)
    named = [
        argument.replace("FOLDER", str(tmp_path)).replace("PROBLEM", str(problem_file))
        for argument in arguments
    ]
    assert run("bal", problem_file, *named) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"caspar: {named[-2]} {named[-1]}: ")
    assert message in printed
    assert solver.made == []


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("bal",),
        ("bal", "x", "--backend", "tpu"),
        ("bal", "x", "--max-iterations", "0"),
        ("bal", "x", "--max-iterations", "many"),
        ("bal", "x", "--loss", "l3"),
        ("bal", "x", "--fixed", "everything"),
        ("bal", "x", "--loss-scale", "0"),
        ("bal", "x", "--loss-scale", "wide"),
        ("bal", "x", "--loss-scale", "1_0"),
        ("bal", "x", "--loss-scale", "\uff13"),
        ("bal", "x", "--max-iterations", "1_0"),
        ("bal", "x", "--max-iterations", "\uff13"),
        ("cache",),
        ("unknown",),
    ],
)
def test_usage(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(*arguments)
    assert exit_.value.code == 2
    assert "usage: caspar" in capsys.readouterr().err
