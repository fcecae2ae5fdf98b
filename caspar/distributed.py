"""Several devices that share a problem: what they will take, by a model.

`Solver(..., devices=2)` is all that a solve on them needs; docs/guide/devices.md has the rest.
"""

from caspar.solver.shards.estimate import NVLINK, Estimate, Link, estimate

__all__ = ["NVLINK", "Estimate", "Link", "estimate"]
