"""The same bytes from every process: sources, plan keys, passes and drawings.

They depend on nothing but factors and graphs, neither on hash seeds nor on what came before.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
from tests.inspect.cases import all_drawings
from tests.passes.random_kernels import digests
from tests.support_problems import PROBLEMS, Way
order, *chosen = sys.argv[1:]
chosen.sort(reverse=order == "reversed")
lines = [f"graph {digest}" for digest in digests()]
lines.append("drawing " + hashlib.sha256(all_drawings(1, 40).encode()).hexdigest())
for one in chosen:
    name, *targets = one.split()
    problem = PROBLEMS[name]()
    lines += [f"{name} {factor.name} {factor.key}" for factor in problem.factors]
    for target in map(TARGETS.__getitem__, targets):
        form = problem.form(Way(target.name))
        design = SolverDesign(problem.factors, problem.nodes, Precision.MIXED, target, form)
        sources = generate_sources(design)
        lines.append(f"{name} {problem.factors[0].name} {form.key}")
        for kernel in sources.kernels.values():
            digest = hashlib.sha256(repr(kernel).encode()).hexdigest()
            lines.append(f"{name} {target.name} {kernel.name} {digest}")
print("\\n".join(sorted(lines)))
"""


def described(hash_seed: int, order: str, chosen: Mapping[str, Sequence[str]]) -> list[str]:
    """Digests of what is made of random graphs, and of all sources and keys, in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, order, *(" ".join([k, *v]) for k, v in chosen.items())],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
        timeout=500,
    )
    return done.stdout.splitlines()


BOTH = ("cuda", "cpu")


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param({"bundle_adjustment": ["cuda"], "pose_graph": ["cpu"]}, id="usual"),
        pytest.param(
            {"bundle_adjustment": ["cuda"], "pose_graph": BOTH, "robust": BOTH},
            id="all",
            marks=pytest.mark.reliability,
        ),
    ],
)
def test_hash_seed_and_history_do_not_matter(chosen: Mapping[str, Sequence[str]]) -> None:
    """Two processes with other hashes, which meet the factors in another order."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(described, (1, 2), ("sorted", "reversed"), (chosen, chosen))
    assert first == second
    found = [line.split() for line in first]
    assert sum(words[0] == "graph" for words in found) > 30
    assert sum(words[0] == "drawing" for words in found) == 1
    assert {tuple(words[:3]) for words in found if words[1] in BOTH} == {
        (problem, target, name)
        for problem, targets in chosen.items()
        for target in targets
        for name in kernel_names(problem, Way(target))
    }


def kernel_names(name: str, way: Way) -> list[str]:
    problem, types = PROBLEMS[name](), TYPES[Precision.MIXED]
    computing = [spec.name for spec in problem.specs(Precision.MIXED, way)]
    converting = convert_specs(problem.factors, problem.nodes, types, problem.form(way))
    return computing + [spec.name for spec in converting]
