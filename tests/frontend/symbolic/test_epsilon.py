"""SymForce's epsilon while tracing, and that nobody else sees it, then or afterwards."""

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import numpy as np
import pytest
import symforce
import symforce.symbolic as sf
from symforce import geo, ops

import caspar
from caspar.errors import FactorError
from caspar.frontend.factors.trace import trace
from caspar.frontend.symbolic.epsilon import SYMBOL, _prepared, value, with_symbolic_epsilon
from caspar.ir.dtype import DType
from tests.forks import run_in_forks

ROOT = Path(__file__).parents[3]

a = sf.V3.symbolic("a")

CALLS: dict[str, Callable[[], Any]] = {
    "sf.epsilon": sf.epsilon,
    "acos_safe": lambda: sf.acos_safe(a[0]),
    "Rot3.to_tangent": lambda: geo.Rot3.symbolic("a").to_tangent(),
    "Rot3.from_tangent": lambda: geo.Rot3.from_tangent(a).to_storage(),
    "Pose3.to_tangent": lambda: geo.Pose3.symbolic("a").to_tangent(),
    "Pose2.local_coordinates": lambda: geo.Pose2.symbolic("a").local_coordinates(geo.Pose2()),
    "Matrix.norm": a.norm,
    "Matrix.normalized": a.normalized,
    "Unit3.storage_D_tangent": lambda: geo.Unit3.symbolic("a").storage_D_tangent(),
    "LieGroupOps.retract": lambda: ops.LieGroupOps.retract(geo.Rot3.symbolic("a"), a),
}


def has_symbol(result: Any) -> bool:
    return SYMBOL.name in str(result)


def snapshot() -> list[str]:
    return [str(call()) for call in CALLS.values()]


@pytest.mark.parametrize("name", CALLS)
def test_it_is_the_symbol_inside_only(name: str) -> None:
    before = str(CALLS[name]())
    assert not has_symbol(before)
    assert has_symbol(with_symbolic_epsilon(CALLS[name]))
    assert str(CALLS[name]()) == before


def test_it_nests() -> None:
    before = snapshot()

    def inner() -> bool:
        return has_symbol(a.norm())

    def outer() -> bool:
        return with_symbolic_epsilon(inner) and has_symbol(a.norm()) and sf.epsilon() == SYMBOL

    assert with_symbolic_epsilon(outer)
    assert snapshot() == before


@pytest.mark.parametrize("given", [0, 0.0, 1e-3, sf.S.Zero])
def test_an_epsilon_that_is_passed_is_kept(given: Any) -> None:
    assert not has_symbol(with_symbolic_epsilon(lambda: a.norm(given)))
    assert not has_symbol(with_symbolic_epsilon(lambda: a.norm(epsilon=given)))


def all_functions() -> dict[str, Any]:
    """Of SymForce, by module and name; those whose epsilon has a default."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "symforce":
            for thing in vars(module).values():
                for member in [thing, *(vars(thing).values() if inspect.isclass(thing) else ())]:
                    function = getattr(member, "__func__", member)
                    if inspect.isfunction(function) and function.__module__ == name:
                        found[f"{name}.{function.__qualname__}"] = function
    return {
        name: function
        for name, function in found.items()
        if any(
            "epsilon" in parameter.name and parameter.default == 0
            for parameter in inspect.signature(function).parameters.values()
        )
    }


def test_functions_look_as_before() -> None:
    """All of them are prepared, and neither signature nor source nor pickles tell."""
    program = """
import inspect, pickle
import symforce.opt.barrier_functions, symforce.opt.noise_models, symforce.opt.residual_block
from caspar.frontend.symbolic.epsilon import prepare_symforce
from tests.frontend.symbolic.test_epsilon import all_functions
def look(function):
    code = function.__code__
    return (
        inspect.signature(function), inspect.getfullargspec(function), inspect.getsource(function),
        function.__defaults__, [type(one) for one in function.__defaults__], function.__doc__,
        function.__qualname__, code.co_name, code.co_filename, code.co_firstlineno,
    )
functions = all_functions()
assert len(functions) > 80, len(functions)
before = {name: look(function) for name, function in functions.items()}
codes = {name: function.__code__ for name, function in functions.items()}
assert prepare_symforce()
assert not prepare_symforce()
for name, function in all_functions().items():
    assert function is functions[name]
    assert look(function) == before[name], name
    assert function.__code__ is not codes[name], name
    if "." not in function.__qualname__:
        assert pickle.loads(pickle.dumps(function)) is function, name
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=500)


