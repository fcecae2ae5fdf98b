"""`caspar cache`: what is kept between runs."""

from rich.console import Console

from caspar.cli.exit_code import ExitCode
from caspar.runtime.cache import CacheUsage, cache_usage, clear_cache
from caspar.solver.result.quantities import bytes_text, count_text


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
