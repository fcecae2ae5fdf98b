"""`caspar colmap`: read a COLMAP model, adjust it, report, write it and what else was asked for.

Also here: `caspar map`, which makes models from COLMAP's database of features and matches.
"""

import argparse
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import caspar
from caspar.cli.arguments import EXIT_CODES, add_backend, add_quiet
from caspar.cli.exit_code import ExitCode
from caspar.cli.outputs import (
    WrittenFiles,
    check_html,
    check_plot,
    check_targets,
    finite,
    solve_report,
    write_json,
)
from caspar.cli.progress import progress_shown
from caspar.errors import OptionError
from caspar.io.bal import BalProblem
from caspar.io.rotations import multiply
from caspar.progress import phase
from caspar.solver.result.quantities import count_text
from caspar.solver.result.report import terminal_report, text_report
from caspar.solver.result.result import SolveStatus

COLMAP_FLAGS = {
    "refine_focal_length": "refine focal lengths (default: yes)",
    "refine_principal_point": "refine principal points (default: no)",
    "refine_extra_params": "refine distortion (default: yes)",
    "refine_rig_from_world": "refine poses of rigs, without rigs those of images (default: yes)",
    "refine_sensor_from_rig": "refine poses of cameras in their rigs (default: yes)",
    "constant_rig_from_world_rotation": "hold the rotations of rigs (default: no)",
    "refine_points3D": "refine points (default: yes)",
}
"""Options of `caspar.colmap.BundleAdjustmentOptions`; named here so that --help loads no solver."""

COLMAP_GAUGES = ("TWO_CAMS_FROM_WORLD", "THREE_POINTS", "UNSPECIFIED")
"""Values of `caspar.colmap.Gauge`, the default first."""

COLMAP_LOSSES = ("TRIVIAL", "SOFT_L1", "CAUCHY", "HUBER")
"""Values of `caspar.colmap.LossFunction`, the default first."""

COLMAP_FORMATS = ("binary", "text")
"""Values of `caspar.colmap.ModelFormat`, the default first."""

_HALF_TURN_ABOUT_X = np.array([1.0, 0.0, 0.0, 0.0])
"""From COLMAP's camera axes to those of *Bundle Adjustment in the Large*, as a quaternion."""


@dataclass(frozen=True)
class ColmapRequest:
    """The arguments of `caspar colmap`.

    Attributes:
        folder: The model.
        output: Where the adjusted model is written.
        format: `binary` or `text`.
        options: Fields of `caspar.colmap.BundleAdjustmentOptions`.
        gauge: What holds the gauge.
        positions: File of positions of cameras; None: none are known.
        is_gps: Whether these are latitudes, longitudes and altitudes.
        position_stddev: Standard deviation of each coordinate.
        json: Where to write status, costs and iterations; None: not at all.
        plot: Image of the cost and of the scene before and after; None: none.
        html: Interactive view of the scene before and after; None: none.
        is_quiet: Print nothing but errors.
    """

    folder: Path
    output: Path
    format: str
    options: Mapping[str, Any]
    gauge: str
    positions: Path | None
    is_gps: bool
    position_stddev: float
    json: Path | None
    plot: Path | None
    html: Path | None
    is_quiet: bool


def solve_colmap(request: ColmapRequest) -> ExitCode:
    """Adjust a model.

    Raises:
        CasparError: Wrong input, or a backend that is not usable.
        OSError: The model cannot be read.
    """
    _check_outputs(request)
    files = WrittenFiles()
    try:
        return _solve_and_write(request, files)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(files.when_interrupted()) from interrupt


