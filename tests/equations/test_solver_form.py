"""Which node types are eliminated, and what each factor's kernels then are."""

from dataclasses import replace
from typing import Annotated, Any

import pytest
import symforce.symbolic as sf

import caspar
from caspar.codegen.targets import TARGETS
from caspar.equations.factor_builder import SharedSums
from caspar.equations.factor_kernels import FACTOR_ROLES, factor_kernels
from caspar.equations.parts import NodePart
from caspar.equations.solver_form import (
    SolverForm,
    eliminable_types,
    solver_form,
    usual_form,
)
from caspar.frontend.factors.jacobian import JacobianStorage
from caspar.frontend.factors.trace import NodeType, TracedFactor, trace
from caspar.frontend.precision import TYPES
from caspar.options import Precision
from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.choice.form import choose_eliminated, choose_form
from caspar.solver.choice.recipe import make_recipe


class Big(sf.V4): ...


class Small(sf.V2): ...


class Tiny(sf.V1): ...


Shared = caspar.TunableShared
Seen = Annotated[sf.V1, caspar.ConstSequential]


def traced(*functions: Any) -> tuple[tuple[TracedFactor, ...], tuple[NodeType, ...]]:
    factors = tuple(trace(caspar.factor(function)) for function in functions)
    nodes = {
        argument.node.name: argument.node
        for factor in factors
        for argument in factor.nodes
        if argument.node is not None
    }
    return factors, tuple(nodes.values())


def eliminated(*functions: Any) -> tuple[str, ...]:
    return tuple(node.name for node in eliminable_types(*traced(*functions)))


def big_small(big: Annotated[Big, Shared], small: Annotated[Small, Shared], seen: Seen) -> sf.V1:
    return sf.V1(big[0] * small[0] + big[1] * small[1] - seen[0])


def big_tiny(big: Annotated[Big, Shared], tiny: Annotated[Tiny, Shared], seen: Seen) -> sf.V1:
    return sf.V1(big[2] * tiny[0] + big[3] - seen[0])


def small_tiny(small: Annotated[Small, Shared], tiny: Annotated[Tiny, Shared]) -> sf.V1:
    return sf.V1(small[0] * tiny[0])


def small_small(a: Annotated[Small, Shared], b: Annotated[Small, Shared]) -> sf.V2:
    return a - b


def small_pair(pair: Annotated[caspar.Pair[Small], caspar.TunablePair]) -> sf.V2:
    return pair[1] - pair[0]


def small_unique(small: Annotated[Small, caspar.TunableUnique], seen: Seen) -> sf.V1:
    return sf.V1(small[0] * small[1] - seen[0])


def big_unique(big: Annotated[Big, Shared], small: Annotated[Small, caspar.TunableUnique]) -> sf.V2:
    return sf.V2(big[0] - small[0], big[1] - small[1])


def small_alone(small: Annotated[Small, Shared], seen: Seen) -> sf.V1:
    return sf.V1(small[0] + small[1] - seen[0])


def big_big(a: Annotated[Big, Shared], b: Annotated[Big, Shared]) -> sf.V4:
    return a - b


class TestEliminableTypes:
    def test_the_smaller_of_two_types(self) -> None:
        assert eliminated(big_small) == ("Small",)

    def test_what_has_the_most_unknowns(self) -> None:
        factors, nodes = traced(small_tiny, big_small)
        for small, tiny, wanted in (
            (100, 2, ["Small"]),
            (2, 100, ["Tiny", "Big"]),
            (10, 15, ["Tiny", "Big"]),
        ):
            counts = {"Big": 1, "Small": small, "Tiny": tiny}
            assert [node.name for node in eliminable_types(factors, nodes, counts)] == wanted

    def test_no_large_tangents_for_their_number(self) -> None:
        factors, nodes = traced(big_small)
        counts = {"Big": 1000, "Small": 1}
        assert [node.name for node in eliminable_types(factors, nodes, counts)] == ["Small"]

    def test_the_larger_where_the_smaller_cannot(self) -> None:
        assert eliminated(big_small, small_small) == ("Big",)
        assert eliminated(big_small, small_pair) == ("Big",)

    def test_no_type_alone(self) -> None:
        """One other type must be left to solve for."""
        assert eliminated(small_alone) == ()
        assert eliminated(small_small) == ()

    def test_none_where_all_have_factors_of_two(self) -> None:
        assert eliminated(big_small, small_small, big_big) == ()

    def test_a_node_that_all_factors_share_stays(self) -> None:
        assert eliminated(big_unique) == ("Big",)
        assert eliminated(big_small, small_unique) == ("Big",)

    def test_several_types_that_no_factor_touches_together(self) -> None:
        assert eliminated(big_small, big_tiny) == ("Tiny", "Small")
        assert eliminated(big_small, big_tiny, small_alone) == ("Tiny", "Small")

    def test_one_of_two_that_a_factor_touches_together(self) -> None:
        """The smaller, and then what it leaves."""
        assert eliminated(big_small, big_tiny, small_tiny) == ("Tiny",)
        assert eliminated(small_tiny, big_small, big_big) == ("Tiny",)

    def test_one_type_is_left_whatever_the_factors(self) -> None:
        """Types that no factor joins could all go."""
        assert len(eliminated(small_alone, big_alone)) == 1

    def test_the_order_of_factors_does_not_matter(self) -> None:
        functions = [big_small, big_tiny, small_alone]
        assert set(eliminated(*functions)) == set(eliminated(*reversed(functions)))


