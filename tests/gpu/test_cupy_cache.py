"""CuPy's folder of machine code is not used if others may write there, or nobody can."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SOLVE = """
import warnings
from typing import Annotated
import numpy as np, symforce.symbolic as sf, caspar
class Spot(sf.V2): ...
@caspar.factor
def place(
    spot: Annotated[Spot, caspar.TunableShared],
    seen: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    return spot - seen
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    seen = np.arange(8.0).reshape(4, 2)
    arrays = {"Spot": np.zeros((4, 2)), "place": {"spot": np.arange(4), "seen": seen}}
    result = caspar.Solver([place], backend="cuda").solve(arrays)
    import cupy
    assert (cupy.arange(3) + 1).tolist() == [1, 2, 3]  # a kernel of CuPy's own
assert np.allclose(result.values["Spot"], seen)
print(*(str(one.message) for one in said))
"""

pytestmark = pytest.mark.gpu


def solved(folder: Path, tmp_path: Path) -> str:
    """What a new process warns of."""
    environment = {**os.environ, "CUPY_CACHE_DIR": str(folder)}
    environment["CASPAR_CACHE_DIR"] = str(tmp_path / "caspar")
    done = subprocess.run(
        [sys.executable, "-c", SOLVE],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    assert solved(folder, tmp_path).strip() == ""
    assert any(folder.iterdir())


def test_a_folder_that_others_may_write_into(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    folder.chmod(0o777)
    assert f"chmod -R go-w {folder}" in solved(folder, tmp_path)
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    said = solved(tmp_path / "file" / "kernels", tmp_path)
    assert "cannot be written" in said
    assert "CUPY_CACHE_DIR" in said
