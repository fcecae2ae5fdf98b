"""The same bytes from every process: sources and plan keys depend on nothing but the factors."""

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from caspar.equations.solver_kernels import convert_specs
from caspar.frontend.precision import TYPES
from caspar.options import Precision
from tests.support_problems import PROBLEMS, Way

ROOT = Path(__file__).parents[2]

PROGRAM = """
import hashlib, sys
from caspar.codegen.targets import TARGETS
from caspar.driver import SolverDesign, generate_sources
from caspar.options import Precision
from tests.support_problems import PROBLEMS, Way
order, *names = sys.argv[1:]
names.sort(reverse=order == "reversed")
lines = []
for name in names:
    problem = PROBLEMS[name]()
    lines += [f"{name} {factor.name} {factor.key}" for factor in problem.factors]
    for target in [TARGETS["cuda"]] if name == "bundle_adjustment" else TARGETS.values():
        form = problem.form(Way(target.name))
        design = SolverDesign(problem.factors, problem.nodes, Precision.MIXED, target, form)
        sources = generate_sources(design)
        lines.append(f"{name} {problem.factors[0].name} {form.key}")
        for kernel in sources.kernels.values():
            digest = hashlib.sha256(repr(kernel).encode()).hexdigest()
            lines.append(f"{name} {target.name} {kernel.name} {digest}")
print("\\n".join(sorted(lines)))
"""


def described(hash_seed: int, order: str, names: Sequence[str]) -> list[str]:
    """Digests of all sources and the keys of the factors, made in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, order, *names],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
        timeout=500,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["bundle_adjustment", "pose_graph"], id="usual"),
        pytest.param(list(PROBLEMS), id="all", marks=pytest.mark.reliability),
    ],
)
def test_hash_seed_and_history_do_not_matter(names: list[str]) -> None:
    """Two processes with other hashes, which meet the factors in another order."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(described, (1, 2), ("sorted", "reversed"), (names, names))
    assert first == second
    expected = {found for found in expected_kernels() if found[0] in names}
    assert {tuple(line.split()[:3]) for line in first if not is_key(line)} == expected


def is_key(line: str) -> bool:
    problem, factor, *_ = line.split()
    return factor in {traced.name for traced in PROBLEMS[problem]().factors}


def expected_kernels() -> set[tuple[str, str, str]]:
    """Problem, target and kernel of every source there should be."""
    both = ["cuda", "cpu"]
    targets = {"bundle_adjustment": ["cuda"], "pose_graph": both, "robust": both}
    return {
        (problem, target, name)
        for problem, names in targets.items()
        for target in names
        for name in kernel_names(problem, Way(target))
    }


def kernel_names(name: str, way: Way) -> list[str]:
    problem, types = PROBLEMS[name](), TYPES[Precision.MIXED]
    computing = [spec.name for spec in problem.specs(Precision.MIXED, way)]
    converting = convert_specs(problem.factors, problem.nodes, types, problem.form(way))
    return computing + [spec.name for spec in converting]
