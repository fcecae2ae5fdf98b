"""`caspar doctor`: what this machine has, which backends work, what to install.

Nothing here fails where something is missing: that is what it is for. The packages and the CPU
backend are tried in a process of its own, so that a broken library cannot take the report with it.
Where the command line itself cannot be loaded, `caspar.cli.packages` reports instead.

Also here: `caspar cache`: what is kept between runs.
"""

import os
import platform
import re
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from caspar.cli.exit_code import ExitCode
from caspar.cli.packages import (
    CUPY_PACKAGES,
    OPTIONAL_PACKAGES,
    PACKAGES,
    import_problems,
    installed_version,
    tried_program,
    versions_text,
)
from caspar.runtime.cache import CacheUsage, cache_usage, clear_cache
from caspar.runtime.nvidia.probe import (
    CudaDriver,
    cuda_problem,
    find_driver,
    graph_loop_problem,
    install_advice,
    probe_cupy,
    sparse_problem,
    version_text,
)
from caspar.solver.result.quantities import bytes_text, count_text
from caspar.version import __version__, install_command


def show_caches(console: Console) -> ExitCode:
    """Print where the cache is and how large."""
    console.print(cache_text(cache_usage()), markup=False, soft_wrap=True)
    return ExitCode.SUCCESS


def clear_caches(console: Console) -> ExitCode:
    """Delete the cache and print what it held."""
    before = clear_cache()
    after = cache_usage()
    lines = [f"deleted: {_size(before)} in {before.folder}"]
    if after.num_others > 0:
        lines.append(f"left alone: {count_text(after.num_others, 'file')} not written by caspar")
    if after.num_files > 0:
        lines = [f"not all could be deleted; left in {after.folder}: {_size(after)}"]
    console.print("\n".join(lines), markup=False, soft_wrap=True)
    return ExitCode.WRONG_INPUT if after.num_files > 0 else ExitCode.SUCCESS


def cache_text(usage: CacheUsage) -> str:
    """Describe the cache: folder, size, limit, and why it is not used if it is not."""
    if usage.folder is None:
        return usage.refusal
    text = f"{usage.folder}: {_size(usage)}, of at most {bytes_text(usage.max_bytes)}"
    return f"{text}; not used: {usage.refusal}" if usage.refusal else text


def _size(usage: CacheUsage) -> str:
    return f"{count_text(usage.num_files, 'file')}, {bytes_text(usage.num_bytes)}"


_TRY_CPU = (
    "import symforce.symbolic; from caspar.runtime.cpu.backend import CpuBackend; "
    "print(CpuBackend().device)"
)
_DRIVER_VERSION_FILE = Path("/proc/driver/nvidia/version")


class Verdict(Enum):
    """The meaning of a finding; the value is its colour."""

    GOOD = "green"
    PLAIN = ""
    ABSENT = "yellow"
    WRONG = "red"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    text: str
    verdict: Verdict = Verdict.PLAIN


def examine(console: Console) -> ExitCode:
    """Print what there is; success means that at least one backend works."""
    driver = find_driver()
    with console.status("looking around", spinner="line"):
        backends = [_cpu_backend(), _cuda_backend()]
        processors = count_text(os.cpu_count() or 1, "processor")
        findings = [
            Finding("system", f"{platform.platform()}, {platform.machine()}, {processors}"),
            Finding("Python", f"{platform.python_version()} ({sys.executable})"),
            Finding("caspar", f"{__version__} ({Path(__file__).parents[1]})"),
            *_packages(),
            *_cuda(driver),
            *_caches(driver),
            *backends,
            *_on_cuda(),
        ]
    _print(console, findings)
    works = any(backend.verdict is Verdict.GOOD for backend in backends)
    return ExitCode.SUCCESS if works else ExitCode.NOT_CONVERGED


def _print(console: Console, findings: list[Finding]) -> None:
    if not console.is_terminal:  # one line for each, for logs and grep
        for finding in findings:
            console.print(f"{finding.name:<14}{finding.text}", markup=False, soft_wrap=True)
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(finding.name, Text(finding.text, style=finding.verdict.value))
    console.print(table)


def _packages() -> list[Finding]:
    installed, missing = versions_text(PACKAGES)
    findings = [Finding("packages", installed)]
    if missing:
        advice = f"missing: {', '.join(missing)}; install caspar again: {install_command()}"
        findings.append(Finding("", advice, Verdict.WRONG))
    findings += [Finding("", problem, Verdict.WRONG) for problem in import_problems(missing)]
    installed, missing = versions_text(OPTIONAL_PACKAGES)
    without = f"; not installed: {', '.join(missing)}" if missing else ""
    return [*findings, Finding("optional", f"{installed or 'none'}{without}")]


