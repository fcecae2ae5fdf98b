"""`caspar bal`: read a bundle adjustment problem, solve it, report, write what was asked for."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import caspar
from caspar.cli.exit_code import ExitCode
from caspar.cli.outputs import (
    Outputs,
    WrittenFiles,
    check_outputs,
    recording_for,
    write_outputs,
)
from caspar.cli.progress import progress_shown
from caspar.io.bal import BalProblem, read_bal
from caspar.options import PrecisionName
from caspar.progress import phase
from caspar.solver.result.quantities import count_text
from caspar.solver.result.report import terminal_report, text_report
from caspar.solver.result.result import SolveResult, SolveStatus

LOSSES = {"huber": "Huber", "soft_l1": "SoftL1", "cauchy": "Cauchy"}
"""Losses by what users call them: names in `caspar.loss`."""

FIXED: Mapping[str, tuple[str, str | None, Any]] = {
    "calibration": ("Cam", "calibration", True),
    "poses": ("Cam", "cam_T_world", True),
    "first_pose": ("Cam", "cam_T_world", [0]),
    "points": ("Point", None, True),
}
"""What can be held: a node type, its field, and which nodes of it; see `caspar.Solver.solve`."""

BUNDLER_SUFFIXES = (".out", ".out.bz2", ".out.gz")
"""Names of files that are read as Bundler's."""


@dataclass(frozen=True)
class BalRequest:
    """The arguments of `caspar bal`.

    Attributes:
        file: The problem.
        backend: `auto`, `cuda` or `cpu`.
        precision: `mixed`, `float32` or `float64`.
        max_iterations: None: the solver's default.
        loss: One of `LOSSES`; None: no loss.
        loss_scale: Pixels above which a residual counts as large.
        fixed: Names in `FIXED`.
        outputs: Files to write.
        is_quiet: Print nothing but errors.
    """

    file: Path
    backend: str
    precision: PrecisionName
    max_iterations: int | None
    loss: str | None
    loss_scale: float
    fixed: Sequence[str]
    outputs: Outputs
    is_quiet: bool


def solve_bal(request: BalRequest) -> ExitCode:
    """Solve a problem.

    Raises:
        CasparError: Wrong input, or a backend that is not usable.
        OSError: The problem cannot be read.
    """
    check_outputs(request.outputs, request.file)
    files = WrittenFiles()
    try:
        return _solve_and_write(request, files)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(files.when_interrupted()) from interrupt


def _solve_and_write(request: BalRequest, files: WrittenFiles) -> ExitCode:
    messages = Console(stderr=True, highlight=False)
    with progress_shown(messages, request.is_quiet):
        with phase(f"reading {request.file}"):
            problem = _read(request.file)
        recording = recording_for(request.outputs.html, 2 * problem.num_observations)
        result = _solve(request, problem, recording)
        with phase("writing results") if request.outputs.by_option else nullcontext():
            title = request.file.name
            write_outputs(request.outputs, problem, result, files, recording, title)
    try:
        if not request.is_quiet:
            _print_report(request, problem, result, files.paths)
    except OSError as error:  # standard output is a file on a full disk
        files.failures.append((Path("the report"), str(error)))
    finally:  # a reader of the report that stops early (`head`) ends the program
        files.print_failures(messages)
    if result.status is SolveStatus.INTERRUPTED:
        return ExitCode.INTERRUPTED
    if files.failures:
        return ExitCode.WRONG_INPUT
    return ExitCode.SUCCESS if result.status.is_success else ExitCode.NOT_CONVERGED


def _read(file: Path) -> BalProblem:
    """A problem in the text form of BAL, or the registered cameras of a file of Bundler."""
    if file.name.lower().endswith(BUNDLER_SUFFIXES):
        return caspar.sfm.read_bundler(file).problem()
    return read_bal(file)


def _solve(
    request: BalRequest, problem: BalProblem, recording: "caspar.Recording | None"
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
    """Return `fixed` for `caspar.Solver.solve`; what is held as a whole wins over its parts."""
    fixed: dict[str, Any] = {}
    for name in sorted(names, key=list(FIXED)[::-1].index):
        node, field, which = FIXED[name]
        if field is None:
            fixed[node] = which
        else:
            fixed.setdefault(node, {})[field] = which
    return fixed


def _print_report(
    request: BalRequest, problem: BalProblem, result: SolveResult, written: list[Path]
) -> None:
    console = Console(highlight=False)
    sizes = (
        count_text(problem.num_cameras, "camera"),
        count_text(problem.num_points, "point"),
        count_text(problem.num_observations, "observation"),
    )
    console.print(f"{request.file}: {', '.join(sizes)}\n", markup=False, soft_wrap=True)
    if console.is_terminal:
        console.print(terminal_report(result))
    else:
        console.print(text_report(result), markup=False, soft_wrap=True)
    if written:
        names = ", ".join(map(str, written))
        console.print(f"\nwritten: {names}", markup=False, soft_wrap=True)
