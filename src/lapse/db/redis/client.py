"""A client of one server: its connections, one set per event loop, and calls of commands and Lua scripts.

Guarantees: every call is one round trip (two where the server did not know a script), bounded by the time-outs of its
address; an error of the server is raised as what it means, see `lapse.db.redis.failures`.

A script has a name and is called by its digest (EVALSHA). A server that does not know it, because it was restarted or
its scripts were flushed, answers NOSCRIPT and has done nothing; then the same call is sent with the whole source
(EVAL), which the server remembers.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hiredis import pack_command
from redis import exceptions as driver

from lapse.db.redis.connections import RedisConnections
from lapse.db.redis.failures import refused
from lapse.db.statements import load_statements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.core.errors import LapseError
    from lapse.db.redis.address import RedisAddress
    from lapse.db.redis.failures import Errors

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    Argument = bytes | str | int


@dataclass(frozen=True, slots=True)
class Script:
    """One operation."""

    source: str
    digest: str
    writes: bool
    """Whether it must not be repeated when no answer came."""


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """One call of a script."""

    script: Script
    keys: Sequence[str]
    arguments: Sequence[Argument]

    def by_digest(self) -> bytes:
        """Return the call for a server that knows the script."""
        return packed("EVALSHA", self.script.digest, len(self.keys), *self.keys, *self.arguments)

    def by_source(self) -> bytes:
        """Return the call for a server that does not."""
        return packed("EVAL", self.script.source, len(self.keys), *self.keys, *self.arguments)


def packed(*words: Argument) -> bytes:
    """Return a command as it goes over the wire."""
    request: bytes = pack_command(words)  # type: ignore[arg-type]  # its stub takes tuples of one
    return request


def load_scripts(package: str, file_name: str, *, repeatable: Collection[str]) -> dict[str, Script]:
    """Return the scripts of a file by name, each behind the block called ``shared``."""
    blocks = load_statements(package, file_name)
    shared = blocks.pop("shared")
    sources = {name: f"{shared}\n{body}" for name, body in blocks.items()}
    return {name: Script(source, _digest(source), name not in repeatable) for name, source in sources.items()}


def _digest(source: str) -> str:
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()  # the protocol's choice


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
