"""The budget of a test: `LIMIT_S` of processor time, of its process and the children it waited for.

A test of the default run that takes more is listed at the end, unless `HEAVY` names it. One that
takes `MARGIN` times as much fails the run; with `--budget` all of them do. Processors differ, and
busy ones are slower: only a test above the limit is judged, in seconds of the machine on which
`_REFERENCE_S` was measured, by a small piece of work that is timed right behind it. What a test
compiles for all later ones is not its own: see `shared_work`.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager

import pytest

LIMIT_S = 5.0

NUM_SHOWN = 10

MARGIN = 2.0
"""Times the limit from which on a test fails the run: other work on a machine makes the same test
take half as long again."""

_EXAMPLES = "it runs whole programs as users do, once"

HEAVY: dict[str, str] = {
    "tests/benchmarks/test_command.py::test_a_pose_graph_and_growth_on_a_processor": _EXAMPLES,
    "tests/codegen/test_determinism.py::test_hash_seed_and_history_do_not_matter": (
        "two interpreters compile many kernels"
    ),
    "tests/factors/test_examples.py::test_walking_robot": _EXAMPLES,
    "tests/platforms/test_processors.py::test_few_problems_end_alike": (
        "an interpreter for each kind of processor"
    ),
    "tests/reliability/test_interrupts.py::test_everything_works_after_random_interrupts": (
        "a new interpreter after each interrupt"
    ),
    "tests/solver/test_examples.py::TestSplineLens::test_reaches_the_optimum_of_scipy": (
        "its kernels have 17 nodes an instance"
    ),
    "tests/test_guide.py::test_code_runs": _EXAMPLES,
    "tests/test_guide.py::test_inspect_prints_what_it_says": _EXAMPLES,
}
"""By test function: why it may take longer."""

_REFERENCE_S = 0.02
"""What `_work` takes on one core of a processor of 2023 that does nothing else."""

_PROPERTY = "cpu_s"


def _cpu_s() -> float:
    """Processor time of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


def _work() -> float:
    start = time.process_time()
    kept: dict[int, int] = {}
    for number in range(200_000):
        kept[number & 1023] = number * number % 7
    return time.process_time() - start


def slowness() -> float:
    """How many times as long as on the reference this process takes now, at least 1."""
    return max(1.0, min(_work() for _ in range(5)) / _REFERENCE_S)


_shared_s = 0.0


@contextmanager
def shared_work() -> Iterator[None]:
    """What is done here counts for no test."""
    global _shared_s
    start = _cpu_s()
    try:
        yield
    finally:
        _shared_s += _cpu_s() - start


class Budget:
    """A plugin of pytest: measures tests where they run, and judges them where reports arrive.

    Args:
        limit_s: Processor time of a test.
        heavy: By test function that may take longer: why.
        slowness: See `slowness`.
        margin: Times the limit from which on a test fails the run.
    """

    def __init__(
        self,
        limit_s: float = LIMIT_S,
        heavy: Mapping[str, str] = HEAVY,
        slowness: Callable[[], float] = slowness,
        margin: float = MARGIN,
    ) -> None:
        self._margin = margin
        self._limit_s, self._heavy, self._slowness = limit_s, heavy, slowness
        self._by_function: defaultdict[str, float] = defaultdict(float)
        self._too_long: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure a test without its fixtures, which others share."""
        start = _cpu_s() - _shared_s
        try:
            return (yield)
        finally:
            taken = _cpu_s() - _shared_s - start
            if taken > self._limit_s:
                taken /= self._slowness()
            item.user_properties.append((_PROPERTY, taken))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up what the parameters of a function take; note what takes too long."""
        if report.when != "call":
            return
        function = report.nodeid.partition("[")[0]
        for name, taken in report.user_properties:
            if name == _PROPERTY and isinstance(taken, float):
                self._by_function[function] += taken
                is_default = "reliability" not in report.keywords and "gpu" not in report.keywords
                if taken > self._limit_s and is_default and function not in self._heavy:
                    self._too_long[report.nodeid] = taken

    def pytest_terminal_summary(self, terminalreporter: "pytest.TerminalReporter") -> None:
        """Print the slowest test functions, and tests above the budget."""
        taken_by = sorted(self._by_function.items(), key=lambda one: -one[1])
        slowest = taken_by[:NUM_SHOWN]
        if len(slowest) == NUM_SHOWN:
            terminalreporter.section("processor time of the slowest test functions")
            for function, taken in slowest:
                terminalreporter.write_line(f"{taken:7.1f} s {function}")
        if len(self._too_long) > 0:
            terminalreporter.section(
                f"above the budget of {self._limit_s:g} s, see tests/budget.py"
            )
            for test, taken in self._too_long.items():
                terminalreporter.write_line(f"{taken:7.1f} s {test}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that has passed but for the budget."""
        is_worker = hasattr(session.config, "workerinput")
        passed = session.exitstatus == pytest.ExitCode.OK
        longest = max(self._too_long.values(), default=0.0)
        if longest > self._margin * self._limit_s and passed and not is_worker:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
