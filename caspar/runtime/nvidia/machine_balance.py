"""Arithmetic that a device does in the time in which it moves a byte, as the driver says."""

from collections.abc import Mapping

from caspar.ir.dtype import DType

H200_BALANCE = 7.0
"""The balance that is assumed if the driver does not say how fast memory is."""

_MANY_LANES = 86
"""Compute capability from which on a multiprocessor has 128 lanes for float32, not 64."""


def machine_balance(attributes: Mapping[str, int], capability: int, dtype: DType) -> float:
    """Multiplications at the peak of arithmetic, per byte at the peak of memory.

    `attributes` are those of `cupy.cuda.Device`: clocks in kHz, widths in bits; `capability` is
    such as 90.
    """
    lanes = 128 if capability >= _MANY_LANES else 64
    arithmetic = attributes["MultiProcessorCount"] * lanes * attributes.get("ClockRate", 0)
    # two transfers a clock; newer drivers may not say
    clock, width = (attributes.get(name, 0) for name in ("MemoryClockRate", "GlobalMemoryBusWidth"))
    bandwidth = 2 * clock * width // 8
    balance = arithmetic / bandwidth if min(arithmetic, bandwidth) > 0 else H200_BALANCE
    if dtype is DType.FLOAT64:
        balance /= max(attributes.get("SingleToDoublePrecisionPerfRatio", 1), 1)
    return balance
