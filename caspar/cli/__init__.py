"""The command line: `caspar bal`, `caspar inspect`, `caspar doctor`, `caspar cache`.

`app` reads the arguments, the other files each have a command or what commands share. A package
that is missing or broken is reported in words.
"""

from functools import partial

from caspar.cli.packages import report_broken

try:
    from caspar.cli.app import main
except Exception as error:  # a package is missing or broken, and may raise anything
    main = partial(report_broken, error)

__all__ = ["main"]
