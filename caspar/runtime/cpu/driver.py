"""The compiled driver that runs lists of launches, and its threads.

A launch is a function, a parameter table and a number of tiles. The driver runs launches one after
the other. The tiles of one are taken by the calling thread and by a team of threads, one tile at a
time, whoever is free. The caller waits for those who work on a tile, not for those who were still
asleep: where the cores have other work, it does the work itself.

The team serves one caller at a time. Another one that comes meanwhile works alone. Threads that
have nothing to do look for work for some microseconds, then sleep.

The driver is written in LLVM IR. The team is a block of memory:

    bytes 0, 128, 256   a lock; conditions "there is work" and "nobody works"
    384  epoch          how many launches were offered
    392  open           whether the launch may be joined
    400  active         threads of the team that are in it
    408, 416, 424       its function, table, number of tiles
    448  busy           whether a caller has the team
    512  next           the tile that is taken next, in a cache line of its own

Cost: a launch of several tiles takes some microseconds more than its tiles.
"""

import ctypes
import hashlib
import os
import platform
from functools import cache
from threading import Lock
from typing import Any

from caspar.runtime.cpu.machine_code import compile_code, load_code
from caspar.runtime.cpu.threads import num_cores, primitives

THREADS_VARIABLE = "CASPAR_NUM_THREADS"

_LOOKS = 300
"""Times that a thread looks for work before it sleeps: some 5 to 10 microseconds."""

_PAUSE = {
    "x86_64": "call void @llvm.x86.sse2.pause()",
    "AMD64": "call void @llvm.x86.sse2.pause()",
    "aarch64": "call void @llvm.aarch64.isb(i32 15)",
    "arm64": "call void @llvm.aarch64.isb(i32 15)",
}
"""The instruction that a thread runs between two looks, by processor."""

_FIELDS = """\
  %work = getelementptr i8, ptr %team, i64 128
  %idle = getelementptr i8, ptr %team, i64 256
  %epoch = getelementptr i8, ptr %team, i64 384
  %open = getelementptr i8, ptr %team, i64 392
  %active = getelementptr i8, ptr %team, i64 400
  %function.at = getelementptr i8, ptr %team, i64 408
  %table.at = getelementptr i8, ptr %team, i64 416
  %count.at = getelementptr i8, ptr %team, i64 424
  %next = getelementptr i8, ptr %team, i64 512"""
"""The addresses of the parts of a team."""

