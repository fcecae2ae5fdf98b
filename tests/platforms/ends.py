"""Solve problems of the regression set; print the status, iterations and cost of each as JSON.

`python -m tests.platforms.ends` with names of problems, or with none for all.
"""

import json
import sys
from collections.abc import Sequence

import numpy as np

from benchmarks.regression.caspar_fit import CasparFit, Form
from benchmarks.regression.runs import Suite, all_problems, scaled_start


def ends(names: Sequence[str]) -> dict[str, tuple[str, int, float]]:
    """By problem, form and start: status, iterations, cost."""
    found = {}
    for collection, problems in all_problems().items():
        for problem in problems:
            if len(names) > 0 and problem.name not in names:
                continue
            starts = {str(i): np.array(start) for i, start in enumerate(problem.starts)}
            if collection is Suite.MGH:
                starts["x10"] = scaled_start(starts["0"], 10.0)
            for form in Form:
                fit = CasparFit(problem, form)
                for label, start in starts.items():
                    result = fit.result(start, {})
                    name = f"{problem.name}, {form.value}, {label}"
                    found[name] = (result.status.name, len(result.iterations), result.final_cost)
    return found


if __name__ == "__main__":
    print(json.dumps(ends(sys.argv[1:])))
