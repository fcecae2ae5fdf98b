# %% [markdown]
# # A new camera model, looked at stage by stage

# %% [markdown]
"""A fisheye camera model from its formula to a calibration, looked at on the way.

The *double sphere* model (Usenko, Demmel, Cremers, 3DV 2018) sees more than half a turn: a point is
projected on a sphere, then on a second one whose centre is `xi` further on, then on a plane. It is
called with arrays, inspected, read from memory in other ways, differentiated numerically, and in
the end made a factor.

    python examples/camera_prototype.py
"""

# %%
import difflib
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from caspar.ir.evaluate import evaluate_graph

Array = NDArray[np.float64]

# %% [markdown]
# ## The model
#
# With equations (40) to (42) of the paper. Points behind the camera are seen too, as long as
# `scale` is positive.


# %%
class Camera(sf.V6):
    """Focal lengths fx fy and principal point cx cy, in pixels; the two spheres' xi and alpha."""


@caspar.kernel
def project(
    camera: Annotated[Camera, caspar.ReadIndexed],
    point: Annotated[sf.V3, caspar.ReadSequential],
) -> Annotated[sf.V2, caspar.WriteSequential]:
    """The pixel that sees a point in camera coordinates."""
    fx, fy, cx, cy, xi, alpha = camera
    x, y, z = point
    first = sf.sqrt(x**2 + y**2 + z**2)
    shifted = xi * first + z
    second = sf.sqrt(x**2 + y**2 + shifted**2)
    scale = alpha * second + (1 - alpha) * shifted
    return sf.V2(fx * x / scale + cx, fy * y / scale + cy)


# %% [markdown]
# ## Called with arrays
#
# Rays at growing angles from where the camera looks. A pinhole camera would not see the last ones.

# %%
TRUE_CAMERA = np.array([310.0, 312.0, 641.0, 402.0, -0.18, 0.59])


def trace_rays(degrees: Array) -> Array:
    """(n, 2) pixels of rays to the right, at angles from the optical axis."""
    angles = np.deg2rad(degrees)
    rays = np.stack([np.sin(angles), np.zeros_like(angles), np.cos(angles)], axis=1)
    index = np.zeros(len(rays), dtype=np.int32)
    pixels: Array = project(camera={"values": TRUE_CAMERA, "index": index}, point=rays)
    return pixels


# %% tags=["active-ipynb"]
# trace_rays(np.linspace(0.0, 100.0, 11)).round(1)

# %% [markdown]
# ## What became of it
#
# What it is called with, what it moves to and from memory, and what it takes of a GPU. None is
# needed to look.

# %% tags=["active-ipynb"]
# project

# %% [markdown]
# The function ran once, on symbols. What it left is a graph; passes make it cheaper; its calls are
# ordered, and values get registers.

# %% tags=["active-ipynb"]
# stages = project.inspect()
# stages

# %% tags=["active-ipynb"]
# stages.graph

# %% [markdown]
# What each pass did. Two quotients by `scale` became one reciprocal, squares became products, and
# x² + y² is summed once for both spheres.

# %% tags=["active-ipynb"]
# stages.changes()

# %% tags=["active-ipynb"]
# stages.program

# %% tags=["active-ipynb"]
# stages.cuda

# %% [markdown]
# The same in figures, from a script.


# %%
def show_stages(kernel: caspar.Kernel) -> None:
    """Print how many calls each pass took away and put in, and what the program needs."""
    stages = kernel.inspect()
    print("calls of the graph:", len(stages.graph.graph.calls))
    for name in stages.stages[2 : stages.stages.index("schedule")]:
        marks = [line.split()[0] for line in str(stages.changes(name)).splitlines()[1:]]
        if len(marks) > 0:
            print(f"  {name}: {marks.count('-')} went, {marks.count('+')} came")
    print("instructions of the program:", len(stages.program.program.instructions))


# %% tags=["active-ipynb"]
# show_stages(project)

# %% [markdown]
# ## Another marker
#
# A marker says how memory is touched, not what is computed. So the program stays, and the text
# around it changes: below is what differs in CUDA C. `ReadUnique` needs no index. `ReadShared`
# promises that items which run together name the same few cameras; what is made of that is up to
# caspar: where the caches of a GPU serve such reads best, the text is that of `ReadIndexed`.


# %%
def reading_camera_by(marker: Any) -> caspar.Kernel:
    """The same function with another way to read the camera."""

    @caspar.kernel
    def project_one(
        camera: Annotated[Camera, marker],
        point: Annotated[sf.V3, caspar.ReadSequential],
    ) -> Annotated[sf.V2, caspar.WriteSequential]:
        return project(camera, point)

    return project_one


