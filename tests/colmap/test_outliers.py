"""Which observations are wrong, and a model without them."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from caspar.colmap import (
    BundleAdjustmentOptions,
    Model,
    Summary,
    bundle_adjustment,
    without_observations,
)
from caspar.errors import InputError
from tests.colmap.models import ROOT, packed, synthetic


def adjusted(model: Model, **options: Any) -> Summary:
    return bundle_adjustment(model, BundleAdjustmentOptions(backend="cpu", **options))


def spoilt(model: Model) -> tuple[Model, NDArray[np.bool_]]:
    """A model with a tenth of the keypoints of long tracks 50 px off, and which these are."""
    images, points = model.images, model.points
    rng = np.random.default_rng(0)
    ids = points.ids[np.diff(points.offsets) >= 4]
    seen = np.flatnonzero(np.isin(images.point_ids, ids))
    is_wrong = np.zeros(len(images.keypoints), np.bool_)
    is_wrong[rng.choice(seen, len(seen) // 10, replace=False)] = True
    keypoints = images.keypoints + np.where(is_wrong, 50.0, 0.0)[:, None]
    return dataclasses.replace(model, images=dataclasses.replace(images, keypoints=keypoints)), (
        is_wrong
    )


def test_outliers_are_found_and_left_out() -> None:
    model = packed(ROOT / "data/crane_mast.tar.xz")
    wrong, is_wrong = spoilt(model)
    robust = adjusted(wrong, loss_function_type="CAUCHY", loss_function_scale=2.0)
    weights, distances = robust.weights(), robust.distances_px()
    takes_part = model.images.point_ids >= 0
    assert (np.isfinite(weights) == takes_part).all()
    assert (weights[is_wrong] < 0.05).all()
    # the slope of Cauchy's loss: 1 / (1 + (distance / scale)^2)
    np.testing.assert_allclose(
        weights[takes_part], 1 / (1 + (distances[takes_part] / 2) ** 2), rtol=1e-9
    )
    assert np.mean(distances[is_wrong]) > 40
    cleaned = without_observations(robust.model, weights < 0.2)
    assert cleaned.num_observations < wrong.num_observations - is_wrong.sum() / 2
    assert np.diff(cleaned.points.offsets).min() >= 2
    assert not (cleaned.images.point_ids[is_wrong] >= 0).any()
    assert wrong.num_observations == model.num_observations  # what was passed stays
    again = adjusted(cleaned)
    assert np.nanmax(again.distances_px()) < 20
    assert np.nanmin(again.weights()) == 1


@pytest.mark.parametrize("name", ["mixed", "rigs"])
def test_places_of_several_factors(name: str) -> None:
    """Mean distances are the errors of points, whatever camera models and sensors there are."""
    model = synthetic(name)
    summary = adjusted(model, max_num_iterations=2)
    solved = summary.model
    assert len(summary.keypoints) > 1 or name == "mixed"  # a few camera models are one factor
    distances = summary.distances_px()
    seen = np.isfinite(distances)
    rows = np.searchsorted(solved.points.ids, solved.images.point_ids[seen])
    counts = np.bincount(rows, minlength=len(solved.points.ids))
    means = np.bincount(rows, distances[seen], minlength=len(counts)) / counts
    np.testing.assert_allclose(means, solved.points.errors, rtol=1e-6)


@pytest.mark.parametrize("mask", [np.zeros(3, np.bool_), np.zeros(16, np.int64), [0, 1]])
def test_masks_that_do_not_fit(mask: Any) -> None:
    model = packed(ROOT / "data/crane_mast.tar.xz")
    with pytest.raises(InputError, match=r"keypoints: .*expected booleans of shape \(\d+,\), one"):
        without_observations(model, mask)
