"""Kernels whose results are known: what the harness computes is what CUDA defines."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from caspar.runtime.nvidia.nvrtc import compile_text
from tests.harness import (
    DEFAULT_SCHEDULES,
    REVERSED,
    HarnessError,
    Schedule,
    compile_cuda,
    find_compiler,
    kernels,
)

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

every_schedule = pytest.mark.parametrize("schedule", DEFAULT_SCHEDULES, ids=str)


@pytest.mark.parametrize("name", kernels.ALL)
def test_nvrtc_accepts_the_same_source(name: str) -> None:
    compiled = compile_text(kernels.ALL[name], "sm_80")
    assert set(compiled.resources) == set(compile_cuda(kernels.ALL[name]).kernel_names)


def test_vector_add_over_several_blocks_leaves_the_rest_alone() -> None:
    a = np.arange(1100, dtype=np.float32)
    c = np.full(1100, -1, dtype=np.float32)
    module = compile_cuda(kernels.VECTOR_ADD)
    assert module.kernel_names == ("add",)
    module.launch_under_schedules("add", 4, 256, [a, 2 * a, c, np.int32(1000)])
    np.testing.assert_array_equal(c[:1000], 3 * a[:1000])
    np.testing.assert_array_equal(c[1000:], -1)


def test_block_sum_in_shared_memory() -> None:
    x = np.arange(5 * 128, dtype=np.float32)
    sums = np.zeros(5, dtype=np.float32)
    compile_cuda(kernels.BLOCK_SUM).launch_under_schedules("block_sums", 5, 128, [x, sums])
    np.testing.assert_array_equal(sums, x.reshape(5, 128).sum(axis=1))


def test_warp_sums_by_shuffles() -> None:
    x = np.arange(4 * 64, dtype=np.float64)
    down, butterfly = np.zeros(8), np.zeros(4 * 64)
    compile_cuda(kernels.WARP).launch_under_schedules("warp_sums", 4, 64, [x, down, butterfly])
    np.testing.assert_array_equal(down, x.reshape(8, 32).sum(axis=1))
    np.testing.assert_array_equal(butterfly, np.repeat(down, 32))


@pytest.mark.parametrize("operand", [0, 1, 3, 7, 8, 11, 31])
def test_shuffles_within_segments_of_eight(operand: int) -> None:
    x = np.arange(100, 164, dtype=np.int32)
    out = np.zeros((4, 64), dtype=np.int32)
    module = compile_cuda(kernels.WARP)
    module.launch_under_schedules("segmented_shuffles", 1, 64, [x, out, np.int32(operand)])
    lane = np.arange(64)
    begin, end = lane // 8 * 8, lane // 8 * 8 + 8
    up, down = lane - operand, lane + operand
    partner = lane // 32 * 32 + (lane % 32 ^ operand)
    expected = [
        begin + operand % 8,
        np.where(up < begin, lane, up),
        np.where(down >= end, lane, down),
        np.where(partner >= end, lane, partner),
    ]
    np.testing.assert_array_equal(out, x[np.stack(expected)])


def test_votes_and_warp_reductions() -> None:
    x = np.arange(32, dtype=np.int32) * 5 % 13
    out = np.zeros((32, 7), dtype=np.uint32)
    compile_cuda(kernels.WARP).launch_under_schedules("votes", 1, 32, [x, out])

    def mask(holds: Any) -> int:
        return sum(1 << lane for lane in range(32) if holds(lane))

    for lane in range(32):
        assert out[lane].tolist() == [
            mask(lambda i: x[i] % 2 == 0),
            1,
            1,
            mask(lambda i: i % 2 == 0 and x[i] > 5) if lane % 2 == 0 else 0,
            mask(lambda i, own=lane: x[i] % 3 == x[own] % 3),
            int(x.sum()),
            int((x > 5).sum()),
        ]


def test_histogram_with_shared_and_global_atomics() -> None:
    x = np.random.default_rng(0).integers(0, 256, 3000).astype(np.uint8)
    counts = np.zeros(16, dtype=np.uint32)
    module = compile_cuda(kernels.HISTOGRAM)
    module.launch_under_schedules("histogram", 3, 96, [x, counts, np.int32(3000)])
    np.testing.assert_array_equal(counts, np.bincount(x % 16, minlength=16))


def test_vector_types_load_store_and_align_as_in_cuda() -> None:
    x = np.random.default_rng(0).normal(size=(96, 4)).astype(np.float32)
    y, z = np.zeros_like(x), np.zeros((96, 2))
    module = compile_cuda(kernels.VECTORS)
    module.launch_under_schedules("scale", 3, 32, [x, y, z, np.float32(3)])
    np.testing.assert_array_equal(y, np.float32(3) * x)
    np.testing.assert_array_equal(z, x[:, [0, 3]].astype(np.float64))
    layout = np.zeros(9, dtype=np.int32)
    module.launch("layout", 1, 1, [layout])
    assert layout.tolist() == [8, 16, 16, 8, 16, 4, 12, 32, 96]


@every_schedule
def test_double_atomics(schedule: Schedule) -> None:
    rng = np.random.default_rng(0)
    x, index = rng.normal(size=700), rng.integers(0, 9, 700).astype(np.int32)
    sums = np.zeros(9)
    compile_cuda(kernels.ACCUMULATE).launch(
        "accumulate", 3, 256, [x, index, sums, np.int32(700)], schedule=schedule
    )
    np.testing.assert_allclose(sums, np.bincount(index, weights=x), rtol=1e-13, atol=1e-13)


def test_maximum_by_compare_and_swap() -> None:
    x = np.random.default_rng(0).normal(size=256).astype(np.float32)
    out = np.array([-1], dtype=np.float32)
    # The first read of the loop is plain: a race in the language's terms, harmless here.
    compile_cuda(kernels.ACCUMULATE).launch("largest", 4, 64, [x, out], check_races=False)
    assert out[0] == x.max()


def test_idiom_transpose_through_a_padded_tile() -> None:
    x = np.arange(64 * 96, dtype=np.float32).reshape(64, 96)
    out = np.zeros((96, 64), dtype=np.float32)
    compile_cuda(kernels.IDIOMS).launch_under_schedules("transpose", (3, 2), (32, 8), [x, out])
    np.testing.assert_array_equal(out, x.T)


def test_idiom_scan_by_shuffles() -> None:
    x = np.random.default_rng(0).integers(-50, 50, 512).astype(np.int32)
    out = np.zeros_like(x)
    compile_cuda(kernels.IDIOMS).launch_under_schedules("scan", 1, 512, [x, out])
    np.testing.assert_array_equal(out, np.cumsum(x))


@every_schedule
def test_idiom_filter_with_an_aggregated_atomic(schedule: Schedule) -> None:
    x = np.random.default_rng(0).integers(-9, 9, 256).astype(np.int32)
    out, count = np.zeros(256, dtype=np.int32), np.zeros(1, dtype=np.int32)
    compile_cuda(kernels.IDIOMS).launch("keep_positive", 4, 64, [x, out, count], schedule=schedule)
    assert count[0] == (x > 0).sum()
    np.testing.assert_array_equal(np.sort(out[: count[0]]), np.sort(x[x > 0]))


@every_schedule
def test_idiom_last_block_finishes(schedule: Schedule) -> None:
    x = np.arange(5 * 32, dtype=np.float32)
    partial, out = np.zeros(5, dtype=np.float32), np.zeros(1, dtype=np.float32)
    module = compile_cuda(kernels.IDIOMS)
    args = [x, partial, out]
    module.launch("sum_of_all", 5, 32, args, schedule=schedule, check_races=False)
    assert out[0] == x.sum()


def test_parameters_of_every_kind_and_module_variables() -> None:
    module = compile_cuda(kernels.LANGUAGE)
    assert "never_compiled" not in module.kernel_names
    assert "commented_out" not in module.kernel_names
    pair = np.array((1.5, 2), dtype=[("x", np.float32), ("i", np.int32)])[()]
    out = np.zeros(8)
    args: list[Any] = [np.bool_(True), np.uint32(2**32 - 1), np.int64(-(2**40)), np.float64(0.25)]
    args += [pair, None, out]
    module.launch("parameters", 1, 1, args)
    before = out[6]
    module.launch("parameters", 1, 1, args)
    assert out.tolist() == [1, 2**32 - 1, -(2**40), 0.25, 3.5, 1, before + 1, 8]


@every_schedule
def test_indices_in_three_dimensions(schedule: Schedule) -> None:
    out = np.zeros(2 * 3 * 2 * 40, dtype=np.int32)
    module = compile_cuda(kernels.LANGUAGE)
    module.launch("positions", (2, 3, 2), (4, 5, 2), [out], schedule=schedule)
    np.testing.assert_array_equal(out.reshape(12, 40), np.add.outer(100 * np.arange(12), range(40)))


def test_shared_memory_begins_as_nan_in_every_block() -> None:
    out = np.zeros(64, dtype=np.float32)
    compile_cuda(kernels.LANGUAGE).launch("uninitialised_shared", 2, 64, [out], check_races=False)
    assert np.isnan(out[::2]).all()
    np.testing.assert_array_equal(out[1::2], 1)


@every_schedule
def test_a_spinning_thread_lets_others_run(schedule: Schedule) -> None:
    out = np.zeros(64, dtype=np.int32)
    compile_cuda(kernels.LANGUAGE).launch("flag_between_threads", 1, 64, [out], schedule=schedule)
    assert out.all()


def test_overlapping_views_share_memory() -> None:
    arena = np.arange(48, dtype=np.float32)
    module = compile_cuda(kernels.VECTOR_ADD)
    views: list[Any] = [arena[0:16], arena[16:32], arena[16:32], np.int32(16)]
    module.launch("add", 1, 16, views)
    expected = np.arange(16) + np.arange(16, 32)
    np.testing.assert_array_equal(arena[16:32], expected)
    np.testing.assert_array_equal(arena[32:], np.arange(32, 48))


def _expected_floats(a: float, b: float, c: float) -> Sequence[float]:
    norm = np.sqrt(a * a + b * b + c * c)
    return [
        *(a**-0.5, a ** (-1 / 3), norm, (norm**2 + a * a) ** -0.5, (a * a + b * b) ** -0.5, 1 / a),
        *(a / b, a * b + c, a * b + c, np.sin(a), np.cos(a), np.sin(np.pi * a), np.cos(np.pi * a)),
        *(-a, min(a, b), max(a, b), float(np.nextafter(np.float32(a), np.float32(9)))),
        *(np.sqrt(b), 1.0, b**-0.5, 8 * a),
    ]


def test_float_functions() -> None:
    values = [0.75, 2.5, -1.25]
    out = np.zeros(21, dtype=np.float32)
    compile_cuda(kernels.MATHEMATICS).launch("real", 1, 1, [np.array(values, np.float32), out])
    np.testing.assert_allclose(out, _expected_floats(*values), rtol=3e-7)


def test_double_functions() -> None:
    a, b, c = values = [0.75, 2.5, -1.25]
    out = np.zeros(9)
    compile_cuda(kernels.MATHEMATICS).launch("real_double", 1, 1, [np.array(values), out])
    norm = np.sqrt(a * a + b * b + c * c)
    expected = [a**-0.5, a ** (-1 / 3), norm, 1 / norm, a * b + c, np.sin(a), np.cos(a), -b, c]
    np.testing.assert_allclose(out, expected, rtol=1e-15)


def test_integer_functions_and_saturating_conversions() -> None:
    out = np.zeros(14, dtype=np.int64)
    args: list[Any] = [np.array([40], np.int32), np.array([-2.5, 1e10, np.nan], np.float32), out]
    compile_cuda(kernels.MATHEMATICS).launch("integer", 1, 1, args)
    expected = [2, 4, 26, 0x14000000, -1, 40, 20, -2, -3, 2**31 - 1, 0, 2**32 - 1]
    assert out.tolist() == [*expected, 0x44443322, 0x00771155]


def test_architecture_decides_what_exists() -> None:
    source = kernels.WARP
    with pytest.raises(HarnessError, match="__reduce_add_sync"):
        compile_cuda(source, arch=70)


def test_module_from_the_cache_still_runs() -> None:
    out = np.zeros(32, dtype=np.int32)
    for _ in range(2):
        module = compile_cuda(kernels.LANGUAGE)
        module.launch("positions", 1, 32, [out], schedule=REVERSED)
    np.testing.assert_array_equal(out, np.arange(32))
