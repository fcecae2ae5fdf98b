"""The files a solve leaves: checked before the long work, written after it.

Once per command; writing takes as long as the file formats do.
"""

import dataclasses
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import caspar
from caspar.errors import OptionError
from caspar.io.bal import BalProblem, write_bal
from caspar.io.ply import write_ply
from caspar.solver.result import IterationRecord, SolveResult
from caspar.version import __version__

BAL_SUFFIXES = (".txt", ".txt.bz2", ".txt.gz")
PLY_SUFFIX = ".ply"
PLOT_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Outputs:
    """Where to write what; None: not at all.

    Attributes:
        json: Status, costs and iterations.
        problem: The problem at the solution, as BAL text or as a PLY point cloud.
        plot: Image of the cost and of the scene before and after.
    """

    json: Path | None
    problem: Path | None
    plot: Path | None

    @property
    def by_option(self) -> dict[str, Path]:
        """The paths that were asked for, by the option that did."""
        paths = {"--json": self.json, "--out": self.problem, "--plot": self.plot}
        return {option: path for option, path in paths.items() if path is not None}


def check_outputs(outputs: Outputs, problem_file: Path) -> None:
    """Find out now what would keep a file from being written later.

    Raises:
        OptionError: Names the option, the path and what is wrong with it.
    """
    _check_suffix("--out", outputs.problem, (*BAL_SUFFIXES, PLY_SUFFIX))
    _check_suffix("--plot", outputs.plot, PLOT_SUFFIXES)
    taken = {problem_file.resolve(): "the problem itself"}
    for option, path in outputs.by_option.items():
        folder = path.parent
        if not folder.is_dir():
            raise OptionError(f"{option} {path}: there is no folder {folder}; make it first")
        if path.is_dir():
            raise OptionError(f"{option} {path}: this is a folder; name a file in it")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise OptionError(f"{option} {path}: no permission to write it")
        if path.resolve() in taken:
            raise OptionError(f"{option} {path}: this is {taken[path.resolve()]}; name another")
        taken[path.resolve()] = f"also the file of {option}"


def write_outputs(
    outputs: Outputs, before: BalProblem, result: SolveResult
) -> list[tuple[Path, str | None]]:
    """Write all files, going on to the next where one cannot be written.

    Returns:
        Each path, and why it was not written (None: it was).
    """
    after = solved_problem(before, result)
    writers: dict[str, Callable[[Path], None]] = {
        "--json": lambda path: _write_json(path, json_report(before, result)),
        "--out": lambda path: _write_problem(path, after),
        "--plot": lambda path: caspar.plot.plot_bundle_adjustment(before, after, result, path),
    }
    written: list[tuple[Path, str | None]] = []
    for option, path in outputs.by_option.items():
        try:
            writers[option](path)
            written.append((path, None))
        except (OSError, ValueError, MemoryError) as error:
            written.append((path, str(error) or "out of memory"))
    return written


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
    return {
        "version": __version__,
        "problem": {
            "cameras": problem.num_cameras,
            "points": problem.num_points,
            "observations": problem.num_observations,
        },
        "backend": result.backend,
        "device": result.device,
        "precision": result.precision,
        "linear_solver": result.linear_solver,
        "status": result.status.name.lower(),
        "initial_cost": _finite(result.initial_cost),
        "final_cost": _finite(result.final_cost),
        "compile_time_s": _finite(result.compile_time_s),
        "setup_time_s": _finite(result.setup_time_s),
        "solve_time_s": _finite(result.solve_time_s),
        "peak_memory_bytes": int(result.peak_memory_bytes),
        "iterations": [_json_iteration(record) for record in result.iterations],
    }


def _json_iteration(record: IterationRecord) -> dict[str, Any]:
    return {
        "iteration": int(record.iteration),
        "cost": _finite(record.cost),
        "candidate_cost": _finite(record.candidate_cost),
        "damping": _finite(record.damping),
        "gain_ratio": _finite(record.gain_ratio),
        "linear_iterations": int(record.linear_iterations),
        "step_accepted": bool(record.step_accepted),
        "reason": record.reason,
        "time_s": _finite(record.time_s),
    }


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def _write_json(path: Path, report: dict[str, Any]) -> None:
    text = json.dumps(report, indent=2, allow_nan=False)
    path.write_text(f"{text}\n", encoding="utf-8")


def _write_problem(path: Path, problem: BalProblem) -> None:
    if path.suffix.lower() == PLY_SUFFIX:
        write_ply(path, problem.points, problem.cameras)
    else:
        write_bal(path, problem)


def _check_suffix(option: str, path: Path | None, allowed: tuple[str, ...]) -> None:
    if path is not None and not path.name.lower().endswith(allowed):
        raise OptionError(f"{option} {path}: the name must end in {', '.join(allowed)}")
