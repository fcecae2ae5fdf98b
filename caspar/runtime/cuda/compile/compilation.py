"""Kernels of one device, compiled side by side: NVRTC releases the interpreter's lock.

A kernel is begun as soon as its text is there, while Python generates the next one, and is compiled
once in a process.

Also here: better options for kernels, looked for by a thread while the kernels as they are do their
work. What is found is kept in the store. The thread does not touch the device.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from queue import Empty, SimpleQueue
from threading import Lock

import cupy
import numpy as np

from caspar.codegen.cuda.header import COMPILE_OPTIONS
from caspar.codegen.cuda.structure.texts import structure_texts
from caspar.codegen.source import KernelSource
from caspar.errors import CasparError
from caspar.runtime.cuda.compile.kernel import (
    CudaKernel,
    architecture,
    compiled_kernel,
    size_options,
)
from caspar.runtime.cuda.compile.modules import load_functions
from caspar.runtime.nvidia.machine_code import compile_together
from caspar.runtime.nvidia.resident_search import search


class OptionSearch:
    """Kernels to look at, one after the other; `found` is called in the thread for each success."""

    def __init__(self, architecture: str, found: Callable[[KernelSource], None]) -> None:
        self._architecture = architecture
        self._found = found
        self._queue: SimpleQueue[tuple[KernelSource, int]] = SimpleQueue()
        self._seen: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, source: KernelSource, block_size: int) -> None:
        """Look for options, unless that is done or under way."""
        key = (source.text, block_size)
        with self._lock:
            if key in self._seen:
                return
            self._seen.add(key)
            self._queue.put((source, block_size))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="caspar search")
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                try:
                    source, block_size = self._queue.get_nowait()
                except Empty:
                    self._thread = None
                    return
            if not _goes_on():
                continue
            # where nothing is found, the kernel as it is works
            with suppress(CasparError):
                if search(source, block_size, self._architecture, _goes_on):
                    self._found(source)


def _goes_on() -> bool:
    """Return whether the program has not ended: it waits for this thread."""
    return threading.main_thread().is_alive()


SMALL = 14_000
"""Characters of a text up to which it is compiled together with others."""

TOGETHER = 6
"""Such texts in one compilation."""

_Key = tuple[str, int | None, bool]

_Begun = tuple[KernelSource, Callable[[], CudaKernel], "Future[CudaKernel]"]


class Compilation:
    """The threads that compile for a device, and the kernels that they have compiled."""

    def __init__(self, device: int, name: str) -> None:
        self._name = name
        # a module that is loaded already gives a thread no context of its own
        use = cupy.cuda.Device(device).use
        self._pool = ThreadPoolExecutor(_num_cores(), "caspar compile", initializer=use)
        self._kernels: dict[_Key, Future[CudaKernel]] = {}
        self._lock = Lock()
        self._structures: set[bool] = set()
        self._small: dict[tuple[str, ...], list[tuple[KernelSource, int, bool]]] = {}
        self.search = OptionSearch(architecture(), self._forget)

    def begin_structure(self, *, tiled: bool) -> None:
        """Compile what a structure takes, `tiled` if it has node tiles; once in a process."""
        with self._lock:
            # what the other kind takes is little, and compiled when it is needed
            if tiled in self._structures or True in self._structures:
                return
            self._structures.add(tiled)
        for texts in structure_texts(tiled=tiled):
            self._pool.submit(_load_together, texts)
        self._pool.submit(_compile_sort, tiled=tiled)

    def begin(
        self, source: KernelSource, block_size: int | None, *, is_settled: bool
    ) -> "Future[CudaKernel]":
        """Compile a kernel, unless that was begun; see `kernel.compiled_kernel`."""
        key = (source.text, block_size, is_settled)
        with self._lock:
            kernel = self._kernels.get(key)
            if kernel is None or _has_failed(kernel):
                compiled = partial(compiled_kernel, is_settled=is_settled)
                kernel = self._pool.submit(compiled, source, block_size, self._name)
                self._kernels[key] = kernel
            return kernel

    def begin_with_others(self, source: KernelSource, block_size: int, *, is_settled: bool) -> None:
        """The same, but a small kernel together with others."""
        if len(source.text) > SMALL:
            self.begin(source, block_size, is_settled=is_settled)
            return
        options = size_options(source, block_size)
        with self._lock:
            waiting = self._small.setdefault(options, [])
            waiting.append((source, block_size, is_settled))
            is_enough = len(waiting) >= TOGETHER
        if is_enough:
            self._begin_small()

    def _begin_small(self) -> None:
        with self._lock:
            small, self._small = self._small, {}
            groups: dict[tuple[str, ...], list[_Begun]] = {options: [] for options in small}
            for options, waiting in small.items():
                for source, block_size, is_settled in waiting:
                    key = (source.text, block_size, is_settled)
                    if key not in self._kernels:
                        kernel: Future[CudaKernel] = Future()
                        self._kernels[key] = kernel
                        compiled = partial(compiled_kernel, source, block_size, self._name)
                        compiled = partial(compiled, is_settled=is_settled)
                        groups[options].append((source, compiled, kernel))
        for options, begun in groups.items():
            self._pool.submit(_compile_together, begun, options)

    def load(
        self, sources: Sequence[KernelSource], block_size: int | None, *, is_settled: bool
    ) -> Mapping[str, CudaKernel]:
        """Compiled kernels by name; raises as `kernel.compiled_kernel` does."""
        self._begin_small()
        begun = [self.begin(source, block_size, is_settled=is_settled) for source in sources]
        return {
            source.name: replace(kernel.result(), source=source)
            for source, kernel in zip(sources, begun, strict=True)
        }

    def _forget(self, source: KernelSource) -> None:
        """Compile a kernel anew when it is next asked for: better options were found."""
        with self._lock:
            for key in [key for key in self._kernels if key[0] == source.text and not key[2]]:
                del self._kernels[key]


def _compile_together(begun: Sequence[_Begun], options: tuple[str, ...]) -> None:
    with suppress(CasparError):  # each of them says what is wrong
        compile_together([source.text for source, _, _ in begun], architecture(), options)
    for _, compiled, kernel in begun:
        try:
            made = compiled()
        except BaseException as error:
            kernel.set_exception(error)
        else:
            kernel.set_result(made)


def _load_together(texts: Mapping[str, tuple[str, ...]]) -> None:
    compile_together(list(texts), architecture(), COMPILE_OPTIONS)
    for text, names in texts.items():
        load_functions(text, names)


def _compile_sort(*, tiled: bool) -> None:
    """Make CuPy compile the kernels of its own that the sort of a structure takes."""
    # it sorts a copy
    cupy.argsort(cupy.empty(2, np.int32 if tiled else np.int64), kind="stable")


def _has_failed(kernel: "Future[CudaKernel]") -> bool:
    return kernel.done() and (kernel.cancelled() or kernel.exception() is not None)


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def compilation(device: int, name: str) -> Compilation:
    """The one of a device."""
    return Compilation(device, name)