def big_alone(big: Annotated[Big, Shared]) -> sf.V4:
    return big


def form_of(*functions: Any, inner_iterations: int = 2) -> SolverForm:
    return form_of_traced(*traced(*functions), inner_iterations=inner_iterations)


def form_of_traced(
    factors: tuple[TracedFactor, ...], nodes: tuple[NodeType, ...], inner_iterations: int = 2
) -> SolverForm:
    return solver_form(
        factors,
        eliminable_types(factors, nodes),
        SharedSums.ORDERED,
        JacobianStorage.RECOMPUTED,
        inner_iterations,
    )


class TestForms:
    def test_sums_stay_in_a_block_where_one_factor_touches_a_type(self) -> None:
        form = form_of(big_small, big_tiny, small_alone)
        assert form.eliminated == ("Tiny", "Small")
        fused = {name: one.is_fused for name, one in form.factors.items()}
        assert fused == {"big_small": False, "big_tiny": True, "small_alone": False}
        names = {name: one.eliminated.name for name, one in form.factors.items() if one.eliminated}
        assert names == {"big_small": "small", "big_tiny": "tiny", "small_alone": "small"}

    def test_factors_without_an_eliminated_node(self) -> None:
        form = form_of(big_small, big_big)
        assert form.factors["big_big"].eliminated is None
        assert not form.factors["big_big"].is_fused

    def test_what_linearisations_add(self) -> None:
        """Blocks where they are whole; D besides where `reduce`, or another factor, has a part."""
        form = form_of(big_small, small_alone, big_alone).factors
        small, (alone,) = form["big_small"].eliminated, traced(big_alone)[0][0].nodes
        assert small is not None
        big = next(node for node in traced(big_small)[0][0].nodes if node.name == "big")
        gradient, diagonal, block = NodePart.GRADIENT, NodePart.DIAGONAL, NodePart.BLOCK
        assert form["big_small"].linearized(small) == (gradient, block)
        assert form["big_small"].linearized(big) == (gradient, diagonal)
        assert form["big_alone"].linearized(alone) == (gradient, diagonal, block)
        whole = form_of(big_big, big_alone).factors
        assert whole["big_alone"].linearized(alone) == (gradient, block)
        stored = replace(form["big_small"], jacobian=JacobianStorage.STORED)
        assert stored.linearized(small) == (gradient, diagonal)

    def test_keys_tell_forms_apart(self) -> None:
        forms = [
            form_of(big_small),
            form_of(big_small, inner_iterations=3),
            form_of(big_small, small_alone),
            form_of(big_small, small_small),
        ]
        assert len({form.key for form in forms}) == len(forms)
        assert form_of(big_small).key == forms[0].key

    @pytest.mark.parametrize("target", ["cuda", "cpu"])
    def test_what_a_solver_makes_by_itself(self, target: str) -> None:
        factors, nodes = traced(big_small)
        form = usual_form(factors, nodes, TARGETS[target].dialect)
        recipe = make_recipe([caspar.factor(big_small)])
        made = choose_form(CpuBackend(), recipe, choose_eliminated(recipe))
        assert (form.key == made.key) is (target == "cpu")
        assert form.eliminated == made.eliminated
        assert form.is_scaled is (target == "cpu")
        sums = SharedSums.ATOMIC if target == "cuda" else SharedSums.ORDERED
        assert form.factors["big_small"].sums is sums


def roles(*functions: Any) -> dict[str, list[str]]:
    factors, nodes = traced(*functions)
    form = form_of_traced(factors, nodes)
    return {
        factor.name: list(
            factor_kernels(factor, TYPES[Precision.FLOAT64], form.factors[factor.name]).kernels
        )
        for factor in factors
    }


def test_roles_of_factors() -> None:
    found = roles(big_small, big_tiny, small_alone)
    assert found == {
        "big_small": ["score", "linearize", "gather", "scatter", "reduce"],
        "big_tiny": ["score", "linearize", "gather", "product", "reduce", "inner"],
        "small_alone": ["score", "linearize"],
    }
    assert roles(big_small, big_big)["big_big"] == ["score", "linearize", "product"]
    assert {role for names in found.values() for role in names} <= set(FACTOR_ROLES)
