"""Plain Python for floats, traced into a graph: its conditional expressions become selections.

Input: a module of functions that compute with floats. Output: the same functions for `Scalar`s. So
rules that the host and a kernel share are written once, as usual Python, which the host runs:

    a if c else b, and, or, not, is, chained comparisons, min, max, math.isfinite
    if c: return a    a choice between a and what the function returns otherwise: one number
    if c: ...         any other asks what is known while the text is traced

Both sides of a choice are computed; what a constant condition leaves out is not in the graph.
"""

import ast
import contextlib
import inspect
import math
from collections.abc import Callable, Mapping
from functools import reduce
from threading import Lock
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias, TypeVar

from caspar.ir.ops import OP_INFO, Op
from caspar.ir.scalar import Scalar

LARGEST = math.nextafter(math.inf, 0.0)
"""Comparisons with it are false for infinity and NaN."""

MAX_TRIALS = 10
"""Attempts to make a syntax tree while threads of other libraries make some."""

_making = Lock()

_Made = TypeVar("_Made")

_Value: TypeAlias = Any
"""A `Scalar`, or what Python computes with, if it is known while the text is traced."""


def parsed(text: str) -> ast.Module:
    """The syntax tree of a program."""
    return one_at_a_time(lambda: ast.parse(text))


def one_at_a_time(make: Callable[[], _Made]) -> _Made:
    """Make a syntax tree, or something of one, while no other thread does.

    Python 3.11 counts how deep trees are for all threads together, and raises SystemError if two
    threads make trees at once (python/cpython#106905). Other libraries may make some, too.
    """
    with _making:
        for _ in range(MAX_TRIALS - 1):
            with contextlib.suppress(SystemError):
                return make()
        return make()


def traced(module: ModuleType, names: Mapping[str, object]) -> SimpleNamespace:
    """The functions of a module, whose source is read, for numbers of a graph.

    `names` are globals of the module that mean something else in the graph.
    """
    tree = ast.fix_missing_locations(_Tracing().visit(parsed(inspect.getsource(module))))
    scope = {**vars(module), **_FUNCTIONS}
    exec(one_at_a_time(lambda: compile(tree, str(module.__file__), "exec")), scope)
    scope |= {**_FUNCTIONS, **names}  # instead of what the text has imported
    return SimpleNamespace(**scope)


class _Tracing(ast.NodeTransformer):
    """Calls the functions below wherever Python asks for the truth of a number."""

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return _call(_where, node.test, node.body, node.orelse)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        function = _both if isinstance(node.op, ast.And) else _either
        return reduce(lambda left, right: _call(function, left, right), node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return _call(_no, node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        found: list[ast.expr] = []
        for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
            if isinstance(op, ast.Is | ast.Eq):
                found.append(_call(_same, left, right))
            elif isinstance(op, ast.IsNot | ast.NotEq):
                found.append(_call(_no, _call(_same, left, right)))
            else:
                found.append(ast.Compare(left, [op], [right]))
        return reduce(lambda left, right: _call(_both, left, right), found)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = self._chosen(node.body)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        node.test = _call(_known, self.visit(node.test))
        node.body, node.orelse = self._chosen(node.body), self._chosen(node.orelse)
        return node

    def _chosen(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Statements in which `if c: return a` chooses between a and what is returned behind it."""
        for place, one in enumerate(body):
            match one:
                case ast.If(test=test, body=[ast.Return(value=ast.expr() as value)], orelse=[]):
                    before = [self.visit(other) for other in body[:place]]
                    *behind, last = self._chosen(body[place + 1 :])
                    assert isinstance(last, ast.Return)
                    assert last.value is not None
                    # names may mean something else behind
                    kept = f"_test{one.lineno}", f"_value{one.lineno}"
                    for name, side in zip(kept, (test, value), strict=True):
                        before.append(
                            ast.Assign([ast.Name(name, ast.Store())], self.visit(side), lineno=0)
                        )
                    sides = [ast.Name(name, ast.Load()) for name in kept]
                    return [*before, *behind, ast.Return(_call(_where, *sides, last.value))]
        return [self.visit(other) for other in body]


def _call(function: Callable[..., _Value], *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(function.__name__, ast.Load()), list(arguments), [])


def is_truth(value: _Value) -> bool:
    """Return whether a value is true or false, and no number."""
    if isinstance(value, Scalar):
        return OP_INFO[value.builder.producer_of(value.value).op].boolean
    return isinstance(value, bool)


def _where(condition: _Value, if_true: _Value, if_false: _Value) -> _Value:
    if not isinstance(condition, Scalar):
        return if_true if condition else if_false
    if not (is_truth(if_true) and is_truth(if_false)):
        return condition.where(if_true, if_false)
    # graphs choose between numbers only
    return _either(_both(condition, if_true), _both(~condition, if_false))


def _both(left: _Value, right: _Value) -> _Value:
    if isinstance(left, Scalar) and isinstance(right, Scalar):
        return left & right
    known, other = (right, left) if isinstance(left, Scalar) else (left, right)
    return other if known else False


def _either(left: _Value, right: _Value) -> _Value:
    if isinstance(left, Scalar) and isinstance(right, Scalar):
        return left | right
    known, other = (right, left) if isinstance(left, Scalar) else (left, right)
    return True if known else other


def _no(condition: _Value) -> _Value:
    return ~condition if isinstance(condition, Scalar) else not condition


def _same(left: _Value, right: _Value) -> _Value:
    if isinstance(right, Scalar):
        left, right = right, left
    if not isinstance(left, Scalar):
        return left == right
    other = right.value if isinstance(right, Scalar) else left.builder.const(right)
    return Scalar(left.builder, left.builder.binary(Op.EQ, left.value, other))


def _known(condition: _Value) -> _Value:
    assert not isinstance(condition, Scalar), "a statement depends on a number of the graph"
    return condition


def _max(left: _Value, right: _Value) -> _Value:
    if isinstance(right, Scalar):
        return right.max(left)
    return left.max(right) if isinstance(left, Scalar) else max(left, right)


def _min(left: _Value, right: _Value) -> _Value:
    return _where(right < left, right, left)


def _is_finite(number: _Value) -> _Value:
    if isinstance(number, Scalar):
        return (number <= LARGEST) & (-LARGEST <= number)
    return math.isfinite(number)


_FUNCTIONS = {
    **{one.__name__: one for one in (_where, _both, _either, _no, _same, _known)},
    "max": _max,
    "min": _min,
    "math": SimpleNamespace(isfinite=_is_finite, inf=math.inf, nan=math.nan),
}
