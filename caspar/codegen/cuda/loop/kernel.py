"""Kernels as functions that a loop calls (`fuse`).

Input: the source of a kernel. Output: a function of its own text, whose parameters `blockIdx` and
`gridDim` hide CUDA's variables of these names; and, of loads that are taken out of it, what they
fill and functions that fill it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from caspar.codegen.cuda.body import AWAIT_LINE, FIRST_LOOK, GUARD, IS_DONE, LEAVE_LINE, used_lines
from caspar.codegen.cuda.kernel import KERNEL_START, declared_as
from caspar.codegen.cuda.places import FEW_PLACES
from caspar.codegen.source import KernelSource, Load


@dataclass(frozen=True)
class LoopKernel:
    """A kernel of a loop.

    Attributes:
        sets_flag: Whether it writes the flag.
        guarded: Whether its guard is the flag. The loop looks at the flag itself, after each phase
            that may set it, so that all threads see the same: the guard is left out.
        replicated: Every block runs it; it writes nothing but scalars.
        scalars: Parameters that point to the loop's scalars, and to which.
        early: Arguments that nobody writes between the barrier before the last and the one ahead
            of the kernel: they are loaded before the latter, of a kernel that is not replicated.
            None: all loads stay in the kernel.
    """

    source: KernelSource
    sets_flag: bool = False
    guarded: bool = False
    replicated: bool = False
    scalars: tuple[tuple[str, int], ...] = ()
    early: tuple[str, ...] | None = None

    def declared(self) -> list[str]:
        """Return its parameters as a function declares them.

        They are not __restrict__: what another block writes must be read by coherent caches.
        """
        return [declared_as(param, restrict=False) for param in self.source.params]

    def passed(self, number: int) -> list[str]:
        """Return what is passed for them; `number` is that of the kernel."""
        places = {name: f"own + {place}" for name, place in self.scalars}
        return [places.get(param.name, f"k{number}_{param.name}") for param in self.source.params]

    def loads(self, *, early: bool) -> list[Load]:
        """Return the loads before the barrier ahead, or behind it."""
        if self.early is None:
            return []
        return [load for load in self.source.loads if load.goes_early(self.early) == early]


def _whole_line(line: str) -> re.Pattern[str]:
    return re.compile("^ *" + re.escape(line).replace(r"\{\}", r"(\w+)") + r"\n", re.M)


_OWN_TEXT = re.compile(re.escape(KERNEL_START) + r".*?\) \{\n(.*)", re.S)
_GUARDS = (_whole_line(GUARD), _whole_line(IS_DONE))
_LEAVE, _AWAIT, _FIRST_LOOK = map(_whole_line, (LEAVE_LINE, AWAIT_LINE, FIRST_LOOK))
_SHARED = re.compile(r"^( *)__shared__ (.*?)(\w+)((?:\[[^\]]*\])*);$", re.M)
_BUILT_IN = re.compile(r"\b(?:blockIdx|gridDim)\b")


def _body(source: KernelSource) -> str:
    found = _OWN_TEXT.search(source.text)
    assert found is not None
    return found.group(1)


def guard_name(source: KernelSource) -> str | None:
    """The argument without which a kernel does nothing while it is not zero; None: it has none."""
    found = _guard(_body(source))
    return None if found is None else found.group(1)


def _guard(body: str) -> re.Match[str] | None:
    return next((found for guard in _GUARDS if (found := guard.search(body)) is not None), None)


def helpers_of(text: str) -> tuple[str, ...]:
    """Return the texts before a kernel's own: each `#if ... #endif` of the outermost level."""
    units: list[str] = []
    unit: list[str] = []
    depth = 0
    before, _, _ = text.partition(KERNEL_START)
    for line in before.partition("#undef BLOCK_SIZE")[0].splitlines():
        depth += line.startswith("#if")
        depth -= line.startswith("#endif")
        unit.append(line)
        if depth == 0:
            whole = "\n".join(unit)
            assert _BUILT_IN.search(whole) is None, f"takes its block from the caller: {whole}"
            if whole.strip() != "":
                units.append(whole)
            unit = []
    assert len(unit) == 0
    return tuple(units)


@dataclass(frozen=True)
class Part:
    """A kernel as a function: its text, and members of its shared memory."""

    source: KernelSource
    function: str
    shared: tuple[str, ...]


