"""`python docs/pictures.py`: the pictures that explain the guide.

In: nothing; what depends on caspar is computed by it, on the processor. Out: SVG files in
docs/guide/figures, each with a digest of what it shows, which a test compares. Colours are as far
from white as from the black of a dark page, and there is no background.
"""

import hashlib
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import matplotlib.patches as shapes
import numpy as np
import symforce.symbolic as sf
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/guide/figures"
sys.path.insert(0, str(ROOT))

import caspar  # noqa: E402  (found by the line above)

INK, BLUE, GREEN, ORANGE, RED = "#797979", "#2373f5", "#1d8b55", "#bb610a", "#de3c42"
WIDTH = 48.0  # tenths of an inch: text of 11 points can be read when a phone shrinks it
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "caspar",
    "font.sans-serif": ["DejaVu Sans"],
    **dict.fromkeys(("font.size", "axes.titlesize"), 11.0),
    **dict.fromkeys(("legend.fontsize", "xtick.labelsize", "ytick.labelsize"), 10.0),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
}
ON_CPU: dict[str, Any] = {"backend": "cpu", "precision": "float64"}
BARE: dict[str, Any] = {"frame_on": False, "xticks": [], "yticks": []}


def main() -> None:
    """Write all pictures."""
    for name, picture in PICTURES.items():
        with matplotlib.rc_context(SETTINGS):
            drawn, text = picture(), io.StringIO()
            metadata = {"Date": None, "Creator": None, "Description": f"shows {digest(drawn)}"}
            drawn.savefig(text, format="svg", metadata=metadata, transparent=True)
        short = re.sub(r"(?<=\.\d\d)\d+|^ +|<!--.*-->\n", "", text.getvalue(), flags=re.MULTILINE)
        (FOLDER / f"{name}.svg").write_text(short, encoding="utf-8", newline="\n")


def digest(drawn: Figure) -> str:
    """Of the texts and places that a picture shows; not of how they are drawn."""

    def rounded(places: Any) -> Any:
        return (np.round(np.asarray(places, float), 2) + 0.0).tolist()

    shown: list[Any] = []
    for axis in drawn.axes:
        texts = [axis.title, axis.xaxis.label, axis.yaxis.label, *axis.texts]
        shown += [(text.get_text(), rounded(text.get_position())) for text in texts]
        shown += [rounded(text.xy) for text in axis.texts if hasattr(text, "xy")]
        shown += [(line.get_label(), rounded(line.get_xydata())) for line in axis.lines]
        for patch in axis.patches:
            shown.append(rounded(patch.get_patch_transform().transform(patch.get_path().vertices)))
        for collection in axis.collections:
            shown += [rounded(path.vertices) for path in collection.get_paths()]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]


def factor_graph() -> Figure:
    """Three cameras and four points, and the arrays of the same problem."""
    drawn, axis = _canvas(44.0)
    observations = [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3)]
    cameras = [(11.0 + 13 * cam, 39.5) for cam in range(3)]
    points = [(6.0 + 12 * point, 26.0) for point in range(4)]
    chosen = 3
    for number, (cam, point) in enumerate(observations):
        _tie(axis, cameras[cam], points[point], ORANGE if number == chosen else INK, 0.9)
    _say(axis, 41.2, 32.75, "factor", ha="left")
    nodes = (("Cam", BLUE, cameras, 18.4, 1), ("Point", GREEN, points, 7.9, 2))
    for name, color, places, top, used in nodes:
        _say(axis, 1.0, places[0][1] + 3.2, name, color, ha="left")
        _say(axis, 1.0, top + 1.6, name, color, ha="left")
        for row, place in enumerate(places):
            middle = top - 1.9 * row - 0.95
            _dot(axis, place, color, f"{row}")
            _box(axis, (3.0, middle - 0.95), (11.0, 1.9), color, 0.6 if row == used else 0.15)
            _say(axis, 2.4, middle, f"{row}", color, ha="right", fontsize=10)
        _arrow(axis, (26.2, 15.0 - 2.4 * chosen), (14.4, top - 1.9 * used - 0.95), ORANGE)
    _say(axis, 26.5, 20.0, "reprojection", ha="left")
    for column, (title, width) in enumerate((("cam", 5.5), ("point", 5.5), ("pixel", 8.0))):
        middle = 26.5 + 5.5 * column + width / 2
        _say(axis, middle, 17.5, title, fontsize=10)
        for row, one in enumerate(observations):
            color = ORANGE if row == chosen else INK
            _box(axis, (middle - width / 2, 13.8 - 2.4 * row), (width, 2.4), color)
            _say(axis, middle, 14.9 - 2.4 * row, f"{(*one, 'x, y')[column]}", color, fontsize=10)
    return drawn


