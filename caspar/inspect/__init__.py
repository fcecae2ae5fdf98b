"""Looking at what is compiled: every stage of every kernel of a factor, without a GPU.

`factor.inspect()` gives a `FactorInspection`; `caspar inspect` prints the same.
"""

from caspar.inspect.factors import FactorInspection, inspect_factor
from caspar.inspect.resources import KernelReport, ResourcesView
from caspar.inspect.stages import KernelInspection, View, stage_names
from caspar.inspect.views import GraphView, ProgramView, ScheduleView, TextView

__all__ = [
    "FactorInspection",
    "GraphView",
    "KernelInspection",
    "KernelReport",
    "ProgramView",
    "ResourcesView",
    "ScheduleView",
    "TextView",
    "View",
    "inspect_factor",
    "stage_names",
]
