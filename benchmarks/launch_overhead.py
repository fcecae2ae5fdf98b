"""What a call of a small kernel costs the host: `python -m benchmarks.launch_overhead`.

Microseconds of wall clock for each call, the median of batches short enough that the device's
queue never fills. Writes `launch_overhead.json` and `.md`; seconds, on a GPU.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import cupy
import numpy as np
import symforce.symbolic as sf

import caspar
from benchmarks.report import environment

NUM_BATCHES = 60
CALLS_A_BATCH = 200
NUM_ITEMS = 1000


@caspar.kernel
def moved(
    pose: Annotated[sf.Pose3, caspar.ReadIndexed],
    offset: Annotated[sf.V3, caspar.ReadUnique],
    point: Annotated[sf.V3, caspar.ReadSequential],
) -> Annotated[sf.V3, caspar.WriteSequential]:
    """A point seen from a pose."""
    return pose.inverse() * point + offset


@caspar.kernel
def centroid(point: Annotated[sf.V3, caspar.ReadSequential]) -> Annotated[sf.V3, caspar.WriteSum]:
    """The sum of points: two launches."""
    return point


@dataclass(frozen=True)
class Overhead:
    """One way to call.

    Attributes:
        call: What is called.
        time_us: Microseconds of the host for each call.
    """

    call: str
    time_us: float


def host_us(call: Callable[[], Any]) -> float:
    """Median microseconds of the host for a call."""
    for _ in range(50):
        call()
    batches = []
    for _ in range(NUM_BATCHES):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        for _ in range(CALLS_A_BATCH):
            call()
        batches.append((time.perf_counter() - start) / CALLS_A_BATCH)
    return float(np.median(batches)) * 1e6


def measure() -> Iterator[Overhead]:
    """All ways to call."""
    rng = np.random.default_rng(0)
    poses = cupy.asarray(rng.normal(size=(100, 7)), dtype=cupy.float32)
    points = cupy.asarray(rng.normal(size=(NUM_ITEMS, 3)), dtype=cupy.float32)
    offset = cupy.zeros((1, 3), dtype=cupy.float32)
    index = cupy.asarray(rng.integers(0, 100, NUM_ITEMS), dtype=cupy.int32)
    pose, point, one = map(caspar.BlockedArray.from_rows, (poses, points, offset))
    out = caspar.BlockedArray.zeros(NUM_ITEMS, 3, backend="cuda")
    shared = caspar.SharedIndices(index, 100)
    bound = moved.bind({"values": pose, "index": index}, one, point, out=out)
    yield Overhead("bound kernel", host_us(bound))
    summed = centroid.bind(point)
    yield Overhead("bound kernel that needs two launches", host_us(summed))

    def fresh(pose: Any, offset: Any, point: Any, index: Any, **options: Any) -> Any:
        return lambda: moved(
            pose={"values": pose, "index": index}, offset=offset, point=point, **options
        )

    blocked = (pose, one, point)
    rows = (poses, offset, points)
    yield Overhead("fresh call, blocked", host_us(fresh(*blocked, index, check=False)))
    yield Overhead("fresh call, blocked, index checked", host_us(fresh(*blocked, index)))
    yield Overhead("fresh call, blocked, index prepared", host_us(fresh(*blocked, shared)))
    yield Overhead(
        "fresh call, blocked, output given",
        host_us(fresh(*blocked, index, check=False, out=out)),
    )
    yield Overhead("fresh call, CuPy rows", host_us(fresh(*rows, index, check=False)))
    try:
        import torch
    except ImportError:
        return
    tensors = [torch.as_tensor(array, device="cuda") for array in (*rows, index)]
    yield Overhead("fresh call, torch rows", host_us(fresh(*tensors, check=False)))


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out"), help="for the tables")
    folder: Path = parser.parse_args().folder
    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    found, machine = list(measure()), environment(name)
    folder.mkdir(parents=True, exist_ok=True)
    plain = {"environment": machine, "overheads": [asdict(one) for one in found]}
    (folder / "launch_overhead.json").write_text(json.dumps(plain, indent=1) + "\n")
    lines = ["# What a call costs the host", ""]
    lines += [f"* {key}: {value}" for key, value in machine.items()]
    lines += ["", f"A kernel of three arguments over {NUM_ITEMS:,} items.", ""]
    lines += ["| call | us |", "|---|---:|"]
    lines += [f"| {one.call} | {one.time_us:.1f} |" for one in found]
    text = "\n".join(lines) + "\n"
    (folder / "launch_overhead.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
