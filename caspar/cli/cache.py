"""`caspar cache`: what is kept between runs."""

from rich.console import Console

from caspar.cli.exit_code import ExitCode
from caspar.runtime.cache import CacheUsage, cache_usage, clear_cache
from caspar.solver.quantities import bytes_text, count_text


def show_caches(console: Console) -> ExitCode:
    """Print where the cache is and how large."""
    console.print(_text(cache_usage()), markup=False, soft_wrap=True)
    return ExitCode.SUCCESS


def clear_caches(console: Console) -> ExitCode:
    """Delete the cache and print what it held."""
    before = clear_cache()
    after = cache_usage()
    if after.num_files > 0:
        message = f"not all could be deleted; left in {_text(after)}"
        console.print(message, markup=False, soft_wrap=True)
        return ExitCode.WRONG_INPUT
    console.print(f"deleted: {_text(before)}", markup=False, soft_wrap=True)
    return ExitCode.SUCCESS


def _text(usage: CacheUsage) -> str:
    size = f"{count_text(usage.num_files, 'file')}, {bytes_text(usage.num_bytes)}"
    return f"{usage.folder}: {size}"
