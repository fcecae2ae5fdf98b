"""A kernel measured: on the processor and in the harness; arithmetic and text of a profile."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any
from xml.etree import ElementTree

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_array_equal

import caspar
from caspar.errors import InputError
from caspar.ir.dtype import DType
from caspar.kernels.call.call import operands_of
from caspar.kernels.profile import RUNS, KernelProfile, Traffic, on_copies
from caspar.options import BackendChoice
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.nvidia.occupancy import KernelUsage, Occupancy
from tests.harness_backend import HarnessBackend
from tests.kernels.test_patterns import needs_compiler, use_backend

COUNT = 2000


@caspar.kernel(backend="cpu")
def add(x: Annotated[sf.V4, caspar.ReadSequential]) -> Annotated[sf.V4, caspar.AddSequential]:
    """Add to what is there."""
    return x


@caspar.kernel(backend="cpu")
def total(x: Annotated[sf.V3, caspar.ReadSequential]) -> Annotated[sf.V3, caspar.WriteSum]:
    """Two launches: sums of tiles, and the sum of those."""
    return x


@caspar.kernel(backend="cpu")
def scatter(
    x: Annotated[sf.V2, caspar.ReadSequential],
) -> tuple[Annotated[sf.V2, caspar.AddIndexed], Annotated[sf.V2, caspar.WriteSequential]]:
    """One output by index, one as it comes."""
    return 2 * x, x


@pytest.fixture(autouse=True)
def _small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caspar.kernels.profile.MIN_COPY_BYTES", 2**16)


def ones(dim: int, count: int = COUNT) -> caspar.BlockedArray:
    made = caspar.BlockedArray.zeros(count, dim, backend="cpu")
    made[:] = 1.0
    return made


class TestMeasuring:
    def test_on_the_processor(self) -> None:
        profile = add.profile(ones(4), runs=3)
        assert (profile.name, profile.backend, profile.count) == ("add", "cpu", COUNT)
        assert (profile.device, profile.clock) == (CpuBackend().device, "the host's clock")
        assert len(profile.samples_s) == 3
        assert profile.launches_s == (profile.time_s,)
        assert 0.0 < min(profile.samples_s) <= profile.time_s <= max(profile.samples_s) < 1.0
        assert profile.copy_bytes_per_s > 1e6
        assert [one.name for one in profile.traffic] == ["x", "out"]
        assert profile.bytes_moved == COUNT * (16 + 32)
        assert (profile.usage, profile.occupancy) == (None, None)
        assert profile.block_size == 1024

    def test_every_launch_is_measured_by_itself(self) -> None:
        profile = total.profile(ones(3), runs=2)
        assert len(profile.launches_s) == 2
        assert all(seconds > 0.0 for seconds in profile.launches_s)

    def test_arrays_are_converted(self) -> None:
        rows = np.ones((COUNT, 3))
        assert total.profile(rows, runs=1).dtype is DType.FLOAT64
        assert total.profile(rows, runs=1, dtype="float32").dtype is DType.FLOAT32
        assert total.profile(x=rows.tolist(), runs=1, count=100).count == 100
        assert len(total.profile(rows).samples_s) == RUNS

    @needs_compiler
    def test_in_the_harness(self, monkeypatch: pytest.MonkeyPatch) -> None:
        use_backend(monkeypatch, HarnessBackend())

        @caspar.kernel
        def own(
            x: Annotated[sf.V3, caspar.ReadSequential],
        ) -> tuple[
            Annotated[sf.V3, caspar.WriteSum], Annotated[caspar.Pair[sf.V3], caspar.AddPair]
        ]:
            return x, caspar.Pair((x, x))

        old = np.full((300, 3), 5.0)
        profile = own.profile(np.ones((299, 3)), out={"out1": old}, runs=1, block_size=64)
        assert (profile.backend, profile.device, profile.block_size) == ("cuda", "harness", 64)
        assert len(profile.launches_s) == 3
        assert "block size  64 threads\n" in str(profile)
        assert (old == 5.0).all()

    def test_a_copy_is_as_large_as_what_is_moved(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sizes = []

        class Counting(CpuBackend):
            def allocate(self, num_bytes: int) -> Any:
                sizes.append(num_bytes)
                return super().allocate(num_bytes)

            def time(self, run: Callable[[], None], num_samples: int) -> list[float]:
                run()
                return [0.5, 0.25, 1.0][:num_samples]

        backend = Counting()
        known = {BackendChoice.CPU: backend}
        monkeypatch.setattr("caspar.arrays.convert._BACKENDS", known)
        monkeypatch.setattr("caspar.kernels.profile.MAX_COPY_BYTES", 2**18)
        for count, expected in ((100, 2**16), (3000, 3000 * 24), (20_000, 2**18)):
            x, out = ones(4, count), ones(4, count)
            del sizes[:]
            profile = add.profile(x, out=out, runs=3)
            assert sizes == [expected, expected]
            assert profile.copy_bytes_per_s == 2 * expected / 0.5
            assert profile.samples_s == (0.5, 0.25, 1.0)

    def test_errors_are_those_of_a_call(self) -> None:
        x = ones(4)
        with pytest.raises(InputError, match="kernel add, argument x: a BlockedArray of shape"):
            add.profile(ones(3))
        with pytest.raises(InputError, match="unknown argument 'y'"):
            add.profile(y=x)
        with pytest.raises(InputError, match="output out: overlaps kernel add, argument x"):
            add.profile(x[1:], out=x[:-1])
        with pytest.raises(InputError, match="kernel add: there are no items"):
            add.profile(x, count=0)
        for runs in (0, -1, 1.5, None):
            with pytest.raises(InputError, match=r"kernel add: runs=.*; it must be an integer"):
                add.profile(x, runs=runs)  # type: ignore[arg-type]


class TestArraysStayAsTheyAre:
    def test_blocked_output(self) -> None:
        x, out = ones(4), ones(4)
        add.profile(x, out=out, runs=1)
        assert_array_equal(out.to_numpy(), np.ones((COUNT, 4)))

    def test_rows(self) -> None:
        out = np.ones((COUNT, 4), np.float32)
        add.profile(ones(4).to_numpy(), out=out, runs=1)
        assert_array_equal(out, np.ones((COUNT, 4)))

    def test_by_name_and_with_an_index(self) -> None:
        x, first, second = ones(2), ones(2), ones(2)
        index = np.arange(COUNT)[::-1]
        out = {"out0": {"values": first, "index": index}, "out1": second}
        scatter.profile(x, out=out, runs=1)
        for array in (first, second):
            assert_array_equal(array.to_numpy(), np.ones((COUNT, 2)))

    def test_updated_in_place(self) -> None:
        x = ones(4)
        profile = add.profile(x, out=x, runs=1)
        assert profile.count == COUNT
        assert_array_equal(x.to_numpy(), np.ones((COUNT, 4)))

    def test_windows_stay_windows_of_one_array(self) -> None:
        whole = ones(4)
        inputs, outputs = operands_of(add.traced, (whole[:1000],), {}, whole[1000:])
        copied_inputs, copied_outputs = on_copies(inputs, outputs)
        x, out = copied_inputs["x"].given, copied_outputs["out"].given
        assert x.buffer is out.buffer
        assert x.buffer is not whole.buffer
        assert (x.first, x.length, out.first, out.length) == (0, 1000, 1000, 1000)
        add.profile(whole[:1000], out=whole[1000:], runs=1)
        assert_array_equal(whole.to_numpy(), np.ones((COUNT, 4)))

    def test_bound(self) -> None:
        x = ones(4)
        bound = add.bind(x, out=x)
        bound()
        profile = bound.profile(runs=2)
        assert len(profile.samples_s) == 2
        assert_array_equal(x.to_numpy(), np.full((COUNT, 4), 2.0))
        bound()
        assert_array_equal(x.to_numpy(), np.full((COUNT, 4), 4.0))


class TestProfile:
    profile = KernelProfile(
        name="example",
        backend="cuda",
        device="NVIDIA H200 (sm_90)",
        clock="CUDA events",
        dtype=DType.FLOAT32,
        count=1_000_000,
        samples_s=(12e-6, 10e-6, 11e-6, 9e-6, 14e-6),
        launches_s=(8e-6, 3.25e-6),
        traffic=(Traffic("x", 16, 0, 4), Traffic("out", 0, 12, 0)),
        copy_bytes_per_s=4e12,
        block_size=128,
        usage=KernelUsage(
            block_size=128,
            registers=40,
            local_bytes=8,
            shared_bytes=2048,
            occupancies={
                256: Occupancy(40, 64, "registers"),
                128: Occupancy(48, 64, "registers"),
            },
        ),
    )

    def test_arithmetic(self) -> None:
        profile = self.profile
        assert profile.time_s == 11e-6
        assert profile.spread_s == (10e-6, 12e-6)
        assert profile.items_per_s == pytest.approx(1e6 / 11e-6)
        assert profile.bytes_moved == 32e6
        assert profile.bytes_per_s == pytest.approx(32e6 / 11e-6)
        assert profile.copy_fraction == pytest.approx(32e6 / 11e-6 / 4e12)
        assert profile.occupancy == 0.75

    def test_text(self) -> None:
        assert str(self.profile) == repr(self.profile)
        assert str(self.profile) == (
            "kernel example: 1,000,000 items, float32, NVIDIA H200 (sm_90); measured by CUDA "
            "events\n"
            "\n"
            "time           11.0 us a call, half of 5 samples between 10.0 us and 12.0 us\n"
            "launches       2: the kernel 8.00 us, those that complete its writes 3.25 us\n"
            "items          90.9 G/s\n"
            "moved          32 bytes an item, 32 MB a call\n"
            "bandwidth      2.91 TB/s\n"
            "of a copy      73% of 4 TB/s\n"
            "registers      40\n"
            "local memory   8 bytes a thread: spilled registers, arrays\n"
            "shared memory  2048 bytes a block\n"
            "block size     128: most warps at once (256: 40, 128: 48)\n"
            "occupancy      75%: 48 of 64 warps, by registers\n"
            "\n"
            "bytes an item  read  written  index\n"
            "------------------------------------\n"
            "x                16        0      4\n"
            "out               0       12      0\n"
        )

    def test_a_block_size_that_was_asked_for(self) -> None:
        assert self.profile.usage is not None
        asked = replace(
            self.profile, block_size=256, usage=replace(self.profile.usage, block_size=256)
        )
        assert "256: as asked for; 128 has most warps at once (256: 40, 128: 48)" in str(asked)
        assert "62%: 40 of 64 warps, by registers" in str(asked)
        unknown = replace(self.profile, usage=replace(self.profile.usage, occupancies={}))
        assert unknown.occupancy is None
        assert "block size     128\n" in str(unknown)
        assert "not known for this architecture" in str(unknown)

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (4.4e-8, "0.04 us"),
            (1.234e-6, "1.23 us"),
            (98.76e-6, "98.8 us"),
            (987.6e-6, "988 us"),
            (9.876e-3, "9876 us"),
            (12.3e-3, "12.3 ms"),
            (1.5, "1500 ms"),
        ],
    )
    def test_times(self, seconds: float, text: str) -> None:
        assert f" {text} a call" in str(replace(self.profile, samples_s=(seconds,)))

    def test_for_a_notebook(self) -> None:
        page = ElementTree.fromstring(self.profile._repr_html_())
        assert page.findtext("code") == str(self.profile).splitlines()[0]
        facts, moved = page.iter("table")
        cells = [[cell.text for cell in row] for row in facts]
        assert cells[0][0] == "time"
        assert ["of a copy", "73% of 4 TB/s"] in cells
        assert [cell.text for cell in list(moved)[1]] == ["x", "16", "0", "4"]
