"""`caspar colmap`: read a COLMAP model, adjust it, report, write it and what else was asked for.

Also here: `caspar map`, which makes models from COLMAP's database of features and matches.
"""

import argparse
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import caspar
from caspar.cli.arguments import (
    EXIT_CODES,
    add_backend,
    add_iterations,
    add_loss_scale,
    add_precision,
    add_quiet,
    add_report,
    positive_integer,
    positive_number,
)
from caspar.cli.exit_code import ExitCode
from caspar.cli.outputs import (
    WrittenFiles,
    check_html,
    check_plot,
    check_targets,
    chosen_paths,
    finite,
    progress_shown,
    run_solve,
    solve_report,
    write_json,
)
from caspar.errors import OptionError
from caspar.io.bal import BalProblem
from caspar.io.rotations import multiply
from caspar.options import Precision
from caspar.progress import phase
from caspar.solver.result.quantities import count_text
from caspar.solver.result.result import SolveResult

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
"""The rotation from COLMAP's camera axes to those of *Bundle Adjustment in the Large*: x y z w."""


def add_colmap(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to those of the program."""
    colmap = commands.add_parser(
        "colmap",
        help="adjust a COLMAP model (a folder of binary or text files)",
        description="Bundle adjustment of a COLMAP model, with the defaults of COLMAP's "
        "bundle_adjuster: any of its camera models, rigs, shared and single intrinsics.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    colmap.add_argument("model", type=Path, metavar="IN", help="folder of the model")
    colmap.add_argument("out", type=Path, metavar="OUT", help="folder for the adjusted model")
    for name, what in COLMAP_FLAGS.items():
        flag = f"--{name.replace('_', '-')}"
        colmap.add_argument(flag, action=argparse.BooleanOptionalAction, help=what)
    colmap.add_argument(
        "--min-track-length",
        type=positive_integer,
        default=2,
        metavar="N",
        help="points of fewer observations take no part (default: %(default)s)",
    )
    colmap.add_argument(
        "--gauge",
        choices=COLMAP_GAUGES,
        default=COLMAP_GAUGES[0],
        help="what keeps the model from moving as a whole (default: %(default)s)",
    )
    known = colmap.add_mutually_exclusive_group()
    what = "of cameras that hold the model; lines: image name, "
    known.add_argument("--positions", type=Path, metavar="PATH", help=f"positions {what}x, y, z")
    known.add_argument(
        "--gps", type=Path, metavar="PATH", help=f"the same {what}latitude, longitude, altitude"
    )
    colmap.add_argument(
        "--position-stddev",
        type=positive_number,
        default=1.0,
        metavar="LENGTH",
        help="standard deviation of each coordinate of a position (default: %(default)s)",
    )
    colmap.add_argument(
        "--loss",
        choices=COLMAP_LOSSES,
        default=COLMAP_LOSSES[0],
        help="make wrong observations count less (default: %(default)s)",
    )
    add_loss_scale(colmap)
    add_backend(colmap)
    add_precision(colmap, Precision.FLOAT64)
    add_iterations(colmap)
    colmap.add_argument(
        "--format",
        choices=COLMAP_FORMATS,
        default=COLMAP_FORMATS[0],
        help="files that are written (default: %(default)s)",
    )
    add_report(colmap)
    colmap.set_defaults(command=solve_colmap)


def solve_colmap(request: argparse.Namespace) -> ExitCode:
    """Adjust a model."""
    _check_outputs(request)

    def solve(files: WrittenFiles) -> tuple[SolveResult, list[str]]:
        with phase(f"reading {request.model}"):
            model = caspar.colmap.read_model(request.model)
            caspar.colmap.ModelFormat(request.format).check(model)
            priors = None
            if (positions := _positions(request)) is not None:
                priors = caspar.colmap.read_positions(
                    positions, model, stddev=request.position_stddev, is_gps=request.gps is not None
                )
        with phase("adjusting"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the report has them
            config = caspar.colmap.BundleAdjustmentConfig(fixed_gauge=request.gauge)
            summary = caspar.colmap.bundle_adjustment(
                model, _options(request), config, pose_priors=priors
            )
        with phase("writing results"):
            files.write(_writers(request, model, summary))
        sizes = (
            count_text(len(model.images.ids), "image"),
            count_text(len(model.cameras.ids), "camera"),
            count_text(len(model.points.ids), "point"),
            count_text(model.num_observations, "observation"),
        )
        return summary.result, [
            f"{request.model}: {', '.join(sizes)}",
            f"error {summary.initial_error_px:.6g} -> {summary.final_error_px:.6g} px",
            *(f"warning: {one}" for one in summary.warnings),
        ]

    return run_solve(solve, request.quiet)


def _positions(request: argparse.Namespace) -> Path | None:
    path: Path | None = request.positions or request.gps
    return path


def _options(request: argparse.Namespace) -> "caspar.colmap.BundleAdjustmentOptions":
    flags = {name: getattr(request, name) for name in COLMAP_FLAGS}
    options = {
        **{name: value for name, value in flags.items() if value is not None},
        "min_track_length": request.min_track_length,
        "loss_function_type": request.loss,
        "loss_function_scale": request.loss_scale,
        "backend": request.backend,
        "precision": request.precision,
    }
    if request.max_iterations is not None:
        options["max_num_iterations"] = request.max_iterations
    return caspar.colmap.BundleAdjustmentOptions(**options)


def _check_outputs(request: argparse.Namespace) -> None:
    output = request.out
    parent = Path(os.path.abspath(output)).parent
    if output.exists() and not output.is_dir():
        raise OptionError(f"OUT {output}: this is a file; name a folder")
    if not output.exists() and not parent.is_dir():
        raise OptionError(f"OUT {output}: there is no folder {parent}; make it first")
    if output.is_symlink() and not output.exists():
        raise OptionError(f"OUT {output}: this link leads to no folder; make it first")
    if not output.exists() and not os.access(parent, os.W_OK | os.X_OK):
        raise OptionError(f"OUT {output}: no permission to make a folder in {parent}")
    if output.exists() and request.model.exists() and output.samefile(request.model):
        raise OptionError(f"OUT {output}: this is the model itself; name another folder")
    check_plot(request.plot)
    check_html(request.html)
    outputs = list(chosen_paths(request, "json", "plot", "html").items())
    if output.exists():
        kind = caspar.colmap.ModelFormat(request.format)
        outputs = [*(("OUT", file) for file in kind.files(output)), *outputs]
    inputs = [("the model itself", request.model), ("the folder OUT", output)]
    for kind in caspar.colmap.ModelFormat:
        inputs += [("a file of the model", file) for file in kind.files(request.model)]
    if (positions := _positions(request)) is not None:
        inputs.append(("the file of positions", positions))
    check_targets(outputs, inputs)


def _writers(
    request: argparse.Namespace, model: "caspar.colmap.Model", summary: "caspar.colmap.Summary"
) -> dict[Path, Callable[[Path], None]]:
    result = summary.result
    report = {
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
        "solve": solve_report(result),
    }
    writers: dict[str, Callable[[Path], None]] = {
        "--json": lambda path: write_json(path, report),
        "--plot": lambda path: caspar.plot.plot_bundle_adjustment(
            _scene(model), _scene(summary.model), result, path
        ),
        "--html": lambda path: caspar.view.write_html(
            caspar.scene.scene_of_models(model, summary, title=str(request.model)), path
        ),
    }
    paths = chosen_paths(request, "json", "plot", "html")
    asked = {path: writers[option] for option, path in paths.items()}
    if not summary.is_solution_usable():
        return asked
    return {
        request.out: lambda path: caspar.colmap.write_model(summary.model, path, request.format),
        **asked,
    }


def _scene(model: "caspar.colmap.Model") -> BalProblem:
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
