"""`caspar.kernel`: a symbolic function that is called with arrays.

    @caspar.kernel
    def make_pose(angle: Annotated[sf.Symbol, caspar.ReadSequential],
                  ) -> Annotated[sf.Pose2, caspar.WriteSequential]:
        return sf.Pose2(sf.Rot2.from_tangent([angle]), sf.V2(sf.cos(angle), sf.sin(angle)))

    poses = make_pose(angle=angles)          # (n,) -> (n, 4)

Traced when first called with arrays, compiled once for each backend and type, cached on disk.
Called with symbolic values, inside a residual function or another kernel, it is the function.

Also here: what a kernel looks like: one line, or tables of its arguments and resources, and its
source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any, SupportsIndex

import numpy as np

import caspar
from caspar.arrays.blocked_array import BlockedArray
from caspar.errors import BackendError, InputError, KernelError, ResourceError
from caspar.frontend.kernels.markers import Marked, declared_outputs, marked
from caspar.frontend.kernels.trace import KernelFunction, KernelInput, KernelOutput, TracedKernel
from caspar.frontend.kernels.values import type_name
from caspar.frontend.printing import access_text, declared_text
from caspar.frontend.tracing.signature import Role
from caspar.ir.dtype import DType
from caspar.kernels.call.call import (
    Operands,
    any_symbolic,
    call_options,
    call_symbolic,
    operands_of,
)
from caspar.kernels.call.calls import CallChoices, KernelCalls
from caspar.kernels.call.compiled import Tuning, best_size, tuning_key
from caspar.kernels.call.plan import CallPlan, plan_call
from caspar.kernels.profile import (
    RUNS,
    KernelProfile,
    Traffic,
    item_bytes,
    item_traffic,
    kept,
    object_count,
    on_copies,
    profile_plan,
)
from caspar.options import BackendChoice, BackendName, choice
from caspar.tracing import traced_kernel


class BoundKernel:
    """A kernel whose arrays are fixed.

    Calling it enqueues the work (on CUDA: on CuPy's current stream, without waiting) and returns
    nothing; what is added is added again by every call. Made by `Kernel.bind`.

    Attributes:
        outputs: The arrays it writes to, by name.
        count: Items.
    """

    def __init__(
        self, traced: TracedKernel, plan: CallPlan, inputs: Mapping[str, BlockedArray]
    ) -> None:
        self._traced = traced
        self._plan = plan
        self._inputs = inputs
        self.outputs = dict(plan.outputs)
        self.count = plan.count
        self._run = plan.backend.repeated_runner(plan.launches)

    def __call__(self) -> None:
        """Run once."""
        self._run()

    def profile(self, runs: int = RUNS) -> KernelProfile:
        """Measure a call, as `Kernel.profile` does.

        It runs on its own arrays; those it writes to then get the values back that they had.

        Args:
            runs: Samples.

        Raises:
            InputError: There are no items, or no runs.
        """
        with kept(self.outputs.values()):
            return profile_plan(self._traced, self._plan, runs)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Refuse: it is a launch on the memory of this process."""
        raise TypeError(
            f"{self!r} can be neither pickled nor copied: it is a launch on the memory of this "
            "process. Pickle the kernel and the arrays, and call bind where they arrive"
        )

    @property
    def result(self) -> Any:
        """The output arrays in the form of the function's result."""
        return self._traced.make_result(list(self.outputs.values()))

    @property
    def plan(self) -> CallPlan:
        """The plan of its calls: backend, type, kernel."""
        return self._plan

    def __repr__(self) -> str:
        return (
            f"BoundKernel({self._traced.name}, {self.count:,} items, {self._plan.dtype.value}, "
            f"{self._plan.backend.device})"
        )


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
        resources = f"{str(self.resources).rstrip()}\n"
        parts = [f"{self.signature}\n", f"{self.accesses}{_NOTE}\n", resources, call]
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
    """Tables of a kernel; an `OptionError` for a choice that does not exist."""
    cuda, cpu = (
        caspar.inspect.inspect_kernel(traced, dtype, target, arch, deterministic=deterministic)
        for target in ("cuda", "cpu")
    )
    traffic = item_traffic(traced, DType(dtype))
    accesses = _access_table(traced, traffic)
    return KernelDescription(signature_text(function), traffic, cuda, cpu, accesses, profile)


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
    objects = object_count(one.access)
    values = f"({objects},)" if one.is_scalar else f"({objects}, {one.storage_dim})"
    needed = [name for name in one.access.options if name not in one.access.defaults]
    optional = [f"{name}={value}" for name, value in one.access.defaults.items()]
    if is_output:
        values += " or size" if len(needed) > 0 else " or nothing"
    indices = ["index (n,)" if name == "index" else name for name in needed]
    return ", ".join([values, *indices, *optional])


class Kernel:
    """A symbolic function that is called with arrays.

    Args:
        function: Maps symbolic arguments to symbolic outputs.
        backend: Where kernels run whose arrays are on the host: `auto`, `cuda` or `cpu`.
        deterministic: Whether equal input must give equal bits: sums in a fixed order. (On the
            CPU they always are.)
    """

    def __init__(
        self,
        function: KernelFunction,
        backend: BackendName | BackendChoice = BackendChoice.AUTO,
        *,
        deterministic: bool = False,
    ) -> None:
        self.function = function
        self.backend = choice(BackendChoice, "backend", backend)
        self.deterministic = deterministic
        self.calls = KernelCalls(function.name)
        self.last_profile: KernelProfile | None = None
        self.__doc__ = function.function.__doc__
        self.__name__ = function.name

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name

    @cached_property
    def traced(self) -> TracedKernel:
        """The function as expressions.

        Raises:
            KernelError: Signature or return value are not what a kernel needs.
        """
        return traced_kernel(self.function)

    def __call__(
        self,
        *args: Any,
        out: Any = None,
        count: int | None = None,
        check: bool = True,
        dtype: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run over arrays; or, of symbolic values, the function as it was written.

        Args:
            *args: Arguments in the order of the signature.
            out: Arrays to write to: of a single output the array; of several a sequence, or a
                mapping by name. Where an output's access takes options, a mapping of `values`
                (or `size`, the number of objects of a new array) and them.
            count: Items; by default as many as the arguments stand for.
            check: Whether to test indices for range and repetition; it waits for the device. False
                is unsafe: an index out of range then reads and writes memory that is not its
                array's (a crash, or garbage), and of an object that is written twice one value
                is lost.
            dtype: `float32` or `float64`, to convert to; by default that of the arrays, and
                float32 where none has a floating type (integers, lists).
            **kwargs: Arguments by name: an array ((n, dim) of NumPy, CuPy, torch, jax, or a
                `BlockedArray`), or a mapping of `values` and what the access takes besides. All
                live on one device.

        Returns:
            One array for each output, (n, dim). What `out` names is written to and returned as it
            is. A new array is of the library of the first argument that is an array (sequences and
            numbers are none), and where that lives, whatever the other arguments are; where the
            first one is a `BlockedArray`, a `BlockedArray`.

        Raises:
            InputError: Names the argument, what is wrong and what is allowed.
            KernelError: The function cannot be compiled.
        """
        if any_symbolic(args, kwargs):
            return call_symbolic(self.function, args, kwargs, out=out, count=count, dtype=dtype)
        options = (count, check, dtype, self.backend.value, self.deterministic)
        return self.calls.run(self.traced, args, kwargs, out, CallChoices(*options))

    def bind(
        self,
        *args: Any,
        out: Any = None,
        count: int | None = None,
        check: bool = True,
        block_size: int | None = None,
        **kwargs: Any,
    ) -> BoundKernel:
        """Fix arrays, to run many times: a call of what is returned is only the launch.

        Args:
            *args: As of a call; arrays must live where the kernel runs and need no conversion.
            out: As of a call.
            count: As of a call.
            check: As of a call, where False is unsafe. Indices are tested here, once: memory that
                changes afterwards is not tested again.
            block_size: Threads of a block; by default chosen by registers and shared memory.
            **kwargs: As of a call.

        Raises:
            InputError: Names the argument, what is wrong and what is allowed.
        """
        inputs, outputs = self._operands(args, kwargs, out)
        for one in (*inputs.values(), *outputs.values()):
            if one.given is not None and not one.is_blocked:
                raise InputError(
                    f"{one.where}: a bound kernel needs a BlockedArray, got "
                    f"{type(one.given).__name__}; convert it once: "
                    "caspar.BlockedArray.from_rows(array)"
                )
        plan = self._plan(inputs, outputs, count, check, None, block_size)
        return BoundKernel(self.traced, plan, {name: one.given for name, one in inputs.items()})

    def profile(
        self,
        *args: Any,
        out: Any = None,
        count: int | None = None,
        check: bool = True,
        dtype: str | None = None,
        block_size: int | None = None,
        runs: int = RUNS,
        **kwargs: Any,
    ) -> KernelProfile:
        """Measure a call: time, bandwidth beside that of a copy, registers, occupancy.

        The kernel runs some hundred times on the device, and adds as often. It works on copies of
        the arrays that are written to, so what is passed in `out` stays as it is. Arrays are
        converted before; conversions are not measured.

        Args:
            *args: As of a call.
            out: As of a call.
            count: As of a call.
            check: As of a call.
            dtype: As of a call.
            block_size: As of `bind`.
            runs: Samples; each is the mean over runs that take a millisecond together.
            **kwargs: As of a call.

        Raises:
            InputError: Names the argument, what is wrong and what is allowed.
        """
        inputs, outputs = on_copies(*self._operands(args, kwargs, out))
        plan = self._plan(inputs, outputs, count, check, dtype, block_size)
        self.last_profile = profile_plan(self.traced, plan, runs)
        return self.last_profile

    def tune(
        self,
        *args: Any,
        out: Any = None,
        count: int | None = None,
        check: bool = True,
        dtype: str | None = None,
        runs: int = RUNS,
        **kwargs: Any,
    ) -> Tuning:
        """Measure a call with every block size that is allowed; keep the quickest.

        Later calls of this kernel in the same type and with the same accesses take it, also in
        other processes on the same device. As `profile`, it works on copies of what is written to.

        Args:
            *args: As of a call.
            out: As of a call.
            count: As of a call.
            check: As of a call.
            dtype: As of a call.
            runs: As of `profile`.
            **kwargs: As of a call.

        Raises:
            InputError: Names the argument, what is wrong and what is allowed.
        """
        inputs, outputs = on_copies(*self._operands(args, kwargs, out))
        first = self._plan(inputs, outputs, count, check, dtype, None)
        if first.kernel is None:
            raise InputError(f"kernel {self.name}: nothing to measure, there are no items")
        times = {}
        for size in sorted(first.kernel.source.block_sizes):
            try:
                plan = self._plan(inputs, outputs, count, check, dtype, size)
            except ResourceError:
                continue  # the device has too little shared memory for blocks of that size
            times[size] = float(np.median(plan.backend.time(plan.runner(), runs)))
        chosen = first.backend.load([first.kernel.source])[first.kernel.source.name].block_size
        best = best_size(times, chosen)
        key = tuning_key(self.traced, first.backend, first.dtype, first.writes)
        self.calls.forget(key, best)
        return Tuning(self.name, times, chosen, best)

    # -- what it became ------------------------------------------------------------------------

    def inspect(
        self,
        dtype: str = "float32",
        target: str = "cuda",
        arch: str = "sm_90",
        deterministic: bool | None = None,
    ) -> caspar.inspect.KernelInspection:
        """The kernel at every stage of the compiler; no GPU is needed.

        Args:
            dtype: `float32` or `float64`.
            target: `cuda` or `cpu`.
            arch: Architecture of machine code.
            deterministic: As of the kernel, which is the default.

        Raises:
            KernelError: The function cannot be compiled.
            OptionError: A choice that does not exist.
        """
        fixed = self.deterministic if deterministic is None else deterministic
        return caspar.inspect.inspect_kernel(self.traced, dtype, target, arch, deterministic=fixed)

    def describe(self, dtype: str = "float32", arch: str = "sm_90") -> KernelDescription:
        """Arguments, bytes moved, registers, occupancy and the last profile as tables.

        No GPU is needed.

        Raises:
            KernelError: The function cannot be compiled.
            OptionError: A choice that does not exist.
        """
        return describe_kernel(
            self.function,
            self.traced,
            dtype,
            arch,
            deterministic=self.deterministic,
            profile=self.last_profile,
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickled as functions are, by module and name; compiled anew where it arrives."""
        return self.function.pickled(self)

    def __copy__(self) -> Kernel:
        """Return itself, as a copy of a function does."""
        return self

    def __deepcopy__(self, memo: object) -> Kernel:
        """Return itself, as a copy of a function does."""
        return self

    def __repr__(self) -> str:
        return signature_text(self.function)

    def _repr_html_(self) -> str:
        try:
            return self.describe()._repr_html_()
        except KernelError as error:
            return f"<p>{escape(str(error))}</p>"

    def _plan(
        self,
        inputs: Operands,
        outputs: Operands,
        count: int | None,
        check: bool,
        dtype: str | None,
        block_size: int | None,
    ) -> CallPlan:
        options = call_options(self.name, count, check, dtype, block_size, self.deterministic)
        return plan_call(
            self.traced, self.calls.cache, inputs, outputs, self.backend.value, options
        )

    def _operands(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> tuple[Operands, Operands]:
        return operands_of(self.traced, args, kwargs, out)
