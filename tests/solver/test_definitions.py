"""Factors that cannot be compiled are refused by the solver, with the name and the way out."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
import symforce.symbolic as sf
import sympy

import caspar
from caspar.errors import FactorError, UnsupportedFunctionError
from tests.problems import Offset, Place, anchor, between

SharedPlace = Annotated[Place, caspar.TunableShared]
KnownOffset = Annotated[Offset, caspar.ConstSequential]


def refusal(factors: Any) -> str:
    """What a solver says about factors, at the latest when it compiles them."""
    with pytest.raises(FactorError) as caught:
        caspar.Solver(factors, backend="cpu").compile()
    assert isinstance(caught.value, TypeError)
    return str(caught.value)


# -- what a function returns -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("residual", "parts"),
    [
        (lambda place: None, ["returned NoneType", "is the return statement missing?"]),
        (lambda place: place[0], ["returned Symbol", "wrap it as sf.V1(value)"]),
        (lambda place: 1.0, ["returned float", "wrap it as sf.V1(value)"]),
        (lambda place: (place[0], place[1]), ["returned tuple", "sf.V2(a, b)"]),
        (lambda place: [place[0]], ["returned list", "sf.V2(a, b)"]),
        (lambda place: place.T, ["of shape (1, 2)", "column vector"]),
        (lambda place: sf.Matrix22.eye(), ["of shape (2, 2)", "column vector"]),
        (lambda place: sf.Rot3.identity(), ["returned Rot3", "column vector"]),
    ],
    ids=["None", "expression", "number", "tuple", "list", "row", "matrix", "group"],
)
def test_return_value(residual: Callable[[Any], Any], parts: list[str]) -> None:
    @caspar.factor
    def wrong(place: SharedPlace) -> Any:
        return residual(place)

    message = refusal([wrong])
    assert message.startswith("factor wrong (")
    assert f"{__file__}:" in message
    for part in parts:
        assert part in message


def test_no_tunable_argument() -> None:
    @caspar.factor
    def fixed(offset: KnownOffset) -> sf.V2:
        return offset

    message = refusal([fixed])
    assert message.startswith("factor fixed has no tunable argument")
    assert "TunableShared, TunableUnique or TunablePair" in message


@pytest.mark.parametrize("function", [sympy.gamma, sympy.zeta])
def test_function_that_is_not_supported(function: Callable[[Any], Any]) -> None:
    @caspar.factor
    def special(place: SharedPlace) -> sf.V1:
        return sf.V1(function(place[0]))

    with pytest.raises(UnsupportedFunctionError) as caught:
        caspar.Solver([special], backend="cpu").compile()
    message = str(caught.value)
    assert message.startswith("factor special (")
    assert f"'{function}'" in message
    assert "supported are" in message
    assert "atan2" in message


def test_free_symbol() -> None:
    @caspar.factor
    def open_ended(place: SharedPlace) -> sf.V1:
        return sf.V1(place[0] * sf.Symbol("gain"))

    message = refusal([open_ended])
    assert "factor open_ended" in message
    assert "free symbol 'gain'" in message


# -- signatures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "parts"),
    [
        (Place, ["has no marker", "Annotated[Type, Marker]", "TunableShared", "ConstUnique"]),
        (Annotated[Place, "shared"], ["exactly one marker", "found none"]),
        (
            Annotated[Place, caspar.TunableShared, caspar.ConstUnique],
            ["exactly one marker", "found TunableShared, ConstUnique"],
        ),
        (Annotated[Place, caspar.TunablePair], ["TunablePair needs caspar.Pair[Type]"]),
        (Annotated[caspar.Pair[Place], caspar.TunableShared], ["Pair"]),
        (Annotated[str, caspar.TunableShared], ["<class 'str'> is not a storage type"]),
    ],
    ids=["bare", "other mark", "two markers", "pair of nothing", "unmarked pair", "str"],
)
def test_annotation(annotation: Any, parts: list[str]) -> None:
    def wrong(place):  # type: ignore[no-untyped-def]
        return place

    wrong.__annotations__["place"] = annotation
    message = refusal([caspar.factor(wrong)])
    assert message.startswith("factor wrong, argument place: ")
    for part in parts:
        assert part in message


def test_argument_without_annotation() -> None:
    @caspar.factor
    def wrong(place: SharedPlace, offset) -> Any:  # type: ignore[no-untyped-def]
        return place - offset

    assert refusal([wrong]).startswith("factor wrong, argument offset: not annotated")


def test_any_number_of_arguments() -> None:
    @caspar.factor
    def wrong(*places: SharedPlace) -> Any:
        return places[0]

    message = refusal([wrong])
    assert message.startswith("factor wrong: *places")
    assert message.endswith("is not allowed; name each argument")


# -- the list of factors ---------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [[], ()])
def test_no_factor(nothing: Any) -> None:
    assert refusal(nothing) == "Solver needs at least one factor"


@pytest.mark.parametrize("wrong", [between.function, Place, "between", None])
def test_not_a_factor(wrong: Any) -> None:
    message = refusal([anchor, wrong])
    assert repr(wrong) in message
    assert "caspar.factor" in message


@pytest.mark.parametrize("wrong", [3, Place, print, None])
def test_decorating_what_is_no_function(wrong: Any) -> None:
    with pytest.raises(FactorError, match="needs a function, got"):
        caspar.factor(wrong)


def test_two_factors_of_one_name() -> None:
    assert refusal([between, anchor, between]).startswith("two factors are named 'between'")


def test_two_node_types_of_one_name() -> None:
    place = type("Place", (sf.V3,), {})

    @caspar.factor
    def other(place: Annotated[place, caspar.TunableShared]) -> Any:  # type: ignore[valid-type]
        return place

    message = refusal([anchor, other])
    assert "factor other, argument place" in message
    assert "two node types are named 'Place'" in message


def test_factor_named_like_a_node_type() -> None:
    def residual(place: SharedPlace) -> Any:
        return place

    residual.__name__ = "Place"
    assert refusal([caspar.factor(residual)]).startswith("'Place' names a factor and a node type")


def test_one_factor_needs_no_list() -> None:
    arrays = {"Place": [[3.0, 4.0]], "anchor": {"place": [0], "known": [[1.0, 2.0]]}}
    made = caspar.Solver(anchor, backend="cpu", precision="float64")
    assert made.solve(arrays).status.is_success


def test_a_factor_is_still_a_function() -> None:
    residual = between(Place(1.0, 2.0), Place(4.0, 6.0), Offset(1.0, 1.0))
    assert residual == sf.V2(2.0, 3.0)


def test_an_argument_without_effect_is_warned_of_at_the_line_of_the_user() -> None:
    @caspar.factor
    def idle(
        place: Annotated[sf.V2, caspar.TunableShared],
        spare: Annotated[sf.V1, caspar.TunableShared],
    ) -> sf.V2:
        return place

    with pytest.warns(UserWarning, match="idle, argument spare: .* does not depend") as caught:
        caspar.Solver(idle, backend="cpu")
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("wrong", [None, 3, (one for one in (anchor, between))])
def test_factors_that_are_no_sequence(wrong: Any) -> None:
    assert "a factor or a sequence of factors" in refusal(wrong)


def test_a_solver_shows_what_it_is_made_of() -> None:
    made = caspar.Solver([between, anchor], backend="cpu", precision="float64")
    assert repr(made) == (
        "Solver(factors: between, anchor; node types: Place; cpu, float64 precision)"
    )
