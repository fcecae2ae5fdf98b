"""The block size of a kernel by measurement, kept on disk for this kernel on this device.

By default the size is chosen by registers and shared memory, which costs nothing. Once for each
kernel that it is asked for: some milliseconds for each size on the device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from caspar.frontend.kernels.trace import TracedKernel
from caspar.ir.dtype import DType
from caspar.memory.access import WriteAccessor
from caspar.runtime.backend import Backend
from caspar.runtime.cache import read_entry, write_entry

MIN_GAIN = 0.02
"""Share of the time that another size than the chosen one must save, above what repeats differ."""


@dataclass(frozen=True)
class Tuning:
    """A kernel measured with every block size; made by `Kernel.tune`.

    Attributes:
        kernel: Its name.
        times_s: Median seconds of a call by block size.
        chosen: The size by registers and shared memory.
        best: The size that calls take from now on.
    """

    kernel: str
    times_s: Mapping[int, float]
    chosen: int
    best: int

    def __str__(self) -> str:
        lines = [f"kernel {self.kernel}: blocks of {self.best} from now on"]
        for size, seconds in sorted(self.times_s.items()):
            ratio = seconds / self.times_s[self.chosen]
            mark = " (chosen by registers and shared memory)" if size == self.chosen else ""
            lines.append(f"  {size:>5}: {seconds * 1e6:10.2f} us, {ratio:.3f}{mark}")
        return "\n".join(lines)

    __repr__ = __str__


def best_size(times_s: Mapping[int, float], chosen: int) -> int:
    """The quickest size; the chosen one where no other saves enough."""
    best = min(times_s, key=lambda size: times_s[size])
    return best if times_s[best] < (1.0 - MIN_GAIN) * times_s[chosen] else chosen


@dataclass
class MeasuredSizes:
    """Block sizes found by measurement, in this process and on disk."""

    known: dict[str, int | None] = field(default_factory=dict)

    def find(self, key: str) -> int | None:
        """The size of a kernel; None where it was never measured."""
        if key not in self.known:
            self.known[key] = _read(key)
        return self.known[key]

    def keep(self, key: str, size: int) -> None:
        """Remember a size, also for later processes."""
        self.known[key] = size
        write_entry("tuned", key, str(size).encode())


def _read(key: str) -> int | None:
    content = read_entry("tuned", key)
    return None if content is None else int(content)


def tuning_key(
    traced: TracedKernel, backend: Backend, dtype: DType, writes: Mapping[str, WriteAccessor]
) -> str:
    """Digest of all that a measurement holds for."""
    parts = (traced.key, backend.device, dtype.value, repr(writes))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:40]
