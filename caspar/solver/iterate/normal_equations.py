"""The linearised problem on the device, as Levenberg-Marquardt sees it.

Calling schedule: `load` and `score` once; then `linearize` after every move, `try_step` for every
damping, `accept` to move. The host reads the scalars once for each tried step. What is valid after
each of these, `linearization` says.

While it does, the device would have nothing to do, for some 60 us of the 250 that an iteration with
36,000 factors takes (H200). So small problems go *ahead*: the candidate is linearised before anyone
knows whether it will be accepted, and the linear solve begins with the damping that is expected.
`nodes` stay what they are until then. A step that was rejected costs a linearisation more, and
after it nothing is done ahead until one is accepted.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from caspar.equations.parts import LIMITS, FactorPart, NodePart, SolverPart
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.solver.input.problem import Problem
from caspar.solver.iterate.derivative_sizes import (
    DerivativeLook,
    DerivativeSizes,
    first_step,
    raise_least_damping,
)
from caspar.solver.iterate.faults import PlanFindings
from caspar.solver.iterate.linearization import NUM_INSIDE, Linearization, Place
from caspar.solver.iterate.roundings import moved_scores, typical_change
from caspar.solver.iterate.steps import LinearGoal, TriedStep
from caspar.solver.iterate.usual_options import usual_options
from caspar.solver.linear.hand_over import HandOver
from caspar.solver.plan.memory_table import memory_table
from caspar.solver.plan.plan import SCALARS, Plan
from caspar.solver.system.launches import Binder
from caspar.solver.system.phases import Phases


class NormalEquations:
    """A plan's launches, by what they mean.

    Args:
        plan: Memory and structure.
        binder: Binds its kernels.
        phases: Its launches.
        solvers: The linear solver, and what may take its place.
        stronger: What users may ask for that takes fewer PCG iterations; empty: nothing known.

    Attributes:
        findings: On what it holds.
        more_remarks: On the problem, before those on the linear solver.
        starts: By node type the values that were loaded; nothing once they are read.
    """

    def __init__(
        self,
        plan: Plan,
        binder: Binder,
        phases: Phases,
        solvers: HandOver,
        stronger: str,
    ) -> None:
        self._backend = plan.library.backend
        self._binder = binder
        self._is_bounded = any(node.is_bounded for node in plan.nodes)
        self._take(plan, phases, solvers, stronger)
        sequence = binder.sequence
        self._score = sequence([*phases.restore(), *phases.score(plan.linearized_state)])
        self._begin_by(exact=solvers.current.is_direct)
        self._candidate = sequence(phases.candidate())
        self._accept = sequence(phases.accept())
        self._restore = sequence(phases.restore())
        self._score_candidate = sequence(phases.score(NodePart.CANDIDATE))

    def _take(self, plan: Plan, phases: Phases, solvers: HandOver, stronger: str) -> None:
        """What a plan has beside launches."""
        self.plan = plan
        self.solvers = solvers
        self.stronger = stronger
        self.findings = PlanFindings(plan, phases, solvers)
        self.more_remarks: tuple[str, ...] = ()
        self._phases = phases
        self._usual = solvers.current
        self._scalars = self._backend.host_scalars(plan.memory[SolverPart.SCALARS])
        self._look = DerivativeLook(plan)
        self.starts: Mapping[str, Array] = {}
        self._held = Linearization(plan.is_scaled, plan.jacobians_are_shared)

    def renewed(
        self, plan: Plan, make: Callable[[Binder, Phases, Any], tuple[HandOver, str]]
    ) -> bool:
        """Take another plan, and bind the launches again.

        Args:
            plan: In place of `plan`; the caller uses that no more.
            make: Makes what solves it, of the solver so far if that suits.

        Returns:
            False: it is of another kind, and a system has to be made; this one is lost.
        """
        if not (
            self._usual.is_direct and self._binder.can_bind_again and plan.kind == self.plan.kind
        ):
            return False
        self._binder.plan = plan
        phases, usual = Phases(plan, self._binder), self._usual
        solvers, stronger = make(self._binder, phases, usual)
        if solvers.current is not usual:
            return False
        self._take(plan, phases, solvers, stronger)
        self._binder.bind_again()
        return True

    def _begin_by(self, *, exact: bool) -> None:
        """Linearise for a solver that begins: in float64 if it forms a matrix."""
        self._linearize = self._binder.sequence(self._phases.linearize(exact=exact))
        self._held = self._held.overwritten()

    @property
    def linear_solver(self) -> str:
        """Name of the linear solver."""
        return self.solvers.current.name

    @property
    def remarks(self) -> tuple[str, ...]:
        """Why the linear solver was chosen, where that may surprise."""
        return (*self.more_remarks, *self.solvers.remarks)

    @property
    def device(self) -> str:
        """Where it is, in words."""
        return self._backend.device

    @property
    def is_chained(self) -> bool:
        """Whether a factor couples two nodes of a type that remains."""
        return self.plan.is_chained

    @property
    def storage(self) -> DType:
        """Type of residuals, Jacobians and vectors."""
        return self.plan.types.storage

    @property
    def values_type(self) -> DType:
        """Type of the values."""
        return self.plan.types.values

    @property
    def is_mixed(self) -> bool:
        """Whether values are in float64, and Jacobians in float32."""
        return self.plan.types.rounds_values

    @property
    def is_direct(self) -> bool:
        """Whether a matrix is factorised."""
        return self.solvers.current.is_direct

    @property
    def usual_options(self) -> Mapping[str, float]:
        """Options of a solve that the user leaves open, by name."""
        return usual_options(self.plan, is_direct=self.is_direct)

    @property
    def num_bytes(self) -> int:
        """Bytes of the plan and of the linear solver."""
        return self.plan.num_bytes + self.solvers.num_bytes

    def memory_table(self, others: Iterable["NormalEquations"] = ()) -> str:
        """What the plan and the linear solver hold, and together what other systems do."""
        held = "matrix, without its factor" if self.solvers.current.is_direct else "preconditioner"
        part = f"{self.solvers.current.name}: {held}"
        beside = [other.num_bytes for other in others]
        return memory_table(self.plan, part, self.solvers.num_bytes, beside)

    def uploader(self) -> Callable[[Array], Array]:
        """Brings arrays of the host to the plan's memory, until any other method is called."""
        return self.plan.scratch().on_device

    def load(self, problem: Problem) -> None:
        """Bring start values and constants into the plan's memory."""
        was_direct = self.is_direct
        self.solvers.begin()
        if self.is_direct != was_direct:
            self._begin_by(exact=self.is_direct)
        # where many nodes have bounds, no one of them decides where a solve ends
        is_small = self.plan.shard is None and self.findings.has_lone_promises
        keeps_inside = self._is_bounded and is_small
        self._held = self._held.loaded(NUM_INSIDE if keeps_inside else 0)
        self.starts = problem.values
        scratch = self.plan.scratch()
        for plan in self.plan.reduced:
            self._backend.clear(self.plan.memory[plan.key(NodePart.INFLUENCE)])
        for plan in self.plan.nodes:
            name = plan.node.name
            parts = {NodePart.NODES: problem.values[name]}
            if plan.is_masked:
                parts[NodePart.FREE] = problem.free[name]
            if plan.is_bounded:
                parts |= zip(LIMITS, problem.bounds[name].limits, strict=True)
            for part, given in parts.items():
                rows = scratch.on_device(given)
                rows = scratch.in_order(rows, None if plan.order is None else plan.order.node)
                self._binder.pack(plan.key(part), rows)
        rounded_rows = []
        for factor in self.plan.factors:
            arrays = problem.factors[factor.factor.name]
            for argument in factor.factor.inputs:
                constant = arrays.constants.get(argument.source)
                if constant is not None:
                    rows = scratch.on_device(constant.rows)
                    rows = scratch.in_order(rows, factor.order.order_of(argument))
                    self._binder.pack(factor.key(FactorPart.CONSTANT, argument), rows)
                    rounded = factor.key(FactorPart.ROUNDED_CONSTANT, argument)
                    if rounded in self.plan.memory:
                        rounded_rows.append(rows.astype(self.plan.types.storage.value))
                        self._binder.pack(rounded, rounded_rows[-1])
        # the rows must live until they are packed
        self._backend.synchronize()

    def score(self) -> float:
        """Cost of the current values."""
        self._score.run()
        self._held = self._held.overwritten()
        self._release()
        self._scalars.fetch()
        return self._read()["cost"]

    @property
    def num_residuals(self) -> int:
        """Rows of all residuals, those of holes of node tiles among them."""
        return sum(plan.count * len(plan.factor.residual) for plan in self.plan.factors)

    def faulty_derivatives(self) -> tuple[str, ...]:
        """The factors whose gradient is not finite; for the end of a solve."""
        self._score.run()
        self._held = self._held.overwritten()
        return self.findings.faulty_derivatives()

    def linearize(self, damping: float) -> None:
        """Jacobians, gradient, diagonal and blocks at the current values.

        `damping`: of the next step. D depends on it, and so do variables that are scaled by D.
        """
        if self._held.place is not Place.CANDIDATE:
            if self.plan.linearization_needs_damping:
                self._scalars.write((damping, *self._held.controls))
            self._linearize.run()
        # of another damping than was expected, the step does it: residuals are overwritten
        self._held = self._held.linearized(damping)

    def try_first_step(self, goal: LinearGoal) -> tuple[TriedStep, Mapping[str, bool]]:
        """The same as `try_step`, and choose whether D is levelled from here on.

        It is not if a part has units far apart, see `derivative_sizes`.

        Returns:
            The step; and node types that have squares out of range, with whether nothing can be
            said of their values.
        """
        return first_step(self, goal)

    def level(self, levelling: float) -> None:
        """Level D by that from the next linearisation on, see `Linearization.levelling`."""
        self._held = self._held.levelled(levelling)

    def try_step(self, goal: LinearGoal) -> TriedStep:
        """Solve the damped linear system, retract and score."""
        if self.solvers.take_over():
            self._begin_by(exact=self.is_direct)
        tried = self._solved_step(goal)
        self.solvers.count(
            tried.linear_iterations, goal.max_iterations, is_limited=tried.is_limited
        )
        return tried

    def promise(self, goal: LinearGoal) -> TriedStep:
        """A step that is not taken: what it promises at the current values."""
        tried = self._solved_step(goal, goes_ahead=False)
        self.reject()
        return tried

    def forget(self) -> None:
        """Let D be diag(J^T J) of the current values: nothing remembered, nothing levelled."""
        for plan in self.plan.reduced:
            for part in (NodePart.INFLUENCE, NodePart.CANDIDATE_INFLUENCE):
                self._backend.clear(self.plan.memory[plan.key(part)])
        self.level(0.0)
        self._release()
        self._score_again()

    def hold_weak(self) -> bool:
        """Let D of nodes with next to no influence be that of others, after `promise`.

        Returns:
            Whether there are such nodes, see `raise_least_damping`.
        """
        is_raised = raise_least_damping(self.plan)
        self._score_again()
        return is_raised

    def try_and_look(self, goal: LinearGoal) -> tuple[TriedStep, DerivativeSizes]:
        """The same as `try_step`, and what D and the gradient are."""
        return self._solved_step(goal, looks=True), self._look.read()

    def _solved_step(
        self, goal: LinearGoal, *, goes_ahead: bool = True, looks: bool = False
    ) -> TriedStep:
        """A step, by the QR decomposition if the normal matrix proves to be ill-conditioned."""

        def solved() -> TriedStep:
            self._enqueue_step(goal)
            if looks:
                self._look.begin()  # before they are overwritten
            if goes_ahead:
                self._enqueue_ahead(goal)
            return TriedStep.of(
                self._read(),
                is_bounded=self._is_bounded,
                is_shortened=self._is_bounded and self._held.was_rejected,
            )

        is_looked_at = self.solvers.looks_at_pivots(goal.damping)
        tried = solved()
        if is_looked_at and self.solvers.turn_to_orthogonal(tried.least_pivot):
            if self.plan.goes_ahead:
                self._restore.run()
            self._held = self._held.overwritten()
            tried = solved()
        if self.solvers.turn_back(tried.least_pivot) and goal.damping == 0.0:
            tried = tried.unsolved
        return tried

    def _enqueue_step(self, goal: LinearGoal) -> None:
        limits = (goal.tolerance, goal.min_iterations, goal.max_iterations)
        if goal.is_whole:
            self._release()
        self._scalars.write((goal.damping, *self._held.controls, *limits))
        if self._held.place is not Place.CURRENT:
            self._score.run()  # residuals are of the last candidate
            self._linearize.run()
        if self._held.begun_damping != goal.damping:
            self.solvers.current.begin()
            if self.plan.goes_ahead:
                self._accept.run()  # the same values, and what D remembers of them
        self._held = self._held.tried()
        probes = self.solvers.looks_at_pivots(goal.damping)
        self.solvers.current.solve(goal.max_iterations, probes=probes)
        self._candidate.run()
        self._scalars.fetch()

    def _enqueue_ahead(self, goal: LinearGoal) -> None:
        """Linearise the candidate, if that is done before it is known whether it is accepted."""
        if (
            self.plan.goes_ahead
            and not self._held.was_rejected
            and goal.expected_damping is not None
        ):
            self._scalars.write((goal.expected_damping, *self._held.controls))
            self._linearize.run()
            self.solvers.current.begin()
            self._held = self._held.went_ahead(goal.expected_damping)

    def accept(self) -> None:
        """Make the candidate the current values."""
        self._accept.run()
        self._held = self._held.accepted()

    def reject(self) -> None:
        """Keep the current values."""
        if self.plan.goes_ahead and self._held.place is not Place.CANDIDATE:
            self._restore.run()
        self._held = self._held.rejected()

    def rounded_costs(self) -> tuple[float, ...]:
        """Costs of values that are moved by a rounding each, but for zeros, up or down in no order.

        Several draws. What was linearised is lost.
        """
        costs = []
        for _ in moved_scores(self.plan, self._phases):
            self._scalars.fetch()
            costs.append(self._read()["cost"])
        self._score_again()
        return tuple(costs)

    def coarsely_rounded_change(self) -> float:
        """How much typical residuals change by the last third of the values' digits.

        See `roundings.typical_change`. What was linearised is lost.
        """
        self._score.run()
        change = typical_change(self.plan, self._phases, self.starts)
        self._score_again()
        return change

    def _release(self) -> None:
        """Let the next linearisation free what rejected steps held at bounds."""
        if self._is_bounded and self._held.was_rejected:
            self._held = self._held.released()

    def _score_again(self) -> None:
        self._score.run()
        self._held = self._held.overwritten()

    def round_values(self, dtypes: Mapping[str, Any]) -> float:
        """Round the current values to narrower types, for some node types by name; their cost."""
        for plan in self.plan.nodes:
            if plan.node.name in dtypes:
                nodes = self.plan.memory[plan.key(NodePart.NODES)]
                nodes[...] = nodes.astype(dtypes[plan.node.name])
        return self.score()

    def candidate_cost(self) -> float:
        """Cost of what the caller has written to the candidates; what was linearised is lost."""
        self._score_candidate.run()
        self._held = self._held.overwritten()
        self._scalars.fetch()
        return self._read()["cost"]

    def remarks_on_values(self, cost: float, first_cost: float) -> tuple[str, ...]:
        """Sentences on numbers that ran away and nodes that nothing holds.

        Args:
            cost: Of the current values.
            first_cost: Of the start values.
        """
        return self.findings.remarks_on_values(self, cost, first_cost)

    def values(self) -> Mapping[str, Array]:
        """The current values as (n, storage_dim) arrays of the type of values.

        They are in memory that a solve needs no more; the next one overwrites them.
        """
        self._held = self._held.overwritten()
        self.starts = {}
        return self._values_in(self.plan.scratch())

    def copied_values(self) -> Mapping[str, Array]:
        """The same in arrays of their own: the solve may go on."""
        return self._values_in(self.plan.no_scratch())

    def _values_in(self, scratch: Any) -> Mapping[str, Array]:
        values = self.plan.types.values.value
        rows = {
            plan.node.name: scratch.take((plan.count, plan.node.storage_dim), values)
            for plan in self.plan.nodes
        }
        for plan in self.plan.nodes:
            name = plan.node.name
            self._binder.unpack(plan.key(NodePart.NODES), rows[name])
            if plan.order is not None:
                rows[name] = scratch.in_order(rows[name], plan.order.rank)
        self._backend.synchronize()
        return rows

    def _read(self) -> dict[str, float]:
        return dict(zip(SCALARS, self._scalars.read(), strict=True))
