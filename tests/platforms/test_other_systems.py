"""macOS and Windows, as far as they can be imitated: functions that are missing, other threads."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from llvmlite import binding as llvm

from caspar.runtime import cache
from caspar.runtime.cpu import threads
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.cpu.driver import driver_text
from caspar.runtime.cpu.machine_code import compile_code
from caspar.runtime.cpu.threads import num_cores, primitives, system_functions
from tests.pages import blocks

ROOT = Path(__file__).parents[2]

ON_POSIX = """\
define void @InitializeSRWLock(ptr %a) {
  call i32 @pthread_mutex_init(ptr %a, ptr null)
  ret void
}
define void @AcquireSRWLockExclusive(ptr %a) {
  call i32 @pthread_mutex_lock(ptr %a)
  ret void
}
define void @ReleaseSRWLockExclusive(ptr %a) {
  call i32 @pthread_mutex_unlock(ptr %a)
  ret void
}
define void @InitializeConditionVariable(ptr %a) {
  call i32 @pthread_cond_init(ptr %a, ptr null)
  ret void
}
define i32 @SleepConditionVariableSRW(ptr %a, ptr %b, i32 %limit, i32 %flags) {
  call i32 @pthread_cond_wait(ptr %a, ptr %b)
  ret i32 1
}
define void @WakeConditionVariable(ptr %a) {
  call i32 @pthread_cond_signal(ptr %a)
  ret void
}
define void @WakeAllConditionVariable(ptr %a) {
  call i32 @pthread_cond_broadcast(ptr %a)
  ret void
}
define ptr @CreateThread(ptr %s, i64 %n, ptr %function, ptr %argument, i32 %f, ptr %id) {
  %thread = alloca i64
  call i32 @pthread_create(ptr %thread, ptr null, ptr %function, ptr %argument)
  %handle = load ptr, ptr %thread
  ret ptr %handle
}
define i32 @CloseHandle(ptr %handle) {
  ret i32 1
}
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
"""
"""The functions of Windows, made of those of POSIX."""

COUNT = """
define void @count(ptr %table, i64 %tile) {
  %place = getelementptr i64, ptr %table, i64 %tile
  %old = load i64, ptr %place
  %new = add i64 %old, 1
  store i64 %new, ptr %place
  ret void
}
"""


def _without_declarations(text: str) -> str:
    names = threads._WINDOWS_FUNCTIONS["kernel32"]
    lines = text.splitlines()
    return "\n".join(
        line
        for line in lines
        if not (line.startswith("declare") and any(f"@{name}(" in line for name in names))
    )


def test_driver_of_windows_runs_every_tile_once() -> None:
    """Its locks and threads, with functions of the same meaning below them."""
    text = _without_declarations(driver_text(primitives("win32"))) + ON_POSIX + COUNT
    run, new_team, count = compile_code(
        "test of other systems", ("caspar.run", "caspar.team", "count"), text
    )
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    run_launches = ctypes.CFUNCTYPE(None, *4 * (pointer,), integer, pointer, integer)(run)
    team = ctypes.CFUNCTYPE(pointer, integer)(new_team)(3)
    num_tiles, num_runs, num_launches = 500, 50, 4
    counts = np.zeros((num_launches, num_tiles), np.int64)
    functions = np.full(num_launches, count, np.int64)
    tables = np.array([row.ctypes.data for row in counts], np.int64)
    tiles = np.full(num_launches, num_tiles, np.int64)
    places = [array.ctypes.data for array in (functions, tables, tiles)]
    run_launches(team, *places, num_launches, None, num_runs)
    assert np.all(counts == num_runs)


@pytest.mark.parametrize(
    ("triple", "system"),
    [
        ("x86_64-pc-windows-msvc", "win32"),
        ("x86_64-apple-darwin", "darwin"),
        ("x86_64-pc-linux-gnu", "linux"),
    ],
)
def test_driver_compiles_for_a_system(triple: str, system: str) -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=3)
    module = llvm.parse_assembly(driver_text(primitives(system)))
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    code = machine.emit_object(module)
    named = {"win32": b"AcquireSRWLockExclusive"}.get(system, b"pthread_mutex_lock")
    assert named in code
    assert (b"pthread" in code) == (system != "win32")


def test_functions_of_windows_are_all_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that the text declares is looked for in a library of the system."""

    class Library:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getattr__(self, name: str) -> ctypes.c_void_p:
            return ctypes.c_void_p(1 + len(name))

    monkeypatch.setattr(ctypes, "CDLL", Library)
    found = system_functions("win32")
    declared = [
        line.partition("@")[2].partition("(")[0]
        for line in primitives("win32").splitlines()
        if line.startswith("declare")
    ]
    assert set(declared) <= set(found)
    assert all(address > 0 for address in found.values())
    assert system_functions("darwin") == {}


def test_number_of_cores_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert num_cores() == os.cpu_count()


@pytest.mark.parametrize("missing", ["sysconf", "SC_AVPHYS_PAGES"])
def test_memory_where_the_system_does_not_tell(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "sysconf":
        monkeypatch.delattr(os, "sysconf")
    else:
        known = {"SC_PHYS_PAGES": 1, "SC_PAGE_SIZE": 4096}

        def sysconf(name: str) -> int:
            if name not in known:
                raise ValueError("unrecognized configuration name")
            return known[name]

        monkeypatch.setattr(os, "sysconf", sysconf)
    assert len(CpuBackend().allocate(64)) == 64
    with pytest.raises(MemoryError, match="an unknown number are unused"):
        CpuBackend().allocate(1 << 62)


def test_cache_without_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has neither user numbers nor modes; entries are still checked by digests."""
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delattr(os, "geteuid")
    cache.write_entry("code", "key", b"content")
    assert cache.read_entry("code", "key") == b"content"
    (entry,) = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    entry.write_bytes(entry.read_bytes()[:-1] + b"x")
    assert cache.read_entry("code", "key") is None


WITHOUT_POSIX = """
import os, sys
import llvmlite.binding, numpy, platformdirs, qdldl, rich.console, rslab, scipy.sparse.linalg
import symforce.symbolic, tempfile, threadpoolctl  # as they are on this system
for name in ("fork", "register_at_fork", "geteuid", "getuid", "sched_getaffinity", "sysconf",
             "chown", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
    if hasattr(os, name):
        delattr(os, name)
import runpy
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_a_solve_needs_nothing_of_posix(tmp_path: Path) -> None:
    """The first example of the README, where these functions do not exist."""
    (program,) = blocks(ROOT / "README.md", "python")
    (tmp_path / "example.py").write_text(program.text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX, "example.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CUDA_VISIBLE_DEVICES": "",
            cache.FOLDER_VARIABLE: str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert "CONVERGED" in done.stdout
    assert any(path.is_file() for path in (tmp_path / "cache").rglob("*"))


def test_paths_of_the_cache_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows allows 260 characters, most of which are the user's folder."""
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "cache"))
    cache.write_entry("code", "a long key " * 100, b"content")
    names = [path.relative_to(tmp_path / "cache") for path in (tmp_path / "cache").rglob("*")]
    assert names
    assert max(len(str(name)) for name in names) <= 100
    for name in names:
        assert not set(name.name) & set('<>:"|?*')


def test_modules_of_one_system_are_not_imported() -> None:
    """Nothing that Windows lacks is imported when caspar is."""
    program = (
        "import sys\n"
        "for name in ('fcntl', 'pwd', 'grp', 'resource', 'termios'):\n"
        "    sys.modules[name] = None\n"
        "import caspar, caspar.solver.solver, caspar.cli.app, caspar.colmap, caspar.io\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=500)
