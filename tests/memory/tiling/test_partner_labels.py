"""Numbers of partners."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from caspar.memory.tiling.partner_labels import (
    CENTRE,
    FEWEST_PARTNERS,
    MOST_PARTNERS,
    SPREAD,
    NodeSample,
    labels_along_curve,
    normalised,
    partner_labels,
    sample_stride,
)


def chain(number: np.ndarray, num_nodes: int) -> NodeSample:
    """Nodes of three partners in a row, by the number of each."""
    first = np.arange(num_nodes) * 7 % (len(number) - 2)
    partner = number[first[:, None] + np.arange(3)].ravel().astype(np.int32)
    return NodeSample(partner, 3 * np.arange(num_nodes))


def test_a_good_order_is_kept() -> None:
    assert partner_labels(chain(np.arange(100), 2000), 100) is None


def test_an_order_at_random_is_replaced() -> None:
    """Groups of ten partners that share nodes come to stand together."""
    rng = np.random.default_rng(0)
    group = rng.permutation(100).reshape(10, 10)
    partner = group[np.arange(2000) % 10][:, rng.permutation(10)[:4]].ravel().astype(np.int32)
    sample = NodeSample(partner, 4 * np.arange(2000))
    labels = partner_labels(sample, 100)
    assert labels is not None
    assert_array_equal(np.sort(labels.label), np.arange(100))
    assert_array_equal(labels.rarity, np.argsort(np.argsort(np.bincount(partner), kind="stable")))
    of_nodes = labels.label[partner].reshape(2000, 4)
    assert np.median(np.ptp(of_nodes, axis=1)) < 10


@pytest.mark.parametrize("num_partners", [1, FEWEST_PARTNERS - 1, MOST_PARTNERS + 1])
def test_few_and_very_many_keep_theirs(num_partners: int) -> None:
    sample = NodeSample(np.zeros(4, np.int32), np.array([0, 2]))
    assert partner_labels(sample, num_partners) is None


def test_no_nodes() -> None:
    assert partner_labels(NodeSample(np.zeros(0, np.int32), np.zeros(0, np.int64)), 99) is None


def test_partners_that_all_nodes_share() -> None:
    """Nothing tells them apart: no coordinate is left after a round."""
    sample = NodeSample(np.tile(np.arange(80, dtype=np.int32), 5), 80 * np.arange(5))
    assert partner_labels(sample, 80) is None


def test_normalised_places_are_uncorrelated_and_of_one_size() -> None:
    rng = np.random.default_rng(1)
    weight = rng.integers(0, 9, 500)
    x = rng.integers(0, 4000, 500)
    place = normalised(np.stack([x, 3 * x + rng.integers(0, 900, 500)]), weight) - CENTRE
    covariance = np.cov(place, fweights=weight) / SPREAD**2
    np.testing.assert_allclose(covariance, np.eye(2), atol=0.01)


def test_labels_follow_morton_curve() -> None:
    """Of cells of a square: the first quarter of the numbers is a quarter of the square."""
    x, y = (axis.ravel() for axis in np.mgrid[:8, :8])
    labels = labels_along_curve(np.stack([x, y])).reshape(8, 8)
    assert_array_equal(np.sort(labels[:4, :4].ravel()), np.arange(16))
    assert labels[0, 0] == 0
    assert labels[7, 7] == 63


@pytest.mark.parametrize(
    ("num_items", "num_partners", "stride"),
    [(36_000, 21, 1), (5_000_000, 1_778, 43), (29_000_000, 13_682, 33), (0, 0, 1)],
)
def test_a_sample_has_some_items_of_each_partner(
    num_items: int, num_partners: int, stride: int
) -> None:
    assert sample_stride(num_items, num_partners) == stride
