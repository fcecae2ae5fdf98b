"""Solve a pose graph with defaults that suit one.

Input: a graph. Output: a `Summary` with the solved graph. Cost: that of `caspar.Solver`; such
systems are factorised, as loose steps lead into worse minima.
"""

from dataclasses import dataclass
from typing import Any

from caspar.frontend.factors.factor import Factor
from caspar.io.graphs.pose_graph import PoseGraph
from caspar.options import BackendChoice, BackendName, PrecisionName
from caspar.pose_graph.errors import chi2_by_kind
from caspar.pose_graph.problem import problem, solved_graph
from caspar.pose_graph.start import Initialize, InitializeName, Start, start_poses
from caspar.progress import phase
from caspar.solver.result.result import SolveResult
from caspar.solver.solver import Solver


@dataclass(frozen=True, eq=False, repr=False)
class Summary:
    """The result of solving a pose graph.

    Attributes:
        graph: The graph with the solved poses and landmarks.
        result: The solve.
        start: The start values.
        held_first: Ids of poses that were held only because nothing else says where the graph is.
        chi2_by_kind: chi2 of the solved graph by factor, without loss.
        remarks: What the user should know besides the result's remarks.
    """

    graph: PoseGraph
    result: SolveResult
    start: Start
    held_first: tuple[int, ...]
    chi2_by_kind: dict[str, float]
    remarks: tuple[str, ...]

    @property
    def chi2(self) -> float:
        """Sum of squared whitened errors of the solved graph, without loss."""
        return float(sum(self.chi2_by_kind.values()))

    def __repr__(self) -> str:
        """Return sizes, chi2 and status."""
        return (
            f"Summary({self.graph!r}, chi2 {self.start.file_chi2:.6g} -> {self.chi2:.6g}, "
            f"{self.result.status.name})"
        )

    def __str__(self) -> str:
        """Return sizes, start, chi2, and the report of the solve."""
        lines = [repr(self.graph), *self.remarks, f"chi2 {self.start.chi2:.8g} -> {self.chi2:.8g}"]
        return "\n".join([*lines, "", str(self.result)])


def solve(
    graph: PoseGraph,
    *,
    initialize: InitializeName | Initialize = "auto",
    fix_first: bool | None = None,
    loss: Any = None,
    loss_scale: float = 1.0,
    backend: BackendName | BackendChoice = "auto",
    precision: PrecisionName = "float64",
    **options: Any,
) -> Summary:
    """Find the poses and landmarks that agree best with the measurements of a graph.

    Args:
        graph: As a reader returns it.
        initialize: Where to start; see `start_poses`.
        fix_first: Whether the first pose of each part is held; see `problem`. None: where nothing
            else holds it.
        loss: Of `caspar.loss`, for edges, sightings and bearings; None: none.
        loss_scale: The length of a whitened residual from which on it is taken for large.
        backend: As of `caspar.Solver`.
        precision: As of `caspar.Solver`.
        options: As of `caspar.Solver.solve`.

    Raises:
        InputError: The graph has no measurements, or no start can be found.
        OptionError: An option is wrong.

    Example:
        >>> from pathlib import Path
        >>> import caspar
        >>> text = '''EDGE_SE2 0 1 1.0 0 0 1 0 0 1 0 1
        ... EDGE_SE2 1 2 1.0 0 0 1 0 0 1 0 1
        ... EDGE_SE2 0 2 2.3 0 0 1 0 0 1 0 1'''
        >>> _ = Path("chain.g2o").write_text(text)
        >>> summary = caspar.pose_graph.solve(caspar.io.read_g2o("chain.g2o"))
        >>> summary.graph.poses[:, 2].round(3), round(summary.chi2, 3)
        (array([0. , 1.1, 2.2]), 0.03)
    """
    solvers: dict[tuple[str, ...], Solver] = {}

    def solver_of(factors: tuple[Factor, ...]) -> Solver:
        names = tuple(factor.name for factor in factors)
        if names not in solvers:
            solvers[names] = Solver(factors, backend=backend, precision=precision)
        return solvers[names]

    chosen = {"fix_first": fix_first, "loss": loss, "loss_scale": loss_scale}
    task = problem(graph, **chosen)  # refuses a graph without measurements at once
    with phase("finding a start"):
        start = start_poses(graph, initialize, solver_of, **chosen)
    task = problem(start.graph, **chosen)
    solver = solver_of(task.factors)
    with phase(f"compiling for {solver.backend.device}"):
        solver.compile()
    with phase(f"solving on {solver.backend.device}"):
        result = solver.solve(task.arrays, fixed=task.fixed, **options)
    solved = solved_graph(start.graph, result)
    held = tuple(int(graph.ids[row]) for row in task.first)
    return Summary(
        graph=solved,
        result=result,
        start=start,
        held_first=held,
        chi2_by_kind=chi2_by_kind(solved),
        remarks=_remarks(start, held, has_converged=result.status.is_success),
    )


_SHOWN_IDS = 3


def _remarks(start: Start, held: tuple[int, ...], *, has_converged: bool) -> tuple[str, ...]:
    said = f"start: {_START_NAMES[start.choice]}, chi2 {start.chi2:.6g}"
    if start.choice is not Initialize.FILE:
        said += f"; the graph's own poses have {start.file_chi2:.6g}"
    remarks = [said]
    if len(held) == 1:
        remarks.append(f"pose {held[0]} is held: nothing else says where the graph is")
    elif held:
        shown = ", ".join(map(str, held[:_SHOWN_IDS]))
        more = ", ..." if len(held) > _SHOWN_IDS else ""
        remarks.append(
            f"poses {shown}{more} are held, {len(held)} in all: the first of each part of the "
            "graph, as nothing else says where the part is"
        )
    if not has_converged and start.choice in (Initialize.FILE, Initialize.TREE):
        remarks.append("initialize='chordal' may help: it finds a start from the edges alone")
    return tuple(remarks)


_START_NAMES = {
    Initialize.FILE: "the graph's own poses",
    Initialize.TREE: "a tree of edges",
    Initialize.CHORDAL: "the chordal estimate",
    Initialize.GROW: "a graph that was grown, more and more poses solved",
}