# -- threads, interrupts, forks --------------------------------------------------------------------


def test_other_threads_never_see_it() -> None:
    before = snapshot()
    done = Event()

    def watch() -> int:
        rounds = 0
        while not done.is_set():
            assert snapshot() == before
            rounds += 1
        return rounds

    def trace_some(_: int) -> list[str]:
        return [str(trace(FACTORS[name]).residual) for name in ("unit", "prior")]

    with ThreadPoolExecutor(4) as pool:
        watching = [pool.submit(watch) for _ in range(2)]
        try:
            traced = list(pool.map(trace_some, range(60)))
        finally:
            done.set()
        assert all(one.result(60.0) > 0 for one in watching)
    assert all(one == traced[0] and all(map(has_symbol, one)) for one in traced)


@caspar.factor
def unit(point: Annotated[geo.V3, caspar.TunableShared]) -> sf.V3:
    return point.normalized()


@caspar.factor
def prior(pose: Annotated[geo.Pose3, caspar.TunableShared]) -> sf.V6:
    return sf.V6(pose.to_tangent())


FACTORS = {"unit": unit, "prior": prior}


def test_an_interrupt_at_any_instruction_leaves_nothing() -> None:
    """At some while functions are prepared, and at each of a call where they are."""
    before = snapshot()
    length = instructions_before_interrupt(sys.maxsize)
    of_call = instructions_before_interrupt(sys.maxsize, is_prepared=True)
    assert of_call > 20
    for number in range(of_call):
        assert instructions_before_interrupt(number, is_prepared=True) == number
        assert snapshot() == before, number
    for number in [*range(0, length, length // 4), length - 1]:
        assert instructions_before_interrupt(number) == number
        assert snapshot() == before, number
    assert has_symbol(with_symbolic_epsilon(a.norm))
    assert snapshot() == before


def instructions_before_interrupt(limit: int, *, is_prepared: bool = False) -> int:
    """Run with an interrupt after so many instructions of the module; how many there were.

    Where functions are prepared, those that look for others do not count: they are thousands.
    """
    skipped = ("prepare_symforce",) if is_prepared else ()
    file = with_symbolic_epsilon.__code__.co_filename
    seen = 0

    def watch(frame: Any, event: str, _: Any) -> Any:
        nonlocal seen
        if frame.f_code.co_filename != file or frame.f_code.co_name in skipped:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if seen == limit:
                raise KeyboardInterrupt
            seen += 1
        return watch

    if not is_prepared:
        _prepared.clear()
    sys.settrace(watch)
    try:
        with_symbolic_epsilon(sf.epsilon)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return seen


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_another_thread_traces() -> None:
    program = """
import os, signal, threading
import symforce.symbolic as sf
from tests.frontend.symbolic.test_epsilon import prior, unit
from caspar.frontend.factors.trace import trace
done = threading.Event()
def work():
    while not done.is_set():
        trace(prior)
thread = threading.Thread(target=work, daemon=True)
thread.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        row = str(sf.V3.symbolic("a").norm()) + str(trace(unit).residual[0])
        os._exit(0 if row.count("epsilon") == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
done.set()
thread.join(60)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)


# -- what users write ------------------------------------------------------------------------------


class Point(sf.V3): ...


@pytest.mark.parametrize(
    "residual",
    [
        lambda a: a.normalized(),
        lambda a: sf.V3(sf.Rot3.from_tangent(a.to_flat_list()).to_tangent()),
        lambda a: a / (a.squared_norm() + sf.epsilon()),
        lambda a: sf.V1(a.norm(epsilon=sf.epsilon())),
    ],
    ids=["normalized", "rotation", "epsilon()", "given"],
)
def test_the_symbol_reaches_the_residual(residual: Any) -> None:
    @caspar.factor
    def prior(a: Annotated[Point, caspar.TunableShared]) -> Any:
        return residual(a)

    before = snapshot()
    rows = trace(prior).residual
    assert any(SYMBOL in row.free_symbols for row in rows)
    assert snapshot() == before


def test_restored_after_an_exception() -> None:
    @caspar.factor
    def broken(a: Annotated[Point, caspar.TunableShared]) -> Any:
        assert sf.epsilon() == SYMBOL
        raise KeyError("mine")

    before = snapshot()
    with pytest.raises(FactorError, match="mine"):
        trace(broken)
    assert snapshot() == before


def test_restored_when_the_result_is_refused() -> None:
    @caspar.factor
    def scalar(a: Annotated[Point, caspar.TunableShared]) -> Any:
        return a.norm()

    before = snapshot()
    with pytest.raises(FactorError):
        trace(scalar)
    assert snapshot() == before


LAZY = """
import sys
from typing import Annotated
import symforce.symbolic as sf
import caspar
from caspar.frontend.symbolic.epsilon import SYMBOL
from caspar.frontend.factors.trace import trace
class Point(sf.V2): ...
times = []
@caspar.factor
def robust(a: Annotated[Point, caspar.TunableShared]) -> sf.V2:
    from symforce.opt.noise_models import PseudoHuberNoiseModel
    times.append(1)
    return sf.V2(PseudoHuberNoiseModel(1, 1).whiten_norm(a))
@caspar.kernel
def sizes(a: Annotated[sf.V2, caspar.ReadSequential]) -> Annotated[sf.V1, caspar.WriteSequential]:
    from symforce.jacobian_helpers import tangent_jacobians
    return sf.V1(tangent_jacobians(a, [a])[0][0] * a.norm())
assert "symforce.opt.noise_models" not in sys.modules
first = trace(robust).residual
assert len(times) == 2
assert any(SYMBOL in row.free_symbols for row in first), first
assert trace(robust).residual == first
assert len(times) == 3
sizes.traced
from symforce.opt.noise_models import PseudoHuberNoiseModel
from symforce import jacobian_helpers
outside = PseudoHuberNoiseModel(1, 1).whiten_norm(Point.symbolic("a"))
assert "epsilon" not in str(outside), outside
assert jacobian_helpers.tangent_jacobians.__defaults__ == (0.0,)
"""


def test_what_is_imported_while_tracing_gets_the_usual_epsilon() -> None:
    """The function is traced once more, so that the symbol reaches it all the same."""
    subprocess.run([sys.executable, "-c", LAZY], cwd=ROOT, check=True, timeout=500)


def test_others_may_import_while_it_looks() -> None:
    """As another thread does when a garbage collection starts in between."""
    program = """
import gc, sys
from types import ModuleType
from caspar.frontend.symbolic.epsilon import prepare_symforce

def import_one(*_):
    sys.modules[f"module_{len(sys.modules)}"] = ModuleType("module")

for _ in range(10_000):
    import_one()
gc.callbacks.append(import_one)
prepare_symforce()
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64], ids=lambda dtype: dtype.value)
def test_value_is_ten_machine_epsilons(dtype: DType) -> None:
    assert value(dtype) == pytest.approx(10.0 * np.finfo(dtype.value).eps, rel=1e-6)


