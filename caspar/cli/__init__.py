"""The command line: `caspar bal`, `caspar doctor`, `caspar cache`."""

from caspar.cli.app import main

__all__ = ["main"]
