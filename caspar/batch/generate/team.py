"""The step of a problem that a warp solves: its damped system, solved by the lanes.

There are two ways: the normal equations are factorised, or the Jacobian is decomposed by QR. The
normal matrix has the square of the condition of C: where stiff rows meet soft ones, such as
those of a line over Unix seconds, it has lost the soft directions. Givens rotations add the rows
[C | u], one after the other, to a triangle [R | q] with R^T R = C^T C and R^T q = C^T u, so C is
never stored, and rows of very different sizes do each other no harm. A step adds the rows of
R D^-1/2, and then sqrt(damping) times unity, to a second triangle; so a rejected step, and what is
held, need no other pass over the instances.

Input: the text that is being written. Output: the step. Entry j of row k of R stands below the
diagonal, in row j at k, and q in the row after them. Those of the second triangle stand above, in
row k at j + 1, as a Cholesky factor does; it is one but for its sign.
"""

from collections.abc import Callable

from caspar.batch.generate import programs
from caspar.batch.generate.instances import Counted, InstanceText
from caspar.batch.generate.policy_program import OPTIONS, Option
from caspar.batch.generate.shape import BatchShape
from caspar.batch.generate.step_program import (
    DESCENT,
    DIAGONAL,
    IS_DEFINITE,
    LEAST_PIVOT,
    SCALE,
    STEP,
    damp_graph,
    promise_graph,
)
from caspar.codegen.batch.text import PROBLEM, ProblemText
from caspar.codegen.source import WARP
from caspar.equations.node_blocks import ROUNDING
from caspar.frontend.factors.trace import Argument, TracedFactor
from caspar.ir.graph import Graph

RECIPROCAL = "reciprocal"
"""Reciprocals of the diagonal of L."""

ROWS_BYTES = 8192
"""Memory for rows, unless those of a single instance take more: with more of it fewer problems are
in flight."""