def _check_outputs(request: ColmapRequest) -> None:
    """Find out now what would keep a file from being written later."""
    output = request.output
    parent = Path(os.path.abspath(output)).parent
    if output.exists() and not output.is_dir():
        raise OptionError(f"OUT {output}: this is a file; name a folder")
    if not output.exists() and not parent.is_dir():
        raise OptionError(f"OUT {output}: there is no folder {parent}; make it first")
    if output.is_symlink() and not output.exists():
        raise OptionError(f"OUT {output}: this link leads to no folder; make it first")
    if not output.exists() and not os.access(parent, os.W_OK | os.X_OK):
        raise OptionError(f"OUT {output}: no permission to make a folder in {parent}")
    if output.exists() and request.folder.exists() and output.samefile(request.folder):
        raise OptionError(f"OUT {output}: this is the model itself; name another folder")
    check_plot(request.plot)
    check_html(request.html)
    asked = {"--json": request.json, "--plot": request.plot, "--html": request.html}
    outputs = [(option, path) for option, path in asked.items() if path is not None]
    if output.exists():
        kind = caspar.colmap.ModelFormat(request.format)
        outputs = [*(("OUT", file) for file in kind.files(output)), *outputs]
    inputs = [("the model itself", request.folder), ("the folder OUT", output)]
    for kind in caspar.colmap.ModelFormat:
        inputs += [("a file of the model", file) for file in kind.files(request.folder)]
    if request.positions is not None:
        inputs.append(("the file of positions", request.positions))
    check_targets(outputs, inputs)


