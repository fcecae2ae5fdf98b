"""Kernel functions that are refused, and what the error says: what tests of errors share."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import pytest
import symforce.symbolic as sf

from caspar.errors import KernelError
from caspar.frontend.kernels.spec import kernel_spec
from caspar.frontend.kernels.trace import KernelFunction, trace_kernel
from caspar.ir.dtype import DType
from caspar.memory.patterns import ReadSequential, WriteSequential


class Pose(sf.Pose3): ...


class Two(NamedTuple):
    """Outputs with names."""

    first: Annotated[sf.V3, WriteSequential]
    second: Annotated[sf.Symbol, WriteSequential]


In = Annotated[sf.V3, ReadSequential]
Out = Annotated[sf.V3, WriteSequential]


def error_of(function: Callable[..., Any], kind: type[Exception] = KernelError) -> str:
    """The message of tracing a function and making a kernel of it."""

    def compile_it() -> None:
        made = trace_kernel(KernelFunction(function, function.__name__, {}))
        kernel_spec(made, DType.FLOAT32, {out.name: out.access for out in made.outputs})

    with pytest.raises(kind) as caught:
        compile_it()
    return str(caught.value)


def error_of_annotation(annotation: Any) -> str:
    """Of a kernel whose argument is annotated so."""

    def scaled(a: Any) -> Out:
        return 2 * a

    scaled.__annotations__["a"] = annotation
    return error_of(scaled)


def error_of_result(annotation: Any, result: Callable[[Any], Any] = lambda a: a) -> str:
    """Of a kernel that returns this and says that."""

    def scaled(a: In) -> Any:
        return result(a)

    scaled.__annotations__["return"] = annotation
    return error_of(scaled)


def assert_names(message: str, *parts: str) -> None:
    missing = [part for part in parts if part not in message]
    assert not missing, f"{missing} not in: {message}"
