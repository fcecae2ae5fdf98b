"""Several devices and several processes that share a problem.

`Solver(..., devices=2)` is all that a solve on the devices of one process needs. In processes that
torchrun, mpirun or srun has started, `init` makes what `devices=` takes. `estimate` is a model of
time and memory; docs/guide/devices.md has the rest.
"""

from caspar.runtime.group.ranks import Ranks, init
from caspar.solver.shards.estimate import NVLINK, Estimate, Link, estimate

__all__ = ["NVLINK", "Estimate", "Link", "Ranks", "estimate", "init"]
