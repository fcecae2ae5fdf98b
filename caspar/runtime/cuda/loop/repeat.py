"""Repeat the launches of a large loop, by the device or by the host, which polls a flag.

Once for a plan.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from caspar.errors import BackendError
from caspar.memory.array import Array
from caspar.runtime.backend import LaunchSequence, Loop, SequenceLoop
from caspar.runtime.nvidia.probe import first_line, graph_loop_problem

GRAPH_MODULE = "caspar.runtime.cuda.loop.graph_while"
"""Imports a library that exists on some machines only."""


def repeated_loop(
    stream: Any, launches: Sequence[Any], flag: Array, sequence: Callable[[], LaunchSequence]
) -> Loop:
    """A loop on CUDA whose launches stay launches, which enqueue themselves on the current stream.

    One graph that repeats itself where library, driver and compiler allow it; else `sequence`, the
    same launches as graphs that the host launches again, with a remark that says why.
    """
    try:
        return graph_loop(stream, launches, flag)
    except BackendError as error:
        remark = f"The host polls PCG every few iterations, as it is not one CUDA graph: {error}."
        return SequenceLoop(sequence(), flag, (remark,))


def graph_loop(stream: Any, launches: Sequence[Any], flag: Array, **options: Any) -> Loop:
    """One graph that repeats itself; `options` as of `GraphLoop`.

    Raises a `BackendError` that says why library, driver or compiler make none.
    """
    problem = graph_loop_problem()
    if problem is not None:
        raise BackendError(problem)
    try:
        module = importlib.import_module(GRAPH_MODULE)
        loop: Loop = module.GraphLoop(stream, launches, flag, **options)
    except Exception as error:  # `cuda.core` has no public class for what a driver refuses
        raise BackendError(f"CUDA makes no such graph: {first_line(error)}") from error
    return loop
