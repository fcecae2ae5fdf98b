"""What the device holds after each event: the whole table, without a device."""

from collections.abc import Callable

import pytest

from caspar.equations.node_blocks import KEPT_WAY
from caspar.solver.lm.steps import Linearization, Place

EXPECTED, OTHER = 1e-3, 2e-3
"""The damping with which a solve was begun ahead, and another one."""

PLAIN = Linearization(is_scaled=False, is_shared=False)
SCALED = PLAIN._replace(is_scaled=True)
SHARED = SCALED._replace(is_shared=True)
KINDS = {"plain": PLAIN, "scaled": SCALED, "shared": SHARED}

Change = Callable[[Linearization], Linearization]

EVENTS: dict[str, Change] = {
    "loaded": Linearization.loaded,
    "overwritten": Linearization.overwritten,
    "linearized, as expected": lambda held: held.linearized(EXPECTED),
    "linearized, otherwise": lambda held: held.linearized(OTHER),
    "tried": Linearization.tried,
    "accepted": Linearization.accepted,
    "rejected": Linearization.rejected,
}

NOWHERE, CURRENT, CANDIDATE = Place.NOWHERE, Place.CURRENT, Place.CANDIDATE
TRIED = Place.TRIED

# event -> for kinds of plans, the place after it from each place, in the order of `Place`
TABLE = {
    "loaded": {"plain scaled shared": (NOWHERE,) * 4},
    "overwritten": {"plain scaled shared": (NOWHERE,) * 4},
    "linearized, as expected": {"plain scaled shared": (CURRENT, CURRENT, CURRENT, TRIED)},
    "linearized, otherwise": {
        "plain": (CURRENT, CURRENT, CURRENT, CURRENT),
        "scaled shared": (CURRENT, CURRENT, NOWHERE, CURRENT),
    },
    "tried": {"plain scaled": (CURRENT,) * 4, "shared": (NOWHERE,) * 4},
    "accepted": {"plain scaled shared": (NOWHERE, NOWHERE, CANDIDATE, NOWHERE)},
    "rejected": {
        "plain": (NOWHERE, CURRENT, NOWHERE, NOWHERE),
        "scaled shared": (NOWHERE,) * 4,
    },
}

CASES = [
    pytest.param(kind, event, before, after, id=f"{kind}: {event} at {before.name}")
    for event, by_kinds in TABLE.items()
    for kinds, places in by_kinds.items()
    for kind in kinds.split()
    for before, after in zip(Place, places, strict=True)
]


def held_at(kind: str, place: Place) -> Linearization:
    begun = EXPECTED if place in (CANDIDATE, TRIED) else None
    return KINDS[kind]._replace(place=place, begun_damping=begun)


@pytest.mark.parametrize(("kind", "event", "before", "after"), CASES)
def test_place_after_each_event(kind: str, event: str, before: Place, after: Place) -> None:
    held = EVENTS[event](held_at(kind, before))
    assert held.place is after
    # a linear solve begun ahead is of use as long as the system that it belongs to
    is_begun = before is CANDIDATE and after is not NOWHERE and event != "tried"
    is_begun = is_begun or after is TRIED
    assert held.begun_damping == (EXPECTED if is_begun else None)
    assert (held.is_scaled, held.is_shared) == (KINDS[kind].is_scaled, KINDS[kind].is_shared)


def test_table_is_complete() -> None:
    assert TABLE.keys() == EVENTS.keys()
    assert len(CASES) == len(EVENTS) * len(KINDS) * len(Place)


def test_work_ahead_is_of_the_candidate() -> None:
    ahead = PLAIN.tried().went_ahead(EXPECTED)
    assert (ahead.place, ahead.begun_damping) == (CANDIDATE, EXPECTED)
    moved = ahead.accepted().linearized(EXPECTED)
    assert (moved.place, moved.begun_damping) == (CURRENT, EXPECTED)
    assert moved.tried().begun_damping is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_was_not_plain_is_tried_already(kind: str) -> None:
    held = KINDS[kind].rejected().took_plain_steps(EXPECTED)
    assert held.linearized(EXPECTED).was_tried(EXPECTED)
    assert not held.linearized(OTHER).was_tried(OTHER)
    assert not held.was_rejected
    all_taken = held.took_plain_steps(None)
    assert (all_taken.place, all_taken.begun_damping) == (NOWHERE, None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rejection_is_remembered_until_a_step_is_accepted(kind: str) -> None:
    rejected = KINDS[kind].tried().rejected()
    for held in (rejected, rejected.overwritten(), rejected.linearized(OTHER), rejected.tried()):
        assert held.was_rejected
    assert not rejected.tried().accepted().was_rejected
    assert not rejected.loaded().was_rejected


@pytest.mark.parametrize("kind", KINDS)
def test_a_rejection_is_forgotten_for_a_whole_step(kind: str) -> None:
    released = KINDS[kind].tried().rejected().released()
    assert not released.was_rejected
    assert released.place is NOWHERE


def test_the_first_accepted_steps_stay_inside() -> None:
    held = PLAIN.loaded(keeps_inside=True)
    assert held.controls == (1.0, KEPT_WAY)
    assert held.tried().rejected().controls == (1.0, 1.0)
    held = held.tried().rejected().tried().accepted()
    assert held.controls == (1.0, KEPT_WAY)
    held = held.tried().accepted()
    assert held.controls == (1.0, KEPT_WAY)
    held = held.tried().accepted()
    assert held.controls == held.tried().accepted().controls == (1.0, 0.0)
    assert PLAIN.loaded().controls == (1.0, 0.0)


def test_levelling_stays_until_other_values_are_loaded() -> None:
    level = SCALED._replace(levelling=0.0)
    for event, change in EVENTS.items():
        assert change(level).levelling == (1.0 if event == "loaded" else 0.0)
