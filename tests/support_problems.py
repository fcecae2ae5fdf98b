"""Three small problems whose kernels are run, compiled and compared, and inputs for each kernel.

`bundle_adjustment` is the ready-made one; `pose_graph` has three factors over three node types and
uses every kind of argument but one: pairs, shared and unique nodes, sequential, indexed and unique
constants. `robust` is the first one with a loss and weights, and priors on cameras: one with
weights alone, one of a single row with another loss.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from caspar.bundle_adjustment import Cam, snavely
from caspar.codegen.targets import TARGETS
from caspar.equations.factor_builder import SharedSums
from caspar.equations.solver_form import (
    SolverForm,
    eliminable_types,
    solver_form,
    usual_form,
)
from caspar.equations.solver_kernels import kernel_specs
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.jacobian import JacobianStorage
from caspar.frontend.factors.terms import with_loss, with_terms
from caspar.frontend.factors.trace import NodeType, TracedFactor, trace
from caspar.frontend.precision import TYPES
from caspar.memory.access import ArgSpec
from caspar.memory.accessors.nodes.exchanges import ReadForNode, SpreadOverNode, SumOverNode
from caspar.memory.accessors.nodes.node_sums import AddOwnNode, WriteOwnNode
from caspar.memory.accessors.sums.partials import MIN_SLOTS, AddSumSlots
from caspar.memory.accessors.sums.runs import AddRuns
from caspar.memory.kernel import KernelSpec
from caspar.memory.patterns import (
    AddSharedPartials,
    ReadIndexed,
    ReadPartials,
    ReadUnique,
    WriteUnique,
)
from caspar.options import Precision
from tests.covering import usual
from tests.support_cases import SPARE, KernelCase, has_slots

Array = NDArray[np.float64]


class Pose(sf.Pose3):
    """A vehicle's pose."""


class Landmark(sf.V3):
    """A point in the world."""


class Offset(sf.V3):
    """Where the sensor sits on the vehicle."""


@caspar.factor
def odometry(
    pair: Annotated[caspar.Pair[Pose], caspar.TunablePair],
    measured: Annotated[sf.Pose3, caspar.ConstSequential],
    weight: Annotated[sf.V2, caspar.ConstUnique],
) -> sf.V6:
    """Relative motion of neighbours; weights of rotation and translation."""
    first, second = pair
    error = measured.local_coordinates(first.inverse() * second)
    return sf.V6([weight[0 if row < 3 else 1] * error[row] for row in range(6)])


@caspar.factor
def prior(
    pose: Annotated[Pose, caspar.TunableShared],
    expected: Annotated[sf.Pose3, caspar.ConstIndexed],
) -> sf.V6:
    """A pose known beforehand."""
    return sf.V6(expected.local_coordinates(pose))


@caspar.factor
def sighting(
    pose: Annotated[Pose, caspar.TunableShared],
    landmark: Annotated[Landmark, caspar.TunableShared],
    offset: Annotated[Offset, caspar.TunableUnique],
    measured: Annotated[sf.V3, caspar.ConstSequential],
) -> sf.V3:
    """A landmark in the frame of the sensor."""
    return pose.inverse() * landmark - offset - measured


@caspar.factor
def known_camera(
    cam: Annotated[Cam, caspar.TunableShared],
    expected: Annotated[sf.V3, caspar.ConstSequential],
) -> sf.V3:
    """All of a camera, in three rows."""
    return cam.cam_T_world * sf.V3(1, 2, 3) + cam.calibration - expected


