"""`python benchmarks/startup_process.py CASE BACKEND PRECISION`: a new process to its first result.

Prints as JSON the seconds of imports, of the first iteration and the first solve counted from
`Solver(...)`, of all threads' processor time meanwhile, of the iterations; and of a second solver
of the same factors with its solve, without the iterations. It is run by its path, so that `caspar`
may be that of another folder.
"""

import importlib
import json
import sys
import time


def main() -> None:
    """Measure."""
    name, backend, precision = sys.argv[1:]
    start = time.perf_counter()
    caspar = importlib.import_module("caspar")
    import_caspar_s = time.perf_counter() - start
    case = importlib.import_module("startup_cases").CASES[name]()
    start = time.perf_counter()
    solver_class = caspar.Solver
    choice = importlib.import_module("caspar.options").BackendChoice(backend)
    importlib.import_module("caspar.runtime.select").select_backend(choice)
    imports_s = time.perf_counter() - start

    def solve() -> tuple[float, float, float]:
        iterations: list[float] = []
        start = time.perf_counter()
        solver = solver_class(case.factors, backend=backend, precision=precision)
        result = solver.solve(
            case.arrays,
            on_iteration=lambda _: iterations.append(time.perf_counter() - start),
            **case.options,
        )
        return iterations[0], time.perf_counter() - start, result.solve_time_s

    busy = time.process_time()
    first_iteration_s, first_solve_s, iterations_s = solve()
    processor_s = time.process_time() - busy
    _, second_s, second_iterations_s = solve()
    measured = {
        "import caspar": import_caspar_s,
        "imports": imports_s,
        "first iteration": first_iteration_s,
        "first solve": first_solve_s,
        "processor": processor_s,
        "iterations": iterations_s,
        "second solver": second_s - second_iterations_s,
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
