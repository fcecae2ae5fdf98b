"""Lines of the user's function in errors, graphs, generated text and keys."""

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import pytest
import symforce.symbolic as sf
from symengine import I

import caspar
from caspar.codegen.cuda.header import HEADER
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.equations.factor_kernels import FactorKernels, factor_kernels
from caspar.errors import UnsupportedFunctionError
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.trace import TracedFactor, trace
from caspar.frontend.precision import TYPES
from caspar.frontend.symbolic.expression_key import expression_key
from caspar.frontend.symbolic.lines import Line, Lines
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op
from caspar.ir.program import Instruction, Program
from caspar.ir.text import parse_graph, print_graph
from caspar.options import Precision
from caspar.passes.cost import CUDA_FLOAT32
from caspar.passes.pipeline import StageResult, compile_graph
from caspar.passes.scheduling.steps import Step
from tests.frontend.factors.residuals import FACTORS

pytestmark = pytest.mark.skipif(
    sys.gettrace() is not None, reason="under a debugger or a coverage tool no line is recorded"
)


class Point(sf.V3): ...


Node = Annotated[Point, caspar.TunableShared]
gamma = sf.sympy.gamma

MODULE = '''
{above}
from typing import Annotated
import symforce.symbolic as sf
import caspar

class Point(sf.V3): ...

def scaled(value, by):
    {helper}

@caspar.factor
def spread(point: Annotated[Point, caspar.TunableShared]) -> sf.V2:
    """{docstring}"""
    size = scaled(point.norm(), 3)
    return sf.V2(size, sf.sin(size) * point[0])
'''


def kernels_of(traced: TracedFactor) -> FactorKernels:
    return factor_kernels(traced, TYPES[Precision.MIXED])