@caspar.factor(loss=caspar.loss.Huber)
def mixture(
    cam: Annotated[Cam, caspar.TunableShared],
    expected: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    """All of a camera, in one row."""
    return sf.V1((cam.cam_T_world * sf.V3(1, 2, 3)).dot(cam.calibration) - expected[0])


class Way(Enum):
    """How a problem's kernels are made.

    FULL: nothing is eliminated. CPU, CUDA: as a solver makes them where nothing is chosen.
    GATHERED: as if two factors touched each eliminated type.
    """

    FULL = "full"
    CPU = "cpu"
    CUDA = "cuda"
    GATHERED = "gathered"


@dataclass(frozen=True)
class Problem:
    """Traced factors and their node types."""

    name: str
    factors: tuple[TracedFactor, ...]
    nodes: tuple[NodeType, ...]

    def form(self, way: Way) -> SolverForm:
        """How the kernels are made."""
        if way in (Way.CPU, Way.CUDA):
            return usual_form(self.factors, self.nodes, TARGETS[way.value].dialect)
        eliminated = () if way is Way.FULL else eliminable_types(self.factors, self.nodes)
        stored = JacobianStorage.STORED
        form = solver_form(self.factors, eliminated, SharedSums.ORDERED, stored)
        forms = {name: replace(one, is_fused=False) for name, one in form.factors.items()}
        return replace(form, factors=forms)

    def specs(self, precision: Precision, way: Way = Way.CUDA) -> list[KernelSpec]:
        """Every kernel of its solver."""
        return kernel_specs(self.factors, self.nodes, TYPES[precision], self.form(way))[0]


def problem_of(name: str, factors: Sequence[Factor]) -> Problem:
    """Of factors, with their node types."""
    traced = tuple(trace(factor) for factor in factors)
    nodes = {
        argument.node.name: argument.node
        for factor in traced
        for argument in factor.nodes
        if argument.node is not None
    }
    return Problem(name, traced, tuple(nodes.values()))


@cache
def bundle_adjustment() -> Problem:
    """Cameras and points."""
    return problem_of("bundle_adjustment", [snavely])


@cache
def pose_graph() -> Problem:
    """Poses, landmarks and a sensor's offset."""
    return problem_of("pose_graph", [odometry, prior, sighting])


@cache
def robust() -> Problem:
    """Cameras and points, with a loss and weights."""
    by_instance = {"snavely": ("weight",), "known_camera": ("weight",), "mixture": ("loss_scale",)}
    factors = [snavely.with_loss(caspar.loss.Cauchy), known_camera, mixture]
    plain = problem_of("robust", factors)
    traced = tuple(
        with_terms(with_loss(factor, one), by_instance[one.name])
        for factor, one in zip(factors, plain.factors, strict=True)
    )
    return replace(plain, factors=traced)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "robust": robust,
    "pose_graph": pose_graph,
    "bundle_adjustment": bundle_adjustment,
}

MOST_UNLIKE = (
    ("robust", Way.FULL),
    ("pose_graph", Way.CPU),
    ("robust", Way.CUDA),
    ("pose_graph", Way.CUDA),
    ("pose_graph", Way.GATHERED),
)
"""Problems and ways of which each has accessors, kinds of kernels or node types that the others
have not."""


def most_unlike(*axes: Iterable[Any]) -> list[Any]:
    """Rows of a problem, a way and values of further axes.

    The default run takes those of `MOST_UNLIKE`, with values of each axis in turn;
    `-m reliability` takes the others.
    """
    values = [list(axis) for axis in axes]
    rows = [
        (*one, *(axis[number % len(axis)] for axis in values))
        for number, one in enumerate(MOST_UNLIKE)
    ]
    return usual(rows, PROBLEMS, Way, *values)


@cache
def distinct_specs(precision: Precision) -> dict[tuple[str, Way], list[KernelSpec]]:
    """The kernels of each problem and way that differ from all before in more than their name."""
    seen: set[KernelSpec] = set()
    found: dict[tuple[str, Way], list[KernelSpec]] = {}
    for name, problem in PROBLEMS.items():
        for way in Way:
            own = found.setdefault((name, way), [])
            for spec in problem().specs(precision, way):
                nameless = replace(spec, name="")
                if nameless not in seen:
                    seen.add(nameless)
                    own.append(spec)
    return found


# -- inputs ----------------------------------------------------------------------------------------

Sampler = Callable[[np.random.Generator, int], Array]


def poses(rng: np.random.Generator, count: int) -> Array:
    """Unit quaternion and translation."""
    rotation = rng.normal(size=(count, 4))
    rotation /= np.linalg.norm(rotation, axis=1, keepdims=True)
    return np.concatenate([rotation, rng.normal(size=(count, 3))], axis=1)


def cameras(rng: np.random.Generator, count: int) -> Array:
    """Poses that keep every point within a unit cube 4 to 6 in front; f, k1, k2 as in BAL."""
    values = np.concatenate([poses(rng, count), np.empty((count, 3))], axis=1)
    values[:, 6] -= 8.0
    values[:, 7:] = rng.uniform([300.0, -0.1, -0.01], [900.0, 0.1, 0.01], (count, 3))
    return values


def points(rng: np.random.Generator, count: int) -> Array:
    """Points within a unit cube."""
    return rng.uniform(-0.5, 0.5, (count, 3))


def blocks(dim: int) -> Sampler:
    """Lower triangles of positive definite matrices, as J^T J of a few factors gives them."""

    def sample(rng: np.random.Generator, count: int) -> Array:
        jacobian = rng.normal(size=(count, 2 * dim, dim)) * 10.0 ** rng.uniform(-1, 1, dim)
        square = np.einsum("nki,nkj->nij", jacobian, jacobian)
        rows, columns = np.tril_indices(dim)
        triangle: Array = square[:, rows, columns]
        return triangle

    return sample


def normals(dim: int) -> Sampler:
    """Normal numbers."""
    return lambda rng, count: rng.normal(size=(count, dim))


