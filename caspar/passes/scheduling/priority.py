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
from enum import Enum, auto

from caspar.ir.graph import Graph
from caspar.passes.scheduling.plan_accumulators import Accumulators, Role

Key = tuple[int, ...]

MAX_DISTANCE = 3
FAN_LIMIT = 8


class Policy(Enum):
    """What decides between opening steps."""

    RELEASE = auto()
    """The paper's key."""
    DEPTH_FIRST = auto()
    """K alone. Usually better once all other steps are made eagerly: see `schedule`."""


class OpeningQueue:
    """The opening steps that could be made now, best first.

    Args:
        graph: What is scheduled.
        accumulators: Its accumulators.
        open_users: Shared with the scheduler: the calls that still have to read each value.
        policy: What decides.
        order: K of each call.
    """

    def __init__(
        self,
        graph: Graph,
        accumulators: Accumulators,
        open_users: list[dict[int, int]],
        policy: Policy,
        order: list[int],
    ) -> None:
        self._graph = graph
        self._roles = accumulators.roles
        self._sources = accumulators.sources
        self._open_users = open_users
        self._policy = policy
        self._order = order
        self._num_live = [0] * len(graph.calls)
        self._num_dying = [0] * len(graph.calls)
        self._live = [False] * graph.num_values
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
        users = self._open_users[value]
        self._live[value] = True
        for user in users:
            self._num_live[user] += 1
            self._touched[user] = None
        if len(users) == 1:
            self._num_dying[next(iter(users))] += 1

    def was_read(self, value: int, call: int) -> None:
        """A call will not read a value again."""
        self._num_live[call] -= 1
        if not self._open_users[value]:
            self._num_dying[call] -= 1

    def has_one_user(self, call: int) -> None:
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
        touched = [] if self._policy is Policy.DEPTH_FIRST else list(self._touched)
        self._touched.clear()
        candidates = {
            self._graph.producer[value]: None
            for call in touched
            for value in self._sources[call][:FAN_LIMIT]
        }
        for candidate in candidates:
            if candidate in self._keys:
                self._update(candidate)

    def _key(self, call: int) -> Key:
        """The negated key: a heap gives the least first."""
        if self._policy is Policy.DEPTH_FIRST:
            return (self._order[call],)
        # an accumulator is in the queue only if its start frees nothing
        released = self._num_dying[call] if self._roles[call] is Role.PLAIN else 0
        key = [-released]
        level = [call]
        for distance in range(MAX_DISTANCE + 1):
            readers = self._readers(level)
            key.append(-sum(self._num_live[user] for user in readers))
            if distance < MAX_DISTANCE:
                level = list(dict.fromkeys(readers))[: 2 * FAN_LIMIT]
                key.append(-sum(self._num_dying[user] for user in level))
        key.append(self._order[call])
        return tuple(key)

    def _readers(self, calls: list[int]) -> list[int]:
        """The calls that read the outputs of some calls, once for each output."""
        return [
            user
            for call in calls
            for value in self._graph.calls[call].outputs
            if not self._live[value]
            for user in list(self._open_users[value])[:FAN_LIMIT]
        ]
