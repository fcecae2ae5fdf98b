"""Sends a solve to Rerun's viewer while it runs: places, residuals, costs, on a timeline.

Input: a solver, its arrays, and records of iterations, by `on_iteration`. Output: what Rerun makes
of it: a window, a file, a server. Public as `caspar.rerun`; the extra `rerun` installs rerun-sdk.
"""

from caspar.rerun.logger import Logger

__all__ = ["Logger"]