def positives(dim: int) -> Sampler:
    """Positive numbers."""
    return lambda rng, count: rng.uniform(0.1, 2.0, (count, dim))


def zeros(_: np.random.Generator, count: int) -> Array:
    """A flag that is not set."""
    return np.zeros((count, 1))


_VALUES: dict[tuple[str, str], Sampler] = {
    ("snavely", "cam__value"): cameras,
    ("snavely", "point__value"): points,
    ("odometry", "pair__first__value"): poses,
    ("odometry", "pair__second__value"): poses,
    ("odometry", "measured__value"): poses,
    ("known_camera", "cam__value"): cameras,
    ("mixture", "cam__value"): cameras,
    ("prior", "pose__value"): poses,
    ("prior", "expected__value"): poses,
    ("sighting", "pose__value"): poses,
    ("Cam", "nodes"): cameras,
    ("Pose", "nodes"): poses,
}
_POSITIVE = (
    *("damping", "diagonal", "descents", "descent", "first_descent", "curvatures", "costs"),
    *("weight__value", "loss_scale__value"),
)


def sampler(kernel: str, arg: ArgSpec) -> Sampler:
    """What to feed to an argument of a kernel."""
    owner = kernel.split("__", 1)[0]
    # rounded copies are of the same
    name = arg.name.replace("__rounded", "__value")
    if (owner, name) in _VALUES:
        return _VALUES[owner, name]
    if arg.name == "done":
        return zeros
    if arg.name in ("block", "reduced_block") and arg.read is not None:
        dim = int((2 * arg.dim) ** 0.5)
        return blocks(dim)
    return (positives if name in _POSITIVE else normals)(arg.dim)


def case_for(
    spec: KernelSpec, count: int, num_objects: int, seed: int = 0, copies: int = 1
) -> KernelCase:
    """Random inputs for any kernel of a solver."""
    rng = np.random.default_rng(seed)
    rows: dict[str, Any] = {}
    is_single = all(arg.write in (None, WriteUnique()) for arg in spec.args)
    items = 1 if is_single else count
    for arg in spec.args:
        length = _num_rows(arg, items, count, num_objects)
        if length > 0:
            storage = np.dtype(arg.dtype.value)
            num_spare = 0 if isinstance(arg.read, ReadPartials) else SPARE
            spare = np.full((num_spare, arg.dim), np.nan, storage)
            parts: list[Any] = []
            for _ in range(copies if has_slots(arg) else 1):
                parts += [sampler(spec.name, arg)(rng, length).astype(storage), spare]
            rows[arg.name] = np.concatenate(parts)
    # all that a factor's argument has goes by one index
    drawn = {
        owner: rng.integers(0, num_objects, items).astype(np.int32)
        for owner in sorted({_owner(arg) for arg in spec.args})
    }
    index = {arg.name: drawn[_owner(arg)] for arg in spec.args if _has_index(arg)}
    own = [arg for arg in spec.args if isinstance(arg.write, AddOwnNode | WriteOwnNode)]
    sums = [arg for arg in spec.args if isinstance(arg.read, SumOverNode)]
    if not spec.tiled:
        return KernelCase(spec, items, rows, index, num_objects, copies=copies)
    owner = [_owner(arg) for arg in (*own, *sums)]
    owner = owner if len(owner) > 0 else [sorted(drawn)[-1]]
    partners = [name for name in drawn if name != owner[0]]
    partner = drawn[partners[0]] if len(partners) > 0 else None
    return KernelCase(spec, items, rows, index, num_objects, drawn[owner[0]], partner, copies)


def _owner(arg: ArgSpec) -> str:
    """The factor's argument that a kernel's belongs to: `pose` of `pose__gradient`."""
    return arg.name.rpartition("__")[0] or arg.name


def _has_index(arg: ArgSpec) -> bool:
    indexed = (ReadIndexed, ReadForNode, AddSharedPartials, AddRuns, AddOwnNode, WriteOwnNode)
    return any(isinstance(one, indexed) and one.index_of == "" for one in arg.accessors)


def _num_rows(arg: ArgSpec, items: int, count: int, num_objects: int) -> int:
    """Rows of values that an argument starts with; 0 where it is only written."""
    if isinstance(arg.write, AddOwnNode | AddRuns) or isinstance(
        arg.read, ReadIndexed | ReadForNode
    ):
        return num_objects
    if isinstance(arg.write, AddSumSlots):
        return MIN_SLOTS
    if isinstance(arg.read, ReadPartials):
        return count + MIN_SLOTS
    if arg.read is None or isinstance(arg.read, SumOverNode | SpreadOverNode):
        return 0
    return 1 if isinstance(arg.read, ReadUnique) else items
