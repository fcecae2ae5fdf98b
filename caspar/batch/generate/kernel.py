"""The kernel that solves the problems of a batch, each by a thread or a warp, from start to end.

Input: the shape of a batch and a target. Output: a `KernelSource`, whose parameters `bindings`
describes. Once for each shape; the cache keeps it.

It goes through *turns*. Each scores the values in `y`, then does what the phase asks for:

    START      the cost is the first one; a step follows
    CANDIDATE  the policy decides about the step; a step follows, or the end, or a question
    ROUNDING   the cost is one of values that were moved by a rounding; after the last draw the
               policy decides again

A step is a linearisation, unless the last one still holds, a factorisation, and a new `y`. So every
program stands in the kernel once, and threads of a warp meet again where they score.

Where a warp solves a problem, what is not written for its lanes is done by the first of them.

Once a pivot shows that the normal matrix is ill-conditioned, the problem ends with `HANDED_OVER`.
A second kernel, for which the shape is `orthogonal`, starts such problems again, and no others. If
it finds that the first step without damping does not exist, the problem is not stiff: something is
free. It ends with `SINGULAR`, and the first kernel starts it again with damping.
"""

from contextlib import nullcontext

from caspar.batch.generate import policy_program as policy
from caspar.batch.generate import programs, step_program
from caspar.batch.generate.instances import InstanceText, drawn_sign, empty_text
from caspar.batch.generate.parameters import (
    FINAL_COST,
    HANDED,
    INITIAL_COST,
    ITERATIONS,
    STATUS,
    batch_params,
    result_name,
    values_name,
)
from caspar.batch.generate.policy_program import Answer, Option, State, Verdict, code
from caspar.batch.generate.programs import WIDE, Tried
from caspar.batch.generate.shape import BatchShape, ProblemNodes, Team
from caspar.batch.generate.team import team_step
from caspar.codegen.batch.text import PROBLEM
from caspar.codegen.source import KernelSource, source_from_json, source_to_json
from caspar.codegen.targets import TARGETS, Target
from caspar.driver import cached
from caspar.ir.dtype import DType
from caspar.ir.traced import LARGEST
from caspar.solver.lm.roundings import DRAWS
from caspar.solver.result.result import SolveStatus

KERNEL = "solve_problems"

LAST_THIRD = 2.0**-30
"""Relative to the largest start value of a node type in the problem."""

HANDED_OVER, SINGULAR = len(policy.STATUSES), len(policy.STATUSES) + 1
"""Statuses of problems that are left to the other kernel."""

KEEPS = 1e-12
"""Between the values of `LEAST_PIVOT` with which problems are handed over, and kept."""

_DONE, _START, _CANDIDATE, _ROUNDING, _STEP = "0", "1", "2", "3", "4"


def batch_kernel(shape: BatchShape, target: Target) -> KernelSource:
    """Generate the kernel."""
    return _Writer(shape, target).write()


def cached_batch_kernel(shape: BatchShape, target: str) -> KernelSource:
    """Generate the kernel for a target by its name, or take it from the cache."""
    return cached(
        [target, shape.key],
        lambda: batch_kernel(shape, TARGETS[target]),
        source_to_json,
        source_from_json,
    )


