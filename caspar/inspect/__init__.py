"""Looking at what is compiled: every stage of every kernel of a factor, without a GPU.

`factor.inspect()` gives a `FactorInspection`, `kernel.inspect()` a `KernelInspection`;
`caspar inspect` prints the same.
"""

from caspar.inspect.inspection import FactorInspection, inspect_factor, inspect_kernel
from caspar.inspect.resources import (
    KernelReport,
    ResourcesView,
    block_sizes_text,
    occupancy_text,
    resource_facts,
)
from caspar.inspect.stages import KernelInspection, View, stage_names
from caspar.inspect.views import GraphView, ProgramView, ScheduleView, TextView
from caspar.tables import DataTable, FactTable

__all__ = [
    "DataTable",
    "FactTable",
    "FactorInspection",
    "GraphView",
    "KernelInspection",
    "KernelReport",
    "ProgramView",
    "ResourcesView",
    "ScheduleView",
    "TextView",
    "View",
    "block_sizes_text",
    "inspect_factor",
    "inspect_kernel",
    "occupancy_text",
    "resource_facts",
    "stage_names",
]
