"""A solver that does nothing, and how to call the command line in this process."""

from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

from caspar.cli import main
from caspar.progress import iteration
from caspar.solver.result.result import SolveResult
from tests.examples import make_result


class FakeSolver:
    """Gives back its start values, moved a little, and a result made up before."""

    made: ClassVar[list["FakeSolver"]] = []
    result: ClassVar[SolveResult] = make_result()
    error: ClassVar[BaseException | None] = None

    def __init__(self, factors: Any, *, backend: str, precision: str) -> None:
        self.arguments = {"factors": factors, "backend": backend, "precision": precision}
        self.backend = SimpleNamespace(name="cpu", device="test [CPU]")
        self.made.append(self)

    def compile(self) -> None:
        if self.error is not None:
            raise self.error

    def prepare(self, arrays: Any, *, fixed: Any) -> None:
        self.arguments["prepared"] = fixed

    def solve(self, arrays: Any, **options: Any) -> SolveResult:
        self.arguments |= {"arrays": arrays, "options": options}
        for record in self.result.iterations:
            iteration(partial(str, record))
        values = {"Cam": arrays["Cam"], "Point": arrays["Point"] + 1.0}
        return SolveResult(**{**vars(self.result), "values": values})


def run(*arguments: object) -> int:
    """The exit code of `caspar` with these arguments."""
    return main([str(argument) for argument in arguments])
