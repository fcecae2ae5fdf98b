"""`python -m benchmarks.compile_solver MODULE FACTOR`: compile a solver's kernels once, as JSON.

What a new process does between a residual function and CUDA text, without a cache, by part.
Seconds are processor time, but for NVRTC, whose threads count as one here.
"""

import argparse
import importlib
import json
import time
from dataclasses import dataclass, field

from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.equations.factor_builder import FactorForm, SharedSums
from caspar.equations.solver_form import SolverForm
from caspar.equations.solver_kernels import kernel_specs
from caspar.frontend.factors.trace import trace
from caspar.frontend.precision import TYPES
from caspar.ir.graph import Graph
from caspar.ir.ops import OP_INFO, Op
from caspar.options import Precision
from caspar.runtime.nvidia.nvrtc import compile_kernel_text

PARTS = ("trace", "derivatives", "passes", "schedule", "registers", "text")


@dataclass
class _Stopwatch:
    """Processor time by part; every lap goes to one."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    last: float = field(default_factory=time.process_time)

    def lap(self, part: str) -> None:
        """Add the time since the last lap."""
        now = time.process_time()
        self.seconds[part] += now - self.last
        self.last = now

    def observe(self, stage: str, _result: object) -> None:
        """A lap of the pipeline."""
        self.lap(stage if stage in PARTS else "passes")


def main() -> None:
    """Parse the arguments, compile, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module")
    parser.add_argument("factor")
    parser.add_argument("--nvrtc", action="store_true", help="compile the text for sm_90, too")
    arguments = parser.parse_args()
    factor = getattr(importlib.import_module(arguments.module), arguments.factor)
    start_s = time.perf_counter()
    watch = _Stopwatch()
    traced = trace(factor)
    watch.lap("trace")
    nodes = {argument.node.name: argument.node for argument in traced.nodes if argument.node}
    form = SolverForm({traced.name: FactorForm(SharedSums.ATOMIC)})
    specs, _ = kernel_specs([traced], list(nodes.values()), TYPES[Precision.MIXED], form)
    watch.lap("derivatives")
    sources = []
    for spec in specs:
        sources.append(compile_kernel(spec, TARGETS["cuda"], watch.observe))
        watch.lap("text")
    wall_s = time.perf_counter() - start_s
    start_s = time.perf_counter()
    for source in sources if arguments.nvrtc else ():
        compile_kernel_text(source.text)
    measured = {
        "factor": factor.name,
        "num_operations": num_operations(specs[0].graph),
        "num_kernels": len(specs),
        "num_calls": sum(len(spec.graph.calls) for spec in specs),
        "seconds": watch.seconds,
        "wall_s": wall_s,
        "nvrtc_s": time.perf_counter() - start_s if arguments.nvrtc else None,
    }
    print(json.dumps(measured))


def num_operations(graph: Graph) -> int:
    """Operations of a graph; a sum or product of n has n - 1."""
    return sum(
        len(call.operands) - 1 if OP_INFO[call.op].associative else 1
        for call in graph.calls
        if call.op not in (Op.CONST, Op.READ, Op.STORE)
    )


if __name__ == "__main__":
    main()
