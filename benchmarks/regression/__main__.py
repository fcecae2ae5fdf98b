"""`python -m benchmarks.regression`: solve curve fits and test functions, and write the page."""

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.regression.answer import Outcome
from benchmarks.regression.page import markdown
from benchmarks.regression.peers import has_ceres
from benchmarks.regression.runs import (
    DEFAULT_RANDOM_STARTS,
    Part,
    Suite,
    all_problems,
    outcomes,
)
from benchmarks.report import environment

NAME = "regression_cpu"


def main(arguments: Sequence[str] | None = None) -> None:
    """Solve the chosen suites and write `regression_cpu.md` and `.json`."""
    chosen = _parse(arguments)
    suites = {Suite(name) for name in chosen.suites}
    remarks = [] if has_ceres() else ["Ceres was not measured: pyceres is not installed."]
    if chosen.starts != DEFAULT_RANDOM_STARTS:
        remarks.append(f"{chosen.starts} random starts for each data set of NIST.")
    found: list[Outcome] = []
    facts = environment("CPU")
    for collection, problems in all_problems().items():
        for problem in problems:
            if len(chosen.problems) == 0 or problem.name in chosen.problems:
                print(problem.name, flush=True)
                found += outcomes(problem, collection, suites, chosen.starts)
    folder: Path = chosen.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.json").write_text(_json(found, facts), encoding="utf-8")
    (folder / f"{NAME}.md").write_text(markdown(found, facts, remarks), encoding="utf-8")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regression", description=__doc__)
    names = [suite.value for suite in Suite]
    parser.add_argument("--suites", nargs="+", choices=names, default=names)
    parser.add_argument(
        "--starts",
        type=int,
        default=DEFAULT_RANDOM_STARTS,
        help="random starts for each data set of NIST; test functions get half (%(default)s)",
    )
    parser.add_argument("--problems", nargs="+", default=[], help="only these, by name")
    parser.add_argument("--folder", type=Path, default=Path("out"), help="for the page")
    return parser.parse_args(arguments)


def _json(found: Sequence[Outcome], facts: Mapping[str, str]) -> str:
    """Published starts one by one; random ones counted, but for the false successes."""
    random_parts = {part.value for part in Part if part.is_random}
    kept = [one for one in found if one.suite not in random_parts or one.is_false_success]
    counts = Counter(
        (one.suite, one.problem, one.solver, one.status, one.reached.value)
        for one in found
        if one.suite in random_parts
    )
    parts: dict[str, list[Any]] = {
        "environment": [dict(facts)],
        "outcomes": [_record(one) for one in kept],
        "random": [[*key, count] for key, count in counts.items()],
    }
    sections = []
    for name, entries in parts.items():
        listed = ",\n".join(json.dumps(entry) for entry in entries)
        sections.append(f'"{name}": [\n{listed}\n]')
    return "{\n" + ",\n".join(sections) + "\n}\n"


def _record(outcome: Outcome) -> dict[str, Any]:
    """An outcome in the types of JSON."""
    record = asdict(outcome)
    record["reached"] = outcome.reached.value
    record["sum_of_squares"] = float(f"{outcome.sum_of_squares:.10g}")
    record["digits"] = None if outcome.digits is None else round(outcome.digits, 2)
    return record


if __name__ == "__main__":
    main()