def _cuda(driver: CudaDriver | None) -> list[Finding]:
    if driver is None:
        return [Finding("driver", "no NVIDIA driver", Verdict.ABSENT), _cupy(None)]
    findings = [
        Finding("driver", f"NVIDIA {_driver_version()}, CUDA {version_text(driver.cuda_version)}")
    ]
    for number, device in enumerate(driver.devices):
        major, minor = device.capability
        text = f"{device.name}, compute capability {major}.{minor}"
        findings.append(
            Finding(f"device {number}", f"{text}, {bytes_text(device.memory_bytes)}", Verdict.GOOD)
        )
    if driver.problem is not None:
        findings.append(Finding("", driver.problem, Verdict.WRONG))
    return [*findings, _cupy(driver)]


def _cupy(driver: CudaDriver | None) -> Finding:
    """Find what is installed; what it can do is asked only if a driver could answer."""
    installed, missing = versions_text(CUPY_PACKAGES)
    text = installed or "not installed"
    verdict = Verdict.PLAIN if installed else Verdict.ABSENT
    if driver is None or not driver.devices:
        return Finding("CuPy", text, verdict)
    state = probe_cupy()
    if state.problem is None:
        return Finding("CuPy", f"{text}, NVRTC {state.nvrtc_version}", Verdict.GOOD)
    if len(CUPY_PACKAGES) - len(missing) > 1:
        return Finding("CuPy", f"{text}: uninstall all but one", Verdict.WRONG)
    return Finding("CuPy", f"{text}; {install_advice(driver)}", Verdict.WRONG)


def _caches(driver: CudaDriver | None) -> list[Finding]:
    findings = [_own_cache()]
    if driver is not None:
        default = Path.home() / ".cupy" / "kernel_cache"  # CuPy's own default
        folder = Path(os.environ.get("CUPY_CACHE_DIR", default))
        sizes = [path.stat().st_size for path in folder.glob("*") if path.is_file()]
        findings.append(_cache("CuPy's cache", folder, len(sizes), sum(sizes)))
    return findings


def _own_cache() -> Finding:
    usage = cache_usage()
    text = cache_text(usage)
    if usage.refusal:
        return Finding("cache", text, Verdict.WRONG)
    if usage.folder is not None and not _is_writable(usage.folder):
        return Finding("cache", f"{text}; no permission to write it", Verdict.WRONG)
    return Finding("cache", text)


def _cache(name: str, folder: Path, num_files: int, num_bytes: int) -> Finding:
    text = f"{folder}: {count_text(num_files, 'file')}, {bytes_text(num_bytes)}"
    if _is_writable(folder):
        return Finding(name, text)
    return Finding(name, f"{text}; no permission to write it", Verdict.WRONG)


def _is_writable(folder: Path) -> bool:
    existing = next(
        path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
    )
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _cpu_backend() -> Finding:
    tried = tried_program(_TRY_CPU)
    verdict = Verdict.GOOD if tried.works else Verdict.WRONG
    prefix = "works" if tried.works else "does not work"
    return Finding("backend cpu", f"{prefix}: {tried.text}", verdict)


def _cuda_backend() -> Finding:
    problem = cuda_problem()
    if problem is None:
        return Finding("backend cuda", "works", Verdict.GOOD)
    return Finding("backend cuda", f"not usable: {problem}", Verdict.ABSENT)


def _on_cuda() -> list[Finding]:
    if cuda_problem() is not None:
        return []
    return [_graph_loops(), _sparse()]


def _graph_loops() -> Finding:
    problem = graph_loop_problem()
    if problem is not None:
        return Finding("graph loops", f"polled by the host: {problem}", Verdict.ABSENT)
    return Finding("graph loops", f"on the device: cuda-core {installed_version('cuda-core')}")


def _sparse() -> Finding:
    problem = sparse_problem()
    if problem is not None:
        return Finding("sparse", f"no sparse factorisation on CUDA: {problem}", Verdict.ABSENT)
    return Finding("sparse", "factorised on CUDA by cuDSS")


def _driver_version() -> str:
    try:
        text = _DRIVER_VERSION_FILE.read_text(errors="replace")
    except OSError:
        return "(version not known)"
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return found.group() if found is not None else "(version not known)"
