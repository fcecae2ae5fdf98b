"""Launches that the host repeats until the device says that it is enough."""

from dataclasses import dataclass

from caspar.memory.array import Array
from caspar.runtime.backend import LaunchSequence


@dataclass(frozen=True)
class SequenceLoop:
    """A loop that the host drives.

    Attributes:
        sequence: The launches of all phases, in order.
        flag: (1,) float64 on the device.
        remarks: Why the host drives it, where the device could.
    """

    sequence: LaunchSequence
    flag: Array
    remarks: tuple[str, ...] = ()

    def run(self, max_runs: int) -> None:
        """Run until the flag is set, at most `max_runs` times; may wait for the device."""
        self.sequence.run_until(self.flag, max_runs)
