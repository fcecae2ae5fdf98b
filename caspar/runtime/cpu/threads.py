"""Locks, conditions and threads of the operating system for the driver, in LLVM IR.

Input: the system. Output: internal functions `@lock`, `@unlock`, `@wait`, `@wake`, `@wake.all`,
`@lock.new`, `@condition.new` and `@start`, and the names of the system's own functions behind them.
LLVM inlines them. Locks and conditions have 128 bytes of zeros, which is enough on every system.

POSIX has them in its C library, Windows in kernel32: slim locks and condition variables.
"""

import ctypes
import os
import sys
from collections.abc import Mapping

_POSIX = """\
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)

define internal void @lock.new(ptr %lock) nounwind alwaysinline {
  call i32 @pthread_mutex_init(ptr %lock, ptr null)
  ret void
}
define internal void @lock(ptr %lock) nounwind alwaysinline {
  call i32 @pthread_mutex_lock(ptr %lock)
  ret void
}
define internal void @unlock(ptr %lock) nounwind alwaysinline {
  call i32 @pthread_mutex_unlock(ptr %lock)
  ret void
}
define internal void @condition.new(ptr %condition) nounwind alwaysinline {
  call i32 @pthread_cond_init(ptr %condition, ptr null)
  ret void
}
define internal void @wait(ptr %condition, ptr %lock) nounwind alwaysinline {
  call i32 @pthread_cond_wait(ptr %condition, ptr %lock)
  ret void
}
define internal void @wake(ptr %condition) nounwind alwaysinline {
  call i32 @pthread_cond_signal(ptr %condition)
  ret void
}
define internal void @wake.all(ptr %condition) nounwind alwaysinline {
  call i32 @pthread_cond_broadcast(ptr %condition)
  ret void
}
define internal i1 @start(ptr %function, ptr %argument) nounwind {
  %thread = alloca i64
  %failed = call i32 @pthread_create(ptr %thread, ptr null, ptr %function, ptr %argument)
  %is.started = icmp eq i32 %failed, 0
  br i1 %is.started, label %started, label %done
started:
  %handle = load i64, ptr %thread
  call i32 @pthread_detach(i64 %handle)
  br label %done
done:
  ret i1 %is.started
}
"""

_WINDOWS = """\
declare void @InitializeSRWLock(ptr)
declare void @AcquireSRWLockExclusive(ptr)
declare void @ReleaseSRWLockExclusive(ptr)
declare void @InitializeConditionVariable(ptr)
declare i32 @SleepConditionVariableSRW(ptr, ptr, i32, i32)
declare void @WakeConditionVariable(ptr)
declare void @WakeAllConditionVariable(ptr)
declare ptr @CreateThread(ptr, i64, ptr, ptr, i32, ptr)
declare i32 @CloseHandle(ptr)

define internal void @lock.new(ptr %lock) nounwind alwaysinline {
  call void @InitializeSRWLock(ptr %lock)
  ret void
}
define internal void @lock(ptr %lock) nounwind alwaysinline {
  call void @AcquireSRWLockExclusive(ptr %lock)
  ret void
}
define internal void @unlock(ptr %lock) nounwind alwaysinline {
  call void @ReleaseSRWLockExclusive(ptr %lock)
  ret void
}
define internal void @condition.new(ptr %condition) nounwind alwaysinline {
  call void @InitializeConditionVariable(ptr %condition)
  ret void
}
define internal void @wait(ptr %condition, ptr %lock) nounwind alwaysinline {
  call i32 @SleepConditionVariableSRW(ptr %condition, ptr %lock, i32 -1, i32 0)
  ret void
}
define internal void @wake(ptr %condition) nounwind alwaysinline {
  call void @WakeConditionVariable(ptr %condition)
  ret void
}
define internal void @wake.all(ptr %condition) nounwind alwaysinline {
  call void @WakeAllConditionVariable(ptr %condition)
  ret void
}
define internal i1 @start(ptr %function, ptr %argument) nounwind {
  %handle = call ptr @CreateThread(ptr null, i64 0, ptr %function, ptr %argument, i32 0, ptr null)
  %is.started = icmp ne ptr %handle, null
  br i1 %is.started, label %started, label %done
started:
  call i32 @CloseHandle(ptr %handle)
  br label %done
done:
  ret i1 %is.started
}
"""

_WINDOWS_FUNCTIONS = {
    "kernel32": (
        "InitializeSRWLock",
        "AcquireSRWLockExclusive",
        "ReleaseSRWLockExclusive",
        "InitializeConditionVariable",
        "SleepConditionVariableSRW",
        "WakeConditionVariable",
        "WakeAllConditionVariable",
        "CreateThread",
        "CloseHandle",
    ),
    "ntdll": ("__chkstk",),  # what LLVM calls in functions with a large stack
    "ucrtbase": ("calloc",),
}
"""Functions by library. POSIX's C library is in the process: LLVM finds its functions by itself."""


def primitives(system: str = sys.platform) -> str:
    """LLVM IR of the functions, for a system as `sys.platform` names it."""
    return _WINDOWS if system == "win32" else _POSIX


def system_functions(system: str = sys.platform) -> Mapping[str, int]:
    """Addresses of the functions that LLVM does not find by itself, by name."""
    if system != "win32":
        return {}
    return {
        name: ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value or 0
        for library, names in _WINDOWS_FUNCTIONS.items()
        for name in names
    }


def num_cores() -> int:
    """Cores that this process may use; all of the machine where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
