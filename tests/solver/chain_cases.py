"""A chain of views, with loop closures."""

from typing import Any

import numpy as np

from tests.solver.linear.linear_cases import hold, tie

CHAIN = (tie, hold)


def chain_arrays(num_views: int) -> dict[str, Any]:
    """A walk with loop closures."""
    random = np.random.default_rng(0)
    loops = [tuple(random.integers(0, num_views, 2)) for _ in range(num_views // 3)]
    # both directions, links with two instances, an instance that joins a node to itself
    ends = [(k, k + 1) if k % 3 else (k + 1, k) for k in range(num_views - 1)]
    ends += [(k, k + 1) for k in range(0, num_views - 1, 4)]
    start, end = np.array([*ends, *loops], dtype=int).T
    return {
        "View": 0.5 * random.standard_normal((num_views, 3)),
        "tie": {"start": start, "end": end, "step": random.standard_normal((len(start), 3))},
        "hold": {"view": [0, num_views - 1], "known": random.standard_normal((2, 3))},
    }
