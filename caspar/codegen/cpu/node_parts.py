"""Kernels with exchanges in parts: loops over items, and between them loops over nodes.

Items are summed by node, and whoever goes on with the sums does so once for each node, not once
for each item. Values of items that a later part needs are computed again, those of nodes are kept.

Input: a program. Output: which instructions each loop has, in their order. Cost tier: once a
kernel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from caspar.ir.ops import Op
from caspar.ir.program import Instruction, Operand, Program, Register
from caspar.memory.access import ExchangeAccessor
from caspar.memory.kernel import KernelSpec


@dataclass(frozen=True)
class Part:
    """A loop.

    Attributes:
        of_nodes: Whether it goes over nodes.
        instructions: Of one item, or of one node.
        takes: Registers of nodes that earlier parts have kept.
        keeps: Registers of nodes that later parts take.
        collects: The exchange to which its items add.
    """

    of_nodes: bool
    instructions: tuple[Instruction, ...]
    takes: tuple[Register, ...] = ()
    keeps: tuple[Register, ...] = ()
    collects: Instruction | None = None


def node_parts(spec: KernelSpec, program: Program) -> list[Part]:
    """The loops of a kernel, in their order; without exchanges one loop over items."""
    if all(one.op is not Op.EXCHANGE for one in program.instructions):
        return [Part(of_nodes=False, instructions=program.instructions)]
    return _Parting(spec, program.instructions).parts()


class _Parting:
    """Divides instructions, each of whose results has a register of its own.

    The *stage* of a value is how many exchanges are behind it.
    """

    def __init__(self, spec: KernelSpec, instructions: Sequence[Instruction]) -> None:
        self._spec = spec
        self._instructions = list(self._renamed(instructions))
        self._place: dict[Register, int] = {}
        self._of_node: dict[Register, bool] = {}
        self._stage: dict[Register, int] = {}
        self._exchanges: list[Instruction] = []
        self._stores: dict[bool, list[int]] = {False: [], True: []}
        for place, one in enumerate(self._instructions):
            if one.op is Op.STORE:
                self._stores[self._is_for_node(one)].append(place)
                continue
            if one.op is Op.EXCHANGE:
                self._exchanges.append(one)
            self._place |= dict.fromkeys(one.outputs, place)
            of_node, stage = self._kind(one)
            self._of_node |= dict.fromkeys(one.outputs, of_node)
            self._stage |= dict.fromkeys(one.outputs, stage)

    def parts(self) -> list[Part]:
        """All of them; found from the last one to the first, as what later ones take is kept."""
        last = len(self._exchanges)
        found: list[Part] = []
        wanted: set[Register] = set()
        if len(self._stores[False]) > 0:
            found.append(self._part(wanted, last, self._stores[False], of_nodes=False))
        for stage in range(last, 0, -1):
            stores = self._stores[True] if stage == last else []
            found.append(self._part(wanted, stage, stores, of_nodes=True))
            found.append(self._part(wanted, stage - 1, [], of_nodes=False))
        return [one for one in reversed(found) if not one.of_nodes or len(one.instructions) > 0]

    def _part(
        self, wanted: set[Register], stage: int, stores: Sequence[int], *, of_nodes: bool
    ) -> Part:
        """A part that ends a stage.

        Args:
            wanted: What later parts take; what this one takes is added.
            stage: Of its results, if it goes over nodes; else how many exchanges are behind it.
            stores: Places of what it stores.
            of_nodes: Whether it goes over nodes.
        """
        keeps = [one for one in wanted if self._stage[one] == stage] if of_nodes else []
        is_before = not of_nodes and stage < len(self._exchanges)
        collects = self._exchanges[stage] if is_before else None
        needed = [*keeps, *([] if collects is None else _registers(collects))]
        for place in stores:
            needed += _registers(self._instructions[place])
        places, takes = set(stores), set[Register]()
        while len(needed) > 0:
            register = needed.pop()
            place = self._place[register]
            if self._is_kept(register) and not (of_nodes and self._stage[register] == stage):
                takes.add(register)
            elif place not in places:
                places.add(place)
                one = self._instructions[place]
                needed += [] if one.op is Op.EXCHANGE else _registers(one)
        wanted |= takes
        in_order = self._place.__getitem__
        return Part(
            of_nodes,
            tuple(self._instructions[place] for place in sorted(places)),
            tuple(sorted(takes, key=in_order)),
            tuple(sorted(keeps, key=in_order)),
            collects,
        )

    def _renamed(self, instructions: Sequence[Instruction]) -> Iterator[Instruction]:
        """Give each result a register of its own; leave out exchanges that spread values."""
        current: dict[Operand, Operand] = {}
        num_results = 0
        for one in instructions:
            operands = tuple(current.get(operand, operand) for operand in one.operands)
            if one.op is Op.EXCHANGE and not self._exchange(one).collects:
                current |= zip(one.outputs, operands, strict=True)
                continue
            outputs = []
            for register in one.outputs:
                current[register] = f"{register[0]}{num_results}"
                outputs.append(f"{register[0]}{num_results}")
                num_results += 1
            yield replace(one, outputs=tuple(outputs), operands=operands)

    def _exchange(self, one: Instruction) -> ExchangeAccessor:
        assert isinstance(one.data, tuple)
        access = self._spec.arg(one.data[0]).read
        assert isinstance(access, ExchangeAccessor)
        return access

    def _is_for_node(self, one: Instruction) -> bool:
        """Return whether a node's leader alone stores."""
        assert isinstance(one.data, tuple)
        access = self._spec.arg(one.data[0]).write
        assert access is not None
        return access.for_node

    def _kind(self, one: Instruction) -> tuple[bool, int]:
        """Return whether all items of a node have the same results, and their stage."""
        if one.op is Op.EXCHANGE:
            return True, len(self._exchanges)
        if one.op is Op.READ:
            assert isinstance(one.data, tuple)
            access = self._spec.arg(one.data[0]).read
            assert access is not None
            return access.for_node or access.has_one_object, 0
        registers = _registers(one)
        of_node = all(self._of_node[register] for register in registers)
        return of_node, max((self._stage[register] for register in registers), default=0)

    def _is_kept(self, register: Register) -> bool:
        """Return whether later parts take it: a node's number, made of sums but no sum itself."""
        is_sum = self._instructions[self._place[register]].op is Op.EXCHANGE
        is_number = register.startswith("r")
        return self._of_node[register] and self._stage[register] > 0 and is_number and not is_sum


def _registers(one: Instruction) -> list[Register]:
    """Return the registers that an instruction needs."""
    return [operand for operand in one.operands if isinstance(operand, str)]
