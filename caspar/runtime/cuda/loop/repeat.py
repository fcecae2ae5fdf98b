"""Repeat the launches of a large loop, by the device or by the host, which polls a flag.

Once for a plan.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

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
    problem = graph_loop_problem()
    if problem is None:
        try:
            loop: Loop = importlib.import_module(GRAPH_MODULE).GraphLoop(stream, launches, flag)
        except Exception as error:  # `cuda.core` has no public class for what a driver refuses
            problem = f"CUDA makes no such graph: {first_line(error)}"
        else:
            return loop
    remark = f"The host polls PCG every few iterations, as it is not one CUDA graph: {problem}."
    return SequenceLoop(sequence(), flag, (remark,))
