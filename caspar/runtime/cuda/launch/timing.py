"""Measure how long runs take on a CUDA device, by events in a stream."""

from collections.abc import Callable
from typing import Any

import cupy

from caspar.runtime.cuda.launch.launch import captured
from caspar.runtime.timing import runs_of_sample

_WARM_UPS = 5


def time_on_stream(run: Callable[[], None], stream: Any, num_samples: int) -> list[float]:
    """Seconds of a run on the device.

    The runs of a sample are one CUDA graph, and the device is given the next sample before it is
    done with the last: what launches cost the host is not measured.

    Args:
        run: Enqueues the work on the current stream, and does nothing that a graph cannot hold.
        stream: Where it is run.
        num_samples: How often; each is the mean over runs that take a millisecond together.
    """
    with stream:
        run()
        first, last = cupy.cuda.Event(), cupy.cuda.Event()
        first.record(stream)
        for _ in range(_WARM_UPS):
            run()
        last.record(stream)
        last.synchronize()
        num_runs = runs_of_sample(_seconds(first, last) / _WARM_UPS)
        graph = captured(run, num_runs)
        graph.launch(stream=stream)  # the device has work while the first sample is enqueued
        events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(num_samples)]
        for start, end in events:
            start.record(stream)
            graph.launch(stream=stream)
            end.record(stream)
        stream.synchronize()
    return [_seconds(start, end) / num_runs for start, end in events]


def _seconds(start: Any, end: Any) -> float:
    milliseconds: float = cupy.cuda.get_elapsed_time(start, end)
    return milliseconds / 1000.0
