"""The driver: every tile once, whoever runs it; several callers; forks; how many threads."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.memory.array import Binding
from caspar.runtime.cpu import driver
from caspar.runtime.cpu.backend import CpuBackend
from tests.runtime.cpu.test_cpu import affine, sources_of

ROOT = Path(__file__).parents[3]


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> None:
    """More threads than the machine has cores, so that they get in each other's way."""
    monkeypatch.setattr(driver, "num_threads", lambda: 5)
    monkeypatch.setattr(driver, "_TEAMS", driver._Teams())


def count_up(num_items: int, num_launches: int, num_runs: int) -> NDArray[Any]:
    """x = x + 1 for each item, in each launch of each run; no item comes to 8, where it ends."""
    backend = CpuBackend()
    (kernel,) = backend.load(sources_of(affine("count_up", 1.0, 1.0))).values()
    x, flag = np.full(num_items, -1e9), np.zeros(1)
    bindings = {"x": Binding(x, num_items), "flag": Binding(flag, 1)}
    launch = backend.bind(kernel, bindings, num_items)
    backend.sequence([launch] * num_launches).run_until(flag, num_runs)
    return x + 1e9


@pytest.mark.parametrize("num_items", [1, 1024, 1025, 5000, 300_000])
def test_every_tile_runs_once_in_every_launch(team: None, num_items: int) -> None:
    assert_array_equal(count_up(num_items, 7, 11), 77.0)


def test_many_short_launches(team: None) -> None:
    assert_array_equal(count_up(2049, 10, 2000), 20_000.0)


def test_several_callers(team: None) -> None:
    with ThreadPoolExecutor(8) as pool:
        counts = [pool.submit(count_up, 5000 + number, 5, 200) for number in range(24)]
    for count in counts:
        assert_array_equal(count.result(60.0), 1000.0)


def test_the_flag_ends_it(team: None) -> None:
    backend = CpuBackend()
    (kernel,) = backend.load(sources_of(affine("until", 1.0, 1.0))).values()
    x, flag = np.zeros(4000), np.zeros(1)
    bindings = {"x": Binding(x, len(x)), "flag": Binding(flag, 1)}
    backend.sequence([backend.bind(kernel, bindings, len(x))]).run_until(flag, 100)
    assert (x >= 8.0).any()
    assert (x <= 9.0).all()


FORK = """
import multiprocessing
import os
import signal
import numpy as np
from tests.runtime.cpu.test_driver import count_up

def work(queue):
    signal.alarm(60)
    queue.put(float(count_up(100_000, 3, 3).sum()))

assert count_up(100_000, 3, 3).sum() == 900_000
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
workers = [context.Process(target=work, args=(queue,)) for _ in range(3)]
for worker in workers:
    worker.start()
found = [queue.get() for _ in workers]
for worker in workers:
    worker.join(60)
    assert worker.exitcode == 0, worker.exitcode
assert found == [900_000.0] * 3
assert count_up(100_000, 3, 3).sum() == 900_000
"""


def test_forks_have_their_own_team() -> None:
    environment = {**os.environ, driver.THREADS_VARIABLE: "3"}
    command = [sys.executable, "-c", FORK]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=120)


THREADS = """
from caspar.runtime.cpu.backend import CpuBackend
print(CpuBackend().num_multiprocessors)
"""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, len(os.sched_getaffinity(0))),
        ({"CASPAR_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "4"}, 4),
        ({"CASPAR_NUM_THREADS": "3", "OMP_NUM_THREADS": "4"}, 3),
        ({"CASPAR_NUM_THREADS": "0"}, len(os.sched_getaffinity(0))),
        ({"OMP_NUM_THREADS": "4,2"}, 4),
    ],
)
def test_number_of_threads(environment: dict[str, str], expected: int) -> None:
    others = {
        name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")
    }
    done = subprocess.run(
        [sys.executable, "-c", THREADS],
        cwd=ROOT,
        env={**others, **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert int(done.stdout) == expected