def show_difference(marker: Any, other: Any) -> None:
    """Print the lines of CUDA C that two markers make differ."""
    first, second = (reading_camera_by(one).inspect() for one in (marker, other))
    before, after = str(first.cuda).splitlines(), str(second.cuda).splitlines()
    changed = [
        line
        for line in difflib.unified_diff(before, after, lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]
    same = "the same program" if str(first.program) == str(second.program) else "another program"
    print(f"{marker.__name__} -> {other.__name__}: {same}, {len(changed)} lines of CUDA C differ")
    print("".join(f"  {line}\n" for line in changed), end="")


def profile(marker: Any, num_points: int = 100_000) -> None:
    """Print how fast the kernel is with a marker."""
    random = np.random.default_rng(0)
    points = random.normal([0.0, 0.0, 2.0], 1.0, (num_points, 3)).astype(np.float32)
    camera: Any = TRUE_CAMERA.astype(np.float32)
    if marker is not caspar.ReadUnique:
        camera = {"values": camera, "index": np.zeros(num_points, dtype=np.int32)}
    found = reading_camera_by(marker).profile(camera=camera, point=points)
    print(
        f"{marker.__name__:<12} {found.bytes_moved / num_points:3.0f} bytes a point, "
        f"{found.items_per_s / 1e6:6.0f} M points/s, {100.0 * found.copy_fraction:3.0f}% of the "
        "bandwidth of a copy"
    )


# %% tags=["active-ipynb"]
# show_difference(caspar.ReadIndexed, caspar.ReadShared)
# show_difference(caspar.ReadIndexed, caspar.ReadUnique)

# %% [markdown]
# Whether it matters is measured, on the device that the arrays are on.

# %% tags=["active-ipynb"]
# for marker in (caspar.ReadIndexed, caspar.ReadShared, caspar.ReadUnique):
#     profile(marker)

# %% [markdown]
# ## A factor
#
# A flat board with a grid of corners stands in front of the camera, and beside it. `observe` makes
# pixels of it, and in the factor it is what is predicted.


# %%
class View(sf.Pose3):
    """Takes board to camera coordinates. In storage qx qy qz qw x y z."""


@caspar.kernel
def observe(
    camera: Annotated[Camera, caspar.ReadIndexed],
    view: Annotated[View, caspar.ReadIndexed],
    corner: Annotated[sf.V3, caspar.ReadIndexed],
) -> Annotated[sf.V2, caspar.WriteSequential]:
    """The pixel that sees a corner of the board."""
    return project(camera, view * corner)


@caspar.factor
def reprojection(
    camera: Annotated[Camera, caspar.TunableUnique],
    view: Annotated[View, caspar.TunableShared],
    corner: Annotated[sf.V3, caspar.ConstIndexed],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """Predicted minus measured position."""
    return observe(camera, view, corner) - pixel


# %% [markdown]
# ## Is the derivative right?
#
# `linearize` is the kernel of the factor that computes the Jacobian J, and from a residual r the
# product Jᵀ r for the camera and for the view. `evaluate_graph` computes a graph in NumPy, so with
# (1, 0) and (0, 1) for r we see the rows of J, as the solver has them, for every observation. They
# are compared with central differences of `observe`, which runs on perturbed cameras.


# %%
class Board:
    """Observations of a board.

    Attributes:
        corners: (num_corners, 3) on the board, in metres.
        views: (num_views, 7).
        view: (n,) the view of each observation.
        corner: (n,) its corner.
    """

    def __init__(self, num_views: int = 15, side: int = 9, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        grid = np.linspace(-0.4, 0.4, side)
        plane = [axis.ravel() for axis in np.meshgrid(grid, grid)]
        self.corners = np.stack([*plane, np.zeros(side**2)], axis=1)
        aside = Rotation.from_rotvec(random.uniform(-0.9, 0.9, (num_views, 3)) * [1, 1, 0])
        turns = aside * Rotation.from_rotvec(random.uniform(-0.4, 0.4, (num_views, 3)))
        places = aside.apply([0.0, 0.0, 0.5])
        self.views = np.concatenate([turns.as_quat(), places], axis=1)
        self.view, self.corner = (
            index.ravel() for index in np.indices((num_views, len(self.corners)))
        )

    def pixels(self, cameras: Array) -> Array:
        """(num_cameras, n, 2) what each camera sees."""
        num_cameras, count = len(cameras), len(self.view)
        pixels: Array = observe(
            camera={"values": cameras, "index": np.arange(num_cameras).repeat(count)},
            view={"values": self.views, "index": np.tile(self.view, num_cameras)},
            corner={"values": self.corners, "index": np.tile(self.corner, num_cameras)},
        )
        return pixels.reshape(num_cameras, count, 2)


def jacobian_of_factor(board: Board, camera: Array) -> Array:
    """(n, 2, 6) derivatives by the camera, as the solver computes them."""
    linearize = reprojection.inspect(precision="float64")["linearize"]
    chunks = {argument.name: argument.chunk_length for argument in linearize.spec.args}
    arrays = {
        "camera__value": camera[None],
        "view__value": board.views[board.view],
        "corner__value": board.corners[board.corner],
        "pixel__value": np.zeros((1, 2)),
    }
    rows = [
        evaluate_graph(linearize.graph.graph, {**arrays, "residual": row[None]}, chunks)
        for row in np.eye(2)
    ]
    return np.stack([row["camera__gradient"] for row in rows], axis=1)


def jacobian_by_differences(board: Board, camera: Array) -> Array:
    """(n, 2, 6) the same by central differences, with steps relative to each parameter."""
    steps = 1e-6 * np.maximum(np.abs(camera), 1.0)
    ahead, behind = board.pixels(camera + np.diag(steps)), board.pixels(camera - np.diag(steps))
    slopes: Array = np.moveaxis((ahead - behind) / (2.0 * steps[:, None, None]), 0, -1)
    return slopes


def compare_jacobians(board: Board, camera: Array) -> float:
    """Print, by parameter, the largest derivative and the largest difference; return the worst."""
    expected, found = jacobian_by_differences(board, camera), jacobian_of_factor(board, camera)
    largest, errors = np.abs(expected).max((0, 1)), np.abs(found - expected).max((0, 1))
    print("parameter           fx        fy        cx        cy        xi     alpha")
    print("largest     ", "".join(f"{value:10.3g}" for value in largest))
    print("difference  ", "".join(f"{value:10.1e}" for value in errors))
    return float((errors / largest).max())


# %% tags=["active-ipynb"]
# board = Board()
# compare_jacobians(board, TRUE_CAMERA);

# %% [markdown]
# ## A calibration
#
# Start values are a guess: round numbers, and both spheres in one place (`xi` is 0). Where the
# board stood is known roughly, to 6 degrees and 5 cm. An RMS residual of 0.2 is the noise.

# %%
START_CAMERA = np.array([300.0, 300.0, 640.0, 400.0, 0.0, 0.5])


def calibrate(board: Board, noise: float = 0.2, seed: int = 1) -> caspar.SolveResult:
    """Estimate the camera and all views from pixels with noise."""
    random = np.random.default_rng(seed)
    pixels = board.pixels(TRUE_CAMERA[None])[0]
    turns = Rotation.from_quat(board.views[:, :4])
    turns = Rotation.from_rotvec(random.normal(0.0, 0.1, (len(turns), 3))) * turns
    places = board.views[:, 4:] + random.normal(0.0, 0.05, (len(turns), 3))
    return caspar.Solver([reprojection]).solve(
        {
            "Camera": START_CAMERA[None],
            "View": np.concatenate([turns.as_quat(), places], axis=1),
            "reprojection": {
                "view": board.view,
                "corner": {"values": board.corners, "index": board.corner},
                "pixel": pixels + random.normal(0.0, noise, pixels.shape),
            },
        }
    )


def show_camera(camera: Array) -> None:
    """Print what was found beside what is true."""
    print("\n             fx      fy      cx      cy      xi   alpha")
    for name, values in (("start", START_CAMERA), ("found", camera), ("true", TRUE_CAMERA)):
        print(f"{name:<6}", "".join(f"{value:8.2f}" for value in values[:4]), end="")
        print("".join(f"{value:8.4f}" for value in values[4:]))


# %% tags=["active-ipynb"]
# result = calibrate(board)
# result

# %% tags=["active-ipynb"]
# show_camera(result.values["Camera"][0])


# %% tags=["active-py"]
def main() -> caspar.SolveResult:
    """Every step; the calibration."""
    degrees = np.linspace(0.0, 100.0, 6)
    print("angle from the axis, column where it is seen")
    for angle, (column, _) in zip(degrees, trace_rays(degrees), strict=True):
        print(f"  {angle:5.0f} {column:8.1f}")
    print()
    print(project.describe())
    show_stages(project)
    print(f"\n{project.inspect().program}")
    show_difference(caspar.ReadIndexed, caspar.ReadShared)
    show_difference(caspar.ReadIndexed, caspar.ReadUnique)
    for marker in (caspar.ReadIndexed, caspar.ReadShared, caspar.ReadUnique):
        profile(marker)
    print("\nderivatives by the camera, numerically and by the factor")
    board = Board()
    compare_jacobians(board, TRUE_CAMERA)
    print()
    result = calibrate(board)
    print(result)
    show_camera(result.values["Camera"][0])
    return result


if __name__ == "__main__":
    main()
