"""Deliberate faults, each of which the default tests must find: `python -m tests.faults`.

A clone of the repository gets one fault after the other, and the tests of what is faulty run on it.
The table in `docs/design/0049-time-of-the-tests.md` is what this program prints.
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Fault:
    """A change of one line that makes caspar wrong.

    Attributes:
        file: Path below `caspar`.
        right: Text that the file has once.
        wrong: What replaces it.
        tests: Arguments of pytest, below `tests`.
    """

    file: str
    right: str
    wrong: str
    tests: str


FAULTS = (
    Fault(
        "passes/graph/push_negations.py",
        "places = range(len(operands)) if",
        "places = range(len(operands) - 1) if",
        "passes/graph/test_push_negations.py",
    ),
    Fault(
        "passes/graph/simplify_selects.py",
        "tested.operands[0], if_false, if_true)",
        "tested.operands[0], if_true, if_false)",
        "passes/graph/test_simplify_selects.py",
    ),
    Fault(
        "passes/graph/simplify_selects.py",
        "inner.operands[1 + place]",
        "inner.operands[2 - place]",
        "passes/graph/test_simplify_selects.py",
    ),
    Fault(
        "passes/graph/share_reciprocals.py",
        "if denominator in inverted:\n            return product < division",
        "if denominator in inverted:\n            return False",
        "passes/graph/test_share_reciprocals.py",
    ),
    Fault(
        "passes/graph/fuse_sincos.py",
        "sine if call.op is Op.SIN else cosine",
        "cosine if call.op is Op.SIN else sine",
        "passes/graph/test_fuse_sincos.py",
    ),
    Fault(
        "passes/graph/use_norms.py",
        "builder.const(math.sqrt(literal))",
        "builder.const(literal)",
        "passes/graph/test_use_norms.py",
    ),
    Fault(
        "passes/graph/flatten_reductions.py",
        "if graph.num_reads[call.outputs[0]] != 1:",
        "if len(graph.users[call.outputs[0]]) != 1:",
        "passes/graph/test_flatten_reductions.py",
    ),
    Fault(
        "passes/scheduling/assign_registers.py",
        "for value in dict.fromkeys(step.operands):",
        "for value in step.operands:",
        "passes/scheduling",
    ),
    Fault(
        "memory/accessors/strided.py",
        "0 if count == 0 else max(offset, last) + 1",
        "0 if count == 0 else max(offset, last)",
        "kernels/test_item_errors.py kernels/test_patterns.py",
    ),
    Fault(
        "memory/accessors/strided.py",
        "_stride * {item})",
        "_stride + {item})",
        "kernels/test_patterns.py",
    ),
    Fault(
        "memory/accessors/blocked.py",
        'values, "+=" if self.adds else "=")',
        'values, "=")',
        "kernels/test_patterns.py",
    ),
    Fault(
        "solver/lm/policy.py",
        "(UNDAMPED_GAIN_RATIO if is_speculative else MIN_GAIN_RATIO)",
        "(UNDAMPED_GAIN_RATIO if not is_speculative else MIN_GAIN_RATIO)",
        "solver/lm/test_policy.py",
    ),
    Fault(
        "solver/lm/policy.py",
        "return min(state.relief, most)",
        "return max(state.relief, most)",
        "solver/lm/test_policy.py",
    ),
    Fault(
        "solver/lm/policy.py",
        "after.num_iterations >= options.max_iterations",
        "after.num_iterations > options.max_iterations",
        "solver/lm/test_policy.py solver/lm/test_levenberg.py",
    ),
    Fault(
        "solver/lm/policy.py",
        "    end = GO_ON if is_unknown else end\n",
        "",
        "solver/lm/test_policy.py solver/lm/test_levenberg_end.py",
    ),
    Fault(
        "solver/lm/policy.py",
        "tolerance = min(tolerance, options.min_linear_tolerance)",
        "tolerance = max(tolerance, options.min_linear_tolerance)",
        "solver/lm/test_policy.py",
    ),
    Fault(
        "frontend/factors/retraction.py",
        "has_step.where(entry * scale, storage[place])",
        "has_step.where(entry, storage[place])",
        "solver/test_directions.py",
    ),
    Fault(
        "frontend/factors/retraction.py",
        "if entry.has(name)]",
        "if not entry.has(name)]",
        "solver/test_fixed.py equations/test_node_kernels.py",
    ),
    Fault(
        "solver/choice/form.py",
        "return 2 * _unknowns(eliminated, counts) >= _unknowns(recipe.nodes, counts)",
        "return _unknowns(eliminated, counts) >= _unknowns(recipe.nodes, counts)",
        "solver/choice/test_eliminated_types.py",
    ),
    Fault(
        "solver/normal/matrix.py",
        "return int((counts * (counts + 1.0)).sum() / 2.0)",
        "return int((counts * counts).sum() / 2.0)",
        "solver/covariance/test_inverses.py",
    ),
    Fault(
        "solver/normal/matrix.py",
        "one.blocks[piece] @ vectors[name][one.other[piece]]",
        "one.blocks[piece] @ vectors[name][one.other[piece] * 0]",
        "solver/covariance solver/gradients",
    ),
    Fault(
        "solver/covariance/marginals.py",
        "absent &= ~normal.backend.to_host(normal.held[node.name])",
        "absent &= normal.backend.to_host(normal.held[node.name])",
        "solver/covariance",
    ),
    Fault(
        "solver/covariance/inverses.py",
        "return lower + normal.backend.xp.tril(lower, -1).T",
        "return lower + normal.backend.xp.tril(lower, -2).T",
        "solver/covariance",
    ),
    Fault(
        "io/graphs/information.py",
        "np.linalg.cholesky(inverse.T @ inverse).T / scale",
        "np.linalg.cholesky(inverse.T @ inverse) / scale",
        "io/test_information.py",
    ),
    Fault(
        "io/graphs/assemble.py",
        "np.concatenate([quaternion / length[:, None], written[:, :3]], axis=1)",
        "np.concatenate([quaternion, written[:, :3]], axis=1)",
        "io/test_g2o.py io/test_graph_formats.py",
    ),
    Fault(
        "io/bal.py",
        "return self.cameras_start + len(_CAMERA_NAMES) * self.num_cameras",
        "return self.cameras_start + len(_CAMERA_NAMES) * (self.num_cameras - 1)",
        "io/test_bal.py",
    ),
    Fault(
        "runtime/cache.py",
        "if data[:_HEADER_BYTES] != _MAGIC + _digest(kind, key, content):",
        "if not data.startswith(_MAGIC):",
        "runtime/test_cache.py",
    ),
    Fault(
        "runtime/cache.py",
        "sorted(_entries(folder), key=lambda entry: entry.used)",
        "sorted(_entries(folder), key=lambda entry: -entry.used)",
        "runtime/test_cache.py",
    ),
    Fault(
        "batch/covariance.py",
        "free[name] = np.where(limits.at_given(rows), 0.0, free[name])",
        "free[name] = np.where(limits.at_given(rows), 1.0, free[name])",
        "batch/test_batch_covariance.py",
    ),
    Fault(
        "batch/generate/policy_program.py",
        "at_optimum=descent <= 0.0,",
        "at_optimum=descent < 0.0,",
        "batch/test_batch_policy.py batch/test_batch_solver.py",
    ),
    Fault(
        "batch/generate/step_program.py",
        "square.max(entry)\n        for square, entry",
        "square\n        for square, entry",
        "batch/test_batch_policy.py",
    ),
    Fault(
        "solver/shards/ranks.py",
        "several = int((flags > 1).sum())",
        "several = int((flags > 2).sum())",
        "solver/ranks",
    ),
    Fault(
        "solver/shards/cuts.py",
        "(index >= nodes.start) & (index < nodes.stop)",
        "(index >= nodes.start) & (index <= nodes.stop)",
        "solver/shards",
    ),
)


def run(fault: Fault, clone: Path) -> str:
    """The first test that fails with a fault; empty: none does.

    Raises:
        RuntimeError: The tests did not run.
    """
    path = clone / "caspar" / fault.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    tests = [f"tests/{one}" for one in fault.tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(clone)}
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=clone,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            timeout=3600.0,
        )
    finally:
        path.write_text(text, encoding="utf-8")
    if done.returncode == 0:
        return ""
    failed = [
        line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))
    ]
    if len(failed) == 0:
        raise RuntimeError(f"{fault}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed[0].removeprefix("tests/")


def main(places: list[str]) -> int:
    """Print a row for each fault, or for those whose file names one of some words."""
    chosen = [
        one for one in FAULTS if len(places) == 0 or any(place in one.file for place in places)
    ]
    num_missed = 0
    print("| file | right | found by |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "caspar"
        command = ["git", "clone", "--quiet", str(ROOT), str(clone)]
        subprocess.run(command, check=True, timeout=600.0)
        for fault in chosen:
            found = run(fault, clone)
            num_missed += found == ""
            right = " ".join(fault.right.split())
            print(f"| `{fault.file}` | `{right}` | {found or '**nothing**'} |", flush=True)
    return num_missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
