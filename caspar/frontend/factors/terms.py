"""Weights and the parameters of losses: what users pass beside a factor's own arguments.

They are constant arguments of the traced factor: values may differ from solve to solve. Which of
them have one number for each instance decides which kernels a factor has.

Also here: constraints as factors, the terms of an augmented Lagrangian f - l^T c, with a multiplier
l for each entry c of a constraint. Its augmentation by penalties p has, for each entry, 1/2 (w (s -
c))^2 with w = sqrt(p) and s = l / p, of which inequalities take max(s - c, 0) only. Both w and s
are constant arguments, (m, dim), so that every linear solver, elimination and precision takes them
as any factor's data. Cost tier: once for a solver.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import symforce.symbolic as sf

from caspar.errors import FactorError
from caspar.frontend.factors.factor import ConstraintKind, Factor
from caspar.frontend.factors.loss import check_parameter_names, trace_loss
from caspar.frontend.factors.trace import WEIGHT, Argument, ArgumentKind, TracedFactor


def with_loss(factor: Factor, traced: TracedFactor) -> TracedFactor:
    """A traced factor with the loss that the user gave it.

    Raises a `FactorError` if it is none, or an argument has the name of its data.
    """
    if factor.loss is None:
        return traced
    loss = trace_loss(factor.loss, factor.title)
    check_parameter_names(loss, {one.source: one for one in traced.arguments}, factor.title)
    return with_terms(replace(traced, loss=loss), ())


def term_names(factor: TracedFactor) -> tuple[str, ...]:
    """Return what users may pass besides arguments: a weight, and parameters of the loss."""
    # an argument of that name is the user's own
    weight = () if any(one.source == WEIGHT for one in factor.arguments) else (WEIGHT,)
    parameters = () if factor.loss is None else factor.loss.parameters
    return (*weight, *(parameter.source for parameter in parameters))


def with_terms(factor: TracedFactor, by_instance: Collection[str]) -> TracedFactor:
    """A factor whose terms in `by_instance` are given one for each instance.

    Without `weight` all instances weigh 1; of the others there is one number for all.
    """
    terms = [
        _term(name, is_unique=name not in by_instance)
        for name in term_names(factor)
        if name in by_instance or name != WEIGHT
    ]
    if len(terms) == len(factor.terms) == 0:
        return factor  # with the key that it has worked out
    return replace(factor, terms=tuple(terms))


def with_narrow(factor: TracedFactor, names: Collection[str]) -> TracedFactor:
    """A factor of which some constants are in the type of storage, named as users pass them."""

    def narrowed(inputs: Sequence[Argument]) -> tuple[Argument, ...]:
        return tuple(
            replace(one, is_narrow=True) if one.node is None and one.source in names else one
            for one in inputs
        )

    if len(names) == 0:
        return factor
    return replace(factor, arguments=narrowed(factor.arguments), terms=narrowed(factor.terms))


def _term(name: str, *, is_unique: bool) -> Argument:
    kind = ArgumentKind.CONST_UNIQUE if is_unique else ArgumentKind.CONST_SEQUENTIAL
    # no symbol of the user's has a dot
    symbolic = sf.V1(sf.Symbol(f"term.{name}"))
    return Argument(name, name, kind, False, 1, (), None, symbolic)


ROOT, SHIFT = "penalty_root", "multiplier_shift"
"""Arguments of a constraint's factor: w and s."""


def penalised(factor: TracedFactor, kind: ConstraintKind) -> TracedFactor:
    """The factor of a constraint.

    Raises a `FactorError` if an argument has the name of the factor's own data, or no entry depends
    on an unknown.
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


def is_penalised(factor: TracedFactor) -> bool:
    """Return whether a factor is that of a constraint."""
    return any(one.source == ROOT for one in factor.arguments)


def _data(name: str, dim: int) -> Argument:
    # no symbol of the user's has a dot
    symbolic = sf.Matrix([sf.Symbol(f"constraint.{name}{entry}") for entry in range(dim)])
    return Argument(name, name, ArgumentKind.CONST_SEQUENTIAL, False, dim, (), None, symbolic)