class _Writer:
    """Writes one kernel."""

    def __init__(self, shape: BatchShape, target: Target) -> None:
        self._shape = shape
        self._text = empty_text(shape, target)
        self._instances = InstanceText(shape, self._text, target)
        is_team = shape.team is Team.WARP
        self._team = team_step(self._instances, self._text.num_lanes) if is_team else None
        # with a loss the linearisation depends on the damping: it is made for every step
        self._asks_stale = shape.is_bounded or not shape.has_loss

    def write(self) -> KernelSource:
        """The kernel."""
        text = self._text
        left = SINGULAR if self._shape.hands_over else HANDED_OVER
        is_taken = f"({STATUS}_data[{PROBLEM}] == {left})"
        if self._shape.hands_over:
            is_taken = f"{is_taken} | ({self._hands_over})"
        is_exact = self._shape.storage is DType.FLOAT64
        with text.when(is_taken) if is_exact else nullcontext():
            self._write_problem()
        return text.source(KERNEL, batch_params(self._shape))

    def _write_problem(self) -> None:
        """A problem from start to end."""
        self._declare()
        text = self._text
        with text.repeat(f"phase > {_DONE}"):
            self._score()
            with text.when(f"phase == {_START}"):
                self._begin()
            with text.when(f"phase == {_CANDIDATE}"), text.alone():
                text.set(f"{programs.TRIED}[{int(Tried.COST)}]", "cost")
            with text.when(f"phase == {_ROUNDING}"):
                self._compare_rounding()
            with text.when(f"phase == {_CANDIDATE}"):
                self._decide()
            with text.when(f"phase == {_ROUNDING}"), text.alone():
                self._round()
            with text.when(f"phase == {_STEP}"):
                self._step()
        with text.alone():
            self._end()

    # -- pieces ------------------------------------------------------------------------------------

    def _number(self, value: float) -> str:
        return self._text.number(value, WIDE)

    def _state(self, place: State) -> str:
        return f"{policy.STATE}[{int(place)}]"

    def _option(self, place: Option) -> str:
        return f"{policy.OPTIONS}[{int(place)}]"

    @property
    def _hands_over(self) -> str:
        return f"{self._option(Option.LEAST_PIVOT)} > {self._number(KEEPS)}"

    def _set(self, place: str, value: float) -> None:
        self._text.set(place, self._number(value))

    def _declare(self) -> None:
        text, shape = self._text, self._shape
        storage, size = shape.storage, shape.num_unknowns
        for name in (programs.VALUES, programs.CANDIDATE):
            text.shared(name, storage, shape.storage_dim)
        if self._team is not None:
            self._team.declare()
        else:
            text.array(programs.GRADIENT, storage, size)
            text.array(programs.MATRIX, storage, size * size)
        text.shared(programs.INFLUENCE, storage, size)
        for name, members in (
            (programs.TRIED, Tried),
            (policy.STATE, State),
            (policy.NEXT, State),
            (policy.ANSWERS, Answer),
            (policy.VERDICT, Verdict),
        ):
            text.shared(name, WIDE, len(members))
        if shape.is_masked:
            text.shared(programs.FREE, storage, size + 1)
        if shape.is_bounded:
            text.shared(programs.LOWER, storage, size)
            text.shared(programs.UPPER, storage, size)
            text.variable("shortening", WIDE, self._number(0.0))
            text.variable("num_inside", DType.INT64, str(step_program.NUM_INSIDE))
        with text.alone():
            self._load()
        for name, dtype, value in (
            ("phase", DType.INT64, _START),
            ("draw", DType.INT64, "0"),
            ("asked", DType.INT64, "0"),
            ("has_moved", DType.INT64, "0"),
            ("was_lost", DType.INT64, "0"),
            ("is_lost", DType.INT64, "0"),
            ("cost", WIDE, self._number(0.0)),
            ("change", WIDE, self._number(0.0)),
            ("end", WIDE, self._number(0.0)),
            ("damping", WIDE, self._option(Option.FIRST_DAMPING)),
            ("levelling", WIDE, self._number(1.0)),
        ):
            text.variable(name, dtype, value)
        if self._asks_stale:
            text.variable("is_stale", DType.INT64, "1")

    def _load(self) -> None:
        text, shape = self._text, self._shape
        self._instances.load()
        for place in range(shape.num_unknowns):
            text.set(f"{programs.INFLUENCE}[{place}]", text.number(0.0, shape.storage))

    # -- phases ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        text, state = self._text, self._state
        with text.alone():
            for place, value in policy.FIRST_STATE.items():
                self._set(state(place), value)
            for place in (State.INITIAL_COST, State.COST):
                text.set(state(place), "cost")
            for place in (State.DAMPING, State.STEP_DAMPING):
                text.set(state(place), self._option(Option.FIRST_DAMPING))
            text.set(state(State.RELIEF), self._option(Option.LEAST_RELIEF))
            self._forget_answers()
        text.set("phase", _STEP)
        largest = self._number(LARGEST)
        is_finite = f"(cost <= {largest}) & (cost >= {self._number(-LARGEST)})"
        with text.when(f"({text.chosen(is_finite, '1', '0')}) == 0"):
            self._set("end", code(SolveStatus.INITIAL_COST_NOT_FINITE))
            text.set("phase", _DONE)

    def _score(self) -> None:
        """Constants of float64 are rounded with the values, in a text of its own: others wait."""
        if self._shape.storage is not DType.FLOAT64:
            self._instances.score()
            return
        with self._text.when(f"phase == {_ROUNDING}"):
            self._instances.score(moves_constants=True)
        with self._text.when(f"phase < {_ROUNDING}"):
            self._instances.score()

    def _forget_answers(self) -> None:
        for place in Answer:
            self._set(f"{policy.ANSWERS}[{int(place)}]", policy.NOT_ASKED)

    def _decide(self) -> None:
        text = self._text
        verdict, end = f"{policy.VERDICT}[{int(Verdict.ACCEPTED)}]", "end"
        with text.alone():
            shape = self._shape
            graph = policy.policy_graph(
                shape.storage,
                is_bounded=shape.is_bounded,
                ends_by_rises=shape.num_unknowns == 1,
            )
            self._instances.program(graph)
        text.set(end, f"{policy.VERDICT}[{int(Verdict.END)}]")
        accepted = text.chosen(f"{verdict} > {self._number(0.5)}", "1", "0")
        with text.when(f"({accepted}) > has_moved"):
            text.set("has_moved", "1")
            if self._shape.is_bounded:
                text.set("num_inside", text.chosen("num_inside > 0", "num_inside - 1", "0"))
            if self._asks_stale:
                text.set("is_stale", "1")
            with text.alone():
                for place in range(self._shape.storage_dim):
                    text.set(f"{programs.VALUES}[{place}]", f"{programs.CANDIDATE}[{place}]")
                self._instances.program(step_program.fade_graph(self._shape))
        zero = self._number(0.0)
        with text.when(f"{end} < {zero}"):
            text.set("phase", _ROUNDING)
            digit, third = self._number(policy.ASK_DIGIT), "2"
            text.set("asked", text.chosen(f"{end} < {digit}", third, "1"))
            text.set("draw", str(DRAWS.start))
            self._set("change", 0.0)
        with text.when(f"{end} >= {zero}"):
            text.set("phase", text.chosen(f"{end} > {zero}", _DONE, _STEP))
            with text.alone():
                for place in State:
                    text.set(self._state(place), f"{policy.NEXT}[{int(place)}]")
                self._forget_answers()

    def _compare_rounding(self) -> None:
        """Take the greatest change; after the last draw the policy decides again."""
        text = self._text
        now = f"{policy.NEXT}[{int(State.COST)}]"
        difference = text.name("difference")
        text.let(difference, f"cost - {now}")
        size = text.name("size")
        zero = self._number(0.0)
        text.let(size, text.chosen(f"{difference} < {zero}", f"-{difference}", difference))
        # NaN stays, whichever draw it comes from
        text.set("change", f"max_nan({size}, change)")
        text.set("draw", "draw + 1")
        with text.when(f"draw == {DRAWS.stop}"):
            text.set("phase", _CANDIDATE)
            for answer in Answer:
                with text.when(f"asked == {int(answer) + 1}"), text.alone():
                    text.set(f"{policy.ANSWERS}[{int(answer)}]", "change")

    def _round(self) -> None:
        """`y` is `x`, each number moved by a rounding, up or down; zeros stay."""
        text, storage = self._text, self._shape.storage
        unit = 2.0**-23 if storage is DType.FLOAT32 else 2.0**-52
        for number, nodes in enumerate(self._shape.nodes):
            size = self._coarse_size(number, nodes)
            for place in range(nodes.storage_first, nodes.storage_first + nodes.storage_size):
                sign, value = text.name("sign"), f"{programs.VALUES}[{place}]"
                one, zero = text.number(1.0, storage), text.number(0.0, storage)
                minus = text.number(-1.0, storage)
                text.let(sign, text.chosen(drawn_sign(place), one, minus))
                length = text.name("length")
                text.let(length, text.chosen(f"{value} < {zero}", f"-{value}", value))
                moved = f"{value} + {sign} * ({length} * {text.number(unit, storage)} + {size})"
                kept = text.chosen(f"{length} > {zero}", moved, value)
                text.set(f"{programs.CANDIDATE}[{place}]", kept)

    def _coarse_size(self, number: int, nodes: ProblemNodes) -> str:
        """Return the text of the size by which values move, for the last third of the digits."""
        text, storage, size = self._text, self._shape.storage, nodes.storage_size
        zero = text.number(0.0, storage)
        name = text.name("largest")
        text.variable(name, storage, zero)
        for place in range(size):
            start, length = text.name("begun"), text.name("length")
            text.let(start, f"{values_name(number)}_data[{PROBLEM} * {size} + {place}]")
            text.let(length, text.chosen(f"{start} < {zero}", f"-{start}", start))
            text.set(name, text.chosen(f"{length} > {name}", length, name))
        share = text.number(LAST_THIRD, storage)
        return text.chosen("asked == 2", f"{name} * {share}", zero)

    def _step(self) -> None:
        text = self._text
        text.set("damping", self._state(State.STEP_DAMPING))
        is_due = "is_stale > 0"
        with nullcontext() if self._shape.has_loss else text.when(is_due):
            if self._team is None:
                self._instances.linearize()
            else:
                self._team.linearize()
        if self._shape.is_bounded:
            # as `Linearization.controls`
            rejected = self._number(1.0)
            inside = self._number(step_program.KEPT_WAY)
            first = text.chosen("num_inside > 0", inside, self._number(0.0))
            is_whole = f"({is_due}) | ({self._state(State.CONFIRMING)} > {self._number(0.5)})"
            text.set("shortening", text.chosen(is_whole, first, rejected))
            with text.when(is_whole), text.alone():
                self._instances.program(step_program.activate_graph(self._shape))
        if self._asks_stale:
            text.set("is_stale", "0")
        text.set("phase", _STEP)
        half, largest = self._number(0.5), self._number(LARGEST)
        is_singular = f"{programs.TRIED}[{int(Tried.STEP_SQUARE)}] > {largest}"
        with text.repeat(f"phase == {_STEP}"):
            if self._team is None:
                self._instances.program(step_program.step_graph(self._shape))
            else:
                self._team.write_step()
            text.set("phase", _CANDIDATE)
            levels = f"{programs.TRIED}[{int(Tried.LEVELS)}]"
            is_first = f"({self._state(State.NUM_ITERATIONS)} < {half})"
            with text.when(f"{is_first} & ({levels} > {half}) & (levelling > {half})"):
                # units are too far apart for D to be levelled: the same step without
                self._set("levelling", 0.0)
                text.set("phase", _STEP)
            if self._shape.is_orthogonal:
                none = f"{is_first} & (damping <= {self._number(0.0)}) & ({is_singular})"
                with text.when(none):
                    self._set("end", SINGULAR + 1.0)
                    text.set("phase", _DONE)
        if self._shape.hands_over:
            with text.when(f"({is_singular}) & ({self._hands_over})"):
                self._set("end", HANDED_OVER + 1.0)
                text.set("phase", _DONE)
        if self._shape.has_loss:
            idle = f"{programs.TRIED}[{int(Tried.IDLE)}] > {half}"
            pays = f"{self._state(State.COST)} > {self._number(0.0)}"
            with text.when(f"{is_first} & ({idle}) & ({pays})"):
                self._set("end", code(SolveStatus.NO_RESIDUALS))
                text.set("phase", _DONE)
        lost = text.chosen(f"{programs.TRIED}[{int(Tried.LOST)}] > {half}", "1", "0")
        text.set("is_lost", lost)
        with text.when(is_first):
            text.set("was_lost", "is_lost")
        text.set("has_moved", "0")

    def _end(self) -> None:
        text, shape = self._text, self._shape
        last = max(code(one) for one in SolveStatus if one.is_success)
        assert all((code(one) <= last) == one.is_success for one in SolveStatus)
        with text.when(f"(was_lost * is_lost > 0) & (end <= {self._number(last)})"):
            self._set("end", code(SolveStatus.OUT_OF_RANGE))
        for number, nodes in enumerate(shape.nodes):
            size = nodes.storage_size
            for place in range(size):
                text.set(
                    f"{result_name(number)}_data[{PROBLEM} * {size} + {place}]",
                    f"{programs.VALUES}[{nodes.storage_first + place}]",
                )
        text.set(f"{INITIAL_COST}_data[{PROBLEM}]", self._state(State.INITIAL_COST))
        text.set(f"{FINAL_COST}_data[{PROBLEM}]", self._state(State.COST))
        count = self._state(State.NUM_ITERATIONS)
        text.set(f"{ITERATIONS}_data[{PROBLEM}]", text.cast(count, DType.INT64))
        if shape.storage is DType.FLOAT64:
            with text.when(f"end > {self._number(float(HANDED_OVER))}"):
                text.count(f"{HANDED}_data[0]")
        text.set(f"{STATUS}_data[{PROBLEM}]", text.cast(f"end - {self._number(1.0)}", DType.INT64))
