"""The decision about a plain step as a kernel, made of the rules of `policy`.

Its text does the operations of `policy.decide` one by one, so that records have the same bits,
whoever decides. Input: a target. Output: text. Cost tier: once for a version of caspar, as the text
is cached.
"""

import math
from types import SimpleNamespace
from typing import Any, NamedTuple

from caspar.codegen.cpu.ops import LANGUAGE
from caspar.codegen.cuda.header import HEADER
from caspar.codegen.cuda.ops import EXACT_LANGUAGE
from caspar.codegen.lines import Language, graph_lines
from caspar.equations.node_blocks import ABSENT
from caspar.equations.scalar_kernels import LinearOutcome
from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar
from caspar.ir.traced import LARGEST, is_truth
from caspar.solver.lm.plain.steps import OPTIONS, READ_SCALARS, STATE, TRUTHS, Number
from caspar.solver.lm.policy import NOT_ASKED
from caspar.solver.lm.steps import PolicyState
from caspar.solver.lm.traced_policy import GO_ON, rules

# D shows nothing if there is no damping, and nothing of it is absent. A row: cost, damping, gain
# ratio.

_CPU = """\
def decide(table, tile):
    numbers = as_float64(table[0])
    rows = as_float64(table[1])
    diagonals = as_int64(table[2])
    num_diagonals = table[3]
    found = array_float64({num_found})
{scalars}
{decided}
    numbers[{stop}] = 1.0
    if found[0] < 0.5:
        return
    if numbers[{looks}] > 0.5:
        if numbers[{step_damping}] > 0.0:
            return
        for number in range(num_diagonals):
            place = as_float64(diagonals[number])
            diagonal = place[0]
            if diagonal > 0.0 and diagonal < float64("inf") and diagonal != {absent}:
                continue
            return
    row = 3 * int(numbers[{count}])
    rows[row] = cost_at[0]
    rows[row + 1] = numbers[{step_damping}]
    rows[row + 2] = found[1]
    for number in range({num_state}):
        numbers[{first_state} + number] = found[2 + number]
    damping_at[0] = numbers[{step_damping}]
    numbers[{count}] = numbers[{count}] + 1.0
    numbers[{stop}] = 0.0
"""

_CUDA = """\
{header}
extern "C" __global__ void decide(double* numbers, double* rows, const double* memory,
                                  const long long* diagonals, u32 num_diagonals, {scalars}) {{
  bool shows = false;
  if (numbers[{looks}] > 0.5) {{
    shows = numbers[{step_damping}] > 0.0;
    for (u32 number = threadIdx.x; number < num_diagonals; number += blockDim.x) {{
      const double diagonal = memory[diagonals[number]];
      shows |= !(diagonal > 0.0 && isfinite(diagonal) && diagonal != {absent});
    }}
  }}
  shows = __syncthreads_or(shows);
  if (threadIdx.x != 0) return;
  double found[{num_found}];
{decided}
  const bool is_plain = found[0] >= 0.5 && !shows;
  numbers[{stop}] = is_plain ? 0.0 : 1.0;
  if (!is_plain) return;
  double* row = rows + 3 * int(numbers[{count}]);
  row[0] = cost_at[0];
  row[1] = numbers[{step_damping}];
  row[2] = found[1];
  for (int number = 0; number < {num_state}; ++number) {{
    numbers[{first_state} + number] = found[2 + number];
  }}
  damping_at[0] = numbers[{step_damping}];
  numbers[{count}] += 1.0;
}}
"""


class _Target(NamedTuple):
    """How a target's kernel is written: its text, and how that declares the scalars."""

    text: str
    language: Language
    scalars: str


_TARGETS = {
    "cpu": _Target(
        _CPU,
        LANGUAGE,
        "\n".join(
            f"    {name}_at = as_float64(table[{place}])"
            for place, name in enumerate(READ_SCALARS, start=4)
        ),
    ),
    "cuda": _Target(
        _CUDA, EXACT_LANGUAGE, ", ".join(f"double* {name}_at" for name in READ_SCALARS)
    ),
}


