"""What is found in the code of a function: by it the cache tells functions apart."""

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import symforce.symbolic as sf

import caspar
from caspar.frontend.tracing.code_digest import user_code
from caspar.frontend.tracing.on_numbers import ZERO_DIVISION


@caspar.kernel
def scaled(
    value: Annotated[sf.V1, caspar.ReadSequential],
) -> Annotated[sf.V1, caspar.WriteSequential]:
    """A kernel that functions call."""
    return sf.V1(31.5 * value[0])


class TestCode:
    def test_numbers_and_helpers_count(self, tmp_path: Path) -> None:
        def made(helper: str, threshold: float) -> Any:
            names: dict[str, Any] = {"threshold": threshold}
            exec(f"def helper(x):\n    return {helper}", names)
            exec("def function(x):\n    return [helper(v) for v in x] + [2.5, threshold]", names)
            return user_code(names["function"], [])

        assert made("x + 1", 3.0).parts == made("x + 1", 3.0).parts
        assert made("x + 1", 3.0).parts != made("x + 2", 3.0).parts
        assert made("x + 1", 3.0).parts != made("x + 1", 4.0).parts
        assert set(made("x + 7", 3.0).literals) == {2.5, 3.0, 7.0}

    def test_tables_count(self) -> None:
        def made(table: Any) -> Any:
            return user_code(lambda x: table[x], [])

        found = made({(3, 4): 5, ((6, 7.5), 8): [9], (1, "a"): {10}, 11: "b"})
        assert found.tuples == [(3.0, 4.0), (6.0, 7.5, 8.0), (6.0, 7.5)]
        assert set(found.literals) == {3.0, 4.0, 5.0, 6.0, 7.5, 8.0, 9.0, 10.0, 11.0}
        assert made({1: "a"}).parts != made({1: "b"}).parts
        assert made({"a", "b", "c"}).parts == made({"c", "b", "a"}).parts

    def test_nothing_of_a_module_but_what_the_code_names(self) -> None:
        """Kernels and factors that a function calls hold the names of their module."""
        namespace = {"__builtins__": {"ZeroDivisionError": ZeroDivisionError}, "zero": 7.5}
        held = SimpleNamespace(function=namespace)
        code = user_code(lambda: (held, scaled), [])
        assert ZERO_DIVISION.isdisjoint(code.names)
        assert 7.5 not in code.literals
        assert 31.5 in code.literals

    def test_methods_of_types_and_what_is_captured_count(self) -> None:
        class One:
            def value(self) -> int:
                return 5

        class Two:
            @property
            def value(self) -> int:
                return 6

        def made(number: int) -> Any:
            inner = functools.partial(pow, number)
            return lambda x, y=number: inner(x)

        assert user_code(made(1), [One]).parts != user_code(made(1), [Two]).parts
        assert user_code(made(8), []).parts != user_code(made(9), []).parts
        assert user_code(made(8), []).parts == user_code(made(8), []).parts
