"""A loop of launches as one kernel on CUDA, cooperative or a cluster; see `codegen.cuda.loop.fuse`.

The kernel stays on the device until the flag is set: the host enqueues it and goes on. A barrier
of the grid takes the place of a launch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import driver

from caspar.codegen.cuda.header import COMPILE_OPTIONS, MIN_BLOCKS_OPTION
from caspar.codegen.cuda.loop.fuse import CLUSTER_BLOCKS, CLUSTER_OPTION, ONE_BLOCK_LOOP_OPTION
from caspar.errors import BackendError
from caspar.memory.array import Array, address
from caspar.runtime.backend import Launch
from caspar.runtime.cuda.compile.kernel import CudaKernel, loaded_kernel, resident_blocks
from caspar.runtime.cuda.launch.launch import CudaLaunch, refusal
from caspar.runtime.cuda.loop.loops import LoopPlan, plan_loop
from caspar.runtime.nvidia.limits import load_refusal
from caspar.runtime.parameters import parameter_table

ROOMY_BLOCKS = 1
"""Blocks on a multiprocessor up to which threads have the registers to load ahead of barriers. Of
36 k factors, which take two, an iteration takes 11.5 us with such loads and 9.0 without (H200)."""

FIRST_WITH_CLUSTERS = 90
"""Compute capability of the first devices with thread block clusters: 9.0."""

ROOM_FOR_A_CLUSTER = 64
"""Multiprocessors from which on there is a place for a cluster: it needs as many as it has blocks
that lie close to each other. Parts of a device may have less."""

MAX_SPILLED_BYTES = 128
"""Local memory of a thread that is taken for more blocks at the same time: bundle adjustment with
680 k factors takes 87 us an iteration with 4 blocks and none, 80 with 5 and 8 bytes, 79 with 6 and
112, 84 with 8 and 224 (H200)."""


@dataclass(frozen=True)
class CudaLoop:
    """All phases as one kernel, which repeats them; its first parameter is the number of runs."""

    launch: CudaLaunch
    remarks: tuple[str, ...] = ()

    def run(self, max_runs: int) -> None:
        """Enqueue on the current stream; may be captured in a graph, with `max_runs` as it is."""
        self.launch.set_address(0, max_runs)
        self.launch.run()


def fused_launch(
    phases: Sequence[Sequence[Launch]],
    flag: Array,
    scalars: Array,
    device: str,
    ahead: Sequence[CudaLaunch] | None = None,
) -> CudaLaunch:
    """Compile phases as one kernel for the current device and fix its grid.

    `ahead` is launched ahead of it each time; None: it stands alone. Raises `ValueError` without
    launches, or for blocks of several sizes; and what compiling and loading raise, such as a
    `ResourceError`, or a `BackendError` if the device cannot keep a grid resident.
    """
    own = [[own_launch(launch) for launch in phase] for phase in phases]
    num_multiprocessors = _num_multiprocessors(device)
    bound = [[launch.bound for launch in phase] for phase in own]
    before = None if ahead is None else [launch.bound for launch in ahead]
    planned = partial(
        plan_loop,
        bound,
        flag,
        scalars,
        address,
        ahead=before,
        cluster_blocks=CLUSTER_BLOCKS if _has_clusters() else 0,
    )
    roomy_blocks = ROOMY_BLOCKS * num_multiprocessors
    plan = planned(roomy_blocks=roomy_blocks)
    largest = [launch for phase in own for launch in phase][plan.largest].kernel
    # as many as there are, and no more than the largest kernel has when it runs alone
    wanted = min(-(-plan.max_blocks // num_multiprocessors), resident_blocks(largest))
    compiled = partial(_compiled, wanted=max(wanted, 1))
    try:
        kernel = compiled(plan)
        if _spills(kernel) and plan.max_blocks <= roomy_blocks:
            # what is loaded ahead of barriers takes registers, which it lacks
            plain = planned()
            plan, kernel = min(
                (plan, kernel),
                (plain, compiled(plain)),
                key=lambda made: made[1].function.local_bytes,
            )
        resident = resident_blocks(kernel)
    except driver.CUDADriverError as error:
        raise load_refusal(plan.source.name, device, str(error)) from error
    if resident == 0:
        raise refusal(kernel, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: no block fits")
    grid = max(1, min(plan.max_blocks, resident * num_multiprocessors))
    assert grid == plan.max_blocks or not plan.is_cluster
    state = cupy.zeros(1, dtype=np.int32)
    values: tuple[Any, ...] = (1, scalars, state, *plan.values)
    is_cooperative = grid > 1 and not plan.is_cluster
    return CudaLaunch(kernel, parameter_table(values), grid, values, is_cooperative=is_cooperative)


def _num_multiprocessors(device: str) -> int:
    """Return the multiprocessors of a device that can wait for a whole grid."""
    attributes = cupy.cuda.Device().attributes
    if attributes.get("CooperativeLaunch", 0) == 0:
        raise BackendError(
            f"{device} has no cooperative launches, which loops on the device need: "
            "use a GPU from Volta (sm_70) on, or backend='cpu'"
        )
    return int(attributes["MultiProcessorCount"])


def _has_clusters() -> bool:
    """Return whether the blocks of a loop can be one thread block cluster."""
    device = cupy.cuda.Device()
    return (
        int(device.compute_capability) >= FIRST_WITH_CLUSTERS
        and int(device.attributes["MultiProcessorCount"]) >= ROOM_FOR_A_CLUSTER
    )


def fits_device(phases: Sequence[Sequence[Launch]]) -> bool:
    """Return whether all blocks of every phase are resident at the same time.

    Where they are not, the largest kernel is quicker by itself than among others, whose registers
    and turns it would have to share: 200 us instead of 300 for 5 M factors (H200).
    """
    return all(_is_resident(phase) for phase in phases)


def _is_resident(phase: Sequence[Launch]) -> bool:
    own = [own_launch(launch) for launch in phase]
    num_blocks = sum(launch.call[1] * launch.call[2] for launch in own)
    resident = min((resident_blocks(launch.kernel) for launch in own), default=0)
    return num_blocks <= resident * int(cupy.cuda.Device().attributes["MultiProcessorCount"])


def merged_launches(
    phases: Sequence[Sequence[Launch]], flag: Array, scalars: Array, device: str
) -> list[CudaLaunch]:
    """One run of a loop: large phases as launches, small ones between them as one kernel each."""
    merged: list[CudaLaunch] = []
    alone: list[CudaLaunch] = []
    for is_small, group in groupby(phases, _is_resident):
        own = [[own_launch(launch) for launch in phase] for phase in group]
        if is_small and len(own) > 1:
            merged.append(fused_launch(own, flag, scalars, device, ahead=tuple(alone)))
        else:
            alone += [launch for phase in own for launch in phase]
            merged += [launch for phase in own for launch in phase]
    return merged


def own_launch(launch: Launch) -> CudaLaunch:
    """The same: all launches of this backend are."""
    assert isinstance(launch, CudaLaunch)
    return launch


def _compiled(plan: LoopPlan, wanted: int) -> CudaKernel:
    """The kernel for `wanted` blocks on a multiprocessor, or as many as go without much spilling.

    Where few are wanted it has all the registers it can use: with four blocks in all 13.3 us an
    iteration instead of 14.7, left to the compiler (bundle adjustment, H200).
    """
    options: tuple[str, ...] = COMPILE_OPTIONS
    if plan.max_blocks <= 1:
        options = (*options, ONE_BLOCK_LOOP_OPTION)
    if plan.is_cluster:
        options = (*options, CLUSTER_OPTION.format(plan.max_blocks))
    for number in range(wanted, 0, -1):
        chosen = (*options, MIN_BLOCKS_OPTION.format(number))
        kernel = loaded_kernel(plan.source, plan.block_size, chosen)
        if not _spills(kernel):
            break
    return kernel


def _spills(kernel: CudaKernel) -> bool:
    """Return whether it has more local memory than more blocks are worth."""
    return bool(kernel.function.local_bytes > MAX_SPILLED_BYTES)
