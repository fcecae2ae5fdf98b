"""The order that gives tiles few distinct indices."""

import numpy as np
import pytest

from caspar.memory.tiling.tiles import build_tile_index, locality_order


def _banded(num_points: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points in random order, each seen by 4 of 200 cameras that are neighbours."""
    generator = np.random.default_rng(seed)
    first = generator.integers(0, 196, num_points)
    camera = (first[:, None] + np.arange(4)).ravel().astype(np.int32)
    point = np.repeat(np.arange(num_points, dtype=np.int32), 4)
    return point, camera


def test_items_of_a_group_stay_together_in_their_order() -> None:
    main = np.array([2, 0, 2, 1, 0], dtype=np.int32)
    partner = np.array([9, 5, 3, 4, 8], dtype=np.int32)
    # lowest partners: object 0 has 5, object 1 has 4, object 2 has 3
    assert locality_order(main, partner, 3).tolist() == [0, 2, 3, 1, 4]


def test_without_a_partner_items_are_sorted_by_the_main_object() -> None:
    main = np.array([2, 0, 2, 1, 0], dtype=np.int32)
    assert locality_order(main, None, 3).tolist() == [1, 4, 3, 0, 2]


def test_is_a_permutation_that_lowers_the_number_of_partials() -> None:
    point, camera = _banded(5_000, 0)
    order = locality_order(point, camera, 5_000)
    assert np.array_equal(np.sort(order), np.arange(point.shape[0]))
    before = build_tile_index(camera, 200, 256).num_partials
    after = build_tile_index(camera[order], 200, 256).num_partials
    assert after < 0.2 * before


@pytest.mark.gpu
def test_equals_the_order_made_on_a_device() -> None:
    cuda = pytest.importorskip("caspar.runtime.cuda.backend")
    point, camera = _banded(5_000, 1)
    backend = cuda.CudaBackend()
    with backend.scope():
        main, partner = backend.upload(point), backend.upload(camera)
        made = backend.to_host(backend.locality_order(main, partner, 5_000))
    assert np.array_equal(made, locality_order(point, camera, 5_000))
