"""Write the part of a batch's kernel that scores and linearises instances of a factor.

Input: the shape of a batch and the text that is being written. Output: loops over the instances of
the problem, around the programs of `programs`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from caspar.batch.generate import programs
from caspar.batch.generate.parameters import (
    INSTANCES,
    STRIDE,
    bounds_names,
    factor_name,
    free_name,
    has_index,
    index_name,
    values_name,
)
from caspar.batch.generate.programs import WIDE
from caspar.batch.generate.shape import (
    BatchShape,
    Instances,
    ProblemNodes,
    Team,
    is_per_instance,
)
from caspar.codegen.batch.cpu_text import CpuProblemText
from caspar.codegen.batch.cuda_team_text import CudaTeamText
from caspar.codegen.batch.cuda_text import CudaProblemText
from caspar.codegen.batch.text import PROBLEM, ProblemText
from caspar.codegen.targets import Target
from caspar.frontend.factors.trace import Argument, ArgumentKind
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.passes.pipeline import compile_graph

UNIT = 2.0**-52
"""Relative size by which constants of float64 are moved."""

GOLDEN = 2654435761
"""As `solver.lm.roundings` draws: bits of multiples look random."""


_TEXTS: dict[tuple[str, Team], Callable[[], ProblemText]] = {
    ("cpu", Team.THREAD): CpuProblemText,
    ("cpu", Team.WARP): CpuProblemText,
    ("cuda", Team.THREAD): CudaProblemText,
    ("cuda", Team.WARP): CudaTeamText,
}


def empty_text(shape: BatchShape, target: Target) -> ProblemText:
    """Return an empty text for a kernel."""
    return _TEXTS[target.name, shape.team]()


def drawn_sign(place: int) -> str:
    """The text of whether the number at a place is moved up in a draw."""
    return f"(({(place * GOLDEN) & 0xFFFFFFFF} >> draw) & 1) == 1"


@dataclass(frozen=True)
class Counted:
    """The text of how many instances of a factor a problem has.

    Attributes:
        name: What names of variables begin with.
        count: The number.
        is_one: Whether nothing is passed for single instances.
    """

    name: str
    count: str
    is_one: bool


@dataclass(frozen=True)
class Instance:
    """The text of what an instance of a factor reads.

    Attributes:
        places: By the name in programs: where its entries are, as a text that the entry is added
            to.
        firsts: By node argument: the text of the first unknown of its node.
    """

    places: dict[str, tuple[str, str]]
    firsts: dict[str, str]


class InstanceText:
    """Writes what is done for instances, and programs in general.

    Attributes:
        places: Arrays that are part of another one, and where they begin there.
    """

    def __init__(self, shape: BatchShape, text: ProblemText, target: Target) -> None:
        self.shape = shape
        self.text = text
        self._target = target
        self.places: dict[str, tuple[str, str]] = {}
        self._half_tables = {
            programs.constant_name(number, argument)
            for number, one in enumerate(shape.factors)
            for argument in one.factor.tables
            if argument.is_half
        }
        if shape.team is Team.WARP and not shape.is_orthogonal:
            last_row = str(shape.num_unknowns * shape.row_length)
            self.places[programs.GRADIENT] = (programs.MATRIX, last_row)

    def program(
        self,
        graph: Graph,
        places: dict[str, tuple[str, str]] | None = None,
        add: Callable[[str, int, str], None] | None = None,
        *,
        moves_constants: bool = False,
    ) -> None:
        """Append a program.

        `places` are names that are something else than an array of the thread; `add` writes its
        stores, or else they go to arrays of the thread. `moves_constants`: Constants are moved by a
        rounding each, up or down.
        """
        program = compile_graph(graph, self._target.costs[graph.dtype])
        known = {**self.places, **({} if places is None else places)}
        scalars = ("damping", "levelling", "shortening", "is_definite", "descent")

        def read(name: str, entry: int) -> str:
            if name in known:
                array, first = known[name]
                place = f"{array}[{_sum(first, entry)}]"
                is_constant = not name.endswith(f".{programs.COLUMN_OF_NODE}")
                if moves_constants and is_constant:
                    is_up = drawn_sign(entry)
                    up, down = (self.text.number(1.0 + unit, WIDE) for unit in (UNIT, -UNIT))
                    return f"{place} * {self.text.chosen(is_up, up, down)}"
                return place
            return name if name in scalars else f"{name}[{entry}]"

        def store(name: str, entry: int, value: str) -> None:
            array, first = known.get(name, (name, "0"))
            self.text.set(f"{array}[{_sum(first, entry)}]", value)

        def begins(name: str) -> tuple[str, str, DType]:
            is_half = name in self._half_tables
            return (*known[name], DType.FLOAT16 if is_half else self.shape.storage)

        self.text.program(program, read, store if add is None else add, begins)

    def load(self) -> None:
        """`x` and `y` are the start values; and what restricts them."""
        text, shape = self.text, self.shape
        for number, nodes in enumerate(shape.nodes):
            self._load_nodes(number, nodes)
        if not shape.is_masked or shape.team is Team.THREAD:
            return
        # one more for the gradient, a row of a warp's matrix
        places = [shape.num_unknowns]
        for nodes in shape.nodes:
            own = range(nodes.tangent_first, nodes.tangent_first + nodes.tangent_size)
            places += [] if nodes.is_masked else own
        for place in places:
            text.set(f"{programs.FREE}[{place}]", text.number(1.0, shape.storage))

    def _load_nodes(self, number: int, nodes: ProblemNodes) -> None:
        text, size = self.text, nodes.storage_size
        for place in range(size):
            value = f"{values_name(number)}_data[{PROBLEM} * {size} + {place}]"
            for name in (programs.VALUES, programs.CANDIDATE):
                text.set(f"{name}[{nodes.storage_first + place}]", value)
        for place in range(nodes.tangent_size if nodes.is_masked else 0):
            moves = f"{free_name(number)}_data[{PROBLEM} * {nodes.tangent_size} + {place}]"
            text.set(f"{programs.FREE}[{nodes.tangent_first + place}]", moves)
        limits = zip((programs.LOWER, programs.UPPER), bounds_names(number), strict=True)
        for name, given in limits if nodes.is_bounded else ():
            for place in range(nodes.tangent_size):
                bound = f"{given}_data[{PROBLEM} * {nodes.tangent_size} + {place}]"
                text.set(f"{name}[{nodes.tangent_first + place}]", bound)

    def counted(self, number: int) -> Counted:
        """Write what says which instances of a factor a problem has."""
        text, one = self.text, self.shape.factors[number]
        name = text.name(factor_name(number))
        first, end = f"{name}_first", f"{name}_end"
        if one.instances is Instances.RAGGED:
            text.let(first, text.cast(f"{factor_name(number)}_data[{PROBLEM}]", DType.INT64))
            text.let(end, text.cast(f"{factor_name(number)}_data[{PROBLEM} + 1]", DType.INT64))
            text.let(f"{name}_count", f"{end} - {first}")
        elif one.instances is Instances.EQUAL:
            text.let(f"{name}_count", f"{factor_name(number)}_{INSTANCES}")
        is_one = one.instances is Instances.ONE
        return Counted(name, "1" if is_one else f"{name}_count", is_one)

    def _over_instances(self, number: int, values: str, write: Callable[[Instance], None]) -> None:
        """Write what is done for each instance of a factor, by one of the lanes."""
        found = self.counted(number)
        item = f"{found.name}_item"
        each = self.text.shared_loop(item, "0", found.count)
        with self.text.first_lane() if found.is_one else each:
            write(self.instance(number, values, found.name, None if found.is_one else item))

    def instance(self, number: int, values: str, name: str, item: str | None) -> Instance:
        """Write where an instance of a factor reads.

        `values`: Array of the nodes' values. `name`: Of `counted`. `item`: The text of its number
        within the problem; None: there is one.
        """
        text, one = self.text, self.shape.factors[number]
        places: dict[str, tuple[str, str]] = {}
        firsts: dict[str, str] = {}
        for argument in one.factor.inputs:
            constant = programs.constant_name(number, argument)
            if argument.node is None:
                row = f"{PROBLEM} * {constant}_{STRIDE}"
                if argument.kind is ArgumentKind.CONST_INDEXED and item is not None:
                    row = f"{row} + {self._row_read(number, index_name(constant), name, item)}"
                elif is_per_instance(argument) and item is not None:
                    start = f"{name}_first" if one.instances is Instances.RAGGED else row
                    row = f"{start} + {item}"
                at = text.name(f"{constant}_at")
                text.let(at, f"({row}) * {argument.storage_dim}")
                places[constant] = (f"{constant}_data", at)
                continue
            storage, firsts[argument.name] = self.node_firsts(number, argument, name, item)
            places[programs.node_name(argument)] = (values, storage)
        return Instance(places, firsts)

    def node_firsts(
        self, number: int, argument: Argument, name: str, item: str | None
    ) -> tuple[str, str]:
        """Write where values and unknowns of a node begin that an instance touches."""
        nodes = self.shape.nodes_of(argument)
        storage, tangent = str(nodes.storage_first), str(nodes.tangent_first)
        node = self._node_number(number, argument, name, item)
        if node is None:
            return storage, tangent
        return (
            f"{storage} + {argument.storage_dim} * {node}",
            f"{tangent} + {argument.tangent_dim} * {node}",
        )

    def _node_number(
        self, number: int, argument: Argument, name: str, item: str | None
    ) -> str | None:
        """The text of which node of its type an argument is; None: there is one."""
        if argument.kind is ArgumentKind.NODE_PAIR:
            assert item is not None
            return f"({item} + 1)" if argument.successor else item
        if not has_index(self.shape, argument):
            return None
        assert item is not None
        return self._row_read(number, programs.constant_name(number, argument), name, item)

    def _row_read(self, number: int, index: str, name: str, item: str) -> str:
        """Write which row an index names."""
        text, is_ragged = self.text, self.shape.factors[number].instances is Instances.RAGGED
        row = f"{name}_first" if is_ragged else f"{PROBLEM} * {index}_{STRIDE}"
        read = text.name(f"{index}_read")
        text.let(read, text.cast(f"{index}_data[{row} + {item}]", DType.INT64))
        return read

    def score(self, *, moves_constants: bool = False) -> None:
        """`cost` is that of `y`; for `moves_constants` see `program`."""
        text = self.text
        text.set("cost", text.number(0.0, WIDE))

        def add(_name: str, _entry: int, value: str) -> None:
            text.set("cost", f"cost + {text.cast(value, WIDE)}")

        for number in range(len(self.shape.factors)):
            graph = programs.score_graph(self.shape, number)
            self._over_instances(
                number,
                programs.CANDIDATE,
                lambda one, graph=graph: self.program(  # type: ignore[misc]
                    graph, one.places, add, moves_constants=moves_constants
                ),
            )
        text.add_up("cost")

    def linearize(
        self, graph_of: Callable[[BatchShape, int], Graph] = programs.linearize_graph
    ) -> None:
        """Matrix and gradient are those of `x`; `graph_of`: what an instance of a factor adds."""
        text, shape = self.text, self.shape
        zero, size = text.number(0.0, shape.storage), shape.num_unknowns
        for place in range(size):
            text.set(f"{programs.GRADIENT}[{place}]", zero)
        whole = any(nodes.count > 1 for nodes in shape.nodes)
        for row in range(size):
            for column in range(size if whole else row + 1):
                text.set(f"{programs.MATRIX}[{row * size + column}]", zero)
        for number in range(len(shape.factors)):
            graph = graph_of(shape, number)
            self._over_instances(
                number,
                programs.VALUES,
                lambda one, number=number, graph=graph: self.program(  # type: ignore[misc]
                    graph, one.places, self._adder(number, one)
                ),
            )

    def _adder(self, number: int, instance: Instance) -> Callable[[str, int, str], None]:
        """Writes what an instance adds to gradient and matrix."""
        text, shape, size = self.text, self.shape, self.shape.num_unknowns
        nodes = {one.name: one for one in shape.factors[number].factor.nodes}

        def add_to(place: str, value: str) -> None:
            text.set(place, f"{place} + {value}")

        def add(name: str, entry: int, value: str) -> None:
            row_name, *others = name.split(".")[:-1]
            row_first = instance.firsts[row_name]
            if len(others) == 0:
                add_to(f"{programs.GRADIENT}[{_sum(row_first, entry)}]", value)
                return
            column_first = instance.firsts[others[0]]
            i, j = divmod(entry, nodes[others[0]].tangent_dim)
            row, column = _sum(row_first, i), _sum(column_first, j)
            mine, other = shape.nodes_of(nodes[row_name]), shape.nodes_of(nodes[others[0]])
            # of nodes of one type either may come first, and an instance may touch one twice
            both = row_name != others[0] and mine is other
            if both or mine.tangent_first >= other.tangent_first:
                add_to(f"{programs.MATRIX}[{_place(row, size, column)}]", value)
            if both or mine.tangent_first < other.tangent_first:
                add_to(f"{programs.MATRIX}[{_place(column, size, row)}]", value)

        return add


def _sum(first: str, entry: int) -> str:
    """An index: numbers are added here."""
    return str(int(first) + entry) if first.isdigit() else f"{first} + {entry}"


def _place(row: str, size: int, column: str) -> str:
    """The index of an entry of a square matrix by rows."""
    if row.isdigit() and column.isdigit():
        return str(int(row) * size + int(column))
    return f"({row}) * {size} + {column}"
