"""Nonlinear least squares on the GPU from symbolic residuals, compiled at run time.

A residual is a function of SymForce values whose arguments are marked; a solver compiles it and
moves the tunable values until half the sum of squared residuals is least:

    from typing import Annotated
    import caspar
    import symforce.symbolic as sf

    class Point(sf.V2): ...
    class Offset(sf.V2): ...

    @caspar.factor
    def between(start: Annotated[Point, caspar.TunableShared],
                end: Annotated[Point, caspar.TunableShared],
                measured: Annotated[Offset, caspar.ConstSequential]) -> sf.V2:
        return end - start - measured

    solver = caspar.Solver([between])
    result = solver.solve({
        "Point": points,                                     # (num_points, 2)
        "between": {"start": i, "end": j, "measured": d},    # (n,), (n,) and (n, 2)
    })
    print(result)                                            # status, costs, sizes, times
    result.values["Point"]                                   # the same kind of array as was given

Names are loaded when they are first used, so that `import caspar` takes milliseconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from caspar.version import __version__

if TYPE_CHECKING:  # what `__getattr__` does, said so that a type checker and an editor read it
    from caspar import (
        bundle_adjustment,
        cameras,
        colmap,
        curves,
        distributed,
        errors,
        factors,
        initialize,
        inspect,
        io,
        loss,
        plot,
        pose_graph,
        report,
        rerun,
        scene,
        sfm,
        view,
    )
    from caspar import jax as jax
    from caspar import torch as torch
    from caspar.arrays.blocked_array import BlockedArray
    from caspar.arrays.shared_indices import SharedIndices
    from caspar.batch.result import BatchResult, BatchViolation
    from caspar.batch.solver import BatchSolver
    from caspar.frontend.factors.factor import (
        Constraint,
        ConstraintKind,
        Factor,
        constraint,
        factor,
    )
    from caspar.frontend.grids import Grid, Image
    from caspar.frontend.markers import (
        ConstIndexed,
        ConstSequential,
        ConstShared,
        ConstUnique,
        Pair,
        TunablePair,
        TunableSequential,
        TunableShared,
        TunableUnique,
    )
    from caspar.frontend.patches import GridPatch, grid_patch
    from caspar.frontend.spline import spline
    from caspar.kernels.decorator import kernel
    from caspar.kernels.kernel import BoundKernel, Kernel
    from caspar.live.incremental import UpdateResult
    from caspar.live.problem import Problem
    from caspar.memory.patterns import (
        AddBlockSum,
        AddIndexed,
        AddPair,
        AddSequential,
        AddSharedSum,
        AddStrided,
        AddSum,
        AddUnique,
        ReadIndexed,
        ReadPair,
        ReadPairStridedWithDefault,
        ReadSequential,
        ReadShared,
        ReadStrided,
        ReadStridedWithDefault,
        ReadUnique,
        WriteBlockSum,
        WriteIndexed,
        WritePair,
        WriteSequential,
        WriteStrided,
        WriteSum,
    )
    from caspar.options import (
        BackendChoice,
        JacobianChoice,
        LinearSolverChoice,
        Precision,
        SolveOptions,
    )
    from caspar.solver.covariance.covariance import Covariance
    from caspar.solver.evaluation import Evaluation
    from caspar.solver.gnc import GncLoss, GncResult, GncStep, solve_gnc
    from caspar.solver.gradients.gradient import Gradient
    from caspar.solver.prepared import Prepared
    from caspar.solver.result.recording import Recording
    from caspar.solver.result.result import (
        IterationRecord,
        ProblemSize,
        SolveResult,
        SolveStatus,
        Violation,
    )
    from caspar.solver.solver import Solver
    from caspar.user_arrays import Arrays

__all__ = [
    "AddBlockSum",
    "AddIndexed",
    "AddPair",
    "AddSequential",
    "AddSharedSum",
    "AddStrided",
    "AddSum",
    "AddUnique",
    "Arrays",
    "BackendChoice",
    "BatchResult",
    "BatchSolver",
    "BatchViolation",
    "BlockedArray",
    "BoundKernel",
    "ConstIndexed",
    "ConstSequential",
    "ConstShared",
    "ConstUnique",
    "Constraint",
    "ConstraintKind",
    "Covariance",
    "Evaluation",
    "Factor",
    "GncLoss",
    "GncResult",
    "GncStep",
    "Gradient",
    "Grid",
    "GridPatch",
    "Image",
    "IterationRecord",
    "JacobianChoice",
    "Kernel",
    "LinearSolverChoice",
    "Pair",
    "Precision",
    "Prepared",
    "Problem",
    "ProblemSize",
    "ReadIndexed",
    "ReadPair",
    "ReadPairStridedWithDefault",
    "ReadSequential",
    "ReadShared",
    "ReadStrided",
    "ReadStridedWithDefault",
    "ReadUnique",
    "Recording",
    "SharedIndices",
    "SolveOptions",
    "SolveResult",
    "SolveStatus",
    "Solver",
    "TunablePair",
    "TunableSequential",
    "TunableShared",
    "TunableUnique",
    "UpdateResult",
    "Violation",
    "WriteBlockSum",
    "WriteIndexed",
    "WritePair",
    "WriteSequential",
    "WriteStrided",
    "WriteSum",
    "__version__",
    "bundle_adjustment",
    "cameras",
    "colmap",
    "constraint",
    "curves",
    "distributed",
    "errors",
    "factor",
    "factors",
    "grid_patch",
    "initialize",
    "inspect",
    "io",
    "kernel",
    "loss",
    "plot",
    "pose_graph",
    "report",
    "rerun",
    "scene",
    "sfm",
    "solve_gnc",
    "spline",
    "view",
]

_MODULES = (
    "bundle_adjustment",
    "cameras",
    "colmap",
    "curves",
    "distributed",
    "errors",
    "factors",
    "initialize",
    "inspect",
    "io",
    "loss",
    "plot",
    "pose_graph",
    "report",
    "rerun",
    "scene",
    "sfm",
    "view",
)
"""Public names that are modules of this package."""

_NAMES = {
    "AddBlockSum": "caspar.memory.patterns",
    "AddIndexed": "caspar.memory.patterns",
    "AddPair": "caspar.memory.patterns",
    "AddSequential": "caspar.memory.patterns",
    "AddSharedSum": "caspar.memory.patterns",
    "AddStrided": "caspar.memory.patterns",
    "AddSum": "caspar.memory.patterns",
    "AddUnique": "caspar.memory.patterns",
    "Arrays": "caspar.user_arrays",
    "BackendChoice": "caspar.options",
    "BatchResult": "caspar.batch.result",
    "BatchSolver": "caspar.batch.solver",
    "BatchViolation": "caspar.batch.result",
    "BlockedArray": "caspar.arrays.blocked_array",
    "BoundKernel": "caspar.kernels.kernel",
    "ConstIndexed": "caspar.frontend.markers",
    "ConstSequential": "caspar.frontend.markers",
    "ConstShared": "caspar.frontend.markers",
    "ConstUnique": "caspar.frontend.markers",
    "Constraint": "caspar.frontend.factors.factor",
    "ConstraintKind": "caspar.frontend.factors.factor",
    "Covariance": "caspar.solver.covariance.covariance",
    "Evaluation": "caspar.solver.evaluation",
    "Factor": "caspar.frontend.factors.factor",
    "GncLoss": "caspar.solver.gnc",
    "GncResult": "caspar.solver.gnc",
    "GncStep": "caspar.solver.gnc",
    "Gradient": "caspar.solver.gradients.gradient",
    "Grid": "caspar.frontend.grids",
    "GridPatch": "caspar.frontend.patches",
    "Image": "caspar.frontend.grids",
    "IterationRecord": "caspar.solver.result.result",
    "Kernel": "caspar.kernels.kernel",
    "Pair": "caspar.frontend.markers",
    "JacobianChoice": "caspar.options",
    "LinearSolverChoice": "caspar.options",
    "Precision": "caspar.options",
    "Prepared": "caspar.solver.prepared",
    "Problem": "caspar.live.problem",
    "ProblemSize": "caspar.solver.result.result",
    "ReadIndexed": "caspar.memory.patterns",
    "ReadPair": "caspar.memory.patterns",
    "ReadPairStridedWithDefault": "caspar.memory.patterns",
    "ReadSequential": "caspar.memory.patterns",
    "ReadShared": "caspar.memory.patterns",
    "ReadStrided": "caspar.memory.patterns",
    "ReadStridedWithDefault": "caspar.memory.patterns",
    "ReadUnique": "caspar.memory.patterns",
    "Recording": "caspar.solver.result.recording",
    "SharedIndices": "caspar.arrays.shared_indices",
    "SolveOptions": "caspar.options",
    "SolveResult": "caspar.solver.result.result",
    "SolveStatus": "caspar.solver.result.result",
    "Solver": "caspar.solver.solver",
    "TunablePair": "caspar.frontend.markers",
    "TunableSequential": "caspar.frontend.markers",
    "TunableShared": "caspar.frontend.markers",
    "TunableUnique": "caspar.frontend.markers",
    "UpdateResult": "caspar.live.incremental",
    "Violation": "caspar.solver.result.result",
    "WriteBlockSum": "caspar.memory.patterns",
    "WriteIndexed": "caspar.memory.patterns",
    "WritePair": "caspar.memory.patterns",
    "WriteSequential": "caspar.memory.patterns",
    "WriteStrided": "caspar.memory.patterns",
    "WriteSum": "caspar.memory.patterns",
    "constraint": "caspar.frontend.factors.factor",
    "factor": "caspar.frontend.factors.factor",
    "grid_patch": "caspar.frontend.patches",
    "kernel": "caspar.kernels.decorator",
    "solve_gnc": "caspar.solver.gnc",
    "spline": "caspar.frontend.spline",
}
"""Module of each public name that is defined in it."""


_OPTIONAL_MODULES = ("jax", "torch")
"""Modules of this package that need another one of their name: no public names without it."""


if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of type Any

    def __getattr__(name: str) -> Any:
        """Load a public name when it is first used."""
        if name in _MODULES or name in _OPTIONAL_MODULES:
            value: object = import_module(f"caspar.{name}")
        elif name in _NAMES:
            value = getattr(import_module(_NAMES[name]), name)
        else:
            raise AttributeError(f"module 'caspar' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return list(__all__)
