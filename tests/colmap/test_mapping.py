"""`caspar.colmap.incremental_mapping` on synthetic scenes, beside pycolmap's own."""

import dataclasses
import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from caspar.cli.app import main
from caspar.cli.exit_code import ExitCode
from caspar.colmap import incremental_mapping
from caspar.colmap.adjust import solving
from caspar.colmap.adjustment import adjust_in_place
from caspar.errors import InputError, OptionError
from caspar.solver.result.result import SolveStatus
from caspar.solver.solver_kernels import SolverKernels

pycolmap = pytest.importorskip("pycolmap")
scenes = importlib.import_module("tests.colmap.scenes")
scene, check_as_good = scenes.scene, scenes.check_as_good
incremental = importlib.import_module("caspar.colmap.incremental")
errors = importlib.import_module("benchmarks.mapping").errors


def _options(**changes: Any) -> Any:
    options = pycolmap.IncrementalPipelineOptions()
    options.extract_colors, options.random_seed, options.num_threads = False, 1, 1
    for name, value in changes.items():
        setattr(options, name, value)
    return options


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=pytest.mark.reliability),
        {"cameras": 2, "frames": 5},
        {"outliers": 0.2, "points": 400},
    ],
    ids=["one camera", "rig", "outliers"],
)
def test_models_are_as_good_as_those_of_pycolmap(tmp_path: Path, changes: Any) -> None:
    database, truth = scene(tmp_path, **changes)
    own = incremental_mapping(database, tmp_path, tmp_path / "own", _options(), backend="cpu")
    theirs = pycolmap.incremental_mapping(database, tmp_path, tmp_path / "theirs", _options())
    check_as_good(own, theirs, truth, tmp_path / "own")


def test_lenses_that_two_images_hardly_determine(tmp_path: Path) -> None:
    """Distortion stays within `max_extra_param`: COLMAP drops images of other lenses."""
    lens = [1280.0, 1280.0, 512.0, 384.0, 0.05, *[0.0] * 7]
    database, truth = scene(tmp_path, lens=("FULL_OPENCV", lens))
    models = incremental_mapping(database, tmp_path, tmp_path / "models", _options(), backend="cpu")
    assert models[0].num_reg_images() == truth.num_images()
    rotation, centre = errors(models[0], truth)
    assert rotation < 0.1
    assert centre < 0.01


def test_kernels_are_made_for_the_first_adjustments_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is held later: some points, cameras beyond a window, or all points, as here."""
    database, _ = scene(tmp_path, frames=19)
    libraries: list[Any] = []
    make = SolverKernels._new_library

    def counted(*arguments: Any) -> Any:
        libraries.append(arguments)
        return make(*arguments)

    used: list[tuple[bool, str]] = []

    def told(model: Any, options: Any, config: Any, **others: Any) -> Any:
        summary = adjust_in_place(model, options, config, **others)
        assert summary is not None
        used.append((len(config.variable_points) > 0, summary.result.linear_solver))
        return summary

    monkeypatch.setattr(SolverKernels, "_new_library", counted)
    monkeypatch.setattr(incremental, "adjust_in_place", told)
    solving._solver.cache_clear()
    incremental_mapping(database, tmp_path, tmp_path / "out", _options(), backend="cpu")
    assert len(used) > 20
    assert len(set(used)) == 2
    assert len(libraries) == 2


def test_callbacks_and_held_cameras(tmp_path: Path) -> None:
    database, truth = scene(tmp_path)
    calls: list[str] = []
    options = _options(constant_cameras={1}, ba_refine_focal_length=False)
    models = incremental_mapping(
        database,
        tmp_path,
        tmp_path / "out",
        options,
        initial_image_pair_callback=lambda: calls.append("pair"),
        next_image_callback=lambda: calls.append("next"),
        backend="cpu",
    )
    assert calls == ["pair", *["next"] * (truth.num_images() - 2)]
    assert models[0].camera(1).params == pytest.approx(truth.camera(1).params)
    assert options.image_path == Path(".")


def test_images_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    database, truth = scene(tmp_path)
    options = _options(extract_colors=True, snapshot_frames_freq=3, snapshot_path=tmp_path / "s")
    with pytest.warns(UserWarning, match=r"image '.*' cannot be read: its points have no colours"):
        models = incremental_mapping(database, tmp_path, tmp_path / "out", options, backend="cpu")
    assert models[0].num_reg_images() == truth.num_images()
    assert sorted(os.listdir(tmp_path / "s")) == ["000005", "000008"]


def test_a_model_is_continued(tmp_path: Path) -> None:
    database, truth = scene(tmp_path)
    names = sorted(one.name for one in truth.images.values())
    part = incremental_mapping(
        database, tmp_path, tmp_path / "part", _options(image_names=names[:5]), backend="cpu"
    )
    assert part[0].num_reg_images() == 5
    whole = incremental_mapping(
        database,
        tmp_path,
        tmp_path / "whole",
        _options(),
        tmp_path / "part" / "0",
        backend="cpu",
    )
    assert whole[0].num_reg_images() == truth.num_images()


def test_an_interrupt_leaves_what_was_reached(tmp_path: Path) -> None:
    database, _ = scene(tmp_path)
    calls: list[int] = []

    def interrupts() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        incremental_mapping(
            database,
            tmp_path,
            tmp_path / "out",
            _options(),
            next_image_callback=interrupts,
            backend="cpu",
        )
    assert pycolmap.Reconstruction(tmp_path / "out" / "0").num_reg_images() == 5


def test_an_interrupt_of_an_adjustment_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The solve of an adjustment ends with a status then."""
    database, _ = scene(tmp_path)
    calls: list[int] = []

    def interrupted(*arguments: Any, **others: Any) -> Any:
        summary = adjust_in_place(*arguments, **others)
        assert summary is not None
        calls.append(1)
        if len(calls) < 4:
            return summary
        status = SolveStatus.INTERRUPTED
        return dataclasses.replace(
            summary, result=dataclasses.replace(summary.result, status=status)
        )

    monkeypatch.setattr(incremental, "adjust_in_place", interrupted)
    with pytest.raises(KeyboardInterrupt):
        incremental_mapping(database, tmp_path, tmp_path / "out", _options(), backend="cpu")
    assert len(calls) == 4
    assert pycolmap.Reconstruction(tmp_path / "out" / "0").num_reg_images() >= 3


