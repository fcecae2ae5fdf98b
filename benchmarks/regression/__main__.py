"""`python -m benchmarks.regression`: solve problems from the literature, and write the pages.

Without `--suite` those of NIST and of Moré, Garbow and Hillstrom.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.regression import cutest
from benchmarks.regression.answer import Outcome
from benchmarks.regression.beside_page import beside_markdown
from benchmarks.regression.page import markdown
from benchmarks.regression.peers import has_ceres, has_gtsam
from benchmarks.regression.runs import (
    DEFAULT_RANDOM_STARTS,
    Part,
    Suite,
    all_problems,
    cutest_outcomes,
    outcomes,
    stiff_outcomes,
)
from benchmarks.report import environment
from caspar.version import install_command

NAMES = {Part.CUTEST: "cutest_cpu", Part.STIFF: "stiff_cpu"}
"""Pages of their own; all other parts are in `regression_cpu`."""

CLASSIC = (Suite.NIST, Suite.MGH, Suite.RANDOM)


def main(arguments: Sequence[str] | None = None) -> None:
    """Solve the chosen suites and write a `.md` and a `.json` for each page."""
    chosen = _parse(arguments)
    suites = {Suite(name) for name in chosen.suites}
    remarks = [] if has_ceres() else ["Ceres was not measured: pyceres is not installed."]
    facts = environment("CPU")
    if not suites.isdisjoint(CLASSIC):
        found = _classic(chosen, suites)
        if chosen.starts != DEFAULT_RANDOM_STARTS:
            remarks.append(f"{chosen.starts} random starts for each data set of NIST.")
        _write(chosen.folder, "regression_cpu", markdown(found, facts, remarks), found, facts)
    if Suite.CUTEST in suites:
        problems, reasons = cutest.problems()
        kept = [one for one in problems if _is_chosen(one.name, chosen)]
        found = [outcome for one in kept for outcome in _said(one.name, cutest_outcomes(one))]
        left_out = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        notes = [f"{len(kept)} problems. Left out: {left_out}.", *remarks]
        _write_beside(chosen.folder, Part.CUTEST, found, facts, notes)
    if Suite.STIFF in suites:
        if not has_gtsam():
            remarks = [*remarks, "GTSAM was not measured: gtsam is not installed."]
        found = [
            outcome
            for name, solve in stiff_outcomes().items()
            if _is_chosen(name, chosen)
            for outcome in _said(name, solve())
        ]
        _write_beside(chosen.folder, Part.STIFF, found, facts, remarks)


def _classic(chosen: argparse.Namespace, suites: set[Suite]) -> list[Outcome]:
    """Outcomes of NIST and of test functions."""
    return [
        outcome
        for collection, problems in all_problems().items()
        for one in problems
        if _is_chosen(one.name, chosen)
        for outcome in _said(one.name, outcomes(one, collection, suites, chosen.starts))
    ]


def _is_chosen(name: str, chosen: argparse.Namespace) -> bool:
    return len(chosen.problems) == 0 or name in chosen.problems


def _said(name: str, found: Iterator[Outcome]) -> Iterator[Outcome]:
    print(name, flush=True)
    yield from found


def _write_beside(
    folder: Path,
    part: Part,
    found: Sequence[Outcome],
    facts: Mapping[str, str],
    remarks: Sequence[str],
) -> None:
    command = f"`python -m benchmarks.regression --suite {part.name.lower()}`."
    page = beside_markdown(found, part, facts, [command, *remarks])
    _write(folder, NAMES[part], page, found, facts)


def _write(
    folder: Path, name: str, page: str, found: Sequence[Outcome], facts: Mapping[str, str]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(_json(found, facts), encoding="utf-8")
    (folder / f"{name}.md").write_text(page, encoding="utf-8")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regression", description=__doc__)
    names = [suite.value for suite in Suite]
    default = [suite.value for suite in CLASSIC]
    parser.add_argument(
        "--suite", "--suites", dest="suites", nargs="+", choices=names, default=default
    )
    parser.add_argument(
        "--starts",
        type=int,
        default=DEFAULT_RANDOM_STARTS,
        help="random starts for each data set of NIST; test functions get half (%(default)s)",
    )
    parser.add_argument("--problems", nargs="+", default=[], help="only these, by name")
    parser.add_argument("--folder", type=Path, default=Path("out"), help="for the page")
    chosen = parser.parse_args(arguments)
    if Suite.CUTEST.value in chosen.suites and not cutest.has_sif2jax():
        parser.error(f"--suite cutest needs sif2jax: {install_command('cutest')}")
    return chosen


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