def frames() -> Figure:
    """A point in two frames, and how mappings are chained."""
    drawn, axis = _canvas(31.0)
    axes_of_b = np.array([[0.94, -0.34], [0.34, 0.94]])
    a, b, point = np.array([4.5, 13.0]), np.array([28.0, 10.0]), np.array([41.0, 26.5])
    for origin, directions, color, name in ((a, np.eye(2), BLUE, "a"), (b, axes_of_b, RED, "b")):
        for direction, letter in zip(directions.T, "xy", strict=True):
            _arrow(axis, origin, origin + 8.0 * direction, color, 2.5)
            x, y = origin + 9.3 * direction
            _say(axis, x, y, letter, color)
        _say(axis, origin[0], origin[1] - 1.8, f"frame {name}", color)
        axis.plot(*np.transpose([origin, point]), "--", color=color, zorder=0)
    _dot(axis, point, INK, "", 0.7)
    _say(axis, point[0], point[1] + 2.2, "point")
    _say(axis, 17.0, 21.5, "in a", BLUE)
    _say(axis, 38.0, 18.0, "in b", RED)
    colors = {"a": BLUE, "b": RED, "c": GREEN}
    mapped = "point_in_ a  = a _from_ b  * point_in_ b"
    chained = "a _from_ c  = a _from_ b  * b _from_ c"
    for height, words in ((5.5, mapped), (2.2, chained)):
        left = 1.5
        for word in words.split(" "):
            _say(axis, left, height, word, colors.get(word, INK), ha="left", family="monospace")
            left += 0.92 * (len(word) + (word in ("", "=", "*")))
    return drawn


def losses() -> Figure:
    """Cost and weight of a residual by its length, for every loss of caspar."""
    drawn, axes = _plots(5.2, 3, 3, sharex=True, sharey=True)
    names = ("Huber", "SoftL1", "Cauchy", "Arctan", "GemanMcClure", "Welsch", "Tukey")
    s, r = sf.Symbol("s"), np.linspace(0.0, 3.0, 151)
    for axis, name in zip(axes.flat, (*names, "Barron", "Tolerant"), strict=True):
        rho = sf.S(getattr(caspar.loss, name)().rho(s, 1, *[0.5] * (name == "Barron")))
        cost, weight = ([float(f.subs(s, x**2)) for x in r] for f in (rho / 2, rho.diff(s)))
        axis.plot(r, cost, color=BLUE, linewidth=2, label="cost")
        axis.plot(r, weight, "--", color=ORANGE, linewidth=2, label="weight")
        axis.plot(r, r**2 / 2, ":", color=INK, label="cost without a loss")
        axis.set(title=name, xlim=(0, 3), ylim=(0, 2.2), xticks=(1, 2, 3), yticks=(1, 2))
    drawn.supxlabel("length of the residual / scale", fontsize=11)
    drawn.legend(handles=axes[0, 0].lines, loc="outside upper center", ncols=3)
    return drawn