def _solve_and_write(request: ColmapRequest, files: WrittenFiles) -> ExitCode:
    messages = Console(stderr=True, highlight=False)
    with progress_shown(messages, request.is_quiet):
        with phase(f"reading {request.folder}"):
            model = caspar.colmap.read_model(request.folder)
            caspar.colmap.ModelFormat(request.format).check(model)
            priors = _priors(request, model)
        with phase("adjusting"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the report has them
            config = caspar.colmap.BundleAdjustmentConfig(fixed_gauge=request.gauge)
            options = caspar.colmap.BundleAdjustmentOptions(**request.options)
            summary = caspar.colmap.bundle_adjustment(model, options, config, pose_priors=priors)
        with phase("writing results"):
            files.write(_writers(request, model, summary))
    try:
        if not request.is_quiet:
            _print_report(request, model, summary, files.paths)
    except OSError as error:  # standard output is a file on a full disk
        files.failures.append((Path("the report"), str(error)))
    finally:  # a reader of the report that stops early (`head`) ends the program
        files.print_failures(messages)
    if summary.result.status is SolveStatus.INTERRUPTED:
        return ExitCode.INTERRUPTED
    if files.failures:
        return ExitCode.WRONG_INPUT
    return ExitCode.SUCCESS if summary.result.status.is_success else ExitCode.NOT_CONVERGED


def _priors(
    request: ColmapRequest, model: "caspar.colmap.Model"
) -> "caspar.colmap.PosePriors | None":
    if request.positions is None:
        return None
    return caspar.colmap.read_positions(
        request.positions, model, stddev=request.position_stddev, is_gps=request.is_gps
    )


def _writers(
    request: ColmapRequest, model: "caspar.colmap.Model", summary: "caspar.colmap.Summary"
) -> dict[Path, Callable[[Path], None]]:
    writers: dict[Path, Callable[[Path], None]] = {}
    if summary.is_solution_usable():
        writers[request.output] = lambda path: caspar.colmap.write_model(
            summary.model, path, request.format
        )
    if request.json is not None:
        writers[request.json] = lambda path: write_json(path, json_report(model, summary))
    result = summary.result
    if request.plot is not None:
        before, after = _scene(model), _scene(summary.model)
        writers[request.plot] = lambda path: caspar.plot.plot_bundle_adjustment(
            before, after, result, path
        )
    if request.html is not None:
        writers[request.html] = lambda path: caspar.view.write_html(
            caspar.scene.scene_of_models(model, summary, title=str(request.folder)), path
        )
    return writers


def json_report(model: "caspar.colmap.Model", summary: "caspar.colmap.Summary") -> dict[str, Any]:
    """The summary without its model, as what JSON can hold.

    Scripts rely on these keys; new ones may be added.
    """
    return {
        "problem": {
            "cameras": len(model.cameras.ids),
            "images": len(model.images.ids),
            "points": len(model.points.ids),
            "observations": model.num_observations,
        },
        "termination_type": summary.termination_type.value,
        "initial_cost": finite(summary.initial_cost),
        "final_cost": finite(summary.final_cost),
        "num_residuals": summary.num_residuals,
        "num_filtered": summary.num_filtered,
        "warnings": list(summary.warnings),
        "solve": solve_report(summary.result),
    }


def _scene(model: "caspar.colmap.Model") -> BalProblem:
    """Camera centres and points, as the plot takes them."""
    images = model.images
    poses = images.cam_from_world
    turned = multiply(_HALF_TURN_ABOUT_X, poses[:, [1, 2, 3, 0]])
    zeros = np.zeros((len(poses), 3))
    return BalProblem(
        cameras=np.concatenate([turned, poses[:, 4:] * [1, -1, -1], zeros], axis=1),
        points=model.points.xyz,
        camera_index=np.empty(0, np.int32),
        point_index=np.empty(0, np.int32),
        pixels=np.empty((0, 2)),
    )


def _print_report(
    request: ColmapRequest,
    model: "caspar.colmap.Model",
    summary: "caspar.colmap.Summary",
    written: list[Path],
) -> None:
    console = Console(highlight=False)
    sizes = (
        count_text(len(model.images.ids), "image"),
        count_text(len(model.cameras.ids), "camera"),
        count_text(len(model.points.ids), "point"),
        count_text(model.num_observations, "observation"),
    )
    lines = [
        f"{request.folder}: {', '.join(sizes)}",
        f"error {summary.initial_error_px:.6g} -> {summary.final_error_px:.6g} px",
        *(f"warning: {one}" for one in summary.warnings),
    ]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    console.print()
    if console.is_terminal:
        console.print(terminal_report(summary.result))
    else:
        console.print(text_report(summary.result), markup=False, soft_wrap=True)
    if written:
        names = ", ".join(map(str, written))
        console.print(f"\nwritten: {names}", markup=False, soft_wrap=True)


# -- caspar map ------------------------------------------------------------------------------------


def add_map(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    command = commands.add_parser(
        "map",
        help="make models from COLMAP's database (poses, cameras and points)",
        description="Incremental mapping as COLMAP's mapper does it, with all adjustments by "
        "caspar; or global mapping. The database has features and verified matches.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("database", type=Path, metavar="DATABASE", help="COLMAP's database")
    command.add_argument(
        "out", type=Path, metavar="OUT", help="folder for the models: OUT/0, OUT/1 and so on"
    )
    command.add_argument(
        "--images", type=Path, metavar="FOLDER", help="read colours of points from these images"
    )
    command.add_argument(
        "--input", type=Path, metavar="FOLDER", help="go on from the model in this folder"
    )
    command.add_argument(
        "--global",
        dest="is_global",
        action="store_true",
        help="find all poses at once: quicker, and focal lengths must be known well",
    )
    command.add_argument("--seed", type=int, default=-1, help="of the random draws")
    add_backend(command)
    add_quiet(command)
    command.set_defaults(command=_run_map)


def _run_map(request: argparse.Namespace) -> ExitCode:
    from caspar.colmap.incremental import log_warnings_only

    if request.is_global and request.input is not None:
        raise OptionError("--input: global mapping begins anew; leave it out, or --global")
    messages = Console(stderr=True, highlight=False)
    log_warnings_only()
    with progress_shown(messages, request.quiet):
        try:
            models = _mapped(request)
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(
                f"interrupted; the models reached so far are in {request.out}"
            ) from interrupt
    if not request.quiet:
        for number, model in models.items():
            print(_model_line(request.out / str(number), model))
        if len(models) == 0:
            print("no model: no two images have enough matches at a wide enough angle")
    return ExitCode.SUCCESS if len(models) > 0 else ExitCode.NOT_CONVERGED


def _mapped(request: argparse.Namespace) -> dict[int, Any]:
    from caspar.colmap.incremental import mapping_options

    if request.is_global:
        return caspar.colmap.global_mapping(
            request.database,
            request.images or "",
            request.out,
            mapping_options("GlobalPipelineOptions", random_seed=request.seed),
            backend=request.backend,
        )
    reads_images = request.images is not None
    return caspar.colmap.incremental_mapping(
        request.database,
        request.images or request.database.parent,
        request.out,
        mapping_options(
            "IncrementalPipelineOptions", extract_colors=reads_images, random_seed=request.seed
        ),
        request.input,
        backend=request.backend,
    )


def _model_line(folder: Path, model: Any) -> str:
    return (
        f"{folder}: {model.num_reg_images()} of {model.num_images()} images, "
        f"{model.num_points3D():,} points, {model.compute_num_observations():,} observations, "
        f"mean error {model.compute_mean_reprojection_error():.3f} pixels"
    )
