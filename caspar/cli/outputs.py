"""The files a command leaves: checked before the long work, written after it.

Once per command; writing takes as long as the file formats do.
"""

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import caspar
from caspar.errors import MissingPackageError, OptionError
from caspar.io.bal import BalProblem, write_bal
from caspar.io.ply import write_ply
from caspar.io.replace import (
    FileTransaction,
    Target,
    checked_target,
    find_target,
    write_file,
)
from caspar.solver.result.result import IterationRecord, SolveResult
from caspar.version import __version__

BAL_SUFFIXES = (".txt", ".txt.bz2", ".txt.gz")
PLY_SUFFIX = ".ply"
PLOT_SUFFIXES = (".png", ".svg", ".pdf")
HTML_SUFFIXES = (".html", ".htm")

MAX_RECORDED = 2_000_000
"""Residuals of a problem up to which a view shows the iterations: they are evaluated for each."""


@dataclass(frozen=True)
class Outputs:
    """Paths of the outputs; None: not written.

    Attributes:
        json: Status, costs and iterations.
        problem: The problem at the solution, as BAL text or as a PLY point cloud.
        plot: Image of the cost and of the scene before and after.
        html: Interactive view of the scene.
    """

    json: Path | None
    problem: Path | None
    plot: Path | None
    html: Path | None = None

    @property
    def by_option(self) -> dict[str, Path]:
        """The paths that were asked for, by the option that did."""
        paths = {
            "--json": self.json,
            "--out": self.problem,
            "--plot": self.plot,
            "--html": self.html,
        }
        return {option: path for option, path in paths.items() if path is not None}


@dataclass
class WrittenFiles:
    """The written and failed files of a command; filled while they are written.

    Attributes:
        failures: Files that could not be written, and why.
    """

    failures: list[tuple[Path, str]] = field(default_factory=list)
    _groups: list[tuple[FileTransaction, list[Path]]] = field(default_factory=list)
    _unfinished: Path | None = None

    @property
    def paths(self) -> list[Path]:
        """Outputs that are complete and in their places."""
        return [path for files, paths in self._groups if files.is_committed for path in paths]

    def write(self, writers: Mapping[Path, Callable[[Path], None]]) -> None:
        """Write outputs, each a file or a folder, that appear together when all are complete.

        An output that cannot be written stays as it was and does not cost the others. Devices such
        as /dev/stdout are written after the files.

        Raises:
            KeyboardInterrupt: Ctrl-C; the message says what is written and what is not.
        """
        directly = [path for path in writers if _is_direct(path)]
        together = [path for path in writers if path not in directly]
        try:
            self._write_together({path: writers[path] for path in together})
            for self._unfinished in directly:
                self._write_together({self._unfinished: writers[self._unfinished]})
            self._unfinished = None
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(self.when_interrupted()) from interrupt

    def _write_together(self, writers: Mapping[Path, Callable[[Path], None]]) -> None:
        complete: list[Path] = []
        files = FileTransaction()
        self._groups.append((files, complete))

        def write_each() -> None:
            for path, writer in writers.items():
                try:
                    FileTransaction().run(partial(writer, path))
                except (OSError, ValueError, MemoryError) as error:
                    self.failures.append((path, str(error) or "out of memory"))
                else:
                    complete.append(path)

        try:
            files.run(write_each)
        except (OSError, MemoryError) as error:  # while files were replaced
            self.failures += [(path, str(error) or "out of memory") for path in complete]

    def print_failures(self, console: Console) -> None:
        """Say which files are not written, and why."""
        for path, wrong in self.failures:
            console.print(f"caspar: {path} is not written: {wrong}", markup=False, soft_wrap=True)

    def when_interrupted(self) -> str:
        """Say after Ctrl-C what is written."""
        written = self.paths
        parts = ["interrupted"]
        parts.append(
            f"written: {', '.join(map(str, written))}" if written else "nothing is written"
        )
        if self._unfinished is not None and self._unfinished not in written:
            parts.append(f"{self._unfinished} may have a part of the output")
        return "; ".join(parts)


def _is_direct(path: Path) -> bool:
    try:
        return find_target(path).is_direct
    except OSError:  # writing it will say what is wrong
        return False


def check_outputs(outputs: Outputs, problem_file: Path) -> None:
    """Find out now what would keep a file from being written later.

    Raises:
        OptionError: Names the option, the path and what is wrong with it.
    """
    check_suffix("--out", outputs.problem, (*BAL_SUFFIXES, PLY_SUFFIX))
    check_plot(outputs.plot)
    check_html(outputs.html)
    check_targets(outputs.by_option.items(), [("the problem itself", problem_file)])


def check_plot(path: Path | None) -> None:
    """Refuse an image that cannot be drawn; None: there will be none.

    Raises:
        OptionError: The suffix is no image's.
        MissingPackageError: matplotlib is not installed.
    """
    check_suffix("--plot", path, PLOT_SUFFIXES)
    if path is not None and find_spec("matplotlib") is None:
        raise MissingPackageError("--plot", "matplotlib", "plot")


def check_html(path: Path | None) -> None:
    """Refuse a view that cannot be drawn; None: there will be none.

    Raises:
        OptionError: The suffix is not that of a page.
        MissingPackageError: plotly is not installed.
    """
    check_suffix("--html", path, HTML_SUFFIXES)
    if path is not None and find_spec("plotly") is None:
        raise MissingPackageError("--html", "plotly", "view")


