"""ARCHITECTURE shows the rooms of the package as they are; `--update-golden` writes them anew."""

import pytest

rooms = pytest.importorskip("docs.rooms", exc_type=ImportError)


def test_tree_and_picture_are_current(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--update-golden"):
        rooms.main()
    page = rooms.PAGE.read_text(encoding="utf-8")
    assert rooms.page_with_tree(page) == page
    assert rooms.picture() == rooms.PICTURE.read_text(encoding="utf-8")
