"""The figures of a kernel as a table, and how many warps fit."""

import re
from dataclasses import replace

import pytest

from caspar.inspect import FactorInspection, inspect_factor
from caspar.inspect.resources import ResourcesView
from caspar.runtime.nvidia.nvrtc import KernelResources, nvrtc_version
from caspar.runtime.nvidia.occupancy import occupancy
from caspar.runtime.nvidia.sass import Region
from caspar.tables import WIDTH
from examples.camera_prototype import reprojection
from tests.inspect.cases import distance

# Architecture, registers, shared bytes, block size; warps by NVIDIA's cuda_occupancy.h (CUDA 13.0).
KNOWN = [
    ("sm_75", 40, 2048, 256, 32),
    ("sm_75", 64, 20000, 256, 24),
    ("sm_80", 32, 0, 256, 64),
    ("sm_86", 48, 8448, 256, 40),
    ("sm_86", 182, 0, 256, 8),
    ("sm_89", 16, 49152, 64, 4),
    ("sm_90", 48, 8448, 256, 40),
    ("sm_90", 40, 10496, 256, 48),
    ("sm_90", 255, 0, 256, 8),
    ("sm_90", 96, 0, 1024, 0),
    ("sm_100", 24, 100, 64, 64),
    ("sm_120", 24, 100, 1024, 32),
]


@pytest.fixture(scope="module")
def inspection() -> FactorInspection:
    return inspect_factor(distance, arch="sm_86")


@pytest.mark.parametrize(("arch", "registers", "shared", "block_size", "warps"), KNOWN)
def test_occupancy_is_nvidias(
    arch: str, registers: int, shared: int, block_size: int, warps: int
) -> None:
    found = occupancy(KernelResources(registers, 0, 0, 0, shared), block_size, arch)
    assert found is not None
    assert found.warps == warps


def test_occupancy_says_what_runs_out() -> None:
    def limit(registers: int, shared: int, block_size: int) -> str:
        found = occupancy(KernelResources(registers, 0, 0, 0, shared), block_size, "sm_90")
        assert found is not None
        assert (found.fraction == 1.0) == (found.warps == found.max_warps)
        return found.limit

    assert limit(48, 0, 256) == "registers"
    assert limit(24, 40_000, 256) == "shared memory"
    assert limit(24, 0, 32) == "blocks"
    assert limit(24, 0, 256) == "warps"


def test_an_architecture_without_known_limits_has_no_occupancy() -> None:
    assert occupancy(KernelResources(32, 0, 0, 0, 0), 256, "sm_53") is None


def test_the_table_has_a_row_for_each_kernel(inspection: FactorInspection) -> None:
    view = inspection.resources
    lines = str(view).splitlines()
    assert [report.name for report in view.reports] == list(inspection)
    assert {report.arch for report in view.reports} == {"sm_86"}
    assert lines[0] == f"sm_86, NVRTC {nvrtc_version()}"
    assert all(len(line) <= WIDTH for line in lines)
    rows = {line.split()[0]: line.split() for line in lines if line.split()[:1]}
    head = rows["kernel"]
    for report in view.reports:
        row = dict(zip(head, rows[report.name], strict=True))
        assert int(row["peak"]) == report.predicted_registers
        assert int(row["registers"]) == report.resources.registers
        assert int(row["spilled"]) == report.resources.spill_bytes
        assert int(row["shared"]) == report.resources.shared_bytes
        assert int(row["FFMA"]) == report.sass.straight_line["FFMA"]
        assert int(row["loops"]) == sum(report.sass.counts([Region.LOOP]).values())
        assert re.fullmatch(r"\d+%", row["occupancy"]) is not None


def test_values_of_64_bits_take_two_registers(inspection: FactorInspection) -> None:
    score, product = inspection["score"].report, inspection["product"].report
    assert score.predicted_registers == 2 * score.num_values
    assert product.predicted_registers == product.num_values
    assert score.predicted_registers <= score.resources.registers


def test_one_kernel_shows_every_kind_and_region(inspection: FactorInspection) -> None:
    text = str(inspection["product"].resources)
    report = inspection["product"].report
    assert f"{report.num_values} values, {report.predicted_registers} registers" in text
    assert re.search(rf"^registers +{report.resources.registers}$", text, re.M) is not None
    assert re.search(r"^occupancy +\d+%: \d+ of 48 warps, by \w+", text, re.M) is not None
    counts = [report.sass.counts([region]) for region in Region]
    for kind in ("FFMA", "LDG", "atomic"):
        numbers = " +".join(str(found[kind]) for found in counts)
        assert re.search(rf"^{kind} +{numbers}$", text, re.M) is not None


def test_blocks_are_as_large_as_shared_memory_allows() -> None:
    """Sums of float64 over the items of a pose are staged in parts, so that they fit."""
    kernels = inspect_factor(reprojection)
    reports = {name: kernels[name].report for name in ("product", "inner")}
    assert {name: report.block_size for name, report in reports.items()} == {
        "product": 256,
        "inner": 256,
    }
    assert 24 << 10 < reports["inner"].resources.shared_bytes <= 48 << 10


def test_what_is_not_known_is_said() -> None:
    report = inspect_factor(distance, arch="sm_75")["score"].report
    unknown = ResourcesView((replace(report, arch="sm_53"),))
    assert "not known for this architecture" in str(unknown)