def recording_for(html: Path | None, num_residuals: int) -> "caspar.Recording | None":
    """Return a recording for a view; None: no view is wanted, or the problem is too large."""
    return caspar.Recording() if html is not None and num_residuals <= MAX_RECORDED else None


def check_targets(outputs: Iterable[tuple[str, Path]], inputs: Iterable[tuple[str, Path]]) -> None:
    """Refuse files that cannot be written, that are an input, or that are one file.

    Args:
        outputs: The files to be written, each with the option that names it.
        inputs: The files that are read, each with what to call it; they may be missing.

    Raises:
        OptionError: Names the option, the path and what is wrong with it.
    """
    taken: list[tuple[Target, str]] = []
    for name, path in inputs:
        with contextlib.suppress(OSError):  # reading it will say what is wrong
            taken.append((find_target(path), name))
    for option, path in outputs:
        try:
            target = checked_target(path)
        except OSError as error:
            raise OptionError(f"{option} {path}: {error.strerror}") from error
        for other, name in taken:
            if target.is_same_file(other):
                raise OptionError(f"{option} {path}: this is {name}; name another")
        taken.append((target, f"also the file of {option}"))


def write_outputs(
    outputs: Outputs,
    before: BalProblem,
    result: SolveResult,
    files: WrittenFiles,
    recording: "caspar.Recording | None" = None,
    title: str = "",
) -> None:
    """Write all files and note in `files` what became of them.

    Raises:
        KeyboardInterrupt: Ctrl-C; the message says what is written and what is not.
    """
    after = solved_problem(before, result)
    writers: dict[str, Callable[[Path], None]] = {
        "--json": lambda path: write_json(path, json_report(before, result)),
        "--out": lambda path: _write_problem(path, after),
        "--plot": lambda path: caspar.plot.plot_bundle_adjustment(before, after, result, path),
        "--html": lambda path: _write_view(path, result, recording, title),
    }
    files.write({path: writers[option] for option, path in outputs.by_option.items()})


def solved_problem(before: BalProblem, result: SolveResult) -> BalProblem:
    """The problem with the result's cameras and points."""
    return dataclasses.replace(
        before,
        cameras=np.asarray(result.values["Cam"], dtype=np.float64),
        points=np.asarray(result.values["Point"], dtype=np.float64),
    )


def json_report(problem: BalProblem, result: SolveResult) -> dict[str, Any]:
    """The result without its values, as what JSON can hold: numbers that are not finite are null.

    Scripts rely on these keys; new ones may be added.
    """
    sizes = {
        "cameras": problem.num_cameras,
        "points": problem.num_points,
        "observations": problem.num_observations,
    }
    return {"version": __version__, "problem": sizes, **solve_report(result)}


def solve_report(result: SolveResult) -> dict[str, Any]:
    """The part of `json_report` that does not depend on the problem."""
    return {
        "backend": result.backend,
        "device": result.device,
        "precision": result.precision,
        "linear_solver": result.linear_solver,
        "status": result.status.name.lower(),
        "initial_cost": finite(result.initial_cost),
        "final_cost": finite(result.final_cost),
        "compile_time_s": finite(result.compile_time_s),
        "setup_time_s": finite(result.setup_time_s),
        "solve_time_s": finite(result.solve_time_s),
        "peak_memory_bytes": int(result.peak_memory_bytes),
        "iterations": [_json_iteration(record) for record in result.iterations],
    }


def _json_iteration(record: IterationRecord) -> dict[str, Any]:
    return {
        "iteration": int(record.iteration),
        "cost": finite(record.cost),
        "candidate_cost": finite(record.candidate_cost),
        "damping": finite(record.damping),
        "gain_ratio": finite(record.gain_ratio),
        "linear_iterations": int(record.linear_iterations),
        "step_accepted": bool(record.step_accepted),
        "reason": record.reason,
        "time_s": finite(record.time_s),
    }


def finite(number: float) -> float | None:
    """Return a number as JSON can hold it: None for infinity and NaN."""
    return float(number) if math.isfinite(number) else None


def write_json(path: Path, report: dict[str, Any]) -> None:
    """Write a report.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    text = json.dumps(report, indent=2, allow_nan=False)
    write_file(path, f"{text}\n".encode())


def _write_view(
    path: Path, result: SolveResult, recording: "caspar.Recording | None", title: str
) -> None:
    nouns = {"Cam": "camera"}
    scene = caspar.scene.scene_of_result(result, recording, title=title, unit="px", nouns=nouns)
    caspar.view.write_html(scene, path)


def _write_problem(path: Path, problem: BalProblem) -> None:
    if path.suffix.lower() == PLY_SUFFIX:
        write_ply(path, problem.points, problem.cameras)
    else:
        write_bal(path, problem)


def check_suffix(option: str, path: Path | None, allowed: tuple[str, ...]) -> None:
    """Refuse a path whose name does not end as its option needs.

    Raises:
        OptionError: Names the option, the path and the allowed suffixes.
    """
    if path is not None and not path.name.lower().endswith(allowed):
        raise OptionError(f"{option} {path}: the name must end in {', '.join(allowed)}")