SET_BEFORE = """
import symforce
symforce.set_epsilon_to_number(1e-5)
import symforce.symbolic as sf
from caspar.frontend.symbolic.epsilon import SYMBOL, with_symbolic_epsilon
def inside():
    assert sf.epsilon() == SYMBOL
    assert SYMBOL not in sf.V3.symbolic("a").norm().free_symbols
with_symbolic_epsilon(inside)
assert sf.epsilon() == 1e-5
assert "1e-05" in str(sf.V3.symbolic("a").norm())
"""
"""Numbers that a program chose before are its own."""


SETTINGS = [
    ("set_epsilon_to_symbol()", "sqrt(epsilon + a0**2)"),
    ("set_epsilon_to_symbol('tiny')", "sqrt(tiny + a0**2)"),
    ("set_epsilon_to_zero()", "sqrt(a0**2)"),
    ("set_epsilon_to_number(0)", "sqrt(a0**2)"),
    ("set_epsilon_to_invalid()", None),
]
"""How SymForce is set before it is used, and what a length then is outside of caspar."""


def program_after(setting: str, outside: str | None) -> str:
    return f"""
import symforce
symforce.{setting}
import symforce.symbolic as sf
from caspar.frontend.symbolic.epsilon import with_symbolic_epsilon
def norm():
    return str(sf.V1(sf.Symbol("a0")).norm())
for _ in range(2):
    assert with_symbolic_epsilon(norm) == "sqrt(epsilon + a0**2)", with_symbolic_epsilon(norm)
    try:
        found = norm()
    except TypeError:
        found = None
    assert found == {outside!r}, found
try:
    symforce.set_epsilon_to_number(1e-5)
except symforce.AlreadyUsedEpsilon:
    pass
else:
    raise AssertionError
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_whatever_symforce_was_set_to() -> None:
    done = run_in_forks([SET_BEFORE, *(program_after(*one) for one in SETTINGS)])
    assert done.returncode == 0, done.stderr
    assert symforce._epsilon == 0
