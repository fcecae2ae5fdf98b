# %% [markdown]
# # A camera that stays, and lenses that pictures share

# %% [markdown]
"""Twelve pictures by two lenses: a bundle whose first picture is held, and a lens within bounds.

Two cameras took six pictures each. What belongs to a camera, its focal length and what bends its
pictures, is a node of its own, and an index says which camera took which picture. The first pose is
held, so that the map stays where it is; so is one coordinate of the second one, which sets its
scale. What a data sheet says of the lenses are bounds.

    python examples/shared_intrinsics.py
"""

# %%
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from caspar.plot import Figure

Array = NDArray[np.float64]

# %% [markdown]
# ## Types and residual
#
# A picture has a pose, a lens has three numbers, and a residual touches one of each.


# %%
class View(sf.Pose3):
    """Takes world to camera coordinates. In storage qx qy qz qw x y z."""


@dataclass
class Lens:
    """A camera: pixels, and what bends its pictures."""

    focal: sf.Scalar
    center: sf.V2
    bend: sf.Scalar


class Mark(sf.V3):
    """A point in the world."""


class Pixel(sf.V2):
    """Where a mark was seen."""


@caspar.factor
def seen(
    view: Annotated[View, caspar.TunableShared],
    lens: Annotated[Lens, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    pixel: Annotated[Pixel, caspar.ConstSequential],
) -> sf.V2:
    """Predicted minus seen position, in pixels."""
    place = view * sf.V3(mark)
    ray = sf.V2(place[0], place[1]) / place[2]
    return lens.focal * (1 + lens.bend * ray.squared_norm()) * ray + lens.center - pixel


# %% [markdown]
# ## A scene
#
# Pictures on an arc look at 200 marks. The start is off by some centimetres, degrees, and per cent.

# %%
NUM_VIEWS, NUM_MARKS = 12, 200
TRUE_LENSES = np.array([[900.0, 320.0, 240.0, -0.08], [1200.0, 512.0, 384.0, -0.02]])


def scene(seed: int = 0) -> dict[str, Any]:
    """The arrays for `caspar.Solver.solve`."""
    random = np.random.default_rng(seed)
    marks = random.uniform(-1.5, 1.5, (NUM_MARKS, 3))
    around = Rotation.from_rotvec(np.linspace(-0.9, 0.9, NUM_VIEWS)[:, None] * [0.0, 1.0, 0.0])
    views = np.hstack([around.as_quat(), np.tile([0.0, 0.0, 5.0], (NUM_VIEWS, 1))])
    lens_of_view = np.arange(NUM_VIEWS) % 2
    view, mark = (index.ravel() for index in np.indices((NUM_VIEWS, NUM_MARKS)))
    place = around[view].apply(marks[mark]) + views[view, 4:]
    ray = place[:, :2] / place[:, 2:]
    focal, *center, bend = TRUE_LENSES[lens_of_view[view]].T
    scale = focal * (1.0 + bend * (ray**2).sum(axis=1))
    pixels = scale[:, None] * ray + np.column_stack(center)
    start = views.copy()
    turned = around[1:] * Rotation.from_rotvec(random.normal(0.0, 0.02, (NUM_VIEWS - 1, 3)))
    start[1:, :4] = turned.as_quat()
    start[1:, 4:] += random.normal(0.0, 0.05, (NUM_VIEWS - 1, 3))
    start[1, 4] = views[1, 4]
    return {
        "View": start,
        "Lens": TRUE_LENSES * [1.05, 1.0, 1.0, 0.0],
        "Mark": marks + random.normal(0.0, 0.05, marks.shape),
        "seen": {
            "view": view,
            "lens": lens_of_view[view],
            "mark": mark,
            "pixel": pixels + random.normal(0.0, 0.3, pixels.shape),
        },
    }


# %% [markdown]
# ## Held and bounded
#
# What is held comes back with the same bits: all of the first pose, x of the second one, the
# centres of both pictures. Focal lengths may be 10 % off the data sheet; the second lens bends no
# more than by 0.01, which is too little, as it will turn out.

# %%
NOMINAL = np.array([900.0, 1200.0])


def constraints() -> dict[str, Any]:
    """`fixed` and `bounds` of the solve."""
    held = np.zeros((NUM_VIEWS, 6), dtype=bool)
    held[0] = True
    held[1, 3] = True
    bend = (np.array([-1.0, -0.01]), np.array([1.0, 0.01]))
    return {
        "fixed": {"View": held, "Lens": {"center": True}},
        "bounds": {"Lens": {"focal": (0.9 * NOMINAL, 1.1 * NOMINAL), "bend": bend}},
    }


def solve() -> tuple[dict[str, Any], caspar.SolveResult]:
    """The arrays, and the solve."""
    arrays = scene()
    solver = caspar.Solver(seen, precision="float64")
    return arrays, solver.solve(arrays, **constraints())


# %% tags=["active-ipynb"]
# arrays, result = solve()
# result

# %% [markdown]
# The report says how many numbers were held and which are at a bound. The focal length of the
# second lens is a little off: it makes up for the bend that the bounds forbid.

# %% tags=["active-ipynb"]
# result.values_of("Lens")

# %% tags=["active-ipynb"]
# caspar.plot.plot_residuals(result, "seen")


# %% [markdown]
# ## From above


# %%
def draw(result: caspar.SolveResult) -> Figure:
    """Marks and cameras from above, one colour for each lens."""
    views, marks = result.values["View"], result.values["Mark"]
    at = -Rotation.from_quat(views[:, :4]).inv().apply(views[:, 4:])
    figure = Figure(figsize=(5.0, 5.0), layout="constrained")
    axes = figure.subplots()
    axes.scatter(marks[:, 0], marks[:, 2], s=4, color="0.6")
    for lens, color in enumerate(("tab:blue", "tab:orange")):
        axes.scatter(*at[lens::2, ::2].T, color=color, label=f"lens {lens}")
    axes.set_aspect("equal")
    axes.legend()
    return figure


# %% tags=["active-ipynb"]
# draw(result)


# %% tags=["active-py"]
def main() -> caspar.SolveResult:
    """Solve, and print what became of the lenses."""
    _, result = solve()
    print(result)
    for field, values in result.values_of("Lens").items():
        print(f"{field:8}", np.array2string(values, precision=4, separator=", "))
    return result


if __name__ == "__main__":
    main()
