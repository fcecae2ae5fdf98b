"""How long a new process takes to its first result: imports, cold and warm caches.

Each figure is a new interpreter with a cache folder of its own: empty (cold) or filled by the
process before it (warm).
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

RUNS = 3

_PROGRAM = """
import json, sys, time
start = time.perf_counter()
import caspar
import_caspar_s = time.perf_counter() - start
from caspar.io import read_bal
from caspar.bundle_adjustment import snavely
from caspar import Solver
if sys.argv[1] == "cuda":
    import caspar.runtime.cuda.backend
else:
    import caspar.runtime.cpu.backend
imports_s = time.perf_counter() - start
problem = read_bal("data/problem-21-11315-pre.txt.bz2")
arrays = {"Cam": problem.cameras, "Point": problem.points, "snavely": {
    "cam": problem.camera_index, "point": problem.point_index, "pixel": problem.pixels}}
first_s = []
start = time.perf_counter()
solver = Solver([snavely], backend=sys.argv[1])
result = solver.solve(arrays, on_iteration=lambda record: first_s.append(
    time.perf_counter() - start))
print(json.dumps({"import caspar": import_caspar_s, "imports": imports_s,
    "first iteration": first_s[0], "first solve": time.perf_counter() - start,
    "iterations": result.solve_time_s}))
"""


@dataclass(frozen=True)
class Startup:
    """Seconds of a new process, medians.

    Attributes:
        backend: `cpu` or `cuda`.
        import_caspar_s: `import caspar`.
        imports_s: All imports a solve needs, SymForce and the backend's library included.
        cold_s: From `Solver(...)` to the end of the first solve, with empty caches.
        warm_first_iteration_s: From `Solver(...)` to the end of the first iteration, warm caches.
        warm_s: From `Solver(...)` to the end of the first solve, warm caches.
        iterations_s: The iterations alone.
    """

    backend: str
    import_caspar_s: float
    imports_s: float
    cold_s: float
    warm_first_iteration_s: float
    warm_s: float
    iterations_s: float


def measure_startup(backend: str) -> Startup:
    """Start interpreters with cold and warm caches."""
    with tempfile.TemporaryDirectory() as folder:
        cold = _run(backend, Path(folder))
        warm = [_run(backend, Path(folder)) for _ in range(RUNS)]

    def median(name: str) -> float:
        return statistics.median(run[name] for run in warm)

    return Startup(
        backend=backend,
        import_caspar_s=median("import caspar"),
        imports_s=median("imports"),
        cold_s=cold["first solve"],
        warm_first_iteration_s=median("first iteration"),
        warm_s=median("first solve"),
        iterations_s=median("iterations"),
    )


def _run(backend: str, folder: Path) -> dict[str, float]:
    environment = {
        **os.environ,
        "CASPAR_CACHE_DIR": str(folder / "caspar"),
        "CUPY_CACHE_DIR": str(folder / "cupy"),
        "CUDA_CACHE_PATH": str(folder / "cuda"),
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, backend],
        cwd=Path(__file__).parents[1],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured
