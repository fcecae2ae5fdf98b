"""PnP by jax: `jax.vmap` of optimistix's Levenberg-Marquardt, compiled as a whole.

    python vmapped_pnp.py IN.npz OUT.npz

IN has `start` (P, 7), `points` (P, m, 3), `pixels` (P, m, 2) and `lens` (4,); OUT gets `costs` (P,)
and `seconds` of one run after the first, the best of three. A pose is a rotation vector, applied to
that of the start, and a translation. It runs where jax runs: on a GPU if it sees one.
"""

import sys
import time
from importlib import import_module
from typing import Any

import numpy as np

TOLERANCE = {"float64": 1e-10, "float32": 1e-5}
MAX_STEPS = 100


def main(given: str, found: str) -> None:
    """Read, solve, write."""
    jax, optimistix = import_module("jax"), import_module("optimistix")
    jnp: Any = jax.numpy
    arrays = dict(np.load(given))
    dtype = str(arrays["start"].dtype)
    jax.config.update("jax_enable_x64", dtype == "float64")
    fx, fy, cx, cy = (float(number) for number in arrays["lens"])
    tolerance = TOLERANCE[dtype]
    solver = optimistix.LevenbergMarquardt(rtol=tolerance, atol=tolerance)

    def turned(quaternion: Any, points: Any) -> Any:
        axis, w = quaternion[:3], quaternion[3]
        return points + 2.0 * jnp.cross(axis, jnp.cross(axis, points) + w * points)

    def by_vector(vector: Any) -> Any:
        square = (vector**2).sum()
        is_small = square < 1e-12
        angle = jnp.sqrt(jnp.where(is_small, 1.0, square))
        sine = jnp.where(is_small, 0.5, jnp.sin(0.5 * angle) / angle)
        cosine = jnp.where(is_small, 1.0, jnp.cos(0.5 * angle))
        return jnp.concatenate([sine * vector, cosine[None]])

    def errors(step: Any, problem: Any) -> Any:
        quaternion, points, pixels = problem
        x, y, z = (turned(by_vector(step[:3]), turned(quaternion, points)) + step[3:]).T
        return jnp.stack([fx * x / z + cx, fy * y / z + cy], axis=1) - pixels

    def solve(start: Any, points: Any, pixels: Any) -> Any:
        problem = (start[:4], points, pixels)
        first = jnp.concatenate([jnp.zeros(3, start.dtype), start[4:]])
        solution = optimistix.least_squares(
            errors, solver, first, args=problem, max_steps=MAX_STEPS, throw=False
        )
        return 0.5 * (errors(solution.value, problem) ** 2).sum()

    run = jax.jit(jax.vmap(solve))
    inputs = [jax.device_put(arrays[name]) for name in ("start", "points", "pixels")]
    costs = run(*inputs).block_until_ready()
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        run(*inputs).block_until_ready()
        seconds.append(time.perf_counter() - begun)
    np.savez(found, costs=np.asarray(costs), seconds=min(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