def elimination() -> Figure:
    """Blocks of the normal matrix, and of the reduced one: four cameras, ten points."""
    drawn, axis = _canvas(30.0)
    pairs = [(0,), (0, 1), (0, 1), (0, 1), (1, 2), (1, 2), (1, 2), (2, 3), (2, 3), (3,)]
    seen = np.array([[cam in cameras for cameras in pairs] for cam in range(4)], int)
    sizes = np.array([3] * 4 + [1] * 10)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    before = np.block([[np.eye(4, dtype=int), seen], [seen.T, np.eye(10, dtype=int)]])
    for left, matrix, filled in ((3.5, before, INK), (33.5, seen @ seen.T, ORANGE)):
        end = starts[len(matrix)]
        _box(axis, (left, 24.0 - end), (end, end), INK, 0.06)
        for row, column in np.argwhere(matrix > 0):
            color = filled if row != column else BLUE if row < 4 else GREEN
            place = (left + starts[column] + 0.1, 24.1 - starts[row + 1])
            _box(axis, place, (sizes[column] - 0.2, sizes[row] - 0.2), color, 1.0)
    _arrow(axis, (26.5, 18.0), (32.5, 18.0), INK, 2)
    for x, text in ((3.5, "before"), (33.5, "after")):
        _say(axis, x, 28.2, text, ha="left")
        _say(axis, x, 25.3, "cameras", BLUE, ha="left")
    _say(axis, 25.5, 25.3, "points", GREEN, ha="right")
    _say(axis, 1.8, 18.0, "cameras", BLUE, rotation=90)
    _say(axis, 1.8, 7.0, "points", GREEN, rotation=90)
    _say(axis, 28.5, 5.0, "new: two cameras\nthat see the\nsame point", ORANGE, ha="left")
    _arrow(axis, (38.0, 8.2), (38.0, 14.7), ORANGE)
    return drawn


def ellipses() -> Figure:
    """Where the poses of a path may be, by their covariances: without and with a closed loop."""
    count = 12
    turns = 2 * np.pi * np.arange(count) / count
    x, y = 3 * np.sin(turns), 3 - 3 * np.cos(turns)
    poses = np.column_stack([np.cos(turns), np.sin(turns), x, y])
    round_trip = np.array([np.cos(np.linspace(0, 7, 200)), np.sin(np.linspace(0, 7, 200))])
    solver = caspar.Solver([caspar.factors.between(sf.Pose2)], **ON_CPU)
    drawn, axes = _plots(2.8, 1, 2, sharex=True, sharey=True)
    cases = ((count - 1, "odometry alone"), (count, "with a closed loop"))
    for axis, (edges, title) in zip(axes.flat, cases, strict=True):
        path = np.arange(edges + 1) % count
        measured = {"a": path[:-1], "b": path[1:], "a_from_b": np.tile(poses[1], (edges, 1))}
        arrays = {"Pose2": poses, "between": {**measured, "sigma": [0.06, 0.12, 0.12]}}
        found = solver.covariance(arrays, {"Pose2": "all"}, fixed={"Pose2": [0]})["Pose2"]
        axis.plot(x[path], y[path], "o-", color=INK, linewidth=1, markersize=4)
        for place, covariance in zip(poses[1:, 2:], found[1:, 1:, 1:], strict=True):
            edge = place[:, None] + np.sqrt(5.991) * np.linalg.cholesky(covariance) @ round_trip
            axis.plot(*edge, color=BLUE)
        axis.plot([0], [0], "s", color=ORANGE, markersize=9)
        _say(axis, 0.7, -0.8, "held", ORANGE, ha="left", fontsize=10)
        axis.set(title=title, aspect="equal", **BARE)
    return drawn


Given = Annotated[sf.Scalar, caspar.ConstSequential]


@caspar.factor
def decay(curve: Annotated[sf.V2, caspar.TunableUnique], time: Given, value: Given) -> sf.V1:
    """A curve that falls, by amplitude and rate, against measured values."""
    return sf.V1(curve[0] * sf.exp(-curve[1] * time) - value)


