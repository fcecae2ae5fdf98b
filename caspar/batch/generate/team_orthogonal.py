"""The damped system of a problem by a QR decomposition of its Jacobian, by the lanes of a warp.

The normal matrix has the square of the condition of C: where stiff rows meet soft ones, such as
those of a line over Unix seconds, it has lost the soft directions. Givens rotations add the rows
[C | u], one after the other, to a triangle [R | q] with R^T R = C^T C and R^T q = C^T u, so C is
never stored, and rows of very different sizes do each other no harm. A step adds the rows of
R D^-1/2, and then sqrt(damping) times unity, to a second triangle; so a rejected step, and what is
held, need no other pass over the instances.

Input: the text that is being written. Output: as of `team`. Entry j of row k of R stands
below the diagonal, in row j at k, and q in the row after them; those of the second triangle stand
above, in row k at j + 1, as a Cholesky factor does, which it is but for its sign.
"""

from collections.abc import Callable

from caspar.batch.generate import programs
from caspar.batch.generate.instances import Counted, InstanceText
from caspar.batch.generate.shape import BatchShape
from caspar.batch.generate.step_program import DESCENT, IS_DEFINITE, SCALE
from caspar.batch.generate.team import RECIPROCAL, TeamStep, rows_size
from caspar.codegen.batch.text import PROBLEM
from caspar.ir.graph import Graph

LEAST_DIAGONAL = 2.0**-48
"""For each unknown: a diagonal entry below it, of columns of length 1, is what rounding leaves of a
column that is a combination of others."""

ROW = "row_to_add"


def team_step(instances: InstanceText, lanes: int) -> TeamStep:
    """What writes linearisations and steps by a warp, of the kind that the shape says."""
    kind = TeamOrthogonalStep if instances.shape.is_orthogonal else TeamStep
    return kind(instances, lanes)


