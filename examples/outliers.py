# %% [markdown]
# # Wrong observations

# %% [markdown]
"""Bundle adjustment with wrong observations: losses, and which observations they take for wrong.

A twentieth of the observations of a real problem are moved by some hundred pixels. Without a loss
they spoil the cameras; with one they hardly count, and their weights tell which they are.

    python examples/outliers.py
"""

# %%
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import caspar
from caspar.bundle_adjustment import snavely

PROBLEM = Path(caspar.__file__).parents[1] / "data" / "problem-21-11315-pre.txt.bz2"

SCALE = 2.0
"""Pixels from which on a residual is taken for large."""

# %% [markdown]
# ## The observations


# %%
def read(share: float = 0.05, seed: int = 0) -> tuple[dict[str, Any], Any]:
    """What `caspar.Solver.solve` takes, and (m,) booleans: which observations are wrong."""
    problem = caspar.io.read_bal(PROBLEM)
    random = np.random.default_rng(seed)
    pixels = np.array(problem.pixels)
    is_wrong = random.random(len(pixels)) < share
    pixels[is_wrong] += random.normal(0.0, 200.0, (np.count_nonzero(is_wrong), 2))
    observed = {"cam": problem.camera_index, "point": problem.point_index, "pixel": pixels}
    return {"Cam": problem.cameras, "Point": problem.points, "snavely": observed}, is_wrong


# %% [markdown]
# ## With a loss and without
#
# The scale of a loss is in the unit of the residual, and is passed beside the observations.


# %%
def solve(arrays: dict[str, Any], loss: Any, max_iterations: int = 30) -> caspar.SolveResult:
    """The bundle with a loss, or with none."""
    given = arrays["snavely"] | ({} if loss is None else {"loss_scale": SCALE})
    solver = caspar.Solver(snavely.with_loss(loss))
    return solver.solve({**arrays, "snavely": given}, max_iterations=max_iterations, verbose=False)


def judge(result: caspar.SolveResult, is_wrong: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Root mean square of right residuals; shares of wrong and of right ones that look wrong."""
    lengths = np.linalg.norm(result.residuals("snavely"), axis=1)
    rms = float(np.sqrt(0.5 * np.mean(lengths[~is_wrong] ** 2)))
    is_suspect = lengths > 5.0 * SCALE
    return rms, float(is_suspect[is_wrong].mean()), float(is_suspect[~is_wrong].mean())


# %% tags=["active-ipynb"]
# arrays, is_wrong = read()
# plain = solve(arrays, None, max_iterations=10)
# judge(plain, is_wrong)

# %% [markdown]
# Without a loss the right observations are off by many pixels, and nobody can tell the wrong ones.
# With Cauchy's loss they stand apart: its weights fall with the square of the residual.

# %% tags=["active-ipynb"]
# robust = solve(arrays, caspar.loss.Cauchy, max_iterations=15)
# robust

# %% tags=["active-ipynb"]
# judge(robust, is_wrong)

# %% [markdown]
# The lengths of all residuals. What weighs less than half is red.

# %% tags=["active-ipynb"]
# caspar.plot.plot_residuals(robust, "snavely")


# %% tags=["active-py"]
def main() -> None:
    """Solve without a loss and with three, and print how well each finds the wrong ones."""
    arrays, is_wrong = read()
    print(f"{'loss':14} {'right: RMS, pixels':>18} {'wrong: found':>13} {'right: suspected':>17}")
    for loss in (None, caspar.loss.Huber, caspar.loss.SoftL1, caspar.loss.Cauchy):
        rms, found, suspected = judge(solve(arrays, loss), is_wrong)
        name = "none" if loss is None else loss.__name__
        print(f"{name:14} {rms:18.3f} {100 * found:11.1f} % {100 * suspected:15.1f} %")


if __name__ == "__main__":
    main()
