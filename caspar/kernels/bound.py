"""A kernel with its arrays: a call is only the launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsIndex

from caspar.arrays.blocked_array import BlockedArray
from caspar.frontend.kernels.trace import TracedKernel
from caspar.kernels.call.plan import CallPlan
from caspar.kernels.measure.profile import RUNS, KernelProfile, kept, profile_plan


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
        """Refused: it is a launch on the memory of this process.

        Raises:
            TypeError: Always.
        """
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
