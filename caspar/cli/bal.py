"""`caspar bal`: read a bundle adjustment problem, solve it, report, write what was asked for."""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import caspar
from caspar.cli.arguments import (
    EXIT_CODES,
    add_backend,
    add_iterations,
    add_loss_scale,
    add_precision,
    add_report,
)
from caspar.cli.exit_code import ExitCode
from caspar.cli.outputs import (
    WrittenFiles,
    check_html,
    check_plot,
    check_suffix,
    check_targets,
    chosen_paths,
    recording_for,
    run_solve,
    solve_report,
    write_json,
)
from caspar.io.bal import BalProblem, read_bal, write_bal
from caspar.io.ply import write_ply
from caspar.options import Precision
from caspar.progress import phase
from caspar.solver.result.quantities import count_text
from caspar.solver.result.result import SolveResult
from caspar.version import __version__

LOSSES = {"huber": "Huber", "soft_l1": "SoftL1", "cauchy": "Cauchy"}
"""Losses by what users call them: names in `caspar.loss`."""

FIXED: Mapping[str, tuple[str, str | None, Any]] = {
    "calibration": ("Cam", "calibration", True),
    "poses": ("Cam", "cam_T_world", True),
    "first_pose": ("Cam", "cam_T_world", [0]),
    "points": ("Point", None, True),
}
"""Choices of --fixed: a node type, its field, and which nodes of it; see `caspar.Solver.solve`."""

BUNDLER_SUFFIXES = (".out", ".out.bz2", ".out.gz")
"""Names of files that are read as Bundler's."""

BAL_SUFFIXES = (".txt", ".txt.bz2", ".txt.gz")
PLY_SUFFIX = ".ply"


def add_bal(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to those of the program."""
    bal = commands.add_parser(
        "bal",
        help="solve a bundle adjustment problem (BAL text file)",
        description="Solve a bundle adjustment problem: all cameras (pose, focal length, two "
        "distortion coefficients) and all points move, but for what --fixed names.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bal.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="problem, plain, .bz2 or .gz; or a .out file of Bundler",
    )
    add_backend(bal)
    add_precision(bal, Precision.MIXED)
    add_iterations(bal)
    bal.add_argument(
        "--loss", choices=list(LOSSES), help="make wrong observations count less (default: none)"
    )
    add_loss_scale(bal)
    bal.add_argument(
        "--fixed",
        action="append",
        choices=list(FIXED),
        default=[],
        help="hold calibrations, poses, the first pose or points as they are; may be repeated",
    )
    bal.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="write the solved problem: .txt, .txt.bz2, .txt.gz (BAL) or .ply (point cloud)",
    )
    add_report(bal)
    bal.set_defaults(command=solve_bal)


def solve_bal(request: argparse.Namespace) -> ExitCode:
    """Solve a problem."""
    paths = chosen_paths(request, "json", "out", "plot", "html")
    check_suffix("--out", request.out, (*BAL_SUFFIXES, PLY_SUFFIX))
    check_plot(request.plot)
    check_html(request.html)
    check_targets(paths.items(), [("the problem itself", request.file)])

    def solve(files: WrittenFiles) -> tuple[SolveResult, list[str]]:
        with phase(f"reading {request.file}"):
            problem = _read(request.file)
        recording = recording_for(request.html, 2 * problem.num_observations)
        result = _solve(request, problem, recording)
        writers = _writers(problem, result, recording, request.file.name)
        if paths:
            with phase("writing results"):
                files.write({path: writers[option] for option, path in paths.items()})
        sizes = (
            count_text(problem.num_cameras, "camera"),
            count_text(problem.num_points, "point"),
            count_text(problem.num_observations, "observation"),
        )
        return result, [f"{request.file}: {', '.join(sizes)}"]

    return run_solve(solve, request.quiet)


def _read(file: Path) -> BalProblem:
    if file.name.lower().endswith(BUNDLER_SUFFIXES):
        return caspar.sfm.read_bundler(file).problem()
    return read_bal(file)


def _solve(
    request: argparse.Namespace, problem: BalProblem, recording: "caspar.Recording | None"
) -> SolveResult:
    factor, scale = caspar.bundle_adjustment.snavely, {}
    if request.loss is not None:
        factor = factor.with_loss(getattr(caspar.loss, LOSSES[request.loss]))
        scale = {"loss_scale": request.loss_scale}
    solver = caspar.Solver([factor], backend=request.backend, precision=request.precision)
    arrays = {
        "Cam": problem.cameras,
        "Point": problem.points,
        "snavely": {
            "cam": problem.camera_index,
            "point": problem.point_index,
            "pixel": problem.pixels,
            **scale,
        },
    }
    options: dict[str, Any] = {}
    if request.max_iterations is not None:
        options["max_iterations"] = request.max_iterations
    if recording is not None:
        options["on_iteration"] = recording
    fixed = _fixed(request.fixed)
    with phase(f"compiling for {solver.backend.device}"):
        if len(fixed) == 0:
            solver.compile()
        else:
            options["fixed"] = fixed
            solver.prepare(arrays, fixed=fixed)
    with phase(f"solving on {solver.backend.device}"):
        return solver.solve(arrays, **options)


def _fixed(names: Sequence[str]) -> dict[str, Any]:
    fixed: dict[str, Any] = {}
    for name in sorted(names, key=list(FIXED)[::-1].index):
        node, field, which = FIXED[name]
        if field is None:
            fixed[node] = which
        else:
            fixed.setdefault(node, {})[field] = which
    return fixed


def _writers(
    before: BalProblem, result: SolveResult, recording: "caspar.Recording | None", title: str
) -> dict[str, Callable[[Path], None]]:
    after = dataclasses.replace(
        before,
        cameras=np.asarray(result.values["Cam"], dtype=np.float64),
        points=np.asarray(result.values["Point"], dtype=np.float64),
    )
    sizes = {
        "cameras": before.num_cameras,
        "points": before.num_points,
        "observations": before.num_observations,
    }
    report = {"version": __version__, "problem": sizes, **solve_report(result)}

    def write_problem(path: Path) -> None:
        if path.suffix.lower() == PLY_SUFFIX:
            write_ply(path, after.points, after.cameras)
        else:
            write_bal(path, after)

    def write_view(path: Path) -> None:
        nouns = {"Cam": "camera"}
        scene = caspar.scene.scene_of_result(result, recording, title=title, unit="px", nouns=nouns)
        caspar.view.write_html(scene, path)

    return {
        "--json": lambda path: write_json(path, report),
        "--out": write_problem,
        "--plot": lambda path: caspar.plot.plot_bundle_adjustment(before, after, result, path),
        "--html": write_view,
    }
