"""Bad names, bindings and functions: the error says which kernel, what is wrong, what is allowed.

On the CPU backend and on generated CUDA in the harness.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_array_equal

import caspar
from caspar.codegen.source import KernelSource
from caspar.errors import KernelError, ResourceError, UnsupportedFunctionError
from caspar.kernels.kernel import Kernel
from caspar.runtime.backend import Kernel as BackendKernel
from tests.harness_backend import HarnessBackend
from tests.kernels.bad_input import (
    SHIFT,
    V3In,
    V3Out,
    _fresh_kernels,
    backend,
    fails,
    gathered,
    moved,
    picked,
    points,
    split,
)
from tests.kernels.test_patterns import backends, needs_compiler, use_backend

__all__ = ["_fresh_kernels", "backend"]

BlockedArray = caspar.BlockedArray


@backends
@pytest.mark.usefixtures("backend")
class TestNames:
    def test_of_arguments(self) -> None:
        takes = "it takes x, shift"
        fails(lambda: moved(points()), "kernel moved: shift missing", takes)
        fails(lambda: moved(), "x, shift missing", takes)
        fails(lambda: moved(points(), SHIFT, SHIFT), "3 arguments", takes)
        fails(
            lambda: moved(points(), shfit=SHIFT),
            "unknown argument 'shfit' (did you mean 'shift'?)",
            takes,
        )
        fails(lambda: moved(points(), SHIFT, y=1), "unknown argument 'y'; it takes")
        fails(lambda: moved(points(), SHIFT, x=points()), "moved, argument x: passed twice")

    def test_of_what_an_access_takes(self) -> None:
        x, out = points(), points()
        index = np.arange(5)

        def call(operand: Any, target: Any) -> Callable[[], Any]:
            return lambda: picked(operand, out=target)

        good = {"values": x, "index": index}
        where = "kernel picked, argument x: "
        takes = "ReadIndexed takes values, index"
        fails(call(x, good), where, "ReadIndexed needs index; pass {'values': array, 'index'")
        fails(call({"values": x}, good), where, "'index' is missing", takes)
        fails(call({"values": x, "index": None}, good), where, "'index' is missing", takes)
        fails(call({"index": index}, good), where, "'values' is missing")
        fails(call({**good, "indx": 1}, good), where, "'indx' (did you mean 'index'?)", takes)
        fails(call({**good, "size": 5}, good), where, "unknown name 'size'", takes)
        where = "kernel picked, output out: "
        takes = "WriteIndexed takes values, size, index"
        fails(call(good, out), where, "WriteIndexed needs index")
        fails(call(good, None), where, "WriteIndexed needs index; pass {'index': ...}")
        fails(call(good, {"values": out}), where, "'index' is missing", takes)
        fails(call(good, {"index": index}), where, "pass 'values' or 'size' beside 'index'")
        fails(call(good, {"vales": out}), where, "'vales' (did you mean 'values'?)", takes)
        fails(
            call(good, {**good, "size": 5}),
            where,
            "both 'values' and 'size'; 'size' is for a new array",
        )
        assert_array_equal(out, points())

    def test_of_outputs(self) -> None:
        x, out = points(), points()
        where = "kernel split: "
        takes = "out= takes a mapping of out0, out1, or a sequence of 2; got "
        fails(
            lambda: split(x, out={"out0": out, "otu1": out}),
            where,
            "unknown output 'otu1' (did you mean 'out1'?); its outputs are out0, out1",
        )
        fails(lambda: split(x, out=out), where, takes, "ndarray")
        fails(lambda: split(x, out=[out]), where, takes, "list of 1")
        assert_array_equal(out, points())


@backends
@pytest.mark.usefixtures("backend")
class TestBinding:
    def test_block_sizes(self) -> None:
        x, shift = BlockedArray.from_rows(points()), BlockedArray.from_rows(SHIFT)
        fails(lambda: moved.bind(x, shift, block_size=7), "moved: block_size=7; its accesses allow")
        size: Any
        for size in (0, -32, 64.0, "64"):
            fails(
                partial(moved.bind, x, shift, block_size=size),
                f"kernel moved: block_size={size!r}; it must be an integer from 1 to",
            )

    def test_what_would_be_converted(self) -> None:
        x = BlockedArray.from_rows(points())
        fails(
            lambda: moved.bind(x, SHIFT),
            "argument shift: a bound kernel needs a BlockedArray, got ndarray; convert it once",
        )
        shift = BlockedArray.from_rows(SHIFT)
        fails(lambda: moved.bind(x, shift, out=points()), "output out: a bound kernel needs")


class SmallDevice(HarnessBackend):
    """One that cannot hold large blocks."""

    def load(
        self,
        sources: Sequence[KernelSource],
        block_size: int | None = None,
        *,
        is_settled: bool = False,
    ) -> Mapping[str, BackendKernel]:
        if block_size is not None and block_size > 512:
            raise ResourceError(f"kernel {sources[0].name}: a block of {block_size} threads")
        return super().load(sources, block_size)


@needs_compiler
def test_block_sizes_that_do_not_fit_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path))
    use_backend(monkeypatch, SmallDevice())
    assert sorted(moved.tune(points(), SHIFT, runs=1).times_s) == [32, 64, 128, 256, 512]


def error_of(kernel: Kernel, kind: type[Exception]) -> str:
    """Of a kernel that is called with points; its output stays as it is."""
    out = points()
    with pytest.raises(kind) as caught:
        kernel(points(), out=out)
    assert_array_equal(out, points())
    return str(caught.value)


@backends
@pytest.mark.usefixtures("backend")
class TestFunctions:
    def test_that_have_no_rule(self) -> None:
        @caspar.kernel
        def weighted(x: V3In) -> V3Out:
            return x * sf.sympy.gamma(x[0])

        message = error_of(weighted, UnsupportedFunctionError)
        assert "kernel weighted (" in message
        assert "'gamma'" in message
        assert "return x * sf.sympy.gamma(x[0])" in message

    def test_that_are_wrong(self) -> None:
        @caspar.kernel
        def clipped(x: V3In) -> V3Out:
            return x if x[0] > 0 else -x

        message = error_of(clipped, KernelError)
        assert "kernel clipped" in message
        assert "return x if x[0] > 0 else -x" in message


def test_an_error_comes_again_after_a_call_that_was_right() -> None:
    """Calls that look like an earlier one are not planned again; these look different."""
    x, shift = BlockedArray.from_rows(points()), BlockedArray.from_rows(SHIFT)
    for _ in range(3):
        assert_array_equal(moved(x, shift).to_rows(), points() + SHIFT)
        fails(lambda: moved(x, x), "argument shift: 5 objects, but ReadUnique")
        fails(lambda: moved(x, shift, out=x[:4]), "x for 5 (rows), out for 4 (rows)")
        fails(lambda: moved(x, shift, count=-1), "count=-1")
        fails(lambda: moved(x, shift, count=6), "ReadSequential over 6 items needs 6")
        operand = {"values": x, "index": np.array([0, 4], np.int32)}
        assert_array_equal(gathered(operand).to_rows(), points()[[0, 4]])
        operand["index"] = np.array([0, 5], np.int32)
        fails(partial(gathered, operand), "index 5 at entry 1 is out of range")
