"""Plain steps of Levenberg-Marquardt: accepted ones about which there is nothing else to say.

Most steps of a small fit are plain, and Python takes longer to decide about one than the processor
does for it. Here the decision is one more launch behind those of the step. So a run of steps is a
list of launches that the driver repeats until the decision sets a flag: at the first step that is
not plain, before anything is decided about it. Arithmetic is that of `policy.decide`, operation by
operation: what is recorded has the same bits, whoever decides.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from caspar.memory.array import Array, address
from caspar.runtime.cpu.launch import CpuFunction, CpuLaunch, CpuSequence
from caspar.runtime.cpu.machine_code import compile_code, load_code

SCALARS = (
    *("damping", "done", "cost", "step_gradient", "step_residual", "step_damping", "step_norm"),
    *("first_descent", "eliminated_descent", "least_pivot"),
)
"""The solver's scalars that are read; the first one is written, too."""

_BODY = """\
  %done.is.one = fcmp oeq double %done, 1.0
  br i1 %done.is.one, label %measure, label %stop
measure:
  %minus.gradient = fneg double %step_gradient
  %with.residual = fadd double %minus.gradient, %step_residual
  %twice.model = fadd double %with.residual, %step_damping
  %model = fmul double %twice.model, 0.5
  %promised = fadd double %first_descent, %eliminated_descent
  %cost.zero = fsub double %cost, %cost
  %cost.is.finite = fcmp oeq double %cost.zero, 0.0
  %promised.zero = fsub double %promised, %promised
  %promised.is.finite = fcmp oeq double %promised.zero, 0.0
  %model.is.positive = fcmp ogt double %model, 0.0
  %decrease = fsub double %COST, %cost
  %gain = fdiv double %decrease, %model
  %has.gained = fcmp ogt double %gain, %LEAST_GAIN
  %is.large = fcmp ogt double %cost, %NEGLIGIBLE_COST
  %sound.1 = and i1 %cost.is.finite, %promised.is.finite
  %sound.2 = and i1 %model.is.positive, %has.gained
  %sound.3 = and i1 %sound.1, %sound.2
  %sound = and i1 %sound.3, %is.large
  br i1 %sound, label %judge, label %stop
judge:
  %is.little = fcmp olt double %STEP_DAMPING, 1.0
  %one.more = fadd double %STEP_DAMPING, 1.0
  %relief = select i1 %is.little, double 1.0, double %one.more
  %promised.negative = fcmp olt double %promised, 0.0
  %promised.least = select i1 %promised.negative, double 0.0, double %promised
  %gradient = call double @llvm.sqrt.f64(double %promised.least)
  %gradient.square = fmul double %gradient, %gradient
  %slope = fmul double %relief, %gradient.square
  %slope.most = fmul double %TWICE_GRADIENT_TOLERANCE, %COST
  %is.steep = fcmp ogt double %slope, %slope.most
  %norm.negative = fcmp olt double %step_norm, 0.0
  %norm.least = select i1 %norm.negative, double 0.0, double %step_norm
  %norm = call double @llvm.sqrt.f64(double %norm.least)
  %relief.square = fmul double %relief, %relief
  %norm.square = fmul double %norm, %norm
  %length.square = fmul double %relief.square, %norm.square
  %length.most = fmul double %TWICE_STEP_TOLERANCE_SQUARE, %COST
  %is.long = fcmp ogt double %length.square, %length.most
  %is.more = fcmp ogt double %decrease, %model
  %most.gained = select i1 %is.more, double %decrease, double %model
  %gained.least = fmul double %COST_TOLERANCE, %COST
  %is.slight = fcmp ole double %most.gained, %gained.least
  %is.small = and i1 %is.slight, %is.little
  %was.confirming = fcmp ogt double %CONFIRMING, 0.5
  %is.end = and i1 %is.small, %was.confirming
  %goes.on = xor i1 %is.end, true
  %is.good = fcmp oge double %gain, %GOOD_GAIN
  %usual = select i1 %is.good, double %STEP_DAMPING, double %DAMPING
  %has.usual = fcmp ogt double %usual, 0.0
  %damps = or i1 %has.usual, %is.good
  %has.pivot = fcmp oge double %least_pivot, %LEAST_PIVOT
  %is.damped = fcmp oge double %STEP_DAMPING, %LEAST_PIVOT
  %is.regular = or i1 %has.pivot, %is.damped
  %plain.1 = and i1 %is.steep, %is.long
  %plain.2 = and i1 %goes.on, %damps
  %plain.3 = and i1 %plain.1, %plain.2
  %plain = and i1 %plain.3, %is.regular
  br i1 %plain, label %look, label %stop
look:
  %looks = fcmp ogt double %LOOKS, 0.5
  br i1 %looks, label %see, label %take
see:
  %is.undamped = fcmp oeq double %STEP_DAMPING, 0.0
  br i1 %is.undamped, label %seen, label %stop
seen:
  %number = phi i64 [ 0, %see ], [ %following, %seen.one ]
  %more = icmp slt i64 %number, %num.diagonals
  br i1 %more, label %seen.one, label %take
seen.one:
  %following = add i64 %number, 1
  %entry.at.at = getelementptr ptr, ptr %diagonals, i64 %number
  %entry.at = load ptr, ptr %entry.at.at
  %diagonal = load double, ptr %entry.at
  %is.positive = fcmp ogt double %diagonal, 0.0
  %is.finite = fcmp olt double %diagonal, 0x7FF0000000000000
  %is.there = fcmp one double %diagonal, %ABSENT
  %fine.1 = and i1 %is.positive, %is.finite
  %fine = and i1 %fine.1, %is.there
  br i1 %fine, label %seen, label %stop
take:
  %gain.more = fcmp ogt double %gain, 1.0
  %gain.most = select i1 %gain.more, double 1.0, double %gain
  %beyond = fsub double %gain.most, %KEEPS
  %left = fsub double 1.0, %KEEPS
  %excess = fdiv double %beyond, %left
  %excess.square = fmul double %excess, %excess
  %power = fmul double %excess.square, %excess
  %shrink = fsub double 1.0, %power
  %shrink.more = fcmp ogt double %shrink, %GREATEST_SHRINK
  %factor = select i1 %shrink.more, double %shrink, double %GREATEST_SHRINK
  %scaled = fmul double %factor, %usual
  %is.above = fcmp ogt double %scaled, %MIN_DAMPING
  %at.least = select i1 %is.above, double %scaled, double %MIN_DAMPING
  %is.beyond = fcmp ogt double %at.least, %MAX_DAMPING
  %damping.next = select i1 %is.beyond, double %MAX_DAMPING, double %at.least
  %is.usual = fcmp olt double %damping.next, 1.0
  %relieved.most = select i1 %is.usual, double %damping.next, double %GREATEST_RELIEF
  %relief.less = fcmp olt double %RELIEF, %relieved.most
  %relieved = select i1 %relief.less, double %RELIEF, double %relieved.most
  %step.next = select i1 %is.small, double %relieved, double %damping.next
  %confirming.next = select i1 %is.small, double 1.0, double 0.0
  %share = fdiv double %model, %COST
  %tells = fcmp ole double %STEP_DAMPING, %LITTLE_DAMPING
  %remaining.next = select i1 %tells, double %share, double 0x7FF8000000000000
  %count = fptosi double %COUNT to i64
  %row.first = mul i64 %count, ROW_LENGTH
  %row.COST = getelementptr double, ptr %rows, i64 %row.first
  %row.DAMPING = getelementptr double, ptr %row.COST, i64 1
  %row.GAIN_RATIO = getelementptr double, ptr %row.COST, i64 2
  store double %cost, ptr %row.COST
  store double %STEP_DAMPING, ptr %row.DAMPING
  store double %gain, ptr %row.GAIN_RATIO
  %count.next = fadd double %COUNT, 1.0
  store double %cost, ptr %COST.at
  store double %damping.next, ptr %DAMPING.at
  store double %step.next, ptr %STEP_DAMPING.at
  store double %step.next, ptr %damping.at
  store double %gradient, ptr %GRADIENT_NORM.at
  store double %confirming.next, ptr %CONFIRMING.at
  store double %remaining.next, ptr %REMAINING.at
  store double %MIN_GAIN, ptr %LEAST_GAIN.at
  store double %count.next, ptr %COUNT.at
  ret void
stop:
  store double 1.0, ptr %STOP.at
  ret void
}

declare double @llvm.sqrt.f64(double)
"""