def decision_text(target: str) -> str:
    """The kernel of a target.

    Its parameters: numbers, rows, entries of D and how many, and scalars. Entries are addresses, or
    on CUDA places in an array.
    """
    builder = GraphBuilder(DType.FLOAT64)
    numbers = [Scalar(builder, value) for value in builder.read("numbers", 0, len(Number))]
    scalars = {name: Scalar(builder, builder.read(name, 0, 1)[0]) for name in READ_SCALARS}
    found = _decided(numbers, scalars)
    builder.store("found", 0, [one.value for one in found])
    arrays = {"numbers": "numbers[{}]", "found": "found[{}]"}
    arrays |= {name: f"{name}_at[{{}}]" for name in READ_SCALARS}
    text, language, declared = _TARGETS[target]
    lines = graph_lines(builder.build(), arrays, language)
    return text.format(
        **{one.name.lower(): int(one) for one in (Number.STOP, Number.COUNT, Number.LOOKS)},
        header=HEADER,
        scalars=declared,
        decided="\n".join(lines),
        num_found=len(found),
        step_damping=int(Number.STEP_DAMPING),
        absent=repr(ABSENT),
        num_state=len(STATE),
        first_state=int(STATE[0]),
    )


def _decided(numbers: list[Scalar], scalars: dict[str, Scalar]) -> list[Scalar]:
    """Return whether the step is plain, its gain ratio, and the state behind it."""
    kept: dict[str, Any] = {one.name.lower(): numbers[one] for one in STATE}
    kept |= {one.name.lower(): 0.5 < numbers[one] for one in TRUTHS}
    damping = kept.pop("step_damping")
    options: Any = SimpleNamespace(
        **{one.name.lower(): numbers[one] for one in OPTIONS},
        ends_by_rises=False,  # of rejected steps only
        asks_early=True,  # and then the step is not plain
        max_time_s=math.inf,
    )
    promised = scalars["first_descent"] + scalars["eliminated_descent"]
    not_asked = NOT_ASKED, NOT_ASKED
    tried: Any = _tried(scalars, promised)
    after, end, accepted, gain_ratio = rules().next_state(
        PolicyState(**kept), damping, tried, options, not_asked, 0.0
    )
    end = end if isinstance(end, Scalar) else Scalar(promised.builder, promised.builder.const(end))
    goes_on = (GO_ON <= end) & (end <= GO_ON)
    least = numbers[Number.LEAST_PIVOT]
    is_regular = (least <= scalars["least_pivot"]) | (least <= damping)
    is_solved = (scalars["done"] <= float(LinearOutcome.TOLERANCE)) & (
        float(LinearOutcome.TOLERANCE) <= scalars["done"]
    )
    is_finite = (promised <= LARGEST) & (-LARGEST <= promised)
    is_plain = is_solved & is_finite & accepted & goes_on & is_regular
    behind = {**after._asdict(), "step_damping": rules().step_damping(after, options)}
    state = [behind[one.name.lower()] for one in STATE]
    return [is_plain.where(1.0, 0.0), gain_ratio, *(_number(one, promised) for one in state)]


def _tried(scalars: dict[str, Scalar], promised: Scalar) -> SimpleNamespace:
    """A `TriedStep` of a linear solve that has succeeded; see `TriedStep.of`."""
    model = -scalars["step_gradient"] + scalars["step_residual"] + scalars["step_damping"]
    gradient_norm = promised.max(0.0).sqrt()
    step_norm = scalars["step_norm"].max(0.0).sqrt()
    decrease = model * 0.5
    return SimpleNamespace(
        cost=scalars["cost"],
        model_decrease=decrease,
        promise=decrease,
        gradient_norm=gradient_norm,
        descent=gradient_norm * gradient_norm,
        step_square=step_norm * step_norm,
        at_optimum=False,
        is_faulty=False,
        is_unsolved=False,
        is_bounded=False,
        is_shortened=False,
    )


def _number(value: Any, of: Scalar) -> Scalar:
    """A number of the graph: truths are 1 or 0, and what is known is a literal."""
    if not isinstance(value, Scalar):
        return Scalar(of.builder, of.builder.const(float(value)))
    return value.where(1.0, 0.0) if is_truth(value) else value