def bounds() -> Figure:
    """Steps of a fit with a bound and without, on the contours of its cost."""
    drawn, ((axis,),) = _plots(3.4, 1, 1)
    times = np.linspace(0, 3, 12)
    values = 2 * np.exp(-1.3 * times)
    arrays: Any = {"Matrix21": [[0.6, 0.25]], "decay": {"time": times, "value": values}}
    solver = caspar.Solver([decay], **ON_CPU)
    amplitude, rate = np.meshgrid(np.linspace(0.3, 3.0, 41), np.linspace(0, 1.6, 41))
    curves = amplitude[..., None] * np.exp(-rate[..., None] * times)
    cost = ((curves - values) ** 2).sum(axis=-1) / 2
    axis.contour(amplitude, rate, cost, np.geomspace(0.01, 5, 7), colors=INK, linewidths=0.5)
    axis.axhspan(1.0, 1.6, color=RED, alpha=0.12, linewidth=0)
    axis.axhline(1.0, color=RED, linewidth=2)
    for most, color, style in ((None, GREEN, "o--"), (1.0, BLUE, "o-")):
        limits: Any = {"Matrix21": (None, [np.inf, most])} if most else {}
        ends = [solver.solve(arrays, bounds=limits, max_iterations=k) for k in range(1, 9)]
        steps = [[0.6, 0.25], *(end.values["Matrix21"][0] for end in ends)]
        axis.plot(*np.transpose(steps), style, color=color, linewidth=2, markersize=5)
        axis.plot(*steps[-1], "*", color=color, markersize=16)
    _say(axis, 0.68, 0.2, "start", ha="left")
    _say(axis, 2.15, 1.31, "without bounds", GREEN, ha="left")
    _say(axis, 1.72, 0.84, "with bounds", BLUE, ha="left")
    _say(axis, 0.35, 1.1, "not allowed", RED, ha="left")
    axis.set(xlabel="amplitude", ylabel="rate", xticks=[1, 2, 3], yticks=[0, 0.5, 1, 1.5])
    return drawn


def one_kernel() -> Figure:
    """Curves of a batch: data and fit, steps and status of each."""
    drawn, axis = _canvas(36.0)
    times, fine = np.linspace(0, 4, 14), np.linspace(0, 4, 30)
    true = np.array([[3.0, 0.5], [2.0, 2.0], [1.0, 1.0], [2.5, 0.2], [3.0, 1.2]])
    values = true[:, :1] * np.exp(-true[:, 1:] * times)
    values += np.random.default_rng(3).normal(0, 0.1, (5, 14))
    values[2, 5] = np.nan
    arrays = {"Matrix21": true[::-1], "decay": {"time": times[None], "value": values}}
    fits = caspar.BatchSolver(decay, **ON_CPU).solve(arrays, cost_tolerance=1e-5)
    for x, text in ((6.8, "data, fit"), (24.3, "one kernel"), (41.0, "end")):
        _say(axis, x, 34.5, text)
    _box(axis, (14.0, 1.0), (20.5, 32.0), BLUE, 0.08)
    for number, curve in enumerate(fits.values["Matrix21"]):
        good, steps = fits.is_success[number], fits.iterations[number]
        bottom = 27.2 - 6.3 * number
        _box(axis, (1.0, bottom), (11.5, 5.0), INK)
        axis.plot(1.5 + times * 2.6, bottom + 0.6 + values[number] * 1.15, ".", color=INK)
        if good:
            fit = curve[0] * np.exp(-curve[1] * fine)
            axis.plot(1.5 + fine * 2.6, bottom + 0.6 + fit * 1.15, color=GREEN, linewidth=2)
        _say(axis, 14.9, bottom + 3.6, f"thread {number}", BLUE, ha="left", fontsize=10)
        for step in range(steps):
            _dot(axis, (15.8 + 1.4 * step, bottom + 1.4), BLUE, "", 0.45)
        text = f"converged\n{steps} steps" if good else "not finite"
        _say(axis, 35.5, bottom + 2.4, text, GREEN if good else RED, ha="left", fontsize=10)
    return drawn


