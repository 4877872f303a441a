"""Places for what a mounted application works on at a time: agents take turns.

Never gives one agent all places, and never keeps more waiting than it may.
"""

from __future__ import annotations

import asyncio
import collections

from ._errors import RpcError

#: How many calls wait for a place.
_MOST_WAITING = 1024


class Places:
    """So many places. One agent has at most half of them, rounded up."""

    def __init__(self, most: int) -> None:
        self._free, self._share = most, (most + 1) // 2
        self._held: collections.Counter[str] = collections.Counter()
        #: By agent; who was served last is last.
        self._waiting: dict[str, collections.deque[asyncio.Future[None]]] = {}

    async def take(self, agent: str) -> None:
        """Waits for a place. Raises the error for a caller that cannot wait."""
        waiting = self._waiting.setdefault(agent, collections.deque())
        if sum(map(len, self._waiting.values())) >= _MOST_WAITING:
            raise RpcError(-32004, "too many calls wait for a place", {"queue": "full"})
        turn = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(agent)
            elif turn in waiting:
                waiting.remove(turn)
            raise

    def give(self, agent: str) -> None:
        """Returns a place."""
        self._free += 1
        self._held[agent] -= 1
        if not self._held[agent]:
            del self._held[agent]
        self._serve()

    def _serve(self) -> None:
        has_served = True
        while has_served and self._free:
            has_served = False
            for agent, waiting in list(self._waiting.items()):
                while waiting and waiting[0].done():
                    waiting.popleft()
                if not waiting:
                    del self._waiting[agent]
                elif self._free and self._held[agent] < self._share:
                    self._free -= 1
                    self._held[agent] += 1
                    waiting.popleft().set_result(None)
                    # Behind all others.
                    self._waiting[agent] = self._waiting.pop(agent)
                    has_served = True
