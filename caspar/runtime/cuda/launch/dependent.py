"""Programmatic dependent launches: a kernel begins while the launch ahead of it still runs.

It waits by itself where it first needs what that one writes (`cuda_header.AWAIT_LAUNCH`), and lets
the launch behind it begin then. So all that is older than the launch ahead has ended: only what
that one writes may not be read before (CUDA Programming Guide, 4.5). And whoever waits for others
with its blocks resident, a grid at a barrier or blocks that began early, waits for what is
resident too: nobody is kept out for ever.

CuPy has no interface for such launches; `cuda.bindings` comes with `cuda-core`, and only who has
that may import this module.

Cost tier: once for a plan.
"""

import cupy
from cuda.bindings import driver

from caspar.errors import BackendError
from caspar.memory.array import address
from caspar.runtime.cuda.launch.bound_kernel import overlap
from caspar.runtime.cuda.launch.launch import CudaLaunch

FIRST_CAPABILITY = 90
"""Least compute capability of devices that have such launches: 9.0."""


def begins_early(launch: CudaLaunch, ahead: CudaLaunch) -> bool:
    """Return whether a launch may begin before the one ahead has ended.

    Both have to wait for what is ahead of them: then no more than one is ahead.
    """
    own = launch.bound
    if launch is ahead or own.source.early is None or ahead.bound.source.early is None:
        return False
    if int(cupy.cuda.Device().compute_capability) < FIRST_CAPABILITY:
        return False
    read, written = own.areas(address, written=False), ahead.bound.areas(address, written=True)
    return not overlap(read, written)


def launch_early(launch: CudaLaunch) -> None:
    """Enqueue on the current stream; it may begin before the launch ahead has ended."""
    function, *sizes, shared_bytes = launch.call
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = sizes[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = sizes[3:]
    config.sharedMemBytes = shared_bytes
    config.hStream = cupy.cuda.get_current_stream().ptr
    config.attrs = _attributes(is_cooperative=launch.is_cooperative)
    config.numAttrs = len(config.attrs)
    (result,) = driver.cuLaunchKernelEx(config, driver.CUfunction(function), launch.parameters, 0)
    if result != driver.CUresult.CUDA_SUCCESS:
        raise BackendError(f"{launch.bound.source.name}: no dependent launch: {result.name}")


def _attributes(*, is_cooperative: bool) -> list[driver.CUlaunchAttribute]:
    kind = driver.CUlaunchAttributeID
    value = driver.CUlaunchAttributeValue()
    value.programmaticStreamSerializationAllowed = 1
    early = _attribute(kind.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value)
    if not is_cooperative:
        return [early]
    value = driver.CUlaunchAttributeValue()
    value.cooperative = 1
    return [early, _attribute(kind.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value)]


def _attribute(
    kind: driver.CUlaunchAttributeID, value: driver.CUlaunchAttributeValue
) -> driver.CUlaunchAttribute:
    attribute = driver.CUlaunchAttribute()
    attribute.id = kind
    attribute.value = value
    return attribute
