"""The mapper where pycolmap is not installed."""

import re
import sys
from pathlib import Path

import pytest

from caspar.colmap import incremental_mapping
from caspar.errors import MissingPackageError
from caspar.version import install_command


def test_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    monkeypatch.delitem(sys.modules, "caspar.colmap.incremental", raising=False)
    with pytest.raises(MissingPackageError, match=re.escape(install_command("colmap"))):
        incremental_mapping(tmp_path / "database.db", tmp_path, tmp_path)
