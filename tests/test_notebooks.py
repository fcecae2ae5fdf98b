"""The notebooks are their scripts in `examples`, and run from top to bottom.

`--update-golden` makes them anew.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest

jupytext = pytest.importorskip("jupytext")
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = EXAMPLES / "notebooks"
NAMES = (
    *("bundle_adjustment", "calibration_errors", "camera_calibration", "camera_prototype"),
    *("colmap_model", "compiler_passes", "curve_fitting", "database_to_model"),
    *("differentiable_calibration", "hand_eye", "inertial_navigation"),
    *("inverse_kinematics", "kernel_example", "learned_noise", "localisation"),
    *("multiple_factors", "outliers"),
    *("picture_in_map", "point_cloud", "pose_graph", "pose_graph_3d", "pose_graph_ellipses"),
    *("relaxation", "robust_losses", "scan_registration", "shared_intrinsics", "tags"),
    *("uwb_ranges", "victoria_park", "walking_robot"),
)

RUN_AS_NOTEBOOKS = ("curve_fitting",)
"""The other cells run as scripts in `test_examples`, and here under `-m reliability`."""

PICTURES = ("image/png", "image/svg+xml")

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def notebook_from_script(name: str) -> Any:
    """A notebook of the cells of a script: without those that are for the script alone."""
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    cells: list[Any] = []
    for cell in jupytext.reads(text, fmt="py:percent").cells:
        if "active-py" in cell.metadata.get("tags", []):
            continue
        cell.metadata.clear()
        cell.source = cell.source.strip("\n")
        cell.id = f"cell-{len(cells)}"
        cells.append(cell)
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=METADATA)
    nbformat.validate(notebook)
    return notebook


def test_every_notebook_has_a_script() -> None:
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == list(NAMES)
    scripts = [path.stem for path in EXAMPLES.glob("*.py") if "\n# %%" in path.read_text("utf-8")]
    assert sorted(scripts) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_is_made_from_its_script(name: str, pytestconfig: pytest.Config) -> None:
    path = NOTEBOOKS / f"{name}.ipynb"
    text = nbformat.writes(notebook_from_script(name)) + "\n"
    if pytestconfig.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8", newline="\n")
    assert path.read_text(encoding="utf-8") == text, (
        f"{path.name} is not what {name}.py gives: run with --update-golden"
    )


@pytest.mark.parametrize(
    "name",
    [
        name if name in RUN_AS_NOTEBOOKS else pytest.param(name, marks=pytest.mark.reliability)
        for name in NAMES
    ],
)
def test_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = {kind for output in outputs for kind in output.get("data", {})}
    assert not shown.isdisjoint(PICTURES), "a notebook of the gallery shows a picture"
    # on a slow machine a line says what goes on, and is gone afterwards
    said = [output.text for output in outputs if output.get("name") == "stderr"]
    assert [text for text in said if re.sub(r"\r[^\r\n]*", "", text).strip() != ""] == []
