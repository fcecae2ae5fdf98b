"""A prepared problem: sizes, choices, kernels and memory, as plain values.

Output of `Solver.prepare`. It describes a plan and holds none of its memory. Cost tier: once for a
structure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from caspar.codegen.source import KernelSource
from caspar.frontend.factors.jacobian import JacobianStorage
from caspar.options import JacobianChoice
from caspar.runtime.backend import Backend
from caspar.solver.active import Active
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.plan.arena import Region
from caspar.solver.result.quantities import bytes_text, preformatted
from caspar.solver.result.result import ProblemSize

_JACOBIANS = {
    JacobianStorage.STORED: JacobianChoice.STORED,
    JacobianStorage.FLOAT16: JacobianChoice.FLOAT16,
    JacobianStorage.RECOMPUTED: JacobianChoice.RECOMPUTE,
}


@dataclass(frozen=True, eq=False)
class Prepared:
    """A problem that is ready to be solved; made by `Solver.prepare`.

    Mappings have the factors that have instances.

    Attributes:
        problem: Instance counts.
        backend: `cuda` or `cpu`.
        device: The device in words.
        precision: `mixed`, `float32` or `float64`.
        linear_solver: What will solve the linear systems, as `SolveResult.linear_solver`.
        eliminated: Names of the node types that are eliminated.
        jacobians: Where the Jacobian of each factor is: `stored`, `float16` or `recompute`.
        jacobian_dims: Scalars of each factor's stored Jacobian, for one instance; 0: none stored.
        num_slots: Places of each factor's instances in memory, with holes at the ends of tiles.
        tile_size: Items of a tile.
        num_bytes: Bytes held on the device: arena, tiles, matrix. The arrays that were given there,
            and what a library that factorises keeps for itself, are not counted.
        memory_table: The same array by array, as `Solver.memory_table`.
        regions: First byte in the arena, scalars and type of each array, by name. Names that begin
            with `all `, `sums` and `reduced_sums` join others.
        kernels: Source of each kernel, by name.
        remarks: Why something was chosen where that may surprise, with advice.
    """

    problem: ProblemSize
    backend: str
    device: str
    precision: str
    linear_solver: str
    eliminated: tuple[str, ...]
    jacobians: Mapping[str, str]
    jacobian_dims: Mapping[str, int] = field(repr=False)
    num_slots: Mapping[str, int] = field(repr=False)
    tile_size: int
    num_bytes: int
    memory_table: str = field(repr=False)
    regions: Mapping[str, Region] = field(repr=False)
    kernels: Mapping[str, KernelSource] = field(repr=False)
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = self.problem
        eliminated = ", ".join(self.eliminated) or "none"
        jacobians = ", ".join(f"{name} {where}" for name, where in self.jacobians.items())
        lines = [
            f"runs on        {self.backend} ({self.device}), {self.precision} precision",
            f"problem        {size.num_residuals:,} residuals, {size.num_unknowns:,} unknowns",
            f"linear solver  {self.linear_solver}, eliminated: {eliminated}",
            f"Jacobians      {jacobians}",
            f"memory         {bytes_text(self.num_bytes)}",
        ]
        return "\n".join([*lines, *(f"remark         {remark}" for remark in self.remarks)])

    def _repr_html_(self) -> str:
        return preformatted(str(self))


def describe(
    backend: Backend, problem: ProblemSize, active: Active, system: NormalEquations
) -> Prepared:
    """Describe a system without its memory; all devices that share a problem call it."""
    from caspar.solver.plan.memory_table import joined_tables

    plan = system.plan
    held = system.communicator.gather((plan.library.backend.device, system.memory_table()))
    factors = {one.factor.name: one for one in plan.factors}
    return Prepared(
        problem=problem,
        backend=backend.name,
        device=system.device,
        precision=active.recipe.precision.value,
        linear_solver=system.linear_solver,
        eliminated=tuple(one.node.name for one in plan.eliminated),
        jacobians={name: _JACOBIANS[one.form.jacobian].value for name, one in factors.items()},
        jacobian_dims=dict(plan.library.jacobian_dims),
        num_slots={name: one.count for name, one in factors.items()},
        tile_size=plan.library.tile_size,
        num_bytes=system.num_bytes,
        memory_table=joined_tables(held),
        regions={key.text: region for key, region in plan.arena.regions.items()},
        kernels=plan.library.sources,
        remarks=(*active.remarks, *system.remarks),
    )
