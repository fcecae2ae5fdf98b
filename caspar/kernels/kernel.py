"""`caspar.kernel`: a symbolic function that is called with arrays.

    @caspar.kernel
    def make_pose(angle: Annotated[sf.Symbol, caspar.ReadSequential],
                  ) -> Annotated[sf.Pose2, caspar.WriteSequential]:
        return sf.Pose2(sf.Rot2.from_tangent([angle]), sf.V2(sf.cos(angle), sf.sin(angle)))

    poses = make_pose(angle=angles)          # (n,) -> (n, 4)

Traced when first called with arrays, compiled once for each backend and type, cached on disk.
Called with symbolic values, inside a residual function or another kernel, it is the function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, SupportsIndex

import numpy as np

import caspar
from caspar.errors import InputError, KernelError, ResourceError
from caspar.frontend.kernels.trace import KernelFunction, TracedKernel
from caspar.kernels.bound import BoundKernel
from caspar.kernels.call.call import (
    Operands,
    any_symbolic,
    call_options,
    call_symbolic,
    operands_of,
)
from caspar.kernels.call.calls import CallChoices, KernelCalls
from caspar.kernels.call.plan import CallPlan, plan_call
from caspar.kernels.call.tuning import Tuning, best_size, tuning_key
from caspar.kernels.measure.profile import RUNS, KernelProfile, on_copies, profile_plan
from caspar.kernels.views import KernelDescription, describe_kernel, error_html, signature_text
from caspar.options import BackendChoice, choice
from caspar.tracing import traced_kernel


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
        backend: str | BackendChoice = BackendChoice.AUTO,
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
        """Pickled as functions are, by module and name; compiled anew where it arrives.

        Raises:
            pickle.PicklingError: It is not found there.
        """
        return self.function.pickled(self)

    def __copy__(self) -> Kernel:
        """Itself, as of functions."""
        return self

    def __deepcopy__(self, memo: object) -> Kernel:
        """Itself, as of functions."""
        return self

    def __repr__(self) -> str:
        return signature_text(self.function)

    def _repr_html_(self) -> str:
        try:
            return self.describe()._repr_html_()
        except KernelError as error:
            return error_html(error)

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