def part_of(kernel: LoopKernel) -> Part:
    """Make a function of a kernel; what it loads ahead is passed to it."""
    source = kernel.source
    name = source.name
    body = _body(source)
    if source.few_items:
        # the loop divides once
        body = body.replace(f"  {FEW_PLACES['share']}\n", "")
    # the loop waits for what is ahead of all kernels
    body = _AWAIT.sub("", _FIRST_LOOK.sub("", body))
    if kernel.guarded:
        guard = _guard(body)
        assert guard is not None
        body = _LEAVE.sub("", body[: guard.start()] + body[guard.end() :])
    shared = dict.fromkeys(
        f"{kind}{member}{size};" for _, kind, member, size in _SHARED.findall(body)
    )
    # a reference: kernels that run one after another use the same memory
    body = _SHARED.sub(r"\1auto& \3 = own_shared.\3;", body)
    assert "__shared__" not in body
    declared = _places_of(source)
    struct = ""
    if len(shared) > 0:
        members = "\n".join(f"  {member}" for member in shared)
        struct = f"struct __align__(16) {name}_shared {{\n{members}\n}};\n"
        declared.append(f"{name}_shared& own_shared")
    declared += kernel.declared()
    loaded = ""
    if kernel.early is not None:
        loaded = _load_functions(kernel)
        for load in source.loads:
            lines = _indented(load.lines)
            assert body.count(lines) == 1, (name, lines)
            is_used = load.is_value
            known = f"  const auto& {load.name} = loaded.{load.name};\n" if is_used else ""
            body = body.replace(lines, known)
        declared.append(f"const {name}_loaded& loaded")
    function = f"{struct}{loaded}{_function(f'run_{name}', declared)} {{\n{body}"
    return Part(source, function, tuple(shared))


LOADS = {True: "load_early", False: "load"}
"""Functions that load before a barrier, and behind it."""


def _function(name: str, declared: Sequence[str]) -> str:
    params = ",\n    ".join(declared)
    return f"__device__ __forceinline__ void {name}(\n    {params})"


def _places_of(source: KernelSource) -> list[str]:
    """The first parameters: which items a block has."""
    share = ["const u32 share"] if source.few_items else []
    return ["const uint3 blockIdx", "const uint3 gridDim", *share]


def _indented(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" if line.startswith("#") else f"  {line}\n" for line in lines)


_OWN_PLACES = {
    **{name: FEW_PLACES[name] for name in ("tile", "own_item", "active")},
    "item": "const u32 item = active ? own_item : 0u;",
}
_LEAVE_IDLE = "if (!active) return;"
"""Ahead of a barrier: a warp without items would load as long as one that has them. Behind one,
there is no branch, so that all loads are on their way at the same time: the compiler would put the
sum of what was loaded first ahead of the branch, and wait for that."""


def _load_functions(kernel: LoopKernel) -> str:
    """The loads that are taken out of a kernel: what they fill, and what fills it."""
    source, name = kernel.source, kernel.source.name
    named = [load for load in source.loads if load.name]
    members = "".join(f"  {load.vector} {load.name};\n" for load in named)
    text = f"struct {name}_loaded {{\n{members}}};\n"
    declared = _places_of(source)
    declared += kernel.declared()
    declared.append(f"{name}_loaded& loaded")
    for early, prefix in LOADS.items():
        loads = kernel.loads(early=early)
        if len(loads) > 0:
            known = [load for load in named if load in loads or (load.is_address and not early)]
            lines = [
                *(f"auto& {load.name} = loaded.{load.name};" for load in known),
                *(line for load in loads for line in _moved(load)),
            ]
            if early and source.few_items:
                lines.insert(0, _LEAVE_IDLE)
            body = _indented((*used_lines(_OWN_PLACES, "\n".join(lines)), *lines))
            text += f"{_function(f'{prefix}_{name}', declared)} {{\n{body}}}\n"
    return text


def _moved(load: Load) -> Sequence[str]:
    """The lines of a load in a function of its own, which blocks without a turn call too."""
    if load.name == "":
        return [f"if (blockIdx.x < gridDim.x) {line}" for line in load.lines]
    return load.assigned


def arguments_of(
    kernel: LoopKernel, number: int, block: str, blocks: str, shared: str | None = None
) -> str:
    """Return the arguments of a kernel's functions; `number` is that of the kernel."""
    source = kernel.source
    places = [f"uint3{{{block}, 0u}}", f"uint3{{{blocks}, {source.num_layers}u, 1u}}"]
    if source.few_items:
        places.append(f"k{number}_share")
    return ", ".join((*places, *([] if shared is None else [shared]), *kernel.passed(number)))
