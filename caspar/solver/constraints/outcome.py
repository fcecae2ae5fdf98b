"""Describe the end of a solve with constraints: violations, contradictions, redundancies.

Input: constraints and multipliers at the last values. Output: parts of a `SolveResult`. Cost tier:
once for a solve, on the host.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpocon, dpotrf

from caspar.runtime.cpu.direct import on_one_thread
from caspar.solver.constraints.penalties import Terms
from caspar.solver.constraints.violations import Flags, Floats, Linearised, Sizes
from caspar.solver.result.result import Violation

MOST_NAMED = 5
"""Instances that a remark names."""

REDUNDANT = 1e-10
"""Of singular values of scaled rows, below which rows depend on each other."""

CLEARLY = 1e-10
"""Of one over the condition of the products of scaled rows, above which no row depends on others.
It is about the square of the share above."""

MOST_ROWS = 300
"""Active entries up to which it is looked whether they depend on each other."""


def violation_of(found: Mapping[str, Linearised], sizes: Sizes) -> Violation:
    """The greatest violation; NaN if an entry is not finite, 0 if there are no instances."""
    unscaled, scaled, worst, instance = 0.0, 0.0, next(iter(found), ""), 0
    for name, one in found.items():
        own = one.violation
        if own.size == 0:
            continue
        relative = own / one.scale(sizes)
        wrong = np.flatnonzero(~np.isfinite(relative).all(axis=1))
        if len(wrong) > 0:
            return Violation(np.nan, np.nan, name, int(wrong[0]))
        unscaled = max(unscaled, float(own.max()))
        if float(relative.max()) > scaled:
            scaled, worst = float(relative.max()), name
            instance = int(np.unravel_index(int(relative.argmax()), relative.shape)[0])
    return Violation(unscaled, scaled, worst, instance)


def is_impossible(
    found: Mapping[str, Linearised], terms: Mapping[str, Terms], sizes: Sizes
) -> bool:
    """Return whether no step as long as the values themselves can meet the linearised constraints.

    By the lemma of Farkas: for multipliers l with l^T c < 0, a step d with c + J d = 0 (or >= 0)
    has l^T J d = -l^T c (or at least that), but |l^T J d| is at most the sum of |J^T l| times the
    sizes of values.

    Args:
        found: Constraints, without the derivatives by what is held.
        terms: Their multipliers.
        sizes: Of values.
    """
    gap = -sum(float((terms[name].multipliers * one.rows).sum()) for name, one in found.items())
    counts: dict[str, int] = {}
    for one in found.values():
        for node in one.nodes:
            last = int(node.index.max(initial=-1))
            counts[node.node] = max(counts.get(node.node, 0), last + 1)
    pull = {name: np.zeros((count, len(sizes[name]))) for name, count in counts.items()}
    for name, one in found.items():
        for node in one.nodes:
            product = np.einsum("mr,mrd->md", terms[name].multipliers, node.entries)
            np.add.at(pull[node.node], node.index, product)
    reach = sum(float((np.abs(rows) * sizes[name]).sum()) for name, rows in pull.items())
    return gap > reach


def violated_text(found: Mapping[str, Linearised], sizes: Sizes, tolerance: float) -> str:
    """Name the instances that do not hold, and by how much."""
    texts = []
    for name, one in found.items():
        worst = (one.violation / one.scale(sizes)).max(axis=1, initial=0.0)
        bad = np.flatnonzero(worst > tolerance)
        if len(bad) == 0:
            continue
        chosen = bad[np.argsort(-worst[bad].round(12), kind="stable")][:MOST_NAMED]
        listed = ", ".join(
            f"{int(number)} (by {float(one.violation[number].max()):.3g})" for number in chosen
        )
        more = f" and {len(bad) - len(chosen):,} more" if len(bad) > len(chosen) else ""
        texts.append(f"constraint {name} does not hold: instance {listed}{more}")
    return "; ".join(texts)


def redundant_text(found: Mapping[str, Linearised], active: Flags, sizes: Sizes) -> str:
    """A remark if active entries depend on each other, so that multipliers are not unique."""
    num_active = sum(int(chosen.sum()) for chosen in active.values())
    if not 1 < num_active <= MOST_ROWS:
        return ""
    ranks: list[int] = []
    on_one_thread(lambda: ranks.append(_rank(_scaled_rows(found, active, sizes))))
    rank = ranks[0]
    if rank == num_active:
        return ""
    return (
        f"{num_active - rank} of {num_active} active entries of constraints depend on the others: "
        "values are not affected, but multipliers are not unique"
    )


def _rank(rows: Floats) -> int:
    """The rank of rows of length one: by Cholesky's method if that is sure, else by an SVD."""
    products = rows @ rows.T
    factor, first_wrong = dpotrf(products)
    if first_wrong == 0 and dpocon(factor, np.abs(products).sum(axis=0).max())[0] > CLEARLY:
        return len(rows)
    values = np.linalg.svd(rows, compute_uv=False)
    return int(np.count_nonzero(values > REDUNDANT * values[0]))


def _scaled_rows(found: Mapping[str, Linearised], active: Flags, sizes: Sizes) -> Floats:
    """(active entries, unknowns that they touch), of length one each."""
    touched: dict[str, list[NDArray[Any]]] = {}
    for name, one in found.items():
        for node in one.nodes:
            touched.setdefault(node.node, []).append(node.index[active[name].any(axis=1)])
    numbers = {name: np.unique(np.concatenate(own)) for name, own in touched.items()}
    starts, size = dict[str, int](), 0
    for name, own in numbers.items():
        starts[name] = size
        size += len(own) * len(sizes[name])
    blocks = []
    for name, one in found.items():
        instance, entry = np.nonzero(active[name])
        rows, row = np.zeros((len(instance), size)), np.arange(len(instance))[:, None]
        for node in one.nodes:
            scale = sizes[node.node]
            place = np.searchsorted(numbers[node.node], node.index[instance])
            columns = starts[node.node] + len(scale) * place[:, None] + np.arange(len(scale))
            rows[row, columns] += node.entries[instance, entry] * scale
        blocks.append(rows)
    whole = np.concatenate(blocks)
    length = np.linalg.norm(whole, axis=1, keepdims=True)
    return np.asarray(whole / np.where(length > 0.0, length, 1.0))
