"""`caspar colmap`: report, files, exit codes, what is refused before the solve."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from caspar.cli.app import main
from caspar.cli.colmap import COLMAP_FLAGS, COLMAP_FORMATS, COLMAP_GAUGES, COLMAP_LOSSES
from caspar.colmap import BundleAdjustmentOptions, Gauge, LossFunction, ModelFormat, read_model
from caspar.colmap.priors.arrays import centres
from tests.colmap.models import CERES, ROOT, SYNTHETIC, equal_arrays

MODEL = SYNTHETIC / "rigs"


def run(*arguments: object) -> int:
    return main(["colmap", *map(str, arguments), "--backend", "cpu"])


def test_report_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot, report = tmp_path / "out", tmp_path / "scene.svg", tmp_path / "report.json"
    assert run(MODEL, out, "--plot", plot, "--json", report) == 0
    printed = capsys.readouterr()
    assert f"{MODEL}: 16 images, 4 cameras, 40 points, 640 observations" in printed.out
    assert re.search(r"error 3\.70\d+ -> 0\.330\d+ px", printed.out)
    assert "CONVERGED" in printed.out
    assert f"written: {out}, {report}, {plot}" in printed.out
    assert printed.err.splitlines()[0] == f"reading {MODEL}"
    assert printed.err.splitlines()[-1] == "writing results"
    assert plot.read_text().startswith("<?xml")
    told = json.loads(report.read_text())
    assert told["termination_type"] == "CONVERGENCE"
    assert told["final_cost"] == pytest.approx(CERES["rigs"]["final_cost"], rel=1e-12)
    assert told["solve"]["iterations"][0]["iteration"] == 1
    assert told["problem"] == {"cameras": 4, "images": 16, "points": 40, "observations": 640}
    assert not equal_arrays(read_model(out), read_model(MODEL))


def test_flags_reach_the_adjustment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    held = ("--no-refine-focal-length", "--no-refine-extra-params", "--format", "text")
    assert run(MODEL, out, *held, "--max-iterations", 1, "--gauge", "UNSPECIFIED") == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "ITERATION_LIMIT" in printed
    assert "24 of Lens_OPENCV_FISHEYE" in printed  # held; principal points are none
    before, after = read_model(MODEL), read_model(out)
    assert (before.cameras.parameters == after.cameras.parameters).all()
    assert (out / "points3D.txt").exists()


def test_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    shutil.unpack_archive(ROOT / "data/crane_mast.tar.xz", tmp_path, filter="data")
    chosen = ("--loss", "CAUCHY", "--loss-scale", "0.5", "--json", report, "--quiet")
    assert run(tmp_path / "crane_mast", tmp_path / "out", *chosen) == 0
    told = json.loads(report.read_text())
    assert told["initial_cost"] == pytest.approx(1237.177844804578, rel=1e-13)  # of Ceres
    assert told["final_cost"] == pytest.approx(962.4216564219294, rel=1e-3)
    with pytest.raises(SystemExit):
        run(MODEL, tmp_path / "out", "--loss-scale", "-1")
    assert "--loss-scale" in capsys.readouterr().err


def test_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(MODEL, tmp_path / "out", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(MODEL)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for arguments, message in (
        ((MODEL, tmp_path / "link"), "this is the model itself; name another folder"),
        ((MODEL, tmp_path / "file"), "this is a file; name a folder"),
        ((MODEL, tmp_path / "no/out"), "there is no folder"),
        ((MODEL, tmp_path / "dangling"), "this link leads to no folder; make it first"),
        ((MODEL, tmp_path / "out", "--plot", tmp_path / "a.txt"), "the name must end in .png"),
        ((tmp_path / "none", tmp_path / "out"), "there is no such folder"),
        ((tmp_path, tmp_path / "out"), "no COLMAP model is there"),
    ):
        assert run(*arguments) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_help_knows_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    """They are written twice, so that help loads no solver."""
    assert set(COLMAP_GAUGES) == {gauge.value for gauge in Gauge}
    assert list(COLMAP_LOSSES) == [loss.value for loss in LossFunction]
    assert COLMAP_FORMATS[0] == "binary"
    assert set(COLMAP_FORMATS) == {kind.value for kind in ModelFormat}
    for name, text in COLMAP_FLAGS.items():
        default = getattr(BundleAdjustmentOptions(), name)
        assert text.endswith("(default: yes)" if default else "(default: no)")
    with pytest.raises(SystemExit):
        main(["colmap", "--help"])
    assert "--no-refine-points3D" in capsys.readouterr().out


def _write_positions(path: Path, columns: str = "{name} {x} {y} {z}") -> None:
    model, stored = read_model(SYNTHETIC / "positions"), CERES["positions"]["priors"]
    names = dict(zip(model.images.ids.tolist(), model.images.names, strict=True))
    lines = [
        columns.format(name=names[number], x=place[0], y=place[1], z=place[2])
        for number, place in zip(stored["image_ids"], stored["positions"], strict=True)
    ]
    path.write_text("# name x y z\n\n" + "\n".join([*lines, "other.jpg 1 2 3"]) + "\n")


def test_positions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places, report = tmp_path / "places.txt", tmp_path / "report.json"
    _write_positions(places)
    given = (SYNTHETIC / "positions", tmp_path / "out", "--positions", places)
    assert run(*given, "--position-stddev", 0.05, "--json", report) == 0
    told = json.loads(report.read_text())
    # synthetic positions have this deviation
    assert told["final_cost"] == pytest.approx(CERES["positions"]["final_cost"], rel=1e-10)
    assert "position_prior" in capsys.readouterr().out


def test_positions_of_gps(tmp_path: Path) -> None:
    """Degrees near the origin of latitude and longitude, about 111 km each."""
    places, out = tmp_path / "places.txt", tmp_path / "out"
    stored = np.array(CERES["positions"]["priors"]["positions"])
    model = read_model(SYNTHETIC / "positions")
    lines = [
        f"{name} {y / 110574.27} {x / 111319.49} {z}"
        for name, (x, y, z) in zip(model.images.names, stored, strict=True)
    ]
    places.write_text("\n".join(lines))
    given = (SYNTHETIC / "positions", out, "--gps", places, "--position-stddev", 0.05, "--quiet")
    assert run(*given) == 0
    found = centres(read_model(out))
    order = np.searchsorted(CERES["positions"]["priors"]["image_ids"], model.images.ids)
    distances = np.linalg.norm(found - (stored - stored[0])[order], axis=1)
    assert distances.max() < 0.2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.jpg 1 2", "line 1: it must be a name and three numbers"),
        ("a.jpg 1 2 x", "line 1: it must be a name and three numbers"),
        ("a.jpg 1 2 nan", "line 1: it must be a name and three numbers"),
        ("a.jpg 1 2 3", "none of its 1 lines is of an image of the model"),
        ("", "none of its 0 lines is of an image of the model"),
    ],
)
def test_wrong_positions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "places.txt").write_text(text)
    assert run(MODEL, tmp_path / "out", "--positions", tmp_path / "places.txt") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_position_that_is_there_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = read_model(MODEL).images.names[0]
    (tmp_path / "places.txt").write_text(f"{name} 1 2 3\n{name} 1 2 3\n")
    assert run(MODEL, tmp_path / "out", "--positions", tmp_path / "places.txt") == 2
    assert f"line 2: {name} is there twice" in capsys.readouterr().err
    assert run(MODEL, tmp_path / "out", "--positions", tmp_path / "none.txt") == 2
