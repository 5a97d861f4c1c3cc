"""Admission of requests to the engine's batch in a reproducible order.

The rows that share a matrix product determine the last bits of log-probabilities. In a reproducible run, admission must
therefore not depend on how long environments, tools and rewards take.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from reinlm.rollouts.protocol import Capabilities, Completion, Generator, Request

Order = Literal["name", "arrival"]
""""name": the turns of a wave of episodes enter together, in the order of the episodes. "arrival": at once."""


class Wave:
    """Episodes that start together; each has a slot, in the order of their start.

    In the order "name" a request is held until every slot in use has one. Then all enter the engine, in
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
        """Wait until the request of this slot may enter."""
        if not self._held:
            return
        loop = asyncio.get_running_loop()
        turn = self._asking[place] = loop.create_future()
        loop.call_soon(self._admit)  # deferred: the last request must not enter before those that wait
        await turn

    def leave(self, place: int) -> None:
        """Free the slot: others stop waiting for it. Leaving twice does nothing."""
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
    """The generator of one episode of a wave; implements `reinlm.rollouts.protocol.Generator`."""

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
        """Free the slot: this episode sends no more requests."""
        self._wave.leave(self._place)
