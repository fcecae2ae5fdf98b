"""The linearised problem on the device, as Levenberg-Marquardt sees it.

Calling schedule: `load` and `score` once; then `linearize` after every move, `try_step` for every
damping, `accept` to move. The host reads the scalars once for each tried step. `Linearization` says
what is valid after each of these.

While it does, the device would have nothing to do, for some 60 us of the 250 that an iteration with
36,000 factors takes (H200). So small problems go *ahead*: the candidate is linearised before anyone
knows whether it will be accepted, and the linear solve begins with the damping that is expected.
`nodes` stay what they are until then. A step that was rejected costs a linearisation more, and
after it nothing is done ahead until one is accepted.

On several devices each has the system of its part, and all make the same calls in the same order.
Their launches add up what has to be added up (`system.phases`), so that all hold the same scalars;
what the host reads besides goes through `communicator`, and is the same on all.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from caspar.equations.parts import LIMITS, FactorPart, NodePart, SolverPart
from caspar.equations.scalar_kernels import LinearOutcome
from caspar.ir.dtype import DType
from caspar.runtime.backend import Launch
from caspar.runtime.backend import PlainSteps as TakesPlainSteps
from caspar.runtime.group.member import Communicator, Group
from caspar.solver.input.problem import Problem
from caspar.solver.linear.method import LEAST_PIVOT, HandOver
from caspar.solver.lm.derivative_sizes import DerivativeLook, DerivativeSizes, raise_least_damping
from caspar.solver.lm.faults import Findings
from caspar.solver.lm.plain.steps import READ_SCALARS, Number, PlainSteps, decision
from caspar.solver.lm.roundings import moved_scores, typical_change
from caspar.solver.lm.steps import LinearGoal, Linearization, Place, TriedStep
from caspar.solver.lm.usual_options import usual_options
from caspar.solver.plan.plan import SCALARS, Plan
from caspar.solver.system.free_values import remarks_on_free_values
from caspar.solver.system.launches import Binder
from caspar.solver.system.phases import Phases


class NormalEquations:
    """A plan's launches, by what they mean.

    Attributes:
        more_remarks: On the problem, before those on the linear solver.
        starts: By node type the values that were loaded; nothing once they are read.
    """

    def __init__(self, plan: Plan, binder: Binder, phases: Phases, solvers: HandOver) -> None:
        self._backend = plan.library.backend
        self._binder = binder
        self.is_bounded = any(node.is_bounded for node in plan.nodes)
        self._candidate_launches = phases.candidate()
        self._solve_launches: Sequence[Launch] | None = None
        self._plain_steps: TakesPlainSteps | None = None
        self._may_have_plain_steps = True
        self._take(plan, phases, solvers)
        sequence = binder.sequence
        self._score = sequence([*phases.restore(), *phases.score(plan.linearized_state)])
        self._begin_by(exact=solvers.current.is_direct)
        self._candidate = sequence(self._candidate_launches)
        self._accept = sequence(phases.accept())
        self._restore = sequence(phases.restore())
        self._score_candidate = sequence(phases.score(NodePart.CANDIDATE))

    def _take(self, plan: Plan, phases: Phases, solvers: HandOver) -> None:
        self.plan = plan
        self.solvers = solvers
        self.findings = Findings(plan, phases, solvers)
        self.share_with(0, None)
        self.more_remarks: tuple[str, ...] = ()
        self._phases = phases
        self._usual = solvers.current
        self._scalars = self._backend.host_scalars(plan.memory[SolverPart.SCALARS])
        self._look = DerivativeLook(plan)
        self.starts: Mapping[str, Any] = {}
        self._needs_damping = plan.linearization_needs_damping
        self._num_loads = 0
        self._held = Linearization(plan.is_scaled, plan.jacobians_are_shared)
        launches = self._usual.launches
        self._in_one_call = self._usual if len(launches) > 0 else None
        if launches is not self._solve_launches:
            self._solve_launches = launches
            self._step = self._binder.sequence([*launches, *self._candidate_launches])
            self._forget_plain_steps()

    def renewed(self, plan: Plan, make: Callable[[Binder, Phases, Any], HandOver]) -> bool:
        """Take another plan, and bind the launches again.

        Returns:
            False: it is of another kind, and a system has to be made; this one is lost.
        """
        if not (
            self._usual.is_direct and self._binder.can_bind_again and plan.kind == self.plan.kind
        ):
            return False
        self._binder.plan = plan
        phases = Phases(plan, self._binder)
        solvers = make(self._binder, phases, self._usual)
        if solvers.current is not self._usual:
            return False
        self._take(plan, phases, solvers)
        self._binder.bind_again()
        if self._plain_steps is None or not self._plain_steps.bind_again(*self._decided_by()):
            self._forget_plain_steps()
        return True

    def share_with(self, rank: int, group: Group | None) -> None:
        """Work on a problem together with the other devices of a group, or alone."""
        self.communicator = self.findings.communicator = Communicator(rank, group)

    def _begin_by(self, *, exact: bool) -> None:
        """Linearise for a solver that begins: in float64 if it forms a matrix."""
        self._linearize = self._binder.sequence(self._phases.linearize(exact=exact))
        self._forget_plain_steps()
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
        """All devices, in words."""
        names = self.communicator.gather(self._backend.device)
        if len(set(names)) > 1:
            return ", ".join(names)
        return names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"

    @property
    def is_chained(self) -> bool:
        """True if a factor couples two nodes of a type that remains."""
        return any(self.communicator.gather(self.plan.is_chained))

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
        """True if values are in float64, and Jacobians in float32."""
        return self.plan.types.rounds_values

    @property
    def is_direct(self) -> bool:
        """True if a matrix is factorised."""
        return self.solvers.current.is_direct

    @property
    def usual_options(self) -> Mapping[str, float]:
        """Options of a solve that the user leaves open, by name: of the most kinds of factors."""
        own = usual_options(self.plan, is_direct=self.is_direct)
        found = self.communicator.gather((len(self.plan.factors), own))
        return max(found, key=lambda one: one[0])[1]

    @property
    def num_bytes(self) -> int:
        """Bytes of plan and linear solver, on all devices."""
        return sum(self.communicator.gather(self.plan.num_bytes + self.solvers.num_bytes))

    def memory_table(self, others: Iterable["NormalEquations"] = ()) -> str:
        """Return a table of the memory of plan and linear solver here, and a sum for the others."""
        from caspar.solver.plan.memory_table import memory_table

        held = "matrix, without its factor" if self.solvers.current.is_direct else "preconditioner"
        part = f"{self.solvers.current.name}: {held}"
        beside = [other.num_bytes for other in others]
        return memory_table(self.plan, part, self.solvers.num_bytes, beside)

    def uploader(self) -> Callable[[Any], Any]:
        """Brings arrays of the host to the plan's memory, until any other method is called."""
        return self.plan.scratch().on_device

    def load(self, problem: Problem) -> None:
        """Bring start values and constants into the plan's memory."""
        self._num_loads += 1
        was_direct = self.is_direct
        self.solvers.begin()
        if self.is_direct != was_direct:
            self._begin_by(exact=self.is_direct)
        # where many nodes have bounds, no one of them decides where a solve ends
        is_small = self.plan.shard is None and self.findings.has_lone_promises
        keeps_inside = self.is_bounded and is_small
        self._held = self._held.loaded(keeps_inside=keeps_inside)
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
        return self.communicator.same(self._read()["cost"])

    @property
    def num_residuals(self) -> int:
        """Rows of all residuals, those of holes of node tiles among them."""
        own = sum(plan.count * len(plan.factor.residual) for plan in self.plan.factors)
        return sum(self.communicator.gather(own))

    def faulty_derivatives(self) -> tuple[str, ...]:
        """The factors whose gradient is not finite; for the end of a solve."""
        self._score.run()
        self._held = self._held.overwritten()
        return self.findings.faulty_derivatives()

    def linearize(self, damping: float) -> None:
        """Jacobians, gradient, diagonal and blocks at the current values.

        `damping`: of the next step. D depends on it, and so do variables that are scaled by D.
        """
        if self._held.place is not Place.CANDIDATE and not self._held.was_tried(damping):
            if self._needs_damping:
                self._scalars.write((damping, *self._held.controls))
            self._linearize.run()
        # of another damping than was expected, the step does it: residuals are overwritten
        self._held = self._held.linearized(damping)

    def level(self, levelling: float) -> None:
        """Level D by that from the next linearisation on, see `Linearization.levelling`."""
        self._held = self._held.levelled(levelling)

    def try_and_look(self, goal: LinearGoal) -> tuple[TriedStep, DerivativeSizes]:
        """The same as `try_step`, and what D and the gradient are."""
        tried = self._solved_step(goal, looks=True)
        sizes = DerivativeSizes.joined(self.communicator.gather(self._look.read()))
        return self.communicator.same(tried), sizes

    def try_step(self, goal: LinearGoal) -> TriedStep:
        """Solve the damped linear system, retract and score."""
        if self.solvers.take_over():
            self._begin_by(exact=self.is_direct)
        tried = self._solved_step(goal)
        self.solvers.count(
            tried.linear_iterations, goal.max_iterations, is_limited=tried.is_limited
        )
        return self.communicator.same(tried)

    def promise(self, goal: LinearGoal) -> TriedStep:
        """A step that is not taken: what it promises at the current values."""
        tried = self._solved_step(goal, goes_ahead=False)
        self.reject()
        return self.communicator.same(tried)

    def forget(self) -> None:
        """Let D be diag(J^T J) of the current values: nothing remembered, nothing levelled."""
        for plan in self.plan.reduced:
            for part in (NodePart.INFLUENCE, NodePart.CANDIDATE_INFLUENCE):
                self._backend.clear(self.plan.memory[plan.key(part)])
        self._held = self._held.levelled(0.0)
        self._release()
        self._score_again()

    def hold_weak(self) -> bool:
        """Let D of nodes with next to no influence be that of others, after `promise`.

        Returns:
            Whether there are such nodes, see `raise_least_damping`.
        """
        is_raised = raise_least_damping(self.plan)
        self._score_again()
        return self.communicator.same(is_raised)

    def _solved_step(
        self, goal: LinearGoal, *, goes_ahead: bool = True, looks: bool = False
    ) -> TriedStep:
        """A step, by the QR decomposition if the normal matrix proves to be ill-conditioned."""

        def solved(*, probes: bool) -> TriedStep:
            self._enqueue_step(goal, probes=probes)
            if looks:
                self._look.begin()  # before they are overwritten
            if goes_ahead:
                self._enqueue_ahead(goal)
            return TriedStep.of(
                self._read(),
                is_bounded=self.is_bounded,
                is_shortened=self.is_bounded and self._held.was_rejected,
            )

        probes = self.solvers.looks_at_pivots(goal.damping)
        tried = solved(probes=probes)
        if probes and self.solvers.turn_to_orthogonal(tried.least_pivot):
            if self.plan.goes_ahead:
                self._restore.run()
            self._held = self._held.overwritten()
            tried = solved(probes=False)
        if self.solvers.turn_back(tried.least_pivot) and goal.damping == 0.0:
            tried = tried._replace(outcome=LinearOutcome.NOT_FINITE)
        return tried

    def take_plain_steps(self, numbers: list[float], max_steps: int) -> PlainSteps | None:
        """Take steps in compiled code from values that were scored; None: the host takes each."""
        if self.solvers.current is not self._in_one_call or self.is_bounded:
            return None
        on_host = not self._backend.traits.launches_are_asynchronous
        if not (on_host or self.plan.goes_ahead):
            return None
        if numbers[Number.LOOKS] and self.storage is not DType.FLOAT64:
            return None  # compiled code looks at D of that type only
        if self._may_have_plain_steps and self._plain_steps is None:
            # going ahead, candidates are linearised: each is the last step, which was plain
            moves = () if on_host else (self._accept,)
            self._plain_steps = self._backend.plain_steps(
                decision(self._backend.traits.target),
                (self._linearize, *moves, self._step),
                self._accept,
                *self._decided_by(),
            )
            self._may_have_plain_steps = self._plain_steps is not None
        if self._plain_steps is None or not (on_host or self._num_loads > 1):
            return None  # a graph takes longer to make than it saves in one solve
        self._scalars.write((numbers[Number.STEP_DAMPING], *self._held.controls))
        if self.solvers.looks_at_pivots(0.0):
            numbers[Number.LEAST_PIVOT] = LEAST_PIVOT
        found = self._plain_steps(numbers, max_steps)
        if found is None:
            self._plain_steps, self._may_have_plain_steps = None, False
            return None
        steps = PlainSteps(*found)
        is_stopped = steps.numbers[Number.STOP] != 0.0
        tried = steps.numbers[Number.STEP_DAMPING] if is_stopped else None
        self._held = self._held.took_plain_steps(tried)
        return steps

    def _forget_plain_steps(self) -> None:
        """Forget the taker of plain steps; it is made when it is asked for."""
        self._plain_steps, self._may_have_plain_steps = None, True

    def _decided_by(self) -> tuple[Sequence[Any], Sequence[Any]]:
        looks = self.storage is DType.FLOAT64
        diagonals = self._look.diagonals() if looks else []
        return [self.plan.scalar(name) for name in READ_SCALARS], diagonals

    def _enqueue_step(self, goal: LinearGoal, *, probes: bool) -> None:
        if self._held.was_tried(goal.damping):
            self._held = self._held.tried()
            self._scalars.fetch()
            return
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
        if self.solvers.current is self._in_one_call:
            self._step.run()
        else:
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
        return self.communicator.same(tuple(costs))

    def coarsely_rounded_change(self) -> float:
        """Return how much typical residuals change by the last third of the values' digits.

        On the device where it is least, see `roundings.typical_change`. What was linearised is
        lost.
        """
        self._score.run()
        change = typical_change(self.plan, self._phases, self.starts)
        self._score_again()
        return min(self.communicator.gather(change))

    def _release(self) -> None:
        """Let the next linearisation free what rejected steps held at bounds."""
        if self.is_bounded and self._held.was_rejected:
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
        """Sentences on numbers that ran away and nodes that nothing holds."""
        return remarks_on_free_values(self, cost, first_cost)

    def values(self) -> Mapping[str, Any]:
        """The current values of this device as (n, storage_dim) arrays of the type of values.

        They are in memory that a solve needs no more; the next one overwrites them.
        """
        self._held = self._held.overwritten()
        self.starts = {}
        return self._values_in(self.plan.scratch())

    def copied_values(self) -> Mapping[str, Any]:
        """The same in arrays of their own: the solve may go on."""
        return self._values_in(self.plan.no_scratch())

    def _values_in(self, scratch: Any) -> Mapping[str, Any]:
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