def test_bad_input_is_named(tmp_path: Path) -> None:
    database, _ = scene(tmp_path)
    out = tmp_path / "out"
    with pytest.raises(InputError, match="database_path: there is no file"):
        incremental_mapping(tmp_path / "no.db", tmp_path, out, _options())
    with pytest.raises(InputError, match=r"image_path: there is no folder .*extract_colors"):
        incremental_mapping(database, tmp_path / "no", out, _options(extract_colors=True))
    with pytest.raises(OptionError, match="options is a dict; it must be a pycolmap"):
        incremental_mapping(database, tmp_path, out, {})
    with pytest.raises(OptionError, match="out of range"):
        incremental_mapping(database, tmp_path, out, _options(max_num_models=0))
    (tmp_path / "text.db").write_text("no database")
    assert not os.path.exists(out)
    with pytest.raises(InputError, match=r"database_path '.*text.db' cannot be read: "):
        incremental_mapping(tmp_path / "text.db", tmp_path, out, _options())
    with pytest.raises(InputError, match=r"input_path .* cannot be read: .* do not exist"):
        incremental_mapping(database, tmp_path, out, _options(), tmp_path)
    options = _options()
    options.mapper.ba_global_ignore_redundant_points3D = True
    with (
        pytest.warns(UserWarning, match="ignore_redundant_points3D has no effect"),
        pytest.raises(InputError),
    ):
        incremental_mapping(database, tmp_path, out, options, tmp_path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database, truth = scene(tmp_path)
    out = tmp_path / "models"
    arguments = ["map", str(database), str(out), "--backend", "cpu", "--seed", "1"]
    assert main(arguments) == ExitCode.SUCCESS
    count = truth.num_images()
    assert f"0: {count} of {count} images, 150 points, " in capsys.readouterr().out
    assert pycolmap.Reconstruction(out / "0").num_reg_images() == count
    assert main(["map", str(tmp_path / "no"), str(out)]) == ExitCode.WRONG_INPUT
    assert "database_path: there is no file" in capsys.readouterr().err


def test_an_interrupted_command_says_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, _ = scene(tmp_path)

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(incremental, "adjust_in_place", interrupted)
    out = tmp_path / "models"
    assert main(["map", str(database), str(out), "--quiet"]) == ExitCode.INTERRUPTED
    assert f"the models reached so far are in {out}" in capsys.readouterr().err


def test_a_database_without_matches_gives_no_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pycolmap.Database.open(tmp_path / "empty.db"):
        pass
    arguments = ["map", str(tmp_path / "empty.db"), str(tmp_path / "out"), "--backend", "cpu"]
    assert main(arguments) == ExitCode.NOT_CONVERGED
    assert "no model" in capsys.readouterr().out
