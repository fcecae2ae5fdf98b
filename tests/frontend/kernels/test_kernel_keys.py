"""Keys of kernel functions: what counts, and what does not."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pytest
import symforce.symbolic as sf

from caspar.frontend.kernels.trace import KernelFunction, trace_kernel
from caspar.memory.access import ArgSpec, ReadAccessor
from caspar.memory.accessors.scope import CpuScope
from caspar.memory.patterns import ReadSequential, ReadUnique, WriteBlockSum, WriteSequential
from tests.frontend.kernels.kernel_functions import KERNELS, Scalar, traced


class TestKeys:
    def key(self, function: Callable[..., Any]) -> str:
        return trace_kernel(KernelFunction(function, "kernel_of", {})).key

    def test_the_same_kernel_has_the_same_key(self) -> None:
        for function in KERNELS:
            assert traced(function).key == traced(function).key
            assert " at 0x" not in traced(function).key
            assert function.__code__.co_filename not in traced(function).key
        assert len({self.key(function) for function in KERNELS}) == len(KERNELS)

    def test_access_type_expression_and_name_count(self) -> None:
        read, write = ReadSequential, WriteSequential

        def base(a: Annotated[sf.V4, read]) -> Annotated[sf.V4, write]:
            return 2 * a

        def expression(a: Annotated[sf.V4, read]) -> Annotated[sf.V4, write]:
            return 3 * a

        def reads(a: Annotated[sf.V4, ReadUnique]) -> Annotated[sf.V4, write]:
            return 2 * a

        def writes(a: Annotated[sf.V4, read]) -> Annotated[sf.V4, WriteBlockSum(32)]:
            return 2 * a

        def size(a: Annotated[sf.V4, read]) -> Annotated[sf.V4, WriteBlockSum(64)]:
            return 2 * a

        def outputs(a: Annotated[sf.V4, read]) -> tuple[Annotated[sf.V4, write]]:
            return (2 * a,)

        def divided(
            a: Annotated[sf.V4, read],
        ) -> tuple[Annotated[sf.V1, write], Annotated[sf.V3, write]]:
            return sf.V1(2 * a[0]), [2 * a[1], 2 * a[2], 2 * a[3]]

        def name(b: Annotated[sf.V4, read]) -> Annotated[sf.V4, write]:
            return 2 * b

        def type_(a: Annotated[sf.V6, read]) -> Annotated[sf.V4, write]:
            return [2 * a[0], 2 * a[1], 2 * a[2], 2 * a[3]]

        functions = (base, expression, reads, writes, size, outputs, divided, name, type_)
        assert len({self.key(function) for function in functions}) == len(functions)

    def test_which_scalars_are_whose_counts(self) -> None:
        def key(first: Any, second: Any) -> str:
            def divided(a: Annotated[sf.V4, ReadSequential]) -> Any:
                rows = a.to_flat_list()
                return rows[: first.SHAPE[0]], rows[first.SHAPE[0] :]

            write = WriteSequential
            returned = tuple[Annotated[first, write], Annotated[second, write]]
            divided.__annotations__["return"] = returned
            return self.key(divided)

        assert key(sf.V1, sf.V3) != key(sf.V2, sf.V2)

    @pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger hides the lines")
    def test_lines_count(self) -> None:
        """They stand in the generated text."""

        def before(a: Scalar) -> Annotated[sf.Symbol, WriteSequential]:
            return 2 * a

        def after(a: Scalar) -> Annotated[sf.Symbol, WriteSequential]:
            return a * 2

        assert self.key(before) != self.key(after)

    def test_a_pattern_of_ones_own_is_known_by_its_source(self) -> None:
        """Who changes its text in a notebook must not get the kernel of before."""

        def key(access: type[ReadAccessor]) -> str:
            def copied(a: Any) -> Annotated[sf.Symbol, WriteSequential]:
                return a

            copied.__annotations__["a"] = Annotated[sf.Symbol, access]
            return self.key(copied)

        def version(change: str) -> type[ReadAccessor]:
            if change == "method":

                @dataclass(frozen=True)
                class Reversed(ReadSequential):
                    def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
                        return super().cpu_read(scope, arg, chunk)[::-1]

                return Reversed
            if change == "attribute":

                @dataclass(frozen=True)
                class Reversed(ReadSequential):  # type: ignore[no-redef]
                    cuda_functions: ClassVar[str] = "// mine"

                return Reversed

            @dataclass(frozen=True)
            class Reversed(ReadSequential):  # type: ignore[no-redef]
                pass

            return Reversed

        reads = [version(change) for change in ("method", "attribute", "none")]
        assert len({repr(read()) for read in reads}) == 1
        assert len({key(read) for read in reads}) == 3
        assert key(version("method")) == key(version("method"))
