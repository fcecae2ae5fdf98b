"""COLMAP models on the device: costs are Ceres', however poses and lenses are held together."""

import pytest

from benchmarks.colmap_cases import made_from
from benchmarks.synthetic import make_bal
from caspar.colmap import BundleAdjustmentOptions, PosePriors, bundle_adjustment, covariance
from tests.colmap.models import CERES, ROOT, packed, synthetic

pytestmark = pytest.mark.gpu

ON_CUDA = BundleAdjustmentOptions(backend="cuda")


@pytest.mark.parametrize("name", ["rigs", "sphere", "single"])
def test_synthetic_models(name: str) -> None:
    summary = bundle_adjustment(synthetic(name), ON_CUDA)
    assert summary.initial_cost == pytest.approx(CERES[name]["initial_cost"], rel=1e-12)
    assert summary.final_cost == pytest.approx(CERES[name]["final_cost"], rel=1e-10)


def test_real_model() -> None:
    summary = bundle_adjustment(packed(ROOT / "data/sbcv_shared.tar.xz"), ON_CUDA)
    assert summary.final_cost == pytest.approx(11809.142708059017, rel=1e-10)
    assert summary.is_solution_usable()


def test_positions() -> None:
    stored = CERES["positions"]["priors"]
    priors = PosePriors(stored["image_ids"], stored["positions"], stored["covariances"])
    summary = bundle_adjustment(synthetic("positions"), ON_CUDA, pose_priors=priors)
    assert summary.final_cost == pytest.approx(CERES["positions"]["final_cost"], rel=1e-10)
    found = covariance(summary.model, ON_CUDA, pose_priors=priors)
    image_id = int(stored["image_ids"][0])
    on_cpu = covariance(summary.model, BundleAdjustmentOptions(backend="cpu"), pose_priors=priors)
    assert found.cam_from_world(image_id) == pytest.approx(
        on_cpu.cam_from_world(image_id), rel=1e-6, abs=1e-12
    )


def test_several_camera_models() -> None:
    """One factor chooses the model of each observation."""
    model = made_from(make_bal(12, 300, 1500, "street"), ("SIMPLE_RADIAL", "PINHOLE", "OPENCV"), 6)
    found, wanted = (
        bundle_adjustment(model, BundleAdjustmentOptions(backend=one)) for one in ("cuda", "cpu")
    )
    assert list(found.result.costs) == ["PINHOLE_SIMPLE_RADIAL_OPENCV"]
    assert found.initial_cost == pytest.approx(wanted.initial_cost, rel=1e-12)
    assert found.final_cost == pytest.approx(wanted.final_cost, rel=1e-9)
