"""Weights and the parameters of losses: what users pass beside a factor's own arguments.

They are constant arguments of the traced factor: values may differ from solve to solve. Which of
them have one number for each instance decides which kernels a factor has.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import symforce.symbolic as sf

from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.loss import check_parameter_names, trace_loss
from caspar.frontend.factors.trace import WEIGHT, Argument, ArgumentKind, TracedFactor


def with_loss(factor: Factor, traced: TracedFactor) -> TracedFactor:
    """A traced factor with the loss that the user gave it.

    Raises:
        FactorError: The loss is none, or an argument has the name of its data.
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
    """A factor where some of `term_names` are given one for each instance.

    Args:
        factor: The factor, with any terms.
        by_instance: Their names. Without `weight` all instances weigh 1; of the others there is one
            number for all.
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