MOST_TILES = 200
"""Of all launches of a step. With more the host's part in a step is small, and users wait to see
what goes on."""

MOST_STEPS = 64
"""Steps of a run at most: between two of them Ctrl-C is noticed."""

ROW = 3
"""Numbers that are recorded of a step."""


def decision_text(names: Sequence[str]) -> str:
    """LLVM IR of the decision; its table: numbers, rows, diagonals, how many, and the scalars.

    Args:
        names: What the numbers are, in order.
    """
    lines = ["define void @caspar.decide(ptr %table, i64 %tile) nounwind {", "entry:"]
    entries = ("numbers", "rows", "diagonals", "num.diagonals", *(f"{one}.at" for one in SCALARS))
    for place, name in enumerate(entries):
        kind = "i64" if name == "num.diagonals" else "ptr"
        lines.append(f"  %{name}.in = getelementptr ptr, ptr %table, i64 {place}")
        lines.append(f"  %{name} = load {kind}, ptr %{name}.in")
    lines += [f"  %{name} = load double, ptr %{name}.at" for name in SCALARS[1:]]
    for place, name in enumerate(names):
        lines.append(f"  %{name}.at = getelementptr double, ptr %numbers, i64 {place}")
        lines.append(f"  %{name} = load double, ptr %{name}.at")
    return "\n".join(lines) + "\n" + _BODY.replace("ROW_LENGTH", str(ROW))