def chunk_size(shape: BatchShape, number: int) -> int:
    """Instances of a factor whose rows are kept at a time, by a warp."""
    room = max(ROWS_BYTES // shape.storage.itemsize, rows_size(shape, number))
    size = WARP
    while size * rows_size(shape, number) > room:
        size //= 2
    return size


def rows_size(shape: BatchShape, number: int) -> int:
    """Entries of the rows of one instance, and its part of the gradient or its residual."""
    factor = shape.factors[number].factor
    rows, columns = len(factor.residual), programs.num_columns(factor)
    return rows * (columns + 1) if shape.is_orthogonal else (rows + 1) * columns


class TeamStep:
    """Writes linearisations and steps by a warp; on the processor by 1 lane."""

    def __init__(self, instances: InstanceText, lanes: int) -> None:
        self._instances = instances
        self._lanes = lanes
        self._shape, self._text = instances.shape, instances.text

    def declare(self) -> None:
        """Matrix, gradient and rows, and what a step needs besides."""
        shape, text = self._shape, self._text
        entries = (shape.num_unknowns + 1) * shape.row_length
        text.shared(programs.MATRIX, shape.storage, entries)
        rows = [self._chunk(place) * rows_size(shape, place) for place in range(len(shape.factors))]
        text.shared(programs.ROWS, shape.storage, max(rows))
        size = shape.num_unknowns
        for name, length in ((DIAGONAL, size), (SCALE, size + 1), (STEP, size), (RECIPROCAL, size)):
            text.shared(name, shape.storage, length)
        text.variable(IS_DEFINITE, shape.storage, text.number(0.0, shape.storage))

    def _chunk(self, number: int) -> int:
        return min(self._lanes, chunk_size(self._shape, number))

    def linearize(
        self,
        graph_of: Callable[[BatchShape, int], Graph] = programs.rows_graph,
    ) -> None:
        """Matrix and gradient are those of `x`; `graph_of`: rows of an instance of a factor."""
        text, shape = self._text, self._shape
        zero, length = text.number(0.0, shape.storage), shape.row_length
        text.meet()
        # the gradient is the last row; above the diagonal there is the factor of the last step
        with text.triangle("row", "column", shape.num_unknowns + 1):
            text.set(f"{programs.MATRIX}[row * {length} + column]", zero)
        for number in range(len(shape.factors)):
            self._add_factor(number, graph_of(shape, number))
        text.meet()

    def write_step(self) -> None:
        """Write the step: from the normal equations to the candidate and the promised decrease."""
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

    def _add_factor(self, number: int, graph: Graph) -> None:
        text, found = self._text, self._instances.counted(number)
        first, length, lane = (f"{found.name}_{part}" for part in ("start", "length", "lane"))
        size = rows_size(self._shape, number)
        with text.chunks(first, length, found.count, self._chunk(number)):
            text.meet()
            with text.of_chunk(lane, length):
                item = None if found.is_one else f"({first} + {lane})"
                own = self._instances.instance(number, programs.VALUES, found.name, item)
                rows = {programs.ROWS: (programs.ROWS, f"{lane} * {size}")}
                self._instances.program(graph, {**own.places, **rows})
            text.meet()
            self._add_chunk(number, found, first, length)

    def _add_chunk(self, number: int, found: Counted, first: str, length: str) -> None:
        """Add products of the rows that are there."""
        factor = self._shape.factors[number].factor
        has_several = any(self._shape.nodes_of(one).count > 1 for one in factor.nodes)
        if not has_several:
            # all instances touch the same nodes: an entry is summed over them by one lane
            firsts = {
                one.name: str(self._shape.nodes_of(one).tangent_first) for one in factor.nodes
            }
            self._add_products(number, firsts, "0", length)
            return
        text, slot = self._text, f"{found.name}_slot"
        with text.loop(slot, "0", length):
            item = f"({first} + {slot})"
            firsts = {
                one.name: self._instances.node_firsts(number, one, found.name, item)[1]
                for one in factor.nodes
            }
            self._add_products(number, firsts, slot, f"{slot} + 1")

    def _add_products(self, number: int, firsts: dict[str, str], begin: str, end: str) -> None:
        """Add those of instances `begin` to before `end` of a chunk, which touch the same nodes."""
        factor = self._shape.factors[number].factor
        columns = _columns(factor)
        for place, argument in enumerate(factor.nodes):
            row_first, column = firsts[argument.name], columns[argument.name]
            i, j = (self._text.name(hint) for hint in ("i", "j"))
            with self._text.triangle(i, j, argument.tangent_dim):
                value = self._sum(number, begin, end, f"{column} + {i}", f"{column} + {j}")
                self._add_to(f"{row_first} + {i}", f"{row_first} + {j}", value)
            i = self._text.name("i")
            with self._text.shared_loop(i, "0", str(argument.tangent_dim)):
                value = self._sum(number, begin, end, f"{column} + {i}", None)
                self._add_to(str(self._shape.num_unknowns), f"{row_first} + {i}", value)
            self._text.meet()
            for other in factor.nodes[:place]:
                self._add_pair(number, firsts, begin, end, (argument, other))

    def _add_pair(
        self,
        number: int,
        firsts: dict[str, str],
        begin: str,
        end: str,
        pair: tuple[Argument, Argument],
    ) -> None:
        """Add products of the columns of two arguments."""
        text, shape = self._text, self._shape
        one, other = pair
        columns = _columns(shape.factors[number].factor)
        mine, others = shape.nodes_of(one), shape.nodes_of(other)
        i, j = (text.name(hint) for hint in ("i", "j"))
        row, column = f"{firsts[one.name]} + {i}", f"{firsts[other.name]} + {j}"
        parts = f"{columns[one.name]} + {i}", f"{columns[other.name]} + {j}"
        sizes = one.tangent_dim, other.tangent_dim
        if mine is not others:
            with text.rectangle(i, j, *sizes):
                value = self._sum(number, begin, end, *parts)
                if mine.tangent_first < others.tangent_first:
                    row, column = column, row
                self._add_to(row, column, value)
            text.meet()
            return
        # of nodes of one type either may come first, and an instance may touch one twice: then
        # an entry gets two products, one after the other
        for low, high, condition in ((row, column, "<="), (column, row, ">=")):
            with text.rectangle(i, j, *sizes), text.when(f"{column} {condition} {row}"):
                value = self._sum(number, begin, end, *parts)
                self._add_to(low, high, value)
            text.meet()

    def _sum(self, number: int, begin: str, end: str, left: str, right: str | None) -> str:
        """Write the product of two columns, or what the gradient gains if there is no right one."""
        text, shape = self._text, self._shape
        factor = shape.factors[number].factor
        columns, rows = programs.num_columns(factor), len(factor.residual)
        total, slot = text.name("total"), text.name("slot")
        text.variable(total, shape.storage, text.number(0.0, shape.storage))
        with text.sum_loop(slot, begin, end):
            first = f"{slot} * {rows_size(shape, number)}"
            if right is None:
                value = f"{programs.ROWS}[{first} + {rows * columns} + {left}]"
            else:
                value = " + ".join(
                    f"{programs.ROWS}[{first} + {r * columns} + {left}]"
                    f" * {programs.ROWS}[{first} + {r * columns} + {right}]"
                    for r in range(rows)
                )
            text.set(total, f"{total} + ({value})")
        return total

    def _add_to(self, row: str, column: str, value: str) -> None:
        place = f"{programs.MATRIX}[({row}) * {self._shape.row_length} + {column}]"
        self._text.set(place, f"{place} + {value}")


def _columns(factor: TracedFactor) -> dict[str, int]:
    """Return where the columns of each node argument begin in the rows."""
    found, first = {}, 0
    for argument in factor.nodes:
        found[argument.name] = first
        first += argument.tangent_dim
    return found


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


LEAST_DIAGONAL = 2.0**-48
"""For each unknown: a diagonal entry below it, of columns of length 1, is what rounding leaves of a
column that is a combination of others."""

ROW = "row_to_add"


def team_step(instances: InstanceText, lanes: int) -> TeamStep:
    """Return the writer of linearisations and steps by a warp, of the kind that the shape names."""
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

        `first`: Column of the row's first entry that may not be zero. `place`: The text of an entry
        of the triangle.
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
