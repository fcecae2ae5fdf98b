"""No test waits without a limit: one that hangs blocks a run, and so does a process it leaves."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent

PROGRAMS = {"run", "call", "check_call", "check_output"}
WAITS = {"communicate", "join", "result"}
"""Methods that wait for ever if they are called without arguments."""


def waits_for_ever(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each call that has no limit."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, named = node.func.attr, {one.arg for one in node.keywords}
        is_program = name in PROGRAMS and ast.unparse(node.func.value) == "subprocess"
        is_bare = name in WAITS and len(node.args) == 0 and len(named) == 0
        lacks_limit = is_program and "timeout" not in named
        # the interpreter waits for all other threads before it ends
        if lacks_limit or is_bare or (name == "Thread" and "daemon" not in named):
            yield node.lineno, name


def test_what_is_looked_for() -> None:
    text = """
subprocess.run(command, check=True)
subprocess.run(command, timeout=3)
thread.join()
thread.join(3.0)
future.result()
threading.Thread(target=work)
threading.Thread(target=work, daemon=True)
", ".join(names)
"""
    assert [*waits_for_ever(ast.parse(text))] == [
        (2, "run"),
        (4, "join"),
        (6, "result"),
        (7, "Thread"),
    ]


def test_everything_that_waits_has_a_limit() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for line, name in waits_for_ever(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []
