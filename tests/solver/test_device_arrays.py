"""A solve asks of arrays on the device only what no library has to compile a kernel for.

CuPy compiles one for each operation and pair of types, one after the other: the first solve of a
machine would wait for them. Here arrays of the host stand for those of a device, and say what is
asked of them.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from caspar.bundle_adjustment import snavely
from caspar.options import PrecisionName
from caspar.runtime.cpu.backend import CpuBackend

PACKAGE = str(Path(caspar.__file__).parent)
SOLVER = str(Path(caspar.__file__).parent / "solver")
asked: list[str] = []


def note(what: str) -> None:
    """Remember an operation that a module of the solver, and not the backend, asks for."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    if frame is not None and frame.f_code.co_filename.startswith(SOLVER):
        asked.append(f"{what}: {frame.f_code.co_filename}:{frame.f_lineno}")


def plain(value: Any) -> Any:
    """An array of the host, or several, for NumPy."""
    if isinstance(value, tuple | list):
        return type(value)(plain(one) for one in value)
    return value.view(np.ndarray) if isinstance(value, DeviceArray) else value


def on_device(value: Any) -> Any:
    return np.asarray(value).view(DeviceArray)


class DeviceArray(np.ndarray[Any, Any]):
    """An array that notes what is computed with it; views and memory cost nothing."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        note(f"{ufunc.__name__}.{method}")
        options = {name: plain(value) for name, value in options.items()}
        return on_device(getattr(ufunc, method)(*plain(inputs), **options))

    def __array_function__(self, function: Any, kinds: Any, inputs: Any, options: Any) -> Any:
        note(function.__name__)
        options = {name: plain(value) for name, value in options.items()}
        return on_device(function(*plain(inputs), **options))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, np.ndarray):
            note("gather")
        found = np.ndarray.__getitem__(plain(self), plain(key))
        return found.view(DeviceArray) if isinstance(found, np.ndarray) else found

    def __setitem__(self, key: Any, value: Any) -> None:
        note("fill or scatter")
        plain(self)[plain(key)] = plain(value)

    def astype(self, *args: Any, **options: Any) -> Any:
        note("astype")
        return on_device(plain(self).astype(*args, **options))


class Library:
    """Stands for CuPy: NumPy, which notes all but allocations."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if isinstance(found, type) or not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            if name not in ("empty", "zeros", "asarray"):
                note(name)
            return on_device(found(*plain(args), **options))

        return call


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The processor as a device of its own memory; what is asked of its arrays."""
    allocate, library = CpuBackend.allocate, Library()

    def write(backend: Any, target: Any, host: Any) -> None:
        plain(target)[...] = host if isinstance(host, np.ndarray) else host.on_host()

    def copy(backend: Any, target: Any, source: Any) -> None:
        plain(target)[...] = plain(source)

    def take_rows(backend: Any, target: Any, rows: Any, order: Any) -> None:
        np.take(plain(rows), plain(order), axis=0, out=plain(target))

    def clear(backend: Any, array: Any) -> None:
        plain(array)[...] = 0

    def to_host(backend: Any, array: Any) -> NDArray[Any]:
        return np.array(plain(array))

    monkeypatch.setattr(CpuBackend, "xp", property(lambda backend: library))
    monkeypatch.setattr(CpuBackend, "allocate", lambda *args: on_device(allocate(*args)))
    monkeypatch.setattr(CpuBackend, "upload", lambda backend, array: on_device(np.array(array)))
    for function in (write, copy, take_rows, clear, to_host):
        monkeypatch.setattr(CpuBackend, function.__name__, function)
    asked.clear()
    yield asked
    asked.clear()


def test_the_device_notes_what_is_asked(device: list[str]) -> None:
    """Otherwise the tests below could not fail."""
    array = CpuBackend().allocate(8).view(np.float64)
    code = "def look(array):\n  array[...] = 2.0\n  return abs(array).max() + array.astype('f4')\n"
    names: dict[str, Any] = {}
    exec(compile(code, f"{SOLVER}/look.py", "exec"), names)
    assert float(names["look"](array)[0]) == 4.0
    assert [one.split(":")[0] for one in device] == [
        *("fill or scatter", "absolute.__call__", "maximum.reduce", "astype", "add.__call__")
    ]


@pytest.mark.parametrize("precision", ["mixed", "float64"])
def test_bundle_adjustment(device: list[str], precision: PrecisionName) -> None:
    bal = caspar.io.read_bal(Path(__file__).parents[2] / "data/problem-21-11315-pre.txt.bz2")
    arrays = {
        "Cam": bal.cameras,
        "Point": bal.points,
        "snavely": {"cam": bal.camera_index, "point": bal.point_index, "pixel": bal.pixels},
    }
    result = caspar.Solver(snavely, backend="cpu", precision=precision).solve(arrays)
    assert result.status.is_success
    assert device == []


def test_pose_graph(device: list[str]) -> None:
    """Whether anything holds the graph is asked at the end; here nothing does."""
    angle = np.linspace(0.0, 2.0, 40)
    poses = np.stack([np.cos(angle), np.sin(angle), angle, angle**2], axis=1)
    moved = poses + np.random.default_rng(0).normal(size=poses.shape) * [0.0, 0.0, 0.1, 0.1]
    motions = np.tile([1.0, 0.0, 0.05, 0.0], (39, 1))
    arrays = {
        "Pose2": moved,
        "between": {"a": np.arange(39), "b": np.arange(1, 40), "a_from_b": motions},
    }
    factor = caspar.factors.between(sf.Pose2, noise="unit")
    result = caspar.Solver(factor, backend="cpu", precision="float64").solve(arrays)
    assert any("can be moved together" in remark for remark in result.remarks)
    assert device == []


class Curve(sf.V2):
    """Amplitude and rate."""


@caspar.factor
def decay(
    curve: Annotated[Curve, caspar.TunableUnique],
    time: Annotated[sf.V1, caspar.ConstSequential],
    seen: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1(curve[0] * sf.exp(curve[1] * time[0]) - seen[0])


def test_exact_data(device: list[str]) -> None:
    """At a cost of zero values are moved by a rounding each, to see what that changes."""
    time = np.linspace(0.0, 1.0, 50)[:, None]
    arrays = {"Curve": [[1.0, 0.0]], "decay": {"time": time, "seen": 2.0 * np.exp(-1.3 * time)}}
    result = caspar.Solver(decay, backend="cpu").solve(arrays)
    assert result.status.is_success
    assert device == []
