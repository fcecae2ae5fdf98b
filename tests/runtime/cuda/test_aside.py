"""Work that only the end of the process waits for."""

import subprocess
import sys
import time
from threading import Event

from caspar.runtime.cuda.aside import aside, wait_for_all

LATE = """
import time
from caspar.runtime.cuda.aside import aside

def work():
    time.sleep(0.3)
    print("done", flush=True)

aside(work)
print("end", flush=True)
"""

NEVER = """
from threading import Event
from caspar.runtime.cuda import aside

aside.aside(Event().wait)
print("end", flush=True)
"""


def printed(program: str) -> tuple[str, float]:
    start = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return ended.stdout, time.monotonic() - start


def test_nobody_waits_but_who_asks() -> None:
    go, done = Event(), Event()

    def work() -> None:
        go.wait(60.0)
        done.set()

    aside(work)
    wait_for_all(0.01)
    assert not done.is_set()
    go.set()
    wait_for_all(10.0)
    assert done.is_set()


def test_the_process_waits_for_it() -> None:
    assert printed(LATE)[0].split() == ["end", "done"]


def test_the_process_does_not_wait_for_ever() -> None:
    text, seconds = printed(NEVER)
    assert text.split() == ["end"]
    assert seconds < 30.0
