"""What every test shares: Hypothesis profiles, golden files, the budget, results of NVRTC."""

import os

# Before NumPy is imported. Threads of BLAS wait for each other in loops: beside another worker of
# pytest-xdist a small problem of least squares takes a hundred times as long as on one thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gc
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from caspar.runtime.nvidia import nvrtc
from caspar.solver.lm import interrupts
from tests.budget import MARGIN, Budget
from tests.cards import free_pools, spread_workers
from tests.kept_nvrtc import kept

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"

# The default finds the same examples on every machine and in every run; deadlines measure how busy
# the machine is. `--hypothesis-profile=search` looks for new examples.
settings.register_profile("caspar", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile("caspar")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag that rewrites golden files."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what the tests produce to tests/golden instead of comparing with it",
    )
    parser.addoption(
        "--budget",
        action="store_true",
        help="fail if a test takes more processor time than tests/budget.py allows, without margin",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Measure the tests; compile nothing that an earlier run has compiled."""
    gc.disable()
    config.pluginmanager.register(Budget(margin=1.0 if config.getoption("budget") else MARGIN))
    if config.getoption("markexpr") == "gpu":
        spread_workers()
    patch = pytest.MonkeyPatch()
    patch.setattr(nvrtc, "compile_text", kept(nvrtc.compile_text))
    # Hypothesis also draws numbers that stand in the modules loaded so far. Which these are depends
    # on the tests that the worker ran before.
    no_constants = getattr(providers, "_local_constants", None)
    patch.setattr(providers, "_get_local_constants", lambda: no_constants, raising=False)
    config.add_cleanup(patch.undo)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a device where only the long forms were asked for."""
    if "gpu" in config.getoption("markexpr"):
        return
    left_out = [item for item in items if item.get_closest_marker("gpu") is not None]
    items[:] = [item for item in items if item.get_closest_marker("gpu") is None]
    config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what lives until the end."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def golden_path(node: pytest.Item, suffix: str) -> Path:
    """Return tests/golden/<test module>/<test name>.<suffix>, the module with its folders."""
    module = node.path.relative_to(TESTS).with_suffix("")
    _, _, name = node.nodeid.partition("::")
    return GOLDEN / module / f"{re.sub(r'[^A-Za-z0-9_.=+-]+', '-', name).strip('-')}.{suffix}"


@pytest.fixture(autouse=True)
def _first_interrupt() -> None:
    """An interrupt of the test before does not make one of this test the second."""
    interrupts.forget()


@pytest.fixture(autouse=True)
def _no_exception_is_left() -> Iterator[None]:
    """A test leaves the interpreter without a current exception, the context of all later ones."""
    yield
    assert sys.exc_info() == (None, None, None)


@pytest.fixture(autouse=True, scope="module")
def _free_pools() -> Iterator[None]:
    yield
    free_pools()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """A function `golden(text, suffix)`: the text equals the golden file of this test.

    With several texts in one test, each takes another suffix (`"ir.txt"`, `"cu"`).
    """
    update = bool(request.config.getoption("--update-golden"))
    used: set[Path] = set()

    def check(text: str, suffix: str) -> None:
        path = golden_path(request.node, suffix)
        assert path not in used, f"two texts of this test with the suffix {suffix!r}"
        used.add(path)
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            return
        assert path.is_file(), f"no {path.relative_to(TESTS.parent)}: run with --update-golden"
        assert text == path.read_text(encoding="utf-8"), (
            f"differs from {path.relative_to(TESTS.parent)}: if that is meant, run with "
            "--update-golden and read the difference in git"
        )

    return check
