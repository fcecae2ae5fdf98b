"""The damped system of a problem, factorised and solved by the lanes of a warp.

Input: the text that is being written. Output: code from the normal equations to the solution of
(C^T C + damping D) step = gradient. Matrix, gradient and what is free are as `team_rows` and
`kernel` declare them.

The matrix is scaled to unit diagonal and factorised column by column, L L^T: a lane sums an entry
of the column over all columns before it. Entry i of column k of L stands above the diagonal, in row
k at i + 1, so that lanes read neighbours, and a rejected step still finds the matrix below. The
gradient is one more row, so the forward substitution is part of this.
"""

from caspar.batch.generate import programs
from caspar.batch.generate.policy_program import OPTIONS, Option
from caspar.batch.generate.shape import BatchShape
from caspar.batch.generate.step_program import (
    DIAGONAL,
    IS_DEFINITE,
    LEAST_PIVOT,
    SCALE,
    STEP,
    damp_graph,
    promise_graph,
)
from caspar.batch.generate.team_rows import TeamRows
from caspar.codegen.batch.text import ProblemText
from caspar.equations.node_blocks import ROUNDING

RECIPROCAL = "reciprocal"
"""Of the diagonal of L."""


class TeamStep(TeamRows):
    """Writes linearisations and steps by a warp."""

    def declare(self) -> None:
        """Matrix, gradient and rows, and what a step needs besides."""
        super().declare()
        shape, text, size = self._shape, self._text, self._shape.num_unknowns
        for name, length in ((DIAGONAL, size), (SCALE, size + 1), (STEP, size), (RECIPROCAL, size)):
            text.shared(name, shape.storage, length)
        text.variable(IS_DEFINITE, shape.storage, text.number(0.0, shape.storage))

    def write_step(self) -> None:
        """From the normal equations to the candidate, and what its step promises."""
        shape, text = self._shape, self._text
        with text.alone():
            self._instances.program(damp_graph(shape))
            # the last row is the gradient, of which only columns are scaled
            text.set(f"{SCALE}[{shape.num_unknowns}]", text.number(1.0, shape.storage))
        self._factorize()
        _substitute(shape, text)
        with text.alone():
            self._instances.program(promise_graph(shape))

    def _factorize(self) -> None:
        _factorize(self._shape, self._text)


def _factorize(shape: BatchShape, text: ProblemText) -> None:
    size, length, storage = shape.num_unknowns, shape.row_length, shape.storage
    one, least = text.number(1.0, storage), _least_pivot(shape, text)
    text.set(IS_DEFINITE, one)
    unit = text.name("damped_one")
    rounding = text.number(size * ROUNDING[storage], storage)
    text.let(unit, f"{text.cast('damping', storage)} + {rounding}")
    left, right, goal = (
        f"{programs.MATRIX}[{place} + 1]"
        for place in (f"k * {length} + row", f"k * {length} + column", f"column * {length} + row")
    )
    with text.loop("column", "0", str(size)):
        with text.shared_loop("row", "column", str(size + 1)):
            _entry(shape, text, unit)
            with text.sum_loop("k", "0", "column"):
                text.set("element", f"element - {left} * {right}")
            text.set(goal, "element")
        text.meet()
        pivot, root = text.name("pivot"), text.name("root")
        text.let(pivot, f"{programs.MATRIX}[column * {length} + column + 1]")
        is_large = f"{pivot} > {least}"
        zero = text.number(0.0, storage)
        text.set(IS_DEFINITE, text.chosen(is_large, IS_DEFINITE, zero))
        text.let(root, text.reciprocal_root(text.chosen(is_large, pivot, least), storage))
        with text.first_lane():
            text.set(f"{RECIPROCAL}[column]", root)
        with text.shared_loop("row", "column + 1", str(size + 1)):
            place = f"{programs.MATRIX}[column * {length} + row + 1]"
            text.set(place, f"{place} * {root}")
        text.meet()


def _least_pivot(shape: BatchShape, text: ProblemText) -> str:
    if shape.hands_over:
        return f"{OPTIONS}[{int(Option.LEAST_PIVOT)}]"
    return text.number(LEAST_PIVOT, shape.storage)


def _entry(shape: BatchShape, text: ProblemText, unit: str) -> None:
    """An entry of the scaled and damped matrix, or of the scaled gradient."""
    storage = shape.storage
    zero, one, half = (text.number(number, storage) for number in (0.0, 1.0, 0.5))
    given = f"{programs.MATRIX}[row * {shape.row_length} + column]"
    text.variable("element", storage, f"{given} * {SCALE}[row] * {SCALE}[column]")
    is_diagonal = "row == column"
    text.set("element", text.chosen(is_diagonal, f"element + {unit}", "element"))
    if shape.is_masked:
        moves = f"{programs.FREE}[row] * {programs.FREE}[column] > {half}"
        held = text.chosen(is_diagonal, one, zero)
        text.set("element", text.chosen(moves, "element", held))


def _substitute(shape: BatchShape, text: ProblemText) -> None:
    """Backward, from the last unknown to the first."""
    size, length = shape.num_unknowns, shape.row_length
    with text.loop("turn", "0", str(size)):
        text.let("last", f"{size - 1} - turn")
        solved = text.name("solved")
        text.let(solved, f"{programs.MATRIX}[last * {length} + {size + 1}] * {RECIPROCAL}[last]")
        with text.first_lane():
            text.set(f"{STEP}[last]", f"{solved} * {SCALE}[last]")
        with text.shared_loop("k", "0", "last"):
            place = f"{programs.MATRIX}[k * {length} + {size + 1}]"
            text.set(place, f"{place} - {programs.MATRIX}[k * {length} + last + 1] * {solved}")
        text.meet()
