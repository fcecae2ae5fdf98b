"""Kernels that begin before the launch ahead has ended: what they read before they wait for it."""

import re
from typing import Annotated

import pytest
import symforce.symbolic as sf

import caspar
from caspar.codegen.cuda.body import FIRST_LOOK, GUARD
from caspar.codegen.cuda.loop.fuse import SCALARS, LoopScalars, fuse
from caspar.codegen.cuda.loop.kernel import LoopKernel, guard_name
from caspar.codegen.source import KernelSource, source_from_json, source_to_json
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.options import Precision
from tests.support_problems import PROBLEMS, Way, distinct_specs, problem_of

AWAITED = "await_launch();"
LOADED = re.compile(r"\b(\w+)_(?:data|place|index)\b")


def products() -> dict[str, KernelSource]:
    """Of all problems with eliminated nodes, by problem and name."""
    return {
        f"{problem}, {spec.name}": compile_kernel(spec, TARGETS["cuda"])
        for problem in PROBLEMS
        for spec in distinct_specs(Precision.MIXED)[problem, Way.CUDA]
        if len(spec.awaited) > 0
    }


PRODUCTS = products()


def own_text(source: KernelSource) -> str:
    return source.text[source.text.index("__global__") :]


def test_there_are_some() -> None:
    assert any("snavely__product" in name for name in PRODUCTS)
    assert all(name.endswith("__product") for name in PRODUCTS)


@pytest.mark.parametrize("name", PRODUCTS)
def test_nothing_that_is_awaited_is_read_before(name: str) -> None:
    source = PRODUCTS[name]
    assert source.early is not None
    body = own_text(source).split(") {\n", 1)[1]
    before, behind = body.replace(FIRST_LOOK.format("done"), "").split(AWAITED)
    read_before = {argument for argument in LOADED.findall(before)}
    awaited = {param.arg for param in source.params if param.dtype} - {*source.early}
    assert any(argument.endswith("__direction") for argument in awaited)
    assert "done" in awaited
    assert read_before.isdisjoint(awaited)
    assert {argument for argument in awaited if f"{argument}_data" in behind} == awaited
    assert not any(param.written for param in source.params if param.arg in source.early)


@pytest.mark.parametrize("name", PRODUCTS)
def test_it_leaves_behind_the_loads_where_the_flag_is_set(name: str) -> None:
    source = PRODUCTS[name]
    assert guard_name(source) == "done"
    behind = own_text(source).split(AWAITED)[1]
    asked = behind.index("done_data[0] != 0")
    assert asked < behind.index("__direction_data")
    assert behind.index("if (is_done) return;") < behind.index("__syncthreads")


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_cache_keeps_it(name: str) -> None:
    assert source_from_json(source_to_json(PRODUCTS[name])) == PRODUCTS[name]


def test_a_loop_of_its_own_waits_for_nothing() -> None:
    source = next(source for name, source in PRODUCTS.items() if "snavely" in name)
    kernel = LoopKernel(source, guarded=True)
    scalars = LoopScalars(1, 0)
    text = fuse("loop", ((kernel,),), 256, scalars).text
    entry = text[text.index("run_snavely__product(") :]
    assert AWAITED not in entry
    assert "is_done" not in entry
    between = fuse("loop", ((kernel,),), 256, scalars, between=True)
    assert own_text(between).count(AWAITED) == 1
    assert between.early == (SCALARS.arg,)


class Watcher(sf.V6):
    """Stays."""


class Mark(sf.V3):
    """Is eliminated."""


class Buoy(sf.V3):
    """Is eliminated as well."""


@caspar.factor
def sees(
    watcher: Annotated[Watcher, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    measured: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """Moves with both."""
    moved = sf.V3(*watcher[:3]) + sf.V3(*watcher[3:]) * mark[2]
    return sf.V2(mark[0] * moved[0], mark[1] * moved[1] + moved[2]) - measured


@caspar.factor
def floats(
    watcher: Annotated[Watcher, caspar.TunableShared],
    buoy: Annotated[Buoy, caspar.TunableShared],
    measured: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """Does not ask who watches."""
    return sf.V2(buoy[0], buoy[1] * buoy[2]) - measured


def test_who_reads_no_direction_waits_for_nothing() -> None:
    """A factor that does not move with the nodes that stay: nobody may rely on its waiting."""
    problem = problem_of("ignorant", [sees, floats])
    specs = {spec.name: spec for spec in problem.specs(Precision.MIXED)}
    assert specs["floats__product"].awaited == specs["sees__product"].awaited != ()
    ignorant, usual = (
        compile_kernel(specs[name], TARGETS["cuda"])
        for name in ("floats__product", "sees__product")
    )
    assert ignorant.early is None
    assert AWAITED not in own_text(ignorant)
    assert GUARD.format("done") in ignorant.text
    assert usual.early is not None
    assert own_text(usual).count(AWAITED) == 1