class TeamOrthogonalStep(TeamStep):
    """Writes linearisations and steps by a warp."""

    def declare(self) -> None:
        """Both triangles, and what a step needs besides."""
        super().declare()
        text, size, storage = self._text, self._shape.num_unknowns, self._shape.storage
        for name, length in (
            (programs.GRADIENT, size),
            (programs.SQUARES, size),
            (ROW, size + 1),
        ):
            text.shared(name, storage, length)
        text.variable(DESCENT, storage, text.number(0.0, storage))

    def linearize(
        self,
        graph_of: Callable[[BatchShape, int], Graph] = programs.orthogonal_rows_graph,
    ) -> None:
        """R and q are those of `x`, and so are gradient and squares."""
        super().linearize(graph_of)
        text, shape = self._text, self._shape
        size, zero = shape.num_unknowns, text.number(0.0, shape.storage)
        with text.shared_loop("column", "0", str(size)):
            text.variable("square", shape.storage, zero)
            text.variable("slope", shape.storage, zero)
            with text.sum_loop("k", "0", "column + 1"):
                entry = self._stored("k", "column")
                text.set("square", f"square + {entry} * {entry}")
                text.set("slope", f"slope + {entry} * {self._stored('k', str(size))}")
            text.set(f"{programs.SQUARES}[column]", "square")
            text.set(f"{programs.GRADIENT}[column]", "slope")
        text.meet()

    def write_triangle(self, array: str) -> None:
        """Write the triangle of what moves by rows, with rows of unity for what is held."""
        text, size, storage = self._text, self._shape.num_unknowns, self._shape.storage
        row, column = text.name("row"), text.name("column")
        zero = text.number(0.0, storage)
        text.variable("damping", storage, zero)
        with text.shared_loop("i", "0", str(size + 1)):
            text.set(f"{SCALE}[i]", text.number(1.0, storage))
        text.meet()
        self._factorize()
        with text.rectangle(row, column, size, size):
            entry = text.chosen(f"{row} <= {column}", self._damped(row, column), zero)
            place = f"{PROBLEM} * {size * size} + {row} * {size} + {column}"
            text.set(f"{array}[{place}]", entry)

    def _stored(self, row: str, column: str) -> str:
        """An entry of [R | q]."""
        return f"{programs.MATRIX}[({column}) * {self._shape.row_length} + {row}]"

    def _damped(self, row: str, column: str) -> str:
        """An entry of the triangle of a step."""
        return f"{programs.MATRIX}[({row}) * {self._shape.row_length} + {column} + 1]"

    def _add_chunk(self, number: int, found: Counted, first: str, length: str) -> None:
        """Add the rows that are there, one after the other."""
        text, size, factor = (
            self._text,
            self._shape.num_unknowns,
            self._shape.factors[number].factor,
        )
        columns, slot, r, j = (
            programs.num_columns(factor) + 1,
            *map(text.name, ("slot", "r", "j")),
        )
        with text.loop(slot, "0", length), text.loop(r, "0", str(len(factor.residual))):
            start = f"{slot} * {rows_size(self._shape, number)} + {r} * {columns}"
            with text.shared_loop(j, "0", str(size + 1)):
                last = f"{programs.ROWS}[{start} + {columns - 1}]"
                zero = text.number(0.0, self._shape.storage)
                text.set(f"{ROW}[{j}]", text.chosen(f"{j} == {size}", last, zero))
            text.meet()
            column = 0
            for one in factor.nodes:
                item = f"({first} + {slot})"
                begin = self._instances.node_firsts(number, one, found.name, item)[1]
                i = text.name("i")
                with text.shared_loop(i, "0", str(one.tangent_dim)):
                    place = f"{ROW}[{begin} + {i}]"
                    text.set(place, f"{place} + {programs.ROWS}[{start} + {column} + {i}]")
                text.meet()
                column += one.tangent_dim
            self._add_row("0", self._stored)

    def _factorize(self) -> None:
        """The triangle of the step, and whether it has a solution."""
        text, shape = self._text, self._shape
        size, storage = shape.num_unknowns, shape.storage
        zero, one = text.number(0.0, storage), text.number(1.0, storage)
        with text.triangle("row", "column", size + 1):
            text.set(self._damped("column", "row"), zero)
        text.meet()
        moves = f" * {programs.FREE}[j]" if shape.is_masked else ""
        with text.loop("i", "0", str(size)):
            with text.shared_loop("j", "0", str(size + 1)):
                value = f"{self._stored('i', 'j')} * {SCALE}[j]{moves}"
                text.set(f"{ROW}[j]", text.chosen("j >= i", value, zero))
            text.meet()
            self._add_row("i", self._damped)
        root = text.reciprocal_root(text.chosen("damping > 0", "damping", one), storage)
        text.let("root", f"{text.cast('damping', storage)} * {root}")
        held = f"{programs.FREE}[i] > {text.number(0.5, storage)}"
        own = text.chosen(held, "root", one) if shape.is_masked else "root"
        with text.loop("i", "0", str(size)):
            with text.shared_loop("j", "0", str(size + 1)):
                text.set(f"{ROW}[j]", text.chosen("j == i", own, zero))
            text.meet()
            self._add_row("i", self._damped)
        least = text.number(size * LEAST_DIAGONAL, storage)
        text.set(IS_DEFINITE, one)
        text.set(DESCENT, zero)
        with text.loop("k", "0", str(size)):
            pivot, part = text.name("pivot"), text.name("part")
            text.let(pivot, self._damped("k", "k"))
            text.let(part, self._damped("k", str(size)))
            text.set(DESCENT, f"{DESCENT} + {part} * {part}")
            text.set(IS_DEFINITE, text.chosen(f"{pivot} > {least}", IS_DEFINITE, zero))
            with text.first_lane():
                whole = text.chosen(f"{pivot} > {least}", pivot, least)
                text.set(f"{RECIPROCAL}[k]", f"{one} / {whole}")
        text.meet()

    def _add_row(self, first: str, place: Callable[[str, str], str]) -> None:
        """Rotate a row into a triangle, whose diagonal stays positive.

        Args:
            first: Column of the row's first entry that may not be zero.
            place: The text of an entry of the triangle.
        """
        text, size, storage = self._text, self._shape.num_unknowns, self._shape.storage
        k, j, pivot, head, length, largest, root, cosine, sine, upper, lower = map(
            text.name,
            [
                "k",
                "j",
                "pivot",
                "head",
                "length",
                "largest",
                "root",
                "cosine",
                "sine",
                "upper",
                "lower",
            ],
        )
        zero = text.number(0.0, storage)
        with text.loop(k, first, str(size)):
            text.let(pivot, place(k, k))
            text.let(head, f"{ROW}[{k}]")
            # NaN is added too
            with text.when(f"({text.chosen(f'{head} == {zero}', '0', '1')}) == 1"):
                text.let(length, text.chosen(f"{head} < {zero}", f"-{head}", head))
                text.let(largest, f"max_nan({length}, {pivot})")
                squares = " + ".join(
                    f"({one} / {largest}) * ({one} / {largest})" for one in (pivot, head)
                )
                text.let(root, text.reciprocal_root(squares, storage))
                text.let(cosine, f"{pivot} / {largest} * {root}")
                text.let(sine, f"{head} / {largest} * {root}")
                text.meet()
                with text.shared_loop(j, k, str(size + 1)):
                    text.let(upper, place(k, j))
                    text.let(lower, f"{ROW}[{j}]")
                    text.set(place(k, j), f"{cosine} * {upper} + {sine} * {lower}")
                    text.set(f"{ROW}[{j}]", f"{cosine} * {lower} - {sine} * {upper}")
                text.meet()
        text.meet()