_TEXT = """\
THREADS
declare ptr @calloc(i64, i64)
DECLARED

; take tiles until there are no more
define internal void @drain(ptr %next, ptr %function, ptr %table, i64 %count) nounwind noinline {
entry:
  br label %take
take:
  %tile = atomicrmw add ptr %next, i64 1 monotonic
  %more = icmp slt i64 %tile, %count
  br i1 %more, label %run, label %done
run:
  call void %function(ptr %table, i64 %tile)
  br label %take
done:
  ret void
}

; what a thread of the team does, for ever
define internal ptr @work(ptr %team) nounwind {
entry:
FIELDS
  br label %rest
rest:
  %seen = phi i64 [ 0, %entry ], [ %now, %left ], [ %now, %late ]
  br label %look
look:
  %looks = phi i64 [ 0, %rest ], [ %looked, %again ]
  %current = load atomic i64, ptr %epoch acquire, align 8
  %is.new = icmp ne i64 %current, %seen
  %looked = add i64 %looks, 1
  %is.tired = icmp sge i64 %looked, LOOKS
  %stop = or i1 %is.new, %is.tired
  br i1 %stop, label %enter, label %again
again:
  PAUSE
  br label %look
enter:
  call void @lock(ptr %team)
  br label %check
check:
  %now = load atomic i64, ptr %epoch monotonic, align 8
  %is.same = icmp eq i64 %now, %seen
  br i1 %is.same, label %sleep, label %awake
sleep:
  call void @wait(ptr %work, ptr %team)
  br label %check
awake:
  %is.open = load i64, ptr %open
  %may.join = icmp ne i64 %is.open, 0
  br i1 %may.join, label %join, label %late
late:
  call void @unlock(ptr %team)
  br label %rest
join:
  %before = atomicrmw add ptr %active, i64 1 monotonic
  %function = load ptr, ptr %function.at
  %table = load ptr, ptr %table.at
  %count = load i64, ptr %count.at
  call void @unlock(ptr %team)
  call void @drain(ptr %next, ptr %function, ptr %table, i64 %count)
  call void @lock(ptr %team)
  %others = atomicrmw sub ptr %active, i64 1 release
  %is.last = icmp eq i64 %others, 1
  br i1 %is.last, label %tell, label %left
tell:
  call void @wake(ptr %idle)
  br label %left
left:
  call void @unlock(ptr %team)
  br label %rest
}

; run one launch with the team
define internal void @share(ptr %team, ptr %function, ptr %table, i64 %count) nounwind {
entry:
FIELDS
  call void @lock(ptr %team)
  store ptr %function, ptr %function.at
  store ptr %table, ptr %table.at
  store i64 %count, ptr %count.at
  store atomic i64 0, ptr %next monotonic, align 8
  store i64 1, ptr %open
  %before = atomicrmw add ptr %epoch, i64 1 release
  call void @wake.all(ptr %work)
  call void @unlock(ptr %team)
  call void @drain(ptr %next, ptr %function, ptr %table, i64 %count)
  br label %look
look:
  %looks = phi i64 [ 0, %entry ], [ %looked, %again ]
  %working = load atomic i64, ptr %active acquire, align 8
  %is.idle = icmp eq i64 %working, 0
  %looked = add i64 %looks, 1
  %is.tired = icmp sge i64 %looked, LOOKS
  %stop = or i1 %is.idle, %is.tired
  br i1 %stop, label %close, label %again
again:
  PAUSE
  br label %look
close:
  call void @lock(ptr %team)
  store i64 0, ptr %open
  br label %check
check:
  %left = load atomic i64, ptr %active acquire, align 8
  %is.done = icmp eq i64 %left, 0
  br i1 %is.done, label %done, label %wait
wait:
  call void @wait(ptr %idle, ptr %team)
  br label %check
done:
  call void @unlock(ptr %team)
  ret void
}

define internal void @alone(ptr %function, ptr %table, i64 %count) nounwind {
entry:
  br label %head
head:
  %tile = phi i64 [ 0, %entry ], [ %following, %body ]
  %more = icmp slt i64 %tile, %count
  br i1 %more, label %body, label %done
body:
  call void %function(ptr %table, i64 %tile)
  %following = add i64 %tile, 1
  br label %head
done:
  ret void
}

; run launches in order, again and again until the flag is set
define void @caspar.run(ptr %team, ptr %functions, ptr %tables, ptr %counts, i64 %num.launches,
                        ptr %flag, i64 %max.runs) nounwind {
entry:
  %has.team = icmp ne ptr %team, null
  br i1 %has.team, label %ask, label %begin
ask:
  %busy = getelementptr i8, ptr %team, i64 448
  %was.busy = atomicrmw xchg ptr %busy, i64 1 acquire
  %is.free = icmp eq i64 %was.busy, 0
  br label %begin
begin:
  %is.mine = phi i1 [ false, %entry ], [ %is.free, %ask ]
  br label %runs
runs:
  %number = phi i64 [ 0, %begin ], [ %following, %run.done ]
  %more.runs = icmp slt i64 %number, %max.runs
  br i1 %more.runs, label %look, label %end
look:
  %has.flag = icmp ne ptr %flag, null
  br i1 %has.flag, label %read, label %launches
read:
  %flag.value = load double, ptr %flag
  %is.set = fcmp une double %flag.value, 0.0
  br i1 %is.set, label %end, label %launches
launches:
  %launch = phi i64 [ 0, %look ], [ 0, %read ], [ %next.launch, %launch.done ]
  %more.launches = icmp slt i64 %launch, %num.launches
  br i1 %more.launches, label %one, label %run.done
one:
  %function.at = getelementptr ptr, ptr %functions, i64 %launch
  %table.at = getelementptr ptr, ptr %tables, i64 %launch
  %count.at = getelementptr i64, ptr %counts, i64 %launch
  %function = load ptr, ptr %function.at
  %table = load ptr, ptr %table.at
  %count = load i64, ptr %count.at
  %is.long = icmp sgt i64 %count, 1
  %is.shared = and i1 %is.mine, %is.long
  br i1 %is.shared, label %shared, label %single
shared:
  call void @share(ptr %team, ptr %function, ptr %table, i64 %count)
  br label %launch.done
single:
  call void @alone(ptr %function, ptr %table, i64 %count)
  br label %launch.done
launch.done:
  %next.launch = add i64 %launch, 1
  br label %launches
run.done:
  %following = add i64 %number, 1
  br label %runs
end:
  br i1 %is.mine, label %release, label %leave
release:
  %busy.again = getelementptr i8, ptr %team, i64 448
  store atomic i64 0, ptr %busy.again release, align 8
  ret void
leave:
  ret void
}

; a team of a number of threads; fewer, if the system does not give them
define ptr @caspar.team(i64 %num.threads) nounwind {
entry:
  %team = call ptr @calloc(i64 1, i64 640)
  %work = getelementptr i8, ptr %team, i64 128
  %idle = getelementptr i8, ptr %team, i64 256
  call void @lock.new(ptr %team)
  call void @condition.new(ptr %work)
  call void @condition.new(ptr %idle)
  br label %head
head:
  %number = phi i64 [ 0, %entry ], [ %following, %started ]
  %more = icmp slt i64 %number, %num.threads
  br i1 %more, label %start, label %done
start:
  %is.started = call i1 @start(ptr @work, ptr %team)
  br i1 %is.started, label %started, label %done
started:
  %following = add i64 %number, 1
  br label %head
done:
  ret ptr %team
}
"""


