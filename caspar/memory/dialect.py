"""Properties of a target that decide how its kernels are made, besides the language."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Dialect:
    """Properties of a target on which its kernels depend; a row of `codegen.targets.TARGETS`.

    Attributes:
        adds_atomically: Whether items add to the objects that they share by atomics, in any order,
            unless equal input must give equal bits. Else partials of tiles are summed in order.
        recomputes_jacobians: Whether PCG usually derives Jacobians again: arithmetic takes less
            time than reading them.
        has_warps: Whether several threads can solve a problem of a batch together.
    """

    adds_atomically: bool
    recomputes_jacobians: bool
    has_warps: bool

    def sums_are_atomic(self, deterministic: bool) -> bool:
        """Return whether sums over shared objects are taken by atomics.

        Args:
            deterministic: Whether equal input must give equal bits.
        """
        return self.adds_atomically and not deterministic
