"""A server, asked: its connections, one set per event loop, and the answers to commands and scripts.

Guarantees: every call is one round trip (two where the server did not know a script), bounded by the time-outs of its
address; an error of the server is raised as what it means, see `lapse.db.redis.failures`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis import exceptions as driver

from lapse.db.redis.connections import RedisConnections
from lapse.db.redis.failures import refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.core.errors import LapseError
    from lapse.db.redis.address import RedisAddress
    from lapse.db.redis.failures import Errors
    from lapse.db.redis.scripts import ScriptCall


class RedisClient:
    """See the module."""

    def __init__(self, address: RedisAddress, errors: Errors) -> None:
        """Connect nothing yet."""
        self.name = address.name
        self.errors = errors
        self._address = address
        self._clients: dict[asyncio.AbstractEventLoop, RedisConnections] = {}
        self._closed = False

    async def ask(self, requests: Sequence[bytes], *, writes: bool) -> list[Any]:
        """Send commands in one go and return their answers; the first error among them is raised."""
        answers = await self._connections().exchange(b"".join(requests), len(requests), writes=writes)
        for answer in answers:
            if isinstance(answer, driver.ResponseError):
                raise self.refused(answer) from answer
        return answers

    async def run(self, call: ScriptCall) -> Any:  # noqa: ANN401 - what the script answers
        """Run one script."""
        connections = self._connections()
        (answer,) = await connections.exchange(call.by_digest(), 1, writes=call.script.writes)
        if answer.__class__ is driver.NoScriptError:
            (answer,) = await connections.exchange(call.by_source(), 1, writes=call.script.writes)
        if isinstance(answer, driver.ResponseError):
            raise self.refused(answer, in_script=call.script.writes) from answer
        return answer

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run several scripts in one go; errors of the server stand among the answers."""
        connections, writes = self._connections(), any(call.script.writes for call in calls)
        answers = await connections.exchange(b"".join(call.by_digest() for call in calls), len(calls), writes=writes)
        missed = [number for number, answer in enumerate(answers) if answer.__class__ is driver.NoScriptError]
        if missed:
            request = b"".join(calls[number].by_source() for number in missed)
            try:
                again = await connections.exchange(request, len(missed), writes=writes)
            except self.errors.unavailable as error:
                if not writes or len(missed) == len(calls):
                    raise
                problem = f"a part was done, then: {error}"
                raise self.errors.outcome_unknown(backend=self.name, problem=problem) from error
            for number, answer in zip(missed, again, strict=True):
                answers[number] = answer
        return answers

    def refused(self, answer: driver.ResponseError, *, in_script: bool = False) -> LapseError:
        """Say what an error of the server means."""
        return refused(answer, self.name, self.errors, in_script=in_script)

    async def close(self) -> None:
        """Close the connections of this loop, and those of other loops there, without waiting for them. Idempotent."""
        self._closed = True
        here = asyncio.get_running_loop()
        clients, self._clients = self._clients, {}
        for loop, connections in clients.items():
            if loop is here:
                await connections.close()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(connections.close(), loop)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _connections(self) -> RedisConnections:
        loop = asyncio.get_running_loop()
        try:
            return self._clients[loop]
        except KeyError:
            return self._new(loop)

    def _new(self, loop: asyncio.AbstractEventLoop) -> RedisConnections:
        if self._closed:
            raise self.errors.closed
        for ended in [known for known in list(self._clients) if known.is_closed()]:
            del self._clients[ended]
        address = self._address
        connections = RedisConnections(
            address.connector,
            backend=self.name,
            errors=self.errors,
            limit=address.connections,
            timeout=address.timeout,
            connect_timeout=address.connect_timeout,
        )
        return self._clients.setdefault(loop, connections)