def module_factor(
    file: Path, above: str = "", helper: str = "return by * value", docstring: str = "Size."
) -> Factor:
    """The factor of a module written to a file."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(MODULE.format(above=above, helper=helper, docstring=docstring))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Factor = module.spread
    return found


# -- errors ----------------------------------------------------------------------------------------


def error_of(function: Callable[..., Any]) -> str:
    with pytest.raises(UnsupportedFunctionError) as caught:
        kernels_of(trace(caspar.factor(function)))
    return str(caught.value)


def line_of(function: Callable[..., Any], place: int) -> str:
    return f"line {function.__code__.co_firstlineno + place}: "


def doubtful(value: Any) -> Any:
    shifted = value + 1
    return gamma(shifted)


class TestErrors:
    def test_unsupported_function(self) -> None:
        def reprojection(a: Node) -> sf.V1:
            x = 2 * a[0]
            r = gamma(x + 1) * a[1]
            return sf.V1(sf.sin(r))

        message = error_of(reprojection)
        assert message.startswith(f"factor reprojection ({__file__}:")
        where = line_of(reprojection, 2) + "r = gamma(x + 1) * a[1]: "
        assert where + "the function 'gamma' in gamma(1 + 2*a[0]) is not supported" in message

    def test_in_a_helper(self) -> None:
        def reprojection(a: Node) -> sf.V1:
            return sf.V1(doubtful(a[0]) + 1)

        assert line_of(doubtful, 2) + "return gamma(shifted): " in error_of(reprojection)

    def test_in_another_file(self, tmp_path: Path) -> None:
        helper = "return sf.sympy.gamma(by * value)"
        scaled = module_factor(tmp_path / "scales.py", helper=helper).function.__globals__["scaled"]

        def reprojection(a: Node) -> sf.V1:
            return sf.V1(scaled(a[0], 2) + 1)

        message = error_of(reprojection)
        assert message.startswith(f"factor reprojection ({__file__}:")
        assert f"{tmp_path / 'scales.py'}:10: return sf.sympy.gamma(by * value): " in message

    def test_without_a_source(self) -> None:
        names: dict[str, Any] = {"Node": Node, "sf": sf, "gamma": gamma}
        exec("def hidden(a: Node):\n    x = gamma(a[0])\n    return sf.V1(x)", names)
        message = error_of(names["hidden"])
        assert "factor hidden (<string>:1), line 2: the function 'gamma'" in message

    def test_under_another_trace_function(self) -> None:
        def reprojection(a: Node) -> sf.V1:
            return sf.V1(gamma(a[0]))

        sys.settrace(lambda *_: None)
        try:
            message = error_of(reprojection)
        finally:
            sys.settrace(None)
        location = caspar.factor(reprojection).location
        assert message.startswith(f"factor reprojection ({location}): the function 'gamma' in")

    def test_free_symbol(self) -> None:
        def scaled(a: Node) -> sf.V3:
            scale = sf.Symbol("scale")
            return a * scale

        message = error_of(scaled)
        assert line_of(scaled, 1) + 'scale = sf.Symbol("scale"): ' in message
        assert "free symbol 'scale'" in message

    def test_division_by_zero(self) -> None:
        def divided(a: Node) -> sf.V1:
            ratio = a[0] / (a[1] - a[1])
            return sf.V1(ratio * a[2] + 1)

        message = error_of(divided)
        assert line_of(divided, 1) + "ratio = a[0] / (a[1] - a[1]): " in message
        assert "a division by zero" in message

    @pytest.mark.parametrize(
        ("value", "said"),
        [(sf.S(1) / 0, "a division by zero"), (sf.S(0) / 0, "not a number"), (I, "complex")],
        ids=["zoo", "nan", "imaginary"],
    )
    def test_inside(self, value: Any, said: str) -> None:
        def chosen(a: Node) -> sf.V1:
            other = [value, a[1]]
            picked = sf.Piecewise((a[0], a[0] > 0), (other[0], True))
            return sf.V1(picked + 1)

        message = error_of(chosen)
        assert line_of(chosen, 1) + "other = [value, a[1]]: " in message
        assert said in message


# -- graphs and programs ---------------------------------------------------------------------------


def all_graphs(kernels: FactorKernels) -> list[Graph]:
    return [spec.graph for spec in kernels.kernels.values()]


def steps_of(made: StageResult) -> Sequence[Call | Step | Instruction]:
    if isinstance(made, Graph):
        return made.calls
    return made.instructions if isinstance(made, Program) else made.steps


@pytest.mark.parametrize("name", FACTORS)
def test_every_call_has_an_origin_through_all_stages(name: str) -> None:
    traced = trace(FACTORS[name])
    for graph in all_graphs(kernels_of(traced)):
        bare: dict[str, set[Op]] = {}

        def observe(name: str, made: StageResult, bare: dict[str, set[Op]] = bare) -> None:
            bare[name] = {step.op for step in steps_of(made) if step.origin == ""}

        compile_graph(graph, CUDA_FLOAT32, observe)
        assert len(bare) > 5
        assert set().union(*bare.values()) <= {Op.READ, Op.CONST}, bare


def test_origins_of_a_graph() -> None:
    def reprojection(a: Node) -> sf.V1:
        angle = a[0] * a[1]
        return sf.V1(sf.sin(angle) + a[2])

    kernels = kernels_of(trace(caspar.factor(reprojection)))
    origins = {call.op: call.origin for call in kernels.kernels["score"].graph.calls}
    assert origins[Op.SIN] == "reprojection: return sf.V1(sf.sin(angle) + a[2])"
    graph = kernels.kernels["linearize"].graph
    (cosine,) = (call for call in graph.calls if call.op is Op.COS)
    assert cosine.origin == "derivative of reprojection: return sf.V1(sf.sin(angle) + a[2])"
    products = {call.origin for call in graph.calls if call.op is Op.PROD}
    assert "derivative of reprojection: angle = a[0] * a[1]" in products
    assert "reprojection: angle = a[0] * a[1]" in products
    printed = print_graph(graph)
    assert "  # derivative of reprojection: angle = a[0] * a[1]" in printed
    assert [call.origin for call in parse_graph(printed).calls] == [
        call.origin for call in graph.calls
    ]


def test_fused_products_keep_their_line() -> None:
    def reprojection(a: Node) -> sf.V1:
        left = sf.sin(a[0]) * sf.cos(a[1]) * a[2]
        right = sf.sin(a[1]) * sf.cos(a[2]) * a[0]
        return sf.V1(left + right)

    kernels = kernels_of(trace(caspar.factor(reprojection)))
    program = compile_graph(kernels.kernels["score"].graph, CUDA_FLOAT32)
    starts = Counter(
        (step.op, step.origin.split(" = ")[0])
        for step in program.instructions
        if not step.origin.endswith(("cost", "residual"))
    )
    multiplied = (starts[Op.MUL, f"reprojection: {name}"] for name in ("left", "right"))
    assert sorted(multiplied) == [1, 2]
    assert starts[Op.FMA, "reprojection: return sf.V1(left + right)"] == 1


# -- text and keys ---------------------------------------------------------------------------------


def texts(traced: TracedFactor) -> list[str]:
    return [
        compile_kernel(spec, target).text.replace(HEADER, "")
        for spec in kernels_of(traced).kernels.values()
        for target in TARGETS.values()
    ]


class TestTexts:
    def test_comments(self, tmp_path: Path) -> None:
        score_cuda, score_cpu, linearize_cuda, *_ = texts(trace(module_factor(tmp_path / "m.py")))
        assert "  // spread: size = scaled(point.norm(), 3)\n" in score_cuda
        assert "  // scaled: return by * value\n" in score_cuda
        assert "    # scaled: return by * value\n" in score_cpu
        assert "  // derivative of spread: size = scaled(point.norm(), 3)\n" in linearize_cuda
        assert "m.py" not in score_cuda + score_cpu

    def test_a_comment_stands_where_the_line_changes(self, tmp_path: Path) -> None:
        for text in texts(trace(module_factor(tmp_path / "m.py"))):
            lines = [line.strip() for line in text.splitlines()]
            comments = [line for line in lines if line.startswith(("// ", "# "))]
            # products of stored Jacobians come of no line of the user's
            assert len(comments) > (0 if "__square" in text else 2)
            assert all(a != b for a, b in pairwise(comments))
            assert not lines[-1].startswith(("// ", "# "))

    def test_code_elsewhere_does_not_matter(self, tmp_path: Path) -> None:
        first = trace(module_factor(tmp_path / "a" / "first.py"))
        second = trace(
            module_factor(
                tmp_path / "b" / "second.py",
                above="# more\n" * 9,
                docstring="Size.\n\n    In metres.",
            )
        )
        assert first.lines.of != second.lines.of
        assert first.key == second.key
        assert texts(first) == texts(second)

    def test_what_is_in_the_text_is_in_the_key(self, tmp_path: Path) -> None:
        first = trace(module_factor(tmp_path / "first.py"))
        second = trace(module_factor(tmp_path / "second.py", helper="return value * by"))
        assert first.residual == second.residual
        assert first.key != second.key
        assert texts(first) != texts(second)

    def test_a_sub_expression_of_another_line_has_another_key(self) -> None:
        x = sf.Symbol("x")
        inner, outer = (Line("f", "f.py", 1, text, frozenset()) for text in ("y = x", "z = y"))
        expression = sf.sin(sf.cos(x))
        one = Lines({x: inner, sf.cos(x): inner, expression: outer})
        other = Lines({x: inner, sf.cos(x): outer, expression: outer})
        assert expression_key([expression], one) != expression_key([expression], other)