def interpolation() -> Figure:
    """A table of six samples, looked up in three ways, and the slopes of that."""
    drawn, ((value,), (slope,)) = _plots(4.4, 2, 1, sharex=True, height_ratios=(3, 2))
    samples = np.array([0.5, 2.0, 1.0, 1.2, 2.4, 0.8])
    places = np.linspace(-1.0, 6.0, 141) + 1e-9
    styles = {"linear": (ORANGE, ":"), "cubic": (GREEN, "--"), "bspline3": (BLUE, "-")}
    for method, (color, style) in styles.items():
        kind: Any = type("Samples", (caspar.Grid,), {}, dims=1, method=method)

        @caspar.kernel(backend="cpu")
        def look(
            place: Annotated[sf.Symbol, caspar.ReadSequential],
            table: Annotated[kind, caspar.ReadUnique],
        ) -> Annotated[sf.Symbol, caspar.WriteSequential]:
            return table.at(place)

        kept = kind.coefficients(samples) if method == "bspline3" else samples
        found, ahead = (np.asarray(look(x, kept)) for x in (places, places + 1e-6))
        slopes = (ahead - found) / 1e-6
        if method == "linear":
            slopes[1:][np.abs(np.diff(slopes)) > 1e-3] = np.nan
        for axis, curve in ((value, found), (slope, slopes)):
            axis.plot(places, curve, style, color=color, linewidth=2, label=method)
    value.plot(range(6), samples, "o", color=INK, markersize=7, label="samples")
    for axis, title in ((value, "value"), (slope, "slope")):
        for start in (-1, 5):
            axis.axvspan(start, start + 1, color=INK, alpha=0.12, linewidth=0)
        axis.set(ylabel=title, xlim=(-1, 6))
    slope.set(xlabel="coordinate; grey: outside the table", xticks=range(7))
    drawn.legend(handles=value.lines, loc="outside upper center", ncols=4, handlelength=1.5)
    return drawn


def window() -> Figure:
    """A window of poses: the oldest is marginalised, a Gaussian stays, a new pose comes."""
    drawn, axis = _canvas(43.0)
    for bottom, first, last, height, text in (
        (28.0, 0, 4, 14.0, "a full window"),
        (14.0, 1, 4, 10.8, "pose 0 and landmark m marginalised"),
        (0.5, 1, 5, 10.8, "a new pose"),
    ):
        places = {pose: (4.6 + 7.7 * pose, bottom + 2.6) for pose in range(first, last + 1)}
        _say(axis, 1.0, bottom + height, text, ha="left")
        width = 7.7 * (last - first) + 6.8
        _box(axis, (places[first][0] - 3.4, bottom), (width, 5.2), INK, 0.08)
        for pose in range(first, last):
            _tie(axis, places[pose], places[pose + 1], RED if pose == 0 else INK)
        if first == 0:
            above = (12.3, bottom + 10.0)
            for pose in range(3):
                _tie(axis, places[pose], above, RED)
            _dot(axis, above, RED, "m")
        else:
            ends = [places[1], (16.1, bottom + 7.8), places[2]]
            axis.plot(*np.transpose(ends), color=ORANGE, zorder=0)
            _box(axis, (15.0, bottom + 6.7), (2.2, 2.2), ORANGE, 1.0)
            _say(axis, 18.1, bottom + 7.6, "Gaussian", ORANGE, ha="left")
        for pose, place in places.items():
            _dot(axis, place, RED if pose == 0 else GREEN if pose == 5 else BLUE, f"{pose}")
    return drawn


def circle(place: Annotated[sf.V2, caspar.TunableShared]) -> sf.V1:
    """Zero on a circle of radius 2, positive outside."""
    return sf.V1(place.squared_norm() / 4 - 1)


