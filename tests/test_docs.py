"""The pages for readers: links lead somewhere, files and names they mention exist, code runs."""

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import caspar
from tests.pages import blocks, prose, run

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS]

FOLDERS = ("caspar", "tests", "docs", "examples", "benchmarks", "data", ".ci")
PARTS = (
    "ir",
    "memory",
    "passes",
    "frontend",
    "equations",
    "codegen",
    "runtime",
    "arrays",
    "driver",
    "solver",
    "io",
)

WRITTEN_LATER = ("benchmarks/results",)
"""What a page may name although a clone need not have it."""

WITH_CODE = [
    page
    for page in DOCS
    if len(blocks(page, "python")) > 0 and {"guide", "walkthrough"}.isdisjoint(page.parts)
]
"""Pages whose code must run; `test_guide` and `test_walkthrough` run that of the other pages."""

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def _broken(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return False  # the tests need no network
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or not target.is_relative_to(ROOT):
        return True
    return anchor != "" and anchor not in _anchors(target)


def _is_module(parts: list[str]) -> bool:
    path = ROOT.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


def _check_name(dotted: str) -> None:
    """A module of caspar, which is only looked for (it may need a GPU), or a name in one."""
    parts = dotted.split(".")
    count = len(parts)
    while not _is_module(parts[:count]):
        count -= 1
    if count == len(parts):
        return
    if parts[1] in caspar._OPTIONAL_MODULES and importlib.util.find_spec(parts[1]) is None:
        source = (ROOT / "caspar" / parts[1] / "__init__.py").read_text(encoding="utf-8")
        assert f'"{parts[count]}"' in source, dotted
        return
    found: Any = importlib.import_module(".".join(parts[:count]))
    for name in parts[count:]:
        found = getattr(found, name)


def test_links_lead_somewhere() -> None:
    broken = [
        f"{_name(page)}: {link}"
        for page in PAGES
        for link in _LINK.findall(prose(page))
        if _broken(page, link)
    ]
    assert broken == []


def test_named_files_exist() -> None:
    missing = [
        f"{_name(page)}: {code}"
        for page in PAGES
        for code in _CODE.findall(prose(page))
        if code.split("/")[0] in FOLDERS
        and re.fullmatch(r"[\w./-]+", code) is not None
        and "/" in code
        and code not in WRITTEN_LATER
        and not (ROOT / code).exists()
    ]
    assert missing == []


def test_named_names_exist() -> None:
    """`caspar.io.read_bal`; in docs/ also `memory.tiling.tiles`, a module of the package.

    In the guide `solver.solve` is a method of the user's solver.
    """
    for page, code in ((one, code) for one in PAGES for code in _CODE.findall(prose(one))):
        match = re.match(r"(\w+)(?:\.\w+)+", code)
        if match is None or match[0].endswith((".py", ".md")):
            continue
        if match[1] == caspar.__name__:
            _check_name(match[0])
        elif match[1] in PARTS and page in DOCS and "guide" not in page.parts:
            _check_name(f"{caspar.__name__}.{match[0]}")


@pytest.mark.parametrize("page", WITH_CODE, ids=_name)
def test_code_runs(page: Path) -> None:
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        run(page, block, names)


def test_every_page_can_be_found() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in _LINK.findall(prose(page))
    }
    assert [_name(page) for page in DOCS if page not in linked] == []


@pytest.mark.parametrize(
    ("link", "is_broken"),
    [
        ("LICENSE", False),
        ("LICENCE", True),
        ("#citation-and-licence", False),
        ("#quotation", True),
        ("docs/NUMERICS.md#precision", False),
        ("docs/NUMERICS.md#precisions", True),
        ("../elsewhere", True),
        ("https://example.org/nowhere", False),
    ],
)
def test_links_are_judged(link: str, is_broken: bool) -> None:
    assert _broken(ROOT / "README.md", link) == is_broken
