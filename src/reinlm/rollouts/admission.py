"""Who may enter the engine's batch, and when.

Which rows share a matrix product changes the last bits of log-probabilities. So where a run must be reproducible, what
enters the batch is a function of the run: never of how long an environment, a tool or a reward took.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from reinlm.rollouts.protocol import Capabilities, Completion, Generator, Request

Order = Literal["name", "arrival"]
""""name": the turns of a wave of episodes enter together, in the order of the episodes. "arrival": at once."""


class Wave:
    """Episodes that are begun together; each has a slot, in the order in which they are begun.

    In the order "name" a request is held until every slot that is still taken holds one. Then all enter the engine, in
    the order of the slots. Nothing else is in flight at that moment, since each of those episodes has had its previous
    completion, so that the batch depends on the requests alone. Completions reach their episodes as soon as they are
    finished. In the order "arrival" a request enters the engine at once.

    Example:
        wave = Wave(engine, 8, "name")
        rollouts = await asyncio.gather(*(run_episode(slot, …) for slot in wave.slots))
    """

    def __init__(self, engine: Generator, size: int, order: Order) -> None:
        self.engine = engine
        self.slots = tuple(Slot(self, place) for place in range(size))
        self._held = order == "name"
        self._taken = set(range(size))
        self._asking: dict[int, asyncio.Future[None]] = {}

    async def admitted(self, place: int) -> None:
        """Return when the request of this slot may enter."""
        if not self._held:
            return
        loop = asyncio.get_running_loop()
        turn = self._asking[place] = loop.create_future()
        loop.call_soon(self._admit)  # not now: whoever asks last must not go on before those who wait
        await turn

    def leave(self, place: int) -> None:
        """Nobody waits for this slot from now on. Leaving twice does nothing."""
        self._taken.discard(place)
        self._asking.pop(place, None)
        self._admit()

    def _admit(self) -> None:
        if len(self._asking) < len(self._taken):
            return
        asking, self._asking = self._asking, {}
        for place in sorted(asking):  # their coroutines go on in this order, side by side, and each submits at once
            if not asking[place].done():
                asking[place].set_result(None)


class Slot:
    """What one episode of a wave samples from; implements `reinlm.rollouts.protocol.Generator`."""

    def __init__(self, wave: Wave, place: int) -> None:
        self._wave = wave
        self._place = place

    @property
    def capabilities(self) -> Capabilities:
        """Those of the engine."""
        return self._wave.engine.capabilities

    async def generate(self, request: Request) -> Completion:
        """The engine's completion, once the request is admitted."""
        await self._wave.admitted(self._place)
        return await self._wave.engine.generate(request)

    def leave(self) -> None:
        """Say that this episode asks for nothing more."""
        self._wave.leave(self._place)
