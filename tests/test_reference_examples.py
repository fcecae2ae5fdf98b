"""The examples of the reference are true: what a docstring shows runs, and prints what it says.

Each example stands alone: it begins with its imports, so that a reader can paste it. It runs on the
processor, in an empty folder. One whose optional package is not installed is skipped.
"""

import builtins
import doctest
import inspect
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import caspar
from caspar.errors import MissingPackageError
from caspar.runtime import select

LEAST = 60
"""Names that have an example, at least."""

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _names_of(module: ModuleType) -> list[str]:
    """The public names of a module, also of one that does not list them."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    own = vars(module).items()
    return [
        name
        for name, value in own
        if name[0] != "_" and getattr(value, "__module__", None) == module.__name__
    ]


def _members(name: str, owner: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines itself."""
    for member, value in vars(owner).items():
        if member[0] == "_":
            continue
        if isinstance(value, cached_property):
            yield f"{name}.{member}", value.func
        elif isinstance(value, property):
            yield f"{name}.{member}", value.fget
        elif isinstance(value, classmethod | staticmethod) or inspect.isfunction(value):
            yield f"{name}.{member}", getattr(owner, member)


def _public(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A public name, and what is public in it."""
    yield name, value
    if inspect.ismodule(value):
        for inner in _names_of(value):
            yield from _public(f"{name}.{inner}", getattr(value, inner))
    elif inspect.isclass(value):
        yield from _members(name, value)


@cache
def _values() -> dict[str, Any]:
    """The public names of caspar itself; of a module that cannot be loaded the error."""
    found = {}
    for name in (*caspar.__all__, *caspar._OPTIONAL_MODULES):
        try:
            found[name] = getattr(caspar, name)
        except MissingPackageError as error:
            found[name] = error
    return found


@cache
def _docstrings() -> dict[str, str]:
    """The docstring of each public name; what has several names is there once."""
    found: dict[str, str] = {}
    for name, value in _values().items():
        for inner, one in _public(f"caspar.{name}", value):
            has_own = inspect.ismodule(one) or inspect.isclass(one) or inspect.isroutine(one)
            text = inspect.getdoc(one) if has_own else None
            if text is not None and text not in found.values():
                found[inner] = text
    return found


@cache
def _examples() -> dict[str, doctest.DocTest]:
    """The example of each public name that has one."""
    parser = doctest.DocTestParser()
    tests = {
        name: parser.get_doctest(text, {}, name, None, None)
        for name, text in sorted(_docstrings().items())
    }
    return {name: test for name, test in tests.items() if len(test.examples) > 0}


def _without_package(error: BaseException) -> bool:
    """Whether an optional package is not installed."""
    if isinstance(error, MissingPackageError):
        return True
    return isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("caspar")


@pytest.mark.parametrize("name", _examples())
def test_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(select, "load_cuda_driver", lambda: None)
    monkeypatch.setattr(builtins, "_", None, raising=False)  # the last value that was shown
    test = _examples()[name]
    test.globs = {"__name__": "__main__"}
    try:
        doctest.DebugRunner(optionflags=OPTIONS, verbose=False).run(test)
    except doctest.UnexpectedException as stopped:
        error = stopped.exc_info[1]
        if _without_package(error):
            pytest.skip(str(error))
        raise AssertionError(f"{name}: {stopped.example.source}") from error
    except doctest.DocTestFailure as failed:
        said, shown = failed.example, f"printed:\n{failed.got}"
        raise AssertionError(f"{name}: {said.source}said:\n{said.want}{shown}") from None


@pytest.mark.parametrize("name", caspar._OPTIONAL_MODULES)
def test_optional_modules_have_examples(name: str) -> None:
    if isinstance(_values()[name], MissingPackageError):
        pytest.skip(str(_values()[name]))
    assert f"caspar.{name}.solve" in _examples()


def test_many_names_have_an_example() -> None:
    assert len(_examples()) >= LEAST


def test_examples_are_sections() -> None:
    """So that the manual shows them as such, and editors too."""
    for name, test in _examples().items():
        lines = _docstrings()[name].splitlines()
        first = next(number for number, line in enumerate(lines) if ">>>" in line)
        assert lines[first - 1] == "Example:", name
        assert test.examples[0].source.startswith(("import ", "from ")), name
