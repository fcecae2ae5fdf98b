"""Names: what is refused, what becomes of the rest, and that nothing of a user's meets ours."""

import dataclasses
import keyword
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import pytest
import symforce.symbolic as sf
from hypothesis import given
from hypothesis import strategies as st

import caspar
from caspar.errors import FactorError, KernelError
from caspar.frontend.factors.trace import trace
from caspar.frontend.names import (
    SEPARATOR,
    internal_name,
    kernel_name,
    name_refusal,
    normalised_hint,
    part_name,
)
from caspar.memory.patterns import ReadPair

Value = TypeVar("Value")

ODD = (
    *("", " ", "a b", "a-b", "1a", "a.b", "a\nb", "a'", 'a"', "a;b", "a/b", "../a", "a\\", "a\0"),
    *("a{b}", "%s", "a\u2028b", "\u200ba", "²", "€", "😀", "<lambda>", "f[int]"),
)
"""No identifiers."""

Node = Annotated[sf.V3, caspar.TunableShared]


class Box(sf.V2, Generic[Value]): ...


def refused(function: Callable[..., Any], kind: type[Exception] = FactorError) -> str:
    """The message of the error on the way to a traced factor."""
    with pytest.raises(kind) as caught:
        trace(caspar.factor(function))
    return str(caught.value)


def with_argument(name: str, *, node: Any = Node) -> Callable[..., Any]:
    """A residual of one argument; `name` is an identifier."""
    names: dict[str, Any] = {}
    exec(f"def residual({name}):\n    return {name}", names)
    residual: Callable[..., Any] = names["residual"]
    residual.__annotations__[next(iter(residual.__code__.co_varnames))] = node
    return residual


# -- which names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_a_renamed_function_is_refused(name: str) -> None:
    def residual(a: Node) -> sf.V3:
        return a

    residual.__name__ = name
    message = refused(residual)
    assert repr(name) in message
    assert message.isprintable()
    assert "write the function with def" in message or "letters of any script" in message
    with pytest.raises(KernelError, match="kernel"):
        caspar.kernel(residual)


@pytest.mark.parametrize("name", [*keyword.kwlist, "a__b", "__init__", "__", "a__"])
def test_keywords_and_the_separator(name: str) -> None:
    def residual(a: Node) -> sf.V3:
        return a

    residual.__name__ = name
    message = refused(residual)
    assert repr(name) in message
    assert "rename it" in message


def test_a_lambda() -> None:
    with pytest.raises(FactorError, match=r"a lambda has no name of its own; write .* with def"):
        caspar.factor(lambda a: a)
    with pytest.raises(KernelError, match=r"a lambda has no name of its own; write .* with def"):
        caspar.kernel(lambda a: a)


def test_what_is_no_function() -> None:
    class Residual:
        def __call__(self, a: Node) -> sf.V3:
            return a

    for callable_ in (partial(with_argument("a")), Residual(), Residual().__call__, sf.V3):
        with pytest.raises(FactorError, match="write it with def"):
            caspar.factor(callable_)


def test_arguments() -> None:
    message = refused(with_argument("a__b"))
    assert "factor residual, argument 'a__b'" in message
    assert "rename it, for example to 'a_b'" in message


@pytest.mark.parametrize("name", [*ODD, "a__b", "class"], ids=ascii)
def test_classes(name: str) -> None:
    if "\0" in name:  # Python refuses this name itself
        with pytest.raises(ValueError, match="null characters"):
            type(name, (sf.V3,), {})
        return
    odd = type(name, (sf.V3,), {})
    message = refused(with_argument("a", node=Annotated[odd, caspar.TunableShared]))
    assert "factor residual, argument a, node type" in message


@pytest.mark.parametrize("name", ["a b", "a\nb", "1"])
def test_fields(name: str) -> None:
    made = type("Odd", (), {"__annotations__": {name: sf.V2}})
    odd: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(made)
    whole = dataclasses.make_dataclass("Whole", [("inner", odd)])
    for declared in (odd, whole):
        function = with_argument("a", node=Annotated[declared, caspar.TunableShared])
        assert "a field of" in refused(function)


def test_outputs() -> None:
    out = Annotated[sf.V3, caspar.WriteSequential]

    class Two(NamedTuple):
        a__b: out
        c: out

    def copied(x: Annotated[sf.V3, caspar.ReadSequential]) -> Any:
        return Two(x, x)

    copied.__annotations__["return"] = Two
    with pytest.raises(KernelError, match=r"kernel copied, output 'a__b'.*contains '__'"):
        caspar.kernel(copied).inspect()


@given(st.text(max_size=8))
def test_what_is_allowed_is_an_identifier(name: str) -> None:
    is_allowed = name.isidentifier() and not keyword.iskeyword(name) and "__" not in name
    assert (name_refusal(name) == "") == is_allowed


# -- what becomes of them --------------------------------------------------------------------------

letters = st.characters(categories=("L", "Nd", "Pc", "Mn"))
identifiers = st.text(letters, min_size=1, max_size=60).filter(lambda text: not name_refusal(text))


@given(st.lists(identifiers, min_size=2, max_size=2, unique=True))
def test_names_in_kernels_are_short_ascii_and_differ(names: list[str]) -> None:
    made = [internal_name(name) for name in names]
    assert made[0] != made[1]
    for name in made:
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        assert len(name) <= 40


@given(identifiers, identifiers, st.sampled_from(["value", "gradient", "sum1"]))
def test_parts_of_one_are_never_those_of_another(one: str, other: str, part: str) -> None:
    parts = {part_name(internal_name(name), part) for name in (one, other)}
    assert len(parts) == len({one, other})
    assert all(SEPARATOR in name for name in parts)
    assert internal_name(other) not in parts


