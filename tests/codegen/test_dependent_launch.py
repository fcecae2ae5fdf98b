"""Kernels that begin before the launch ahead has ended: what they read before they wait for it."""

import re

import pytest

from caspar.codegen.cuda_fuse import fuse
from caspar.codegen.cuda_loop_kernel import LoopKernel, guard_name
from caspar.codegen.source import KernelSource, source_from_json, source_to_json
from caspar.driver import TARGETS, compile_kernel
from caspar.options import Precision
from tests.support_problems import PROBLEMS, Way, distinct_specs

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
    assert any("snavely_product" in name for name in PRODUCTS)
    assert all(name.endswith("_product") for name in PRODUCTS)


@pytest.mark.parametrize("name", PRODUCTS)
def test_nothing_that_is_awaited_is_read_before(name: str) -> None:
    source = PRODUCTS[name]
    assert source.early is not None
    body = own_text(source).split(") {\n", 1)[1]
    before, behind = body.split(AWAITED)
    read_before = {argument for argument in LOADED.findall(before)}
    awaited = {param.arg for param in source.params if param.dtype} - {*source.early}
    assert any(argument.endswith("_direction") for argument in awaited)
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
    assert asked < behind.index("_direction_data")
    assert behind.index("if (is_done) return;") < behind.index("__syncthreads")


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_cache_keeps_it(name: str) -> None:
    assert source_from_json(source_to_json(PRODUCTS[name])) == PRODUCTS[name]


def test_a_loop_of_its_own_waits_for_nothing() -> None:
    source = next(source for name, source in PRODUCTS.items() if "snavely" in name)
    kernel = LoopKernel(source, guarded=True)
    text = fuse("loop", ((kernel,),), 256).text
    entry = text[text.index("run_snavely_product(") :]
    assert AWAITED not in entry
    assert "is_done" not in entry
    between = fuse("loop", ((kernel,),), 256, between=True)
    assert own_text(between).count(AWAITED) == 1
    assert between.early == ()
