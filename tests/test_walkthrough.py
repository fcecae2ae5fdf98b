"""The walkthrough is true: its code prints what stands below it and draws the pictures beside it.

A block of Python and the block `text` or `console` after it belong together. `console` is what
NVIDIA's compiler made of the code: with another version than the page names, only its first line
is compared, without numbers. `--update-golden` writes what is printed and drawn into the page and
its folder.
"""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from caspar.cli.app import main
from caspar.runtime.nvidia.nvrtc import nvrtc_version
from tests.pages import Block, blocks, prose, replace_texts, run

PAGE = Path(__file__).parents[1] / "docs/walkthrough/README.md"
UPDATE = "--update-golden"
OUTPUT = ("text", "console")
FACTOR_FILE = "sonar.py"
"""What the page calls a file that holds the factor, which is in its first block."""


@dataclass(frozen=True)
class Walk:
    """What the page's code did.

    Attributes:
        folder: Where it ran, and wrote its pictures.
        printed: What it printed, by the block of the page that shows it.
        silent: Blocks of Python that are followed by no output, with what they printed.
    """

    folder: Path
    printed: dict[Block, str]
    silent: dict[Block, str]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Walk:
    done = Walk(tmp_path_factory.mktemp("walkthrough"), {}, {})
    names: dict[str, Any] = {"__name__": "walkthrough"}
    shown = blocks(PAGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(done.folder)
        for block, after in zip(shown, [*shown[1:], None], strict=True):
            if block.language != "python":
                continue
            text = run(PAGE, block, names)
            if after is not None and after.language in OUTPUT:
                done.printed[after] = text
            else:
                done.silent[block] = text
    if pytestconfig.getoption(UPDATE):
        replace_texts(PAGE, done.printed)
        for picture in done.folder.glob("*.svg"):
            (PAGE.parent / picture.name).write_bytes(picture.read_bytes())
    return done


def test_code_prints_what_stands_below_it(walk: Walk) -> None:
    printed = list(walk.printed.values())
    for shown, found in zip(blocks(PAGE, *OUTPUT), printed, strict=True):
        if shown.language == "text" or _same_compiler():
            assert found == shown.text, f"line {shown.line}: if that is meant, run with {UPDATE}"
        else:
            assert _unnumbered(found) == _unnumbered(shown.text)


def _same_compiler() -> bool:
    """Whether NVRTC has the version that the page names."""
    (version,) = re.findall(r"^sm_90, NVRTC (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return bool(version == nvrtc_version())


def _unnumbered(text: str) -> str:
    """The first line without numbers, which any version of the compiler gives."""
    return re.sub(r"\d+", "0", text.splitlines()[0])


def test_code_without_output_prints_nothing(walk: Walk) -> None:
    assert set(walk.silent.values()) == {""}


def test_pictures_are_those_that_are_drawn(walk: Walk) -> None:
    drawn = {path.name: path.read_bytes() for path in walk.folder.glob("*.svg")}
    kept = {path.name: path.read_bytes() for path in PAGE.parent.glob("*.svg")}
    assert sorted(drawn) == sorted(kept) == sorted(re.findall(r"!\[.+\]\((.+)\)", prose(PAGE)))
    differing = [name for name, picture in drawn.items() if picture != kept[name]]
    assert differing == [], f"if that is meant, run with {UPDATE} and look at them"


def test_commands_draw_the_same_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / FACTOR_FILE).write_text(blocks(PAGE, "python")[0].text, encoding="utf-8")
    commands = [line for block in blocks(PAGE, "sh") for line in block.text.splitlines()]
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "caspar"
        assert main(arguments) == 0
    drawn = {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    assert len(drawn) > 0
    assert drawn == {name: (PAGE.parent / name).read_bytes() for name in drawn}
