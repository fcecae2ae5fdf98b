"""Chooses which opening step to make, by the paper's key or by depth-first order alone.

The paper's key of a call is (R0, A0, R1, A1, R2, A2, R3, A3, K), greater first, then smaller K:

* R0: values it frees;
* R_i: live values whose last reader is at distance i behind the call;
* A_i: live values that are read together with outputs of the calls at distance i;
* K: position in a depth-first order, see `orders`.

Departures from the paper, all for speed: A_i counts a value once for each reader it shares; only
the first `FAN_LIMIT` readers of a value and twice as many calls at each distance are looked at;
keys are recomputed directly in front of what changed and again when a call is about to be chosen,
so a key may be stale where only things two or three calls away have changed.
"""

import heapq
from collections.abc import Sequence
from enum import Enum, auto

from caspar.passes.scheduling.dependencies import Dependencies
from caspar.passes.scheduling.plan_accumulators import Role

Key = tuple[int, ...]
"""The negated key of a call: a heap gives the least first."""

MAX_DISTANCE = 3
FAN_LIMIT = 8


class Policy(Enum):
    """The rule that decides between opening steps."""

    RELEASE = auto()
    """The paper's key."""
    DEPTH_FIRST = auto()
    """K alone. Usually better once all other steps are made eagerly: see `schedule`."""


class DepthFirstQueue:
    """The steps that could be made now, the first in depth-first order (K) first."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = order
        self._heap: list[tuple[int, int]] = []
        self._is_waiting = [False] * len(order)

    def push(self, call: int) -> None:
        """A call could be made now, raising the pressure."""
        if not self._is_waiting[call]:
            self._is_waiting[call] = True
            heapq.heappush(self._heap, (self._order[call], call))

    def discard(self, call: int) -> None:
        """A call was made."""
        self._is_waiting[call] = False

    def pop(self) -> int | None:
        """The best call, which is taken out; None if there is none."""
        while self._heap:
            _, call = heapq.heappop(self._heap)
            if self._is_waiting[call]:
                self._is_waiting[call] = False
                return call
        return None

    def became_live(self, value: int) -> None:
        """A value was computed."""

    def was_read(self, call: int, is_dead: bool) -> None:
        """A call will not read a value again; `is_dead`: and neither will any other call."""

    def has_one_reader(self, call: int) -> None:
        """A live value has one reader left."""


class ReleaseQueue:
    """The opening steps that could be made now, the one with the best key of the paper first."""

    def __init__(self, dependencies: Dependencies, order: Sequence[int]) -> None:
        self._graph = dependencies.graph
        self._accumulators = dependencies.accumulators
        self._readers = dependencies.readers
        self._order = order
        self._num_live = [0] * len(order)
        self._num_dying = [0] * len(order)
        self._is_live = [False] * self._graph.num_values
        self._heap: list[tuple[Key, int]] = []
        self._keys: dict[int, Key] = {}
        self._touched: dict[int, None] = {}

    def push(self, call: int) -> None:
        """A call could be made now, raising the pressure."""
        if call not in self._keys:
            self._update(call)

    def discard(self, call: int) -> None:
        """A call was made."""
        self._keys.pop(call, None)

    def pop(self) -> int | None:
        """The best call, which is taken out; None if there is none."""
        self._refresh_touched()
        while self._heap:
            key, call = heapq.heappop(self._heap)
            if self._keys.get(call) != key:
                continue
            current = self._key(call)
            if self._heap and current > max(key, self._heap[0][0]):
                self._keys[call] = current
                heapq.heappush(self._heap, (current, call))
                continue
            del self._keys[call]
            return call
        return None

    # -- events ----------------------------------------------------------------------------------

    def became_live(self, value: int) -> None:
        """A value was computed."""
        readers = self._readers[value]
        self._is_live[value] = True
        for reader in readers:
            self._num_live[reader] += 1
            self._touched[reader] = None
        if len(readers) == 1:
            self._num_dying[next(iter(readers))] += 1

    def was_read(self, call: int, is_dead: bool) -> None:
        """A call will not read a value again; `is_dead`: and neither will any other call."""
        self._num_live[call] -= 1
        self._num_dying[call] -= is_dead

    def has_one_reader(self, call: int) -> None:
        """A live value has one reader left."""
        self._num_dying[call] += 1
        self._touched[call] = None

    # -- keys ------------------------------------------------------------------------------------

    def _update(self, call: int) -> None:
        key = self._key(call)
        if self._keys.get(call) != key:
            self._keys[call] = key
            heapq.heappush(self._heap, (key, call))

    def _refresh_touched(self) -> None:
        """Recompute the keys of the calls directly in front of what changed."""
        producer, sources = self._graph.producer, self._accumulators.sources
        candidates = {
            producer[value]: None for call in self._touched for value in sources[call][:FAN_LIMIT]
        }
        self._touched.clear()
        for candidate in candidates:
            if candidate in self._keys:
                self._update(candidate)

    def _key(self, call: int) -> Key:
        # an accumulator is in the queue only if its start frees nothing
        is_plain = self._accumulators.roles[call] is Role.PLAIN
        key = [-self._num_dying[call] if is_plain else 0]
        level = [call]
        for distance in range(MAX_DISTANCE + 1):
            readers = self._readers_of(level)
            key.append(-sum([self._num_live[reader] for reader in readers]))
            if distance < MAX_DISTANCE:
                level = list(dict.fromkeys(readers))[: 2 * FAN_LIMIT]
                key.append(-sum([self._num_dying[reader] for reader in level]))
        key.append(self._order[call])
        return tuple(key)

    def _readers_of(self, calls: list[int]) -> list[int]:
        """The calls that read the outputs of some calls, once for each output."""
        return [
            reader
            for call in calls
            for value in self._graph.calls[call].outputs
            if not self._is_live[value]
            for reader in list(self._readers[value])[:FAN_LIMIT]
        ]


OpeningQueue = DepthFirstQueue | ReleaseQueue
"""One of each policy."""
