"""What is released is consistent: versions, dependencies, licences, workflows, issue templates."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from caspar.version import __version__
from tests.pages import table

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
CONDA_NAMES = {"qdldl": "qdldl-python"}


def _project() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib")
    data: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return data


def _yaml(path: Path) -> Any:
    return pytest.importorskip("yaml").safe_load(path.read_text(encoding="utf-8"))


def _requirement(text: str) -> tuple[str, str]:
    """Name and versions."""
    name, versions = re.fullmatch(r"([\w-]+)\s*(.*)", text).groups()  # type: ignore[union-attr]
    return name, versions


def test_versions_agree() -> None:
    citation = _yaml(ROOT / "CITATION.cff")
    recipe = (ROOT / "packaging/conda/meta.yaml").read_text(encoding="utf-8")
    assert citation["version"] == __version__
    assert f'set version = "{__version__}"' in recipe
    assert citation["license"] == _project()["project"]["license"] == "Apache-2.0"


def test_change_log_has_the_next_release() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE)[0] in ("Unreleased", __version__)


def test_recipe_has_the_dependencies() -> None:
    recipe = (ROOT / "packaging/conda/meta.yaml").read_text(encoding="utf-8")
    run = recipe.split("\n  run:\n")[1].split("\n  run_constrained:")[0]
    lines = [line.strip(" -") for line in run.splitlines() if " - python >" not in line]
    said = dict(map(_requirement, lines))
    expected = dict(map(_requirement, _project()["project"]["dependencies"]))
    assert said == {CONDA_NAMES.get(name, name): text for name, text in expected.items()}


def test_core_has_no_package_for_plots() -> None:
    project = _project()["project"]
    core = {_requirement(text)[0] for text in project["dependencies"]}
    extras = project["optional-dependencies"]
    assert core.isdisjoint({"matplotlib", "ipykernel", "igraph", "pytest"})
    assert [_requirement(text)[0] for text in extras["plot"]] == ["matplotlib"]
    assert {"cuda12", "cuda13", "all"} <= set(extras)


def test_every_data_file_has_a_licence() -> None:
    said = [row[0] for row in table([ROOT / "data/README.md"], "file | licence")]
    files = {path.name for path in (ROOT / "data").iterdir()} - {"README.md"}
    assert said == sorted(files)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_name_what_exists(path: Path) -> None:
    """Targets of make, folders of tests and other workflows."""
    text = path.read_text(encoding="utf-8")
    assert set(_yaml(path)) >= {"name", "jobs", "permissions"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"run: make (\w+)", text):
        assert f"\n{target}:" in makefile
    for name in re.findall(r"(?:\./)?((?:tests|\.ci|\.github)/[\w./-]+)", text):
        assert (ROOT / name).exists(), name


def test_oldest_python_is_said_everywhere() -> None:
    oldest = _project()["project"]["requires-python"].removeprefix(">=")
    for path in (WORKFLOWS[0], WORKFLOWS[-1]):
        assert f'python-version: ["{oldest}"' in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_can_be_filled_in(path: Path) -> None:
    form = _yaml(path)
    if path.stem == "config":
        assert form == {"blank_issues_enabled": True}
        return
    assert {"name", "description", "labels", "body"} <= set(form)
    names = [entry["id"] for entry in form["body"]]
    assert len(names) == len(set(names)) > 0
    assert all(entry["attributes"]["label"] for entry in form["body"])


def test_smoke_test_is_a_program() -> None:
    """It runs where only the wheel is installed: nothing but the standard library."""
    tree = ast.parse((ROOT / ".ci/smoke.py").read_text(encoding="utf-8"))
    imported = {
        alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert imported <= {"os", "re", "subprocess", "sys", "tempfile", "pathlib"}
