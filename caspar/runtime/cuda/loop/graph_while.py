"""A loop of launches as one CUDA graph, which the device repeats: a conditional node.

Input: launches and a flag on the device. Output: a graph of `decide_runs` and a WHILE node, whose
body is some runs and `decide_runs` again; and the same with one run, for what remains. The host
launches it and goes on; it reads nothing. In a body, launches begin before the one ahead has ended
where they may (`cuda_dependent`).

CuPy has no interface for such nodes. `cuda.core` makes the graph, and CuPy's launches are captured
into it; cooperative launches are allowed in a body (CUDA Programming Guide, 4.2.4.2). Only where
`probe.graph_loop_problem` finds nothing may this module be imported.

Cost tier: making one, once for a plan; a run is in the inner loop.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import cupy
import numpy as np
from cuda.core import Device, Stream

from caspar.codegen.cuda.loop.fuse import BEGIN_KERNEL, CONDITION_KERNEL, CONDITION_SOURCE
from caspar.memory.array import Array
from caspar.runtime.cuda.compile.modules import load_functions
from caspar.runtime.cuda.launch.dependent import begins_early, launch_early
from caspar.runtime.cuda.launch.launch import CudaLaunch, captured
from caspar.runtime.nvidia.probe import first_line

RUNS_AT_ONCE = 12
"""Runs of a body: as many as there are iterations before conjugate gradients look at their
tolerance, and most linear solves of bundle adjustment need no more. A body costs some 5 us; once
the flag is set in one, what it still holds is launched and does nothing. Whole solves of eight
Levenberg-Marquardt iterations, six or seven of them with 12 of PCG, ms with bodies of 4, 6, 8 and
12: 0.7 M factors 4.44, 4.38, 4.54 and 4.36; 0.68 M 7.06, 6.95, 7.05 and 6.90; 5.0 M 24.3, 24.0,
24.4 and 24.0 (H200)."""

_ONE_THREAD = ((1,), (1,))


class GraphLoop:
    """A graph of launches that the device repeats until they set the flag, (1,) float64.

    `sizes` are the numbers of runs between looks at the flag, ending with 1: launches of more than
    one have to do nothing once it is set.

    Raises the exceptions of driver and compiler; `cuda.core` has no public class for them.
    """

    remarks: tuple[str, ...] = ()

    def __init__(
        self,
        stream: Any,
        launches: Sequence[CudaLaunch],
        flag: Array,
        sizes: Sequence[int] = (RUNS_AT_ONCE, 1),
    ) -> None:
        kernels = load_functions(CONDITION_SOURCE, (BEGIN_KERNEL, CONDITION_KERNEL))
        self._begin, decide = (kernels[name].function for name in (BEGIN_KERNEL, CONDITION_KERNEL))
        self._left = cupy.empty(1, np.uint32)
        # the graph has their addresses only
        self.launches = tuple(launches)
        self._kept = (kernels, flag)
        self._stream = stream
        self._target = Stream.from_handle(stream.ptr)

        def enqueue_decision(handle: int, num_runs: int) -> None:
            arguments = (np.uint64(handle), flag, self._left, np.uint32(num_runs))
            decide(*_ONE_THREAD, arguments)

        # the first one follows the last one of the run before
        early = [begins_early(one, launches[number - 1]) for number, one in enumerate(launches)]
        try:
            self._graph = _repeating_graph(launches, early, enqueue_decision, sizes)
        except Exception as error:  # `cuda.core` has no public class for what a driver refuses
            if not any(early):
                raise
            never = [False] * len(early)
            self._graph = _repeating_graph(launches, never, enqueue_decision, sizes)
            problem = first_line(error)
            self.remarks = (f"Launches of PCG iterations do not overlap, as CUDA says: {problem}.",)

    def run(self, max_runs: int) -> None:
        """Enqueue until the flag is set, at most `max_runs` times; the host goes on."""
        with self._stream:
            self._begin(*_ONE_THREAD, (self._left, np.uint32(max_runs)))
        self._graph.launch(self._target)


def _repeating_graph(
    launches: Sequence[CudaLaunch],
    early: Sequence[bool],
    enqueue_decision: Callable[[int, int], None],
    sizes: Sequence[int],
) -> Any:
    """The executable graph; `early` are launches that begin before the one ahead has ended.

    It is captured on streams of its own: a failure leaves no other stream in capture. What a driver
    refuses, it has to refuse in a capture before that of a body: when that one ends after a
    refusal, the driver ends the process (CUDA 13.0; cuda-python issue 2918).
    """
    # two runs: the first launch also follows the last one
    captured(partial(_enqueue, launches, early, 2), num_runs=1)
    device = Device(cupy.cuda.runtime.getDevice())
    device.set_current()  # the context that CuPy works in; `cuda.core` asks for the call
    with closing(device.create_graph_builder().begin_building()) as whole:
        for num_runs in sizes:
            condition = whole.create_condition(default_value=0)
            decide = partial(enqueue_decision, int(condition.handle), num_runs)
            with cupy.cuda.Stream.from_external(whole.stream):
                decide()
            with closing(whole.while_loop(condition).begin_building()) as body:
                with cupy.cuda.Stream.from_external(body.stream):
                    _enqueue(launches, early, num_runs)
                    decide()
                body.end_building()
        return whole.end_building().complete()


def _enqueue(launches: Sequence[CudaLaunch], early: Sequence[bool], num_runs: int) -> None:
    for number in range(num_runs * len(launches)):
        place = number % len(launches)
        if number > 0 and early[place]:
            launch_early(launches[place])
        else:
            launches[place].run()
