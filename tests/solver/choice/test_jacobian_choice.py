"""Whether `auto` stores Jacobians or recomputes them: by what they cost, and by the device."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
import symforce.symbolic as sf

import caspar
from caspar.bundle_adjustment import Cam, Pixel, Point, snavely
from caspar.codegen.targets import TARGETS
from caspar.frontend.factors.jacobian import JacobianStorage
from caspar.frontend.factors.trace import trace
from caspar.frontend.precision import TYPES, Types
from caspar.ir.dtype import DType
from caspar.options import Precision
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.nvidia.machine_balance import H200_BALANCE, machine_balance
from caspar.solver.choice.form import choose_eliminated, choose_form
from caspar.solver.choice.jacobian import JacobianPrice, jacobian_price, recomputing_pays
from caspar.solver.choice.recipe import make_recipe
from tests.harness_backend import HarnessBackend

MIXED = TYPES[Precision.MIXED]
H200 = {
    "MultiProcessorCount": 132,
    "ClockRate": 1_980_000,
    "MemoryClockRate": 3_201_000,
    "GlobalMemoryBusWidth": 6016,
    "SingleToDoublePrecisionPerfRatio": 2,
}


class Number(sf.V1): ...


Shared = Annotated[Number, caspar.TunableShared]


@caspar.factor
def costly(
    cam: Annotated[Cam, caspar.TunableShared],
    point: Annotated[Point, caspar.TunableShared],
    pixel: Annotated[Pixel, caspar.ConstSequential],
) -> sf.V2:
    """A camera whose distortion is a long series."""
    focal_length, k1, k2 = cam.calibration
    x, y, depth = cam.cam_T_world * point
    plane = sf.V2(x / depth, y / depth)
    distortion = 1 + sum(
        sf.sin(k1 + n * plane[0]) * sf.cos(k2 * n * plane[1]) for n in range(1, 16)
    )
    return focal_length * distortion * plane - pixel


def price(factor: caspar.Factor, types: Types = MIXED) -> JacobianPrice:
    return jacobian_price(trace(factor), types, TARGETS["cuda"])


class TestPrice:
    def test_sums_products_and_functions_count(self) -> None:
        @caspar.factor
        def product(a: Shared, b: Shared) -> sf.V1:
            return sf.V1(a[0] * b[0] * b[0])

        # b^2, and 2 a b
        found = price(product)
        assert (found.multiplications, found.num_bytes) == (3.0, 8)

        @caspar.factor
        def turned(a: Shared) -> sf.V1:
            return sf.V1(sf.sin(a[0]))

        assert price(turned).multiplications > 10.0
        assert price(turned, TYPES[Precision.FLOAT64]).num_bytes == 8

    def test_what_is_always_zero_or_known_costs_nothing(self) -> None:
        @caspar.factor
        def pull(a: Annotated[Point, caspar.TunableShared]) -> sf.V3:
            return sf.V3(2 * a[0], -a[1], a[2])

        found = price(pull)
        assert (found.multiplications, found.num_bytes) == (0.0, 12)

    def test_a_function_no_pass_knows_has_a_price(self) -> None:
        @caspar.factor
        def grown(a: Shared) -> sf.V1:
            return sf.V1(sf.exp(a[0]))

        assert price(grown).multiplications > 10.0

    def test_it_is_derived_once_for_all_processes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path))
        found = price(snavely)
        monkeypatch.setattr("caspar.solver.choice.jacobian.jacobian_kernel", None)
        assert price(snavely) == found
        with pytest.raises(TypeError):
            price(snavely, TYPES[Precision.FLOAT64])


@pytest.mark.parametrize(
    ("factors", "pays"),
    [
        ([snavely], True),
        ([costly], False),
        ([snavely, costly], False),
        ([*[snavely] * 19, costly], True),
    ],
    ids=["cheap", "costly", "together", "many"],
)
def test_the_rule(factors: list[caspar.Factor], pays: bool) -> None:
    traced = [trace(factor) for factor in factors]
    assert recomputing_pays(traced, MIXED, HarnessBackend()) is pays
    assert not recomputing_pays(traced, MIXED, CpuBackend())


@pytest.mark.parametrize(
    ("factor", "choices", "storage"),
    [
        (snavely, {}, JacobianStorage.RECOMPUTED),
        (costly, {}, JacobianStorage.STORED),
        (costly, {"linear_solver": "pcg"}, JacobianStorage.STORED),
        (costly, {"jacobian": "recompute"}, JacobianStorage.RECOMPUTED),
        (snavely, {"linear_solver": "schur_dense"}, JacobianStorage.STORED),
    ],
)
def test_a_solver_on_cuda(
    factor: caspar.Factor, choices: Mapping[str, Any], storage: JacobianStorage
) -> None:
    recipe = make_recipe([factor], **choices)
    form = choose_form(HarnessBackend(), recipe, choose_eliminated(recipe))
    assert {one.jacobian for one in form.factors.values()} == {storage}


class TestMachineBalance:
    def test_of_an_h200(self) -> None:
        """33.5 T multiplications and 4.81 TB a second."""
        assert machine_balance(H200, 90, DType.FLOAT32) == pytest.approx(6.95, abs=0.01)
        assert machine_balance(H200, 90, DType.FLOAT64) == pytest.approx(3.47, abs=0.01)

    def test_older_multiprocessors_are_narrower(self) -> None:
        wide, narrow = (machine_balance(H200, number, DType.FLOAT32) for number in (86, 80))
        assert wide == 2 * narrow

    @pytest.mark.parametrize("name", ["ClockRate", "MemoryClockRate", "GlobalMemoryBusWidth"])
    def test_a_driver_that_says_nothing(self, name: str) -> None:
        assert machine_balance({**H200, name: 0}, 90, DType.FLOAT32) == H200_BALANCE
