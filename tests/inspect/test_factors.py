"""A factor's kernels by name: those the solver has, in the precision and for the target asked."""

import inspect

import pytest

import caspar
from caspar.codegen.targets import TARGETS
from caspar.equations.solver_form import usual_form
from caspar.equations.solver_kernels import kernel_specs
from caspar.errors import OptionError
from caspar.frontend.factors.trace import trace
from caspar.frontend.precision import TYPES
from caspar.inspect import FactorInspection, inspect_factor
from caspar.ir.dtype import DType
from caspar.memory.kernel import KernelSpec
from caspar.options import Precision
from tests.support_problems import odometry, sighting


@pytest.fixture(scope="module")
def inspection() -> FactorInspection:
    return inspect_factor(sighting)


def test_kernels_are_those_of_the_solver(inspection: FactorInspection) -> None:
    by_name = {spec.name: spec for spec in specs_of_a_solver("cuda")}
    assert all(by_name[name] == kernel.spec for name, kernel in inspection.items())
    rest = set(by_name) - set(inspection)
    assert rest == {"pcg_begin", "pcg_alpha", "pcg_beta", "collect", "clear", "copy"}
    assert list(inspection)[:7] == [
        f"sighting__{role}"
        for role in ("score", "linearize", "gradient", "gather", "product", "reduce", "inner")
    ]
    landmark = [name for name in inspection if name.startswith("Landmark__")]
    assert landmark == [f"Landmark__{role}" for role in ("round", "factorize", "solve", "retract")]


def specs_of_a_solver(target: str) -> list[KernelSpec]:
    """What a solver of the factor alone has, its landmarks eliminated."""
    traced = trace(sighting)
    nodes = {node.node.name: node.node for node in traced.nodes if node.node is not None}
    form = usual_form([traced], list(nodes.values()), TARGETS[target].dialect)
    assert form.eliminated == ("Landmark",)
    return kernel_specs([traced], list(nodes.values()), TYPES[Precision.MIXED], form)[0]


def test_on_the_processor_jacobians_are_stored() -> None:
    on_cpu = inspect_factor(sighting, target="cpu")
    by_name = {spec.name: spec for spec in specs_of_a_solver("cpu")}
    assert all(by_name[name] == kernel.spec for name, kernel in on_cpu.items())
    assert {"sighting__store", "Landmark__scale"} <= set(on_cpu)


def test_a_factor_of_one_node_type_multiplies_by_the_whole_system() -> None:
    assert list(inspect_factor(odometry))[:5] == [
        f"odometry__{role}" for role in ("score", "linearize", "store", "square", "product")
    ]


def test_a_kernel_is_found_by_the_end_of_its_name(inspection: FactorInspection) -> None:
    assert inspection["score"] is inspection["sighting__score"]
    assert inspection["Pose__step"].name == "Pose__step"


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("step", "may be Pose__step or Offset__step; "),
        ("nothing", "there is none; "),
        ("", "there is none; "),
    ],
)
def test_an_ambiguous_or_unknown_name_lists_the_kernels(
    inspection: FactorInspection, name: str, wrong: str
) -> None:
    message = f"kernel={name!r}: {wrong}the kernels of factor sighting are sighting__score, "
    for find in (inspection.kernel, inspection.__getitem__):
        with pytest.raises(OptionError) as caught:
            find(name)
        assert str(caught.value).startswith(message)
    assert name not in inspection
    assert inspection.get(name) is None


def test_precision_chooses_the_types() -> None:
    for precision, dtype in (("mixed", DType.FLOAT64), ("float32", DType.FLOAT32)):
        assert inspect_factor(sighting, precision)["score"].spec.graph.dtype is dtype
    assert (
        inspect_factor(sighting, Precision.FLOAT64)["linearize"].spec.graph.dtype is DType.FLOAT64
    )


def test_a_pair_of_one_node_type_brings_its_kernels_once() -> None:
    assert [name for name in inspect_factor(odometry) if name.startswith("Pose__")] == [
        f"Pose__{part}" for part in ("scale", "factorize", "start", "step", "turn", "retract")
    ]


def test_choices_that_do_not_exist_are_named() -> None:
    with pytest.raises(OptionError, match="target='gpu': must be one of 'cuda', 'cpu'"):
        inspect_factor(sighting, target="gpu")
    with pytest.raises(OptionError, match="precision='half': must be one of 'mixed'"):
        inspect_factor(sighting, "half")
    with pytest.raises(OptionError, match="arch='sm_1': must be one of"):
        inspect_factor(sighting, arch="sm_1")["score"].ptx  # noqa: B018


def test_factors_have_it_as_a_method(inspection: FactorInspection) -> None:
    assert isinstance(sighting.inspect(), caspar.inspect.FactorInspection)
    assert sighting.inspect()["score"].spec == inspection["score"].spec
    own = inspect.signature(caspar.Factor.inspect).parameters
    function = inspect.signature(inspect_factor).parameters
    for name in ("target", "arch"):
        assert own[name].default == function[name].default
    assert own["precision"].default == function["precision"].default.value


def test_the_trace_is_the_factors_or_the_node_types(inspection: FactorInspection) -> None:
    assert str(inspection.trace) == str(inspection["score"].trace)
    assert str(inspection.trace).startswith("factor sighting: 3 residual rows\n")
    assert str(inspection["Landmark__solve"].trace).startswith("node type Landmark: storage 3")


def test_a_factor_says_what_it_has(inspection: FactorInspection) -> None:
    assert repr(inspection).startswith("factor sighting; kernels: sighting__score, ")
