"""Tiny problems solved again: that all ways are measured."""

from benchmarks.small_fits import fits, row


def test_rows() -> None:
    curve, _, _, track = fits()
    name, iterations, status, *times, ratio = row(curve, 1, 2)
    assert (name, status) == ("curve of 3 parameters", "CONVERGED_COST")
    assert 3 <= int(iterations) <= 20
    assert all(float(time) > 0.0 for time in times)
    assert float(ratio) > 0.0
    assert row(track, 1, 2)[-2:] == ["", ""]
