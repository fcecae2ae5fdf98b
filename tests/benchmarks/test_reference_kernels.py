"""The reference's kernels are those that are said to be timed, and the tables compare the sides."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.index_kinds import KINDS
from benchmarks.reference_kernels.report import Report, markdown, write
from benchmarks.reference_kernels.tasks import COPY_DIMS, Operation, Timing

ROOT = Path(__file__).parents[2]


def test_generated_kernels_use_the_access_they_are_named_for(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.reference_kernels.generate", str(tmp_path)]
    subprocess.run([*command, "--no-build"], check=True, cwd=ROOT, capture_output=True, timeout=500)
    shared_read, shared_add = "LoadShared<4, float", "FlushSumShared<4, float"
    read, write = "ReadIdx4<", "WriteIdx4<"
    expected = {
        "read_add_9": {shared_read, shared_add},
        "add_9": {read, shared_add},
        "read_9": {shared_read, write},
        "copy_9": {read, write},
    }
    for name, accesses in expected.items():
        text = (tmp_path / f"kernel_{name}.cu").read_text()
        found = {one for one in (shared_read, shared_add, read, write) if one in text}
        assert found == accesses, name
    stubs = (tmp_path / "caspar_lib.pyi").read_text()
    for dim in COPY_DIMS:
        vector = f"matrix{dim}1" if dim < 10 else f"matrix{dim}_1"
        assert f"def copy_{dim}(" in stubs
        assert stubs.count(f"def {vector}_stacked_to_caspar(") == 1
        assert stubs.count(f"def {vector}_caspar_to_stacked(") == 1


def _timing(side: str, operation: Operation, on: str, time_ms: float) -> Timing:
    of_copy = 0.5 / time_ms if on.isdigit() else None
    return Timing(side, operation, on, 30_000, time_ms, of_copy, None)


def test_tables_compare_each_side_with_the_first(tmp_path: Path) -> None:
    points = "points"
    timings = (
        _timing("reference", Operation.READ_ADD, points, 3.0),
        _timing("caspar", Operation.READ_ADD, points, 0.75),
        _timing("reference", Operation.ADD, points, 2.0),
        _timing("reference", Operation.COPY, "7", 1.0),
        _timing("caspar", Operation.COPY, "7", 0.5),
    )
    report = Report({"device": "none"}, 4000.0, timings)
    text = markdown(report)
    assert "| points | 5,000 | 3.000 | 0.750 | 4.00 |" in text
    assert "| points | 5,000 | 2.000 |\n" in text
    assert "| 7 | 30,000 | 1.000 | 0.50 | 0.500 | 1.00 |" in text
    assert "rows to blocked" not in text
    assert all(f"*{kind.name}*: {kind.description}" in text for kind in KINDS)
    write(report, tmp_path)
    stored = json.loads((tmp_path / "reference_kernels.json").read_text())
    assert stored["timings"][1] == {
        "side": "caspar",
        "operation": "read and add",
        "on": "points",
        "num_items": 30_000,
        "time_ms": 0.75,
        "of_copy": None,
        "worst_error": None,
    }
