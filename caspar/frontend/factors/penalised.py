"""Constraints as factors: the terms of an augmented Lagrangian, with its data as arguments.

The Lagrangian is f - l^T c, with a multiplier l for each entry c of a constraint. Its augmentation
by penalties p has, for each entry, 1/2 (w (s - c))^2 with w = sqrt(p) and s = l / p, of which
inequalities take max(s - c, 0) only. Both w and s are constant arguments, (m, dim), so that every
linear solver, elimination and precision takes them as any factor's data. Cost tier: once for a
solver.
"""

from dataclasses import replace

import symforce.symbolic as sf

from caspar.errors import FactorError
from caspar.frontend.factors.factor import ConstraintKind
from caspar.frontend.factors.trace import WEIGHT, Argument, ArgumentKind, TracedFactor

ROOT, SHIFT = "penalty_root", "multiplier_shift"
"""Arguments of a constraint's factor: w and s."""


def penalised(factor: TracedFactor, kind: ConstraintKind) -> TracedFactor:
    """The factor of a constraint.

    Raises:
        FactorError: An argument has the name of the factor's own data, or no entry depends on an
            unknown.
    """
    taken = {one.source for one in factor.arguments} & {ROOT, SHIFT, WEIGHT}
    if len(taken) > 0:
        names = ", ".join(sorted(taken))
        raise FactorError(
            f"constraint {factor.name}, argument {names}: constraints have data of this name; "
            "rename the argument"
        )
    if len(factor.own) > 0:
        raise FactorError(
            f"constraint {factor.name}, argument {factor.own[0][0]}: TunableSequential takes the "
            "value of the least residual, which no constraint asks for. Make it a node of its own: "
            "TunableShared, with an index that counts up"
        )
    if len(factor.unused) == len({node.source for node in factor.nodes}):
        raise FactorError(
            f"constraint {factor.name}: it depends on no unknown, so no solve can meet it"
        )
    dim = len(factor.residual)
    roots, shifts = _data(ROOT, dim), _data(SHIFT, dim)
    rows = []
    for root, shift, row in zip(roots.symbols, shifts.symbols, factor.residual, strict=True):
        left = shift - row
        rows.append(root * (left if kind is ConstraintKind.ZERO else sf.Max(left, 0)))
    return replace(factor, arguments=(*factor.arguments, roots, shifts), residual=tuple(rows))


def _data(name: str, dim: int) -> Argument:
    # no symbol of the user's has a dot
    symbolic = sf.Matrix([sf.Symbol(f"constraint.{name}{entry}") for entry in range(dim)])
    return Argument(name, name, ArgumentKind.CONST_SEQUENTIAL, False, dim, (), None, symbolic)
