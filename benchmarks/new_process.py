"""How long a new process takes to its first result.

Each figure is a new interpreter with a cache folder of its own: empty (cold) or filled by the
process before it (warm).
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

CASES = ("curve", "bundle adjustment", "pose graph", "camera calibration", "inertial navigation")
"""Those of `startup_cases`."""

RUNS = 3


@dataclass(frozen=True)
class Startup:
    """Seconds of a new process, medians.

    Attributes:
        backend: `cpu` or `cuda`.
        case: The problem, one of `CASES`.
        precision: As `Solver` takes it.
        import_caspar_s: `import caspar`.
        imports_s: All other imports a solve needs, the backend's library included.
        cold_imports_s: The same with empty caches.
        cold_s: From `Solver(...)` to the end of the first solve, with empty caches.
        cold_processor_s: Seconds of all cores meanwhile; None: not measured.
        warm_first_iteration_s: From `Solver(...)` to the end of the first iteration, warm caches.
        warm_s: From `Solver(...)` to the end of the first solve, warm caches.
        iterations_s: The iterations of that solve.
        second_s: A second solver of the same factors and its solve, without the iterations; None:
            not measured.
    """

    backend: str
    case: str
    precision: str
    import_caspar_s: float
    imports_s: float
    cold_imports_s: float | None
    cold_s: float
    cold_processor_s: float | None
    warm_first_iteration_s: float
    warm_s: float
    iterations_s: float
    second_s: float | None


Run = dict[str, float]


def measure_startup(
    case: str, backend: str, precision: str, folders: Sequence[Path] = (ROOT,), runs: int = RUNS
) -> list[Startup]:
    """Start interpreters with cold and warm caches.

    Args:
        case: One of `CASES`.
        backend: `cpu` or `cuda`.
        precision: As `Solver` takes it.
        folders: Where `caspar` is, of versions that are measured in turns.
        runs: Processes of each kind and version.

    Returns:
        One for each folder.
    """
    found: list[list[tuple[Run, Run]]] = [[] for _ in folders]
    for _ in range(runs):
        for pairs, folder in zip(found, folders, strict=True):
            with tempfile.TemporaryDirectory() as cache:
                command = [case, backend, precision]
                cold = _run(command, folder, Path(cache))
                pairs.append((cold, _run(command, folder, Path(cache))))
    return [_summary(case, backend, precision, pairs) for pairs in found]


def _summary(case: str, backend: str, precision: str, pairs: Sequence[tuple[Run, Run]]) -> Startup:
    def median(name: str, *, warm: bool = True) -> float:
        return statistics.median(pair[warm][name] for pair in pairs)

    return Startup(
        backend=backend,
        case=case,
        precision=precision,
        import_caspar_s=median("import caspar"),
        imports_s=median("imports"),
        cold_imports_s=median("imports", warm=False),
        cold_s=median("first solve", warm=False),
        cold_processor_s=median("processor", warm=False),
        warm_first_iteration_s=median("first iteration"),
        warm_s=median("first solve"),
        iterations_s=median("iterations"),
        second_s=median("second solver"),
    )


def _run(command: Sequence[str], folder: Path, cache: Path) -> Run:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "CASPAR_CACHE_DIR": str(cache / "caspar"),
        "CUPY_CACHE_DIR": str(cache / "cupy"),
        "CUDA_CACHE_PATH": str(cache / "cuda"),
        "NUMBA_CACHE_DIR": str(cache / "numba"),  # of versions that compiled by it
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "startup_process.py"), *command],
        cwd=cache,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    measured: Run = json.loads(done.stdout.splitlines()[-1])
    return measured
