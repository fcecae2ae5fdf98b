"""The decorator `caspar.kernel`."""

import inspect
import sys
from collections.abc import Callable
from typing import Any, overload

from caspar.errors import KernelError
from caspar.frontend.kernels.trace import KernelFunction
from caspar.frontend.symbolic.lines import locals_of
from caspar.kernels.kernel import Kernel
from caspar.options import BackendChoice, BackendName


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...


@overload
def kernel(
    *, backend: BackendName | BackendChoice = ..., deterministic: bool = ...
) -> Callable[[Callable[..., Any]], Kernel]: ...


def kernel(
    function: Callable[..., Any] | None = None,
    /,
    *,
    backend: BackendName | BackendChoice = BackendChoice.AUTO,
    deterministic: bool = False,
) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Turn a symbolic function into a kernel that is called with arrays.

    Every argument is annotated `Annotated[Type, Marker]` with a marker that reads
    (`caspar.ReadSequential`, ...), the return value with one that writes or adds; of several
    outputs the annotation is a tuple, or a NamedTuple class, of such.

    Args:
        function: The function.
        backend: Where kernels run whose arrays are on the host: `auto` (CUDA where a device
            answers), `cuda` or `cpu`. Arrays on a CUDA device are worked on there.
        deterministic: Whether equal input must give equal bits.

    Raises:
        KernelError: The argument is not a plain function.

    Example:
        >>> from typing import Annotated
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> @caspar.kernel
        ... def length(point: Annotated[sf.V2, caspar.ReadSequential]
        ... ) -> Annotated[sf.Symbol, caspar.WriteSequential]:
        ...     return point.norm()
        >>> length([[3.0, 4.0], [5.0, 12.0]])
        array([ 5., 13.], dtype=float32)
    """
    local_names = dict(locals_of(sys._getframe(1)))

    def decorate(decorated: Callable[..., Any]) -> Kernel:
        if not inspect.isfunction(decorated):
            raise KernelError(
                f"caspar.kernel needs a function, got {decorated!r}: write it with def, its "
                "arguments annotated Annotated[Type, Marker]"
            )
        made = KernelFunction(decorated, decorated.__name__, local_names)
        return Kernel(made, backend, deterministic=deterministic)

    return decorate if function is None else decorate(function)