def constraints() -> Figure:
    """Where a minimum goes that must be on a curve, or on one side of it."""
    drawn, axes = _plots(2.6, 1, 2, sharey=True)
    cases: Any = (("zero", 0.0, [[2.2, 2.2]]), ("positive", 0.15, [[1.1, 0.7], [2.6, 1.9]]))
    for axis, (kind, alpha, starts) in zip(axes.flat, cases, strict=True):
        index = np.arange(len(starts))
        prior = {"value": index, "expected": np.array(starts), "sigma": [1.0, 0.5]}
        arrays = {"Matrix21": np.array(starts), "prior": prior, "circle": {"place": index}}
        factors = [caspar.factors.prior(sf.V2), caspar.constraint(kind=kind)(circle)]
        ends = caspar.Solver(factors, **ON_CPU).solve(arrays).values["Matrix21"]
        axis.add_patch(shapes.Circle((0, 0), 2, edgecolor=RED, facecolor=(RED, alpha), lw=2))
        for start, end in zip(np.array(starts), ends, strict=True):
            reach = np.hypot(*((end - start) * [1, 2]))
            for size in (reach, 2 * reach) if reach > 0.01 else ():
                axis.add_patch(shapes.Ellipse(start, size, size / 2, fill=False, edgecolor=INK))
            axis.plot(*zip(start, end, strict=True), color=BLUE, linewidth=2)
            axis.plot(*end, "*", color=BLUE, markersize=15, label="with it")
            axis.plot(*start, "o", color=GREEN, markersize=6, label="without the constraint")
        axis.set(title=f'"{kind}"', aspect="equal", xlim=(-0.3, 3.8), ylim=(-0.3, 3.1), **BARE)
    drawn.legend(handles=axes[0, 0].lines[:0:-1], loc="outside upper center", ncols=2)
    return drawn


_FIRST = (factor_graph, frames, losses, elimination, ellipses, bounds)
_LAST = (one_kernel, interpolation, window, constraints)
PICTURES: dict[str, Callable[[], Figure]] = {one.__name__: one for one in (*_FIRST, *_LAST)}


def _plots(height_in: float, rows: int, columns: int, **how: Any) -> tuple[Figure, Any]:
    drawn = Figure(figsize=(WIDTH / 10, height_in), layout="constrained")
    return drawn, drawn.subplots(rows, columns, squeeze=False, **how)


def _canvas(height: float) -> tuple[Figure, Any]:
    """A picture without axes, in tenths of an inch."""
    drawn = Figure(figsize=(WIDTH / 10, height / 10))
    return drawn, drawn.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, height), **BARE)


def _say(axis: Any, x: Any, y: Any, text: str, color: str = INK, **how: Any) -> None:
    axis.text(x, y, text, **{"color": color, "ha": "center", "va": "center"} | how)


def _box(axis: Any, corner: Any, size: Any, color: str, alpha: float = 0.15) -> None:
    how: dict[str, Any] = {"facecolor": (color, alpha), "edgecolor": color, "linewidth": 0.8}
    axis.add_patch(shapes.Rectangle(corner, *size, **how))


def _dot(axis: Any, place: Any, color: str, text: str, radius: float = 2.0) -> None:
    axis.add_patch(shapes.Circle(place, radius, color=color, linewidth=0))
    _say(axis, place[0], place[1], text, "white")


def _tie(axis: Any, start: Any, end: Any, color: str, half: float = 0.6) -> None:
    """A factor between two nodes: a line with a square in its middle."""
    axis.plot(*zip(start, end, strict=True), color=color, linewidth=1.5, zorder=0)
    x, y = np.mean([start, end], axis=0)
    _box(axis, (x - half, y - half), (2 * half, 2 * half), color, 1.0)


def _arrow(axis: Any, start: Any, end: Any, color: str, width: float = 1.5) -> None:
    style = {"arrowstyle": "->", "color": color, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", tuple(end), tuple(start), arrowprops=style)


if __name__ == "__main__":
    main()
