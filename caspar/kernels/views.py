"""What a kernel looks like: one line, or tables of its arguments and resources, and its source.

Once for each time that it is looked at. The line needs the signature only; tables need tracing and
the compiler, some tenths of a second, and no GPU. `caspar.inspect`, and rich with it, is loaded
when something is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape

import caspar
from caspar.errors import BackendError, KernelError
from caspar.frontend.kernels.markers import Marked, marked
from caspar.frontend.kernels.outputs import declared_outputs
from caspar.frontend.kernels.trace import KernelFunction, KernelInput, KernelOutput, TracedKernel
from caspar.frontend.kernels.values import type_name
from caspar.frontend.printing import access_text, declared_text
from caspar.frontend.tracing.signature import Role
from caspar.ir.dtype import DType
from caspar.kernels.measure.profile import KernelProfile
from caspar.kernels.measure.traffic import Traffic, item_bytes, item_traffic, object_count

_NOTE = "read, written, index: bytes that an item moves, padding included. n: items; m: any number."


def signature_text(function: KernelFunction) -> str:
    """A kernel function in one line: names, types and access of arguments and outputs.

    Of one whose signature is not that of a kernel it says what is wrong.
    """
    try:
        inputs = function.declared_inputs
        outputs = {
            name: marked(function, Role.OUTPUT, name, annotation)
            for name, annotation in declared_outputs(function)[0].items()
        }
    except KernelError as error:
        return f"kernel {function.name}, which cannot be used: {error}"
    declared = ", ".join(_declared(name, one) for name, one in inputs.items())
    made = ", ".join(_declared(name, one) for name, one in outputs.items())
    return f"kernel {function.name}({declared}) -> {made}"


def _declared(name: str, one: Marked) -> str:
    return declared_text(name, type_name(one.declared), one.access)


@dataclass(frozen=True, repr=False)
class KernelDescription:
    """A kernel as tables; made by `Kernel.describe`.

    Attributes:
        signature: Its line.
        traffic: Bytes that an item moves, by argument.
        cuda: The kernel for CUDA at every stage.
        cpu: The kernel for the processor at every stage.
        accesses: A row for each argument and output.
        profile: What was measured last, of whatever type and number of items; None: nothing was.
    """

    signature: str
    traffic: tuple[Traffic, ...]
    cuda: caspar.inspect.KernelInspection
    cpu: caspar.inspect.KernelInspection
    accesses: caspar.inspect.DataTable
    profile: KernelProfile | None

    @cached_property
    def resources(self) -> caspar.inspect.FactTable | str:
        """Registers and the like for CUDA; a sentence where NVRTC is not installed."""
        try:
            compiled = self.cuda.compiled
        except BackendError as error:
            return f"Registers, spills and occupancy are not known: {error}"
        source, usage = self.cuda.source, self.cuda.usage
        facts = caspar.inspect.resource_facts(
            compiled.resources[self.cuda.name], source.num_registers, self.cuda.spec.graph.dtype
        )
        size = usage.roomiest
        reason = caspar.inspect.block_sizes_text(usage.occupancies) or "the preferred one"
        held = caspar.inspect.occupancy_text(usage.occupancies.get(size))
        items = source.items_per_thread
        return caspar.inspect.FactTable(
            (
                ("compiled for", f"{self.cuda.arch}, blocks of {usage.block_size} threads"),
                *facts,
                (
                    "items a thread",
                    f"{items}, which move {items * item_bytes(self.traffic):g} bytes",
                ),
                ("block size", f"{size}: {reason}"),
                ("occupancy", held),
            )
        )

    def __str__(self) -> str:
        call = "source: kernel.inspect().cuda, kernel.inspect(target='cpu').cpu\n"
        parts = [f"{self.signature}\n", f"{self.accesses}{_NOTE}\n", _ended(self.resources), call]
        if self.profile is not None:
            parts.append(f"measured last: {self.profile}")
        return "\n".join(parts)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """The same with the sources folded."""
        resources = self.resources
        if isinstance(resources, str):
            shown = f"<p>{escape(resources)}</p>"
        else:
            shown = resources._repr_html_()
        measured = (
            "" if self.profile is None else f"<p>measured last</p>{self.profile._repr_html_()}"
        )
        sources = (("CUDA C", str(self.cuda.cuda)), ("for the processor", str(self.cpu.cpu)))
        folded = (
            f"<details><summary>{name}</summary><pre>{escape(text)}</pre></details>"
            for name, text in sources
        )
        accesses = self.accesses._repr_html_()
        head = f"<code>{escape(self.signature)}</code>{accesses}<p>{_NOTE}</p>"
        return f"<div>{head}{shown}{measured}{''.join(folded)}</div>"


def describe_kernel(
    function: KernelFunction,
    traced: TracedKernel,
    dtype: str,
    arch: str,
    *,
    deterministic: bool,
    profile: KernelProfile | None = None,
) -> KernelDescription:
    """Tables of a kernel.

    Args:
        function: The user's function.
        traced: The same, traced.
        dtype: `float32` or `float64`.
        arch: Architecture of the figures.
        deterministic: Whether equal input must give equal bits.
        profile: What was measured last.

    Raises:
        OptionError: A choice that does not exist.
    """
    cuda, cpu = (
        caspar.inspect.inspect_kernel(traced, dtype, target, arch, deterministic=deterministic)
        for target in ("cuda", "cpu")
    )
    traffic = item_traffic(traced, DType(dtype))
    accesses = _access_table(traced, traffic)
    return KernelDescription(signature_text(function), traffic, cuda, cpu, accesses, profile)


def error_html(error: KernelError) -> str:
    """Why a kernel cannot be described; the error names it."""
    return f"<p>{escape(str(error))}</p>"


def _access_table(traced: TracedKernel, traffic: Sequence[Traffic]) -> caspar.inspect.DataTable:
    moved = {one.name: one.cells for one in traffic}
    rows = [_row(one, _passed(one, is_output=False), moved) for one in traced.inputs]
    rows += [_row(one, _passed(one, is_output=True), moved) for one in traced.outputs]
    total = Traffic(
        "all",
        sum(one.read for one in traffic),
        sum(one.written for one in traffic),
        sum(one.index for one in traffic),
    )
    together = f"{item_bytes(traffic):g} bytes together"
    rows.append((total.name, "", "", "", together, *total.cells))
    return caspar.inspect.DataTable(
        ("argument", "type", "scalars", "access", "passed", "read", "written", "index"),
        tuple(rows),
        ("scalars", "read", "written", "index"),
    )


def _row(
    one: KernelInput | KernelOutput, passed: str, moved: dict[str, tuple[str, str, str]]
) -> tuple[str, ...]:
    kind = f"Pair[{one.type_name}]" if one.access.is_pair else one.type_name
    access = access_text(one.access)
    return (one.name, kind, str(one.storage_dim), access, passed, *moved[one.name])


def _passed(one: KernelInput | KernelOutput, *, is_output: bool) -> str:
    """What a call takes for an argument."""
    objects = object_count(one.access)
    values = f"({objects},)" if one.is_scalar else f"({objects}, {one.storage_dim})"
    needed = [name for name in one.access.options if name not in one.access.defaults]
    optional = [f"{name}={value}" for name, value in one.access.defaults.items()]
    if is_output:
        values += " or size" if len(needed) > 0 else " or nothing"
    indices = ["index (n,)" if name == "index" else name for name in needed]
    return ", ".join([values, *indices, *optional])


def _ended(text: object) -> str:
    return f"{str(text).rstrip()}\n"