@cache
def _decision(names: Sequence[str]) -> CpuFunction:
    text = decision_text(names)
    key, symbols = hashlib.sha256(text.encode()).hexdigest(), ("caspar.decide",)
    (address,) = load_code(key, symbols) or compile_code(key, symbols, text)
    return CpuFunction(address)


class CpuPlainSteps:
    """A decision behind the launches of a step, see `Backend.plain_steps`."""

    def __init__(
        self, names: Sequence[str], step: Sequence[CpuLaunch], accept: CpuSequence
    ) -> None:
        self._names, self._step, self._accept = names, step, accept
        self._numbers, self._rows = np.zeros(len(names)), np.zeros((MOST_STEPS, ROW))
        table = np.zeros(4 + len(SCALARS), dtype=np.int64)
        self._decision = CpuLaunch(_decision(names), table, 1, (self._numbers, self._rows))
        self._first = CpuSequence([*step, self._decision])
        self._further = CpuSequence([*accept.launches, *step, self._decision])
        self._kept: tuple[object, ...] = ()

    def bind_again(self, scalars: Mapping[str, Array], diagonals: Sequence[Array]) -> bool:
        """See `PlainSteps`."""
        if sum(launch.num_tiles for launch in self._step) > MOST_TILES:
            return False
        places = np.concatenate([np.zeros(0, dtype=np.int64), *map(_addresses, diagonals)])
        read = [scalars[name] for name in SCALARS]
        arrays = (self._numbers, self._rows, places)
        self._decision.table[:] = [*map(address, arrays), len(places), *map(address, read)]
        self._kept = (places, *read, *diagonals)
        for sequence in (self._first, self._further):
            sequence.write()
        return True

    def __call__(
        self, numbers: Sequence[float], max_steps: int
    ) -> tuple[list[float], list[list[float]]]:
        """Take steps."""
        names = self._names
        stop, count = names.index("STOP"), names.index("COUNT")
        self._numbers[:] = numbers
        self._first.run()
        self._further.run_until(self._numbers[stop:], min(max_steps, MOST_STEPS) - 1)
        found: list[float] = self._numbers.tolist()
        if found[stop] == 0.0:
            self._accept.run()
        return found, self._rows[: int(found[count])].tolist()


def _addresses(chunk: Array) -> Array:
    """Where each entry of a matrix is."""
    rows, lanes = (np.arange(number) for number in chunk.shape)
    places = address(chunk) + rows[:, None] * chunk.strides[0] + lanes * chunk.strides[1]
    return places.reshape(-1)
