"""Calls that Ctrl-C does not break into: it ends only the wait for them.

Numba compiles through callbacks from C, in which Python drops an interrupt: the compilation then
fails, and the interrupt is lost. Python raises Ctrl-C in the main thread, so the work is done in
another one, which ends by itself.

Cost: starting a thread, 0.1 ms.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def uninterrupted(function: Callable[..., _Result], *args: Any) -> _Result:
    """Call a function, on another thread if this is the main one; what it raises is raised here.

    After a Ctrl-C it goes on, and a program waits for it before it ends: give it short work, and
    let it take its locks itself.

    Args:
        function: What to call.
        args: Its arguments.
    """
    if threading.current_thread() is not threading.main_thread():
        return function(*args)
    outcome: Future[_Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(function(*args))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="caspar compiles").start()
    return outcome.result()
