"""Two versions of caspar side by side: here both are this one."""

import sys

import pytest

from benchmarks import two_versions
from benchmarks.prepare import ROOT


def test_prints_both_and_their_ratio(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    once = ["--plans", "1", "--turns", "1", "--backend", "cpu"]
    monkeypatch.setattr(sys, "argv", ["two_versions", str(ROOT), "growth 0.01", *once])
    two_versions.main()
    name, *numbers = capfd.readouterr().out.splitlines()[-1].rsplit(maxsplit=6)
    assert name.strip() == "growth 0.01: auto"
    for other, this, ratio in (map(float, numbers[:3]), map(float, numbers[3:])):
        assert other > 0.0
        assert ratio == pytest.approx(this / other, abs=2e-3)