def driver_text(threads: str) -> str:
    """LLVM IR of the driver, on top of the locks and threads of a system."""
    pause = _PAUSE.get(platform.machine(), "")
    declared = pause.replace("call", "declare").replace("i32 15", "i32")
    text = _TEXT.replace("THREADS", threads).replace("LOOKS", str(_LOOKS))
    return text.replace("PAUSE", pause).replace("DECLARED", declared).replace("FIELDS", _FIELDS)


class _Driver:
    """The compiled functions: `run` for launches; `new_team` starts threads for its address."""

    def __init__(self) -> None:
        text = driver_text(primitives())
        key, symbols = hashlib.sha256(text.encode()).hexdigest(), ("caspar.run", "caspar.team")
        run, new_team = load_code(key, symbols) or compile_code(key, symbols, text)
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self.run: Any = ctypes.CFUNCTYPE(None, *4 * (pointer,), integer, pointer, integer)(run)
        self.new_team: Any = ctypes.CFUNCTYPE(pointer, integer)(new_team)


_driver = cache(_Driver)


class _Teams:
    """The team of this process. Its threads are the system's and end with the process."""

    def __init__(self) -> None:
        self.forget()
        if hasattr(os, "register_at_fork"):  # Windows has no forks
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """A fork has no threads but the one that forked."""
        self._lock = Lock()
        self._address: int | None = None

    def address(self) -> int | None:
        """Return the address of the team; None if there is only one thread."""
        if self._address is None and num_threads() > 1:
            with self._lock:
                if self._address is None:
                    self._address = _driver().new_team(num_threads() - 1)
        return self._address


_TEAMS = _Teams()


@cache
def num_threads() -> int:
    """Threads that kernels run on, the caller's among them.

    As many as the process may use cores, or as the environment says: CASPAR_NUM_THREADS, or else
    OMP_NUM_THREADS.
    """
    for variable in (THREADS_VARIABLE, "OMP_NUM_THREADS"):
        text = os.environ.get(variable, "").partition(",")[0].strip()
        if text.isdecimal() and int(text) > 0:
            return int(text)
    return num_cores()


def run_launches(
    functions: int,
    tables: int,
    num_tiles: int,
    num_launches: int,
    *,
    is_shared: bool,
    flag: int | None = None,
    max_runs: int = 1,
) -> None:
    """Run launches in order, at most `max_runs` times, until the float64 at `flag` is not zero.

    `functions`, `tables` and `num_tiles` are addresses of (num_launches,) int64. `is_shared`: one
    of the launches has several tiles.
    """
    _driver().run(
        _TEAMS.address() if is_shared else None,
        functions,
        tables,
        num_tiles,
        num_launches,
        flag,
        max_runs,
    )
