"""The budget of tests, and results of NVRTC that are kept: by runs of pytest on small files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from caspar.errors import CompileError
from caspar.runtime.nvidia.nvrtc import CompiledText
from tests import budget, kept_nvrtc
from tests.budget import Budget

pytest_plugins = ["pytester"]

TESTS = """
import time

import pytest

from tests.budget import shared_work


def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_quick():
    pass


@pytest.mark.parametrize("number", [0, 1])
def test_slow(number):
    work(0.3)


def test_shares():
    with shared_work():
        work(0.3)
"""


def result(
    pytester: pytest.Pytester, slowness: float, heavy: Mapping[str, str] | None = None
) -> pytest.ExitCode:
    """How a run ends in which tests have a tenth of a second."""
    pytester.makepyfile(test_file=TESTS)
    plugin = Budget(0.1, {} if heavy is None else heavy, lambda: slowness)
    status = pytester.inline_run("-p", "no:cacheprovider", plugins=[plugin]).ret
    assert status is not None
    return pytest.ExitCode(status)


def test_slow_tests_fail_the_run(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    assert result(pytester, 1.0) is pytest.ExitCode.TESTS_FAILED
    above = capsys.readouterr().out.partition("above the budget")[2]
    assert "test_slow[0]" in above
    assert "test_slow[1]" in above
    assert "test_quick" not in above
    assert "test_shares" not in above


def test_a_slow_machine_is_forgiven(pytester: pytest.Pytester) -> None:
    assert result(pytester, 100.0) is pytest.ExitCode.OK


def test_what_is_little_above_is_listed(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    assert result(pytester, 2.0) is pytest.ExitCode.OK
    assert "test_slow[0]" in capsys.readouterr().out.partition("above the budget")[2]


def test_named_functions_may_take_longer(pytester: pytest.Pytester) -> None:
    heavy = {"test_file.py::test_slow": "it is made so"}
    assert result(pytester, 1.0, heavy) is pytest.ExitCode.OK


def test_functions_that_may_take_longer_exist() -> None:
    tests = Path(__file__).parents[1]
    for function in budget.HEAVY:
        file, *_, name = function.split("::")
        assert f"def {name}(" in (tests / file).read_text(encoding="utf-8"), function


def test_nvrtc_compiles_a_text_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_nvrtc, "_way", lambda: b"way")
    compiled: list[tuple[str, str, Sequence[str]]] = []

    def compile_text(text: str, arch: str, more_options: Sequence[str]) -> CompiledText:
        compiled.append((text, arch, more_options))
        if "refused" in text:
            raise CompileError(text)
        return CompiledText(arch, text[:8], b"code", "log", {})

    long = " " * kept_nvrtc.SHORT
    for _ in range(2):
        once = kept_nvrtc.kept(compile_text, tmp_path)
        for text in ("short", f"a{long}", f"b{long}"):
            for arch in ("sm_80", "sm_90"):
                for options in ((), ("-G",)):
                    assert once(text, arch, options).ptx == text[:8]
                    assert once(text, arch, options).arch == arch
        with pytest.raises(CompileError):
            once(f"refused{long}", "sm_80", ())
    kept_calls = [call for call in compiled if len(call[0]) > kept_nvrtc.SHORT]
    assert len([call for call in kept_calls if "refused" not in call[0]]) == 8
    assert len([call for call in kept_calls if "refused" in call[0]]) == 2
    assert len([call for call in compiled if call[0] == "short"]) == 16