@pytest.mark.parametrize("length", [41, 120, 300, 3000])
def test_names_of_any_length(length: int) -> None:
    names = [letter * length for letter in ("a", "A", "ä", "Ä")]
    names += [name + "x" for name in names]
    made = [kernel_name(name, "score") for name in names]
    assert len(set(made)) == len(made)
    assert all(len(name) < 60 for name in made)


def test_a_short_ascii_name_stays() -> None:
    assert internal_name("point") == "point"
    assert kernel_name("reprojection", "score") == "reprojection__score"


def test_keys_that_are_not_normalised() -> None:
    """Python normalises the names of a source file: a key may look the same and be another."""
    assert "'\\ufb01eld'" in normalised_hint("ﬁeld", ["field"])
    assert "unicodedata" in normalised_hint("gro\u0308ße", ["größe"])
    assert normalised_hint("field", ["field"]) == ""
    assert normalised_hint("other", ["field"]) == ""


def test_a_generic_type_is_no_storage_type_but_its_class_is() -> None:
    message = refused(with_argument("a", node=Annotated[Box[int], caspar.TunableShared]))
    assert "is not a storage type" in message
    made = trace(caspar.factor(with_argument("a", node=Annotated[Box, caspar.TunableShared])))
    assert made.nodes[0].node_type.name == "Box"


# -- symbols ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Camera:
    """A field may be called like anything."""

    c: sf.V2
    epsilon: sf.Scalar


@dataclasses.dataclass
class Turned:
    """SymForce calls two of its scalars `turn_x`."""

    turn: sf.Rot3
    turn_x: sf.Scalar


class TestSymbols:
    """Arguments never share a symbol, though SymForce makes names of symbols of theirs."""

    def assert_own(self, function: Callable[..., Any]) -> None:
        traced = trace(caspar.factor(function))
        symbols = [str(symbol) for one in traced.arguments for symbol in one.symbols]
        assert len({*symbols, "epsilon"}) == len(symbols) + 1
        used = {str(symbol) for row in traced.residual for symbol in row.free_symbols}
        assert used <= {*symbols, "epsilon"}

    def test_a_half_of_a_pair(self) -> None:
        def halves(p: Annotated[caspar.Pair[sf.V3], caspar.TunablePair], p_second: Node) -> sf.V3:
            return p[0] - p[1] + p_second

        self.assert_own(halves)

    def test_a_part_of_a_rotation(self) -> None:
        def turned(
            q_x: Annotated[sf.Scalar, caspar.ConstUnique],
            q: Annotated[sf.Rot3, caspar.TunableShared],
        ) -> sf.V3:
            return q * sf.V3(q_x, 0, 0)

        self.assert_own(turned)

    def test_epsilon(self) -> None:
        def smooth(a: Node, epsilon: Annotated[sf.Scalar, caspar.ConstUnique]) -> sf.V1:
            return sf.V1(a.norm(sf.epsilon()) * epsilon)

        self.assert_own(smooth)

    def test_fields(self) -> None:
        def seen(
            a: Annotated[Camera, caspar.TunableShared],
            a_c: Annotated[sf.V2, caspar.ConstUnique],
            c: Annotated[sf.Complex, caspar.ConstUnique],
            c_re: Annotated[sf.Scalar, caspar.ConstUnique],
        ) -> sf.V2:
            return a.c * a.epsilon + a_c * c_re + sf.V2(c.real, c.imag)

        self.assert_own(seen)

    def test_two_fields(self) -> None:
        """The field `turn_x` beside the x of the field `turn`."""

        def turned(
            a: Annotated[Turned, caspar.TunableShared], b: Annotated[Turned, caspar.ConstUnique]
        ) -> sf.V3:
            return a.turn * sf.V3(a.turn_x, b.turn_x, 1)

        self.assert_own(turned)
        (node,) = trace(caspar.factor(turned)).nodes
        storage, step, _ = node.node_type.retracted_storage("node")
        assert len({*map(str, storage), *map(str, step)}) == 5 + 4

    def test_both_halves_and_an_argument_like_one(self) -> None:
        def turned(
            p: Annotated[caspar.Pair[Turned], caspar.TunablePair],
            p_first: Annotated[Turned, caspar.ConstUnique],
        ) -> sf.V3:
            return (p[0].turn * p[1].turn * p_first.turn) * sf.V3(p[0].turn_x, p[1].turn_x, 1)

        self.assert_own(turned)

    def test_a_type_that_names_its_symbols_itself(self) -> None:
        class Fixed(sf.V2):
            @classmethod
            def symbolic(cls, name: str, **kwargs: Any) -> Any:
                return cls(sf.Symbol("u"), sf.Symbol("v"))

        def both(
            a: Annotated[Fixed, caspar.TunableShared], b: Annotated[Fixed, caspar.TunableShared]
        ) -> sf.V2:
            return a - b

        self.assert_own(both)

    def test_kernels(self) -> None:
        def turned(
            q: Annotated[Turned, caspar.ReadUnique],
            q_x: Annotated[sf.Scalar, caspar.ReadUnique],
            p: Annotated[caspar.Pair[sf.V2], ReadPair],
            p_second: Annotated[Turned, caspar.ReadUnique],
        ) -> Annotated[sf.V3, caspar.WriteSequential]:
            return (q.turn * p_second.turn) * sf.V3(q.turn_x * q_x, *(p[0] + p[1]))

        inputs = caspar.kernel(turned).traced.inputs
        symbols = [str(symbol) for one in inputs for part in one.parts for symbol in part.symbols]
        assert len({*symbols, "epsilon"}) == 5 + 1 + 4 + 5 + 1
