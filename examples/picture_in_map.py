# %% [markdown]
# # Where was this picture taken?

# %% [markdown]
"""A picture is placed in a known map: points are held, and many of its matches are wrong.

The map is a real bundle, Trafalgar-21, adjusted first. Then one of its cameras is taken for a new
one: its pose is known to some degrees and metres, a third of its matches are replaced by others,
and its lens may change. All points are held, so the solve has nine unknowns.

    python examples/picture_in_map.py
"""

# %%
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from caspar.bundle_adjustment import snavely
from caspar.plot import Figure

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

PROBLEM = Path(caspar.__file__).parents[1] / "data/problem-21-11315-pre.txt.bz2"

CAMERA = 6
"""The one that is looked for."""

THRESHOLD = 4.0
"""Pixels that a right match may be off."""

# %% [markdown]
# ## The map


# %%
def adjusted_map() -> tuple[Array, Array, Any]:
    """Cameras and points of the bundle after a solve, and the file."""
    problem = caspar.io.read_bal(PROBLEM)
    observed = {"cam": problem.camera_index, "point": problem.point_index, "pixel": problem.pixels}
    arrays = {"Cam": problem.cameras, "Point": problem.points, "snavely": observed}
    result = caspar.Solver(snavely).solve(arrays, verbose=False)
    return result.values["Cam"], result.values["Point"], problem


# %% [markdown]
# ## A new picture
#
# Its matches name points of the map. A third of them now name another point. Points that it does
# not see have no part.


# %%
def picture(cameras: Array, points: Array, problem: Any) -> tuple[dict[str, Any], Flags]:
    """The arrays for `caspar.Solver.solve`, and which matches are wrong."""
    random = np.random.default_rng(0)
    own = problem.camera_index == CAMERA
    point, pixel = problem.point_index[own].copy(), problem.pixels[own]
    is_wrong = random.random(len(point)) < 0.33
    point[is_wrong] = random.permutation(point[is_wrong])
    seen_points, point = np.unique(point, return_inverse=True)
    start = np.array(cameras[CAMERA : CAMERA + 1], dtype=np.float64)
    turn = Rotation.from_quat(start[:, :4]) * Rotation.from_rotvec([0.02, -0.03, 0.02])
    start[:, :4] = turn.as_quat()
    start[:, 4:7] += [0.1, -0.05, 0.1]
    seen = {"cam": np.zeros(len(point), np.int32), "point": point, "pixel": pixel}
    return {"Cam": start, "Point": points[seen_points], "snavely": seen}, is_wrong


# %% [markdown]
# ## Solved with the points held
#
# Least squares follows the wrong matches. Graduated non-convexity begins as least squares, and ends
# with the matches that agree. What `fixed` holds is held in each of its solves.


# %%
def localise(arrays: dict[str, Any]) -> tuple[caspar.SolveResult, caspar.GncResult]:
    """By least squares, and by graduated non-convexity."""
    solver = caspar.Solver(snavely, precision="float64")
    plain = solver.solve(arrays, fixed={"Point": True}, verbose=False)
    robust = caspar.solve_gnc(
        solver, arrays, inlier_threshold=THRESHOLD, fixed={"Point": True}, verbose=False
    )
    return plain, robust


def place(cameras: Array) -> Array:
    """(n, 3) where cameras are in the world."""
    return np.asarray(-Rotation.from_quat(cameras[:, :4]).inv().apply(cameras[:, 4:7]))


# %% tags=["active-ipynb"]
# cameras, points, problem = adjusted_map()
# arrays, is_wrong = picture(cameras, points, problem)
# plain, robust = localise(arrays)
# robust.result

# %% [markdown]
# How far both are from where the adjusted map has the camera, in units of the map:

# %% tags=["active-ipynb"]
# true = place(cameras[CAMERA : CAMERA + 1])
# {
#     "least squares": np.linalg.norm(place(plain.values["Cam"]) - true).item(),
#     "graduated": np.linalg.norm(place(robust.values["Cam"]) - true).item(),
#     "wrong matches": int(is_wrong.sum()),
#     "of these kept": int((robust.inliers["snavely"] & is_wrong).sum()),
# }


# %%
def draw(arrays: dict[str, Any], robust: caspar.GncResult) -> Figure:
    """The picture: matches that were kept, and those that were not."""
    pixels, inliers = arrays["snavely"]["pixel"], robust.inliers["snavely"]
    figure = Figure(figsize=(6.0, 5.0), layout="constrained")
    axes = figure.subplots()
    for chosen, color, label in ((inliers, "tab:blue", "kept"), (~inliers, "tab:red", "left out")):
        axes.scatter(pixels[chosen, 0], pixels[chosen, 1], s=6, color=color, label=label)
    axes.set_aspect("equal")
    axes.legend()
    return figure


# %% tags=["active-ipynb"]
# draw(arrays, robust)

# %% [markdown]
# ## How well it is known
#
# Points count as known exactly, and matches that were left out weigh nothing.


# %%
def standard_errors(arrays: dict[str, Any], robust: caspar.GncResult) -> Array:
    """(9,): turns in radians, position, focal length and distortion."""
    solver = caspar.Solver(snavely, precision="float64")
    weighted = {**arrays["snavely"], "weight": robust.weights["snavely"]}
    covariance = solver.covariance(
        {**arrays, **robust.values, "snavely": weighted},
        {"Cam": "all"},
        fixed={"Point": True},
        scale_by_residual_variance=True,
    )
    errors: Array = covariance.standard_errors("Cam")[0]
    return errors


# %% tags=["active-ipynb"]
# standard_errors(arrays, robust)


# %% tags=["active-py"]
def main() -> caspar.SolveResult:
    """Localise, and compare with the map."""
    cameras, points, problem = adjusted_map()
    arrays, is_wrong = picture(cameras, points, problem)
    plain, robust = localise(arrays)
    print(robust.result)
    true = place(cameras[CAMERA : CAMERA + 1])
    for name, values in (("least squares", plain.values), ("graduated", robust.values)):
        print(f"{name:14} off by {np.linalg.norm(place(values['Cam']) - true):.5f}")
    kept = robust.inliers["snavely"]
    print(f"wrong matches kept: {(kept & is_wrong).sum()} of {is_wrong.sum()}")
    print(f"right matches kept: {(kept & ~is_wrong).sum()} of {(~is_wrong).sum()}")
    print("standard errors:", np.array2string(standard_errors(arrays, robust), precision=2))
    return robust.result


if __name__ == "__main__":
    main()
