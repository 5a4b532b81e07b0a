"""An opened store on Redis or Valkey: its clients, one per event loop, and what is recorded about it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis import exceptions as driver

from lapse.keys.backends.network import NetworkBackend
from lapse.keys.backends.redis.connections import Connections, Wire
from lapse.keys.backends.redis.failures import impossible, refused
from lapse.keys.backends.redis.scripts import SCRIPTS, Call, packed
from lapse.keys.backends.redis.space import Partition, RedisSpace
from lapse.keys.background import run_blocking
from lapse.keys.errors import BackendClosedError, BackendMisfitError, BackendUnavailableError, OutcomeUnknownError
from lapse.keys.layout import Prefix, partition_keys
from lapse.keys.port import Capabilities

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class RedisBackend(NetworkBackend):
    """See the package."""

    capabilities = Capabilities(
        atomicity="one command or Lua script per operation",
        clock="the server's",
        precision="never early, 1 ms late at most by the server's clock",
        cleanup="by the server; the scan index is pruned by writes and scans and ends with its last record",
        scan="in byte order, from a sorted set per bucket",
        multi_key="one round trip for some thousand keys",
        shared=True,
        late_by_seconds=0.01,
    )

    def __init__(
        self,
        connect: Callable[[], Wire],
        *,
        name: str,
        namespace: str,
        buckets: int,
        connections: int,
        timeout: float,
        connect_timeout: float,
    ) -> None:
        """Connect nothing yet. ``name`` is for error messages, the times are seconds."""
        self.name = name
        self._connect = connect
        self._namespace = namespace
        self._buckets = buckets
        self._limits: Mapping[str, Any] = {
            "limit": connections,
            "timeout": timeout,
            "connect_timeout": connect_timeout,
        }
        self._clients: dict[asyncio.AbstractEventLoop, Connections] = {}
        self._closed = False

    def async_space(self, prefix: Prefix, app_id: int) -> RedisSpace:
        """See `Backend`."""
        partitions = partition_keys(prefix, app_id, self._buckets)
        return RedisSpace(self, [Partition.of(self._namespace, key) for key in partitions])

    async def async_check(self) -> None:
        """See `Backend`. The first to open a store records its number of buckets."""
        record = f"{self._namespace}:buckets"
        (number,) = await self.ask([packed("GET", record)], writes=False)
        unable = await self.run(Call(SCRIPTS["check"], [f"{self._namespace}:check"] * 3, ()))
        if unable:
            command, reason = unable
            raise impossible(command, reason, self.name)
        if number is None:
            # Repeating this is harmless, so it counts as a read.
            requests = [packed("SET", record, self._buckets, "NX"), packed("GET", record)]
            _, number = await self.ask(requests, writes=False)
        if int(number) != self._buckets:
            made = f"it was made with buckets={int(number)} and is opened with buckets={self._buckets}"
            hint = f"open it with ?buckets={int(number)}, or use another ?namespace="
            raise BackendMisfitError(backend=self.name, problem=f"{made}; {hint}")

    async def async_close(self) -> None:
        """See `Backend`. Clients of other loops are closed there, without waiting for them."""
        self._closed = True
        here = asyncio.get_running_loop()
        clients, self._clients = self._clients, {}
        for loop, client in clients.items():
            if loop is here:
                await client.close()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(client.close(), loop)

    def eviction_policy(self) -> str | None:
        """Return what the server removes when its memory is full; None when this user may not know. Blocks."""
        try:
            (info,) = run_blocking(self.ask([packed("INFO", "memory")], writes=False))
        except BackendUnavailableError:
            return None
        lines = dict(line.partition(":")[::2] for line in info.decode().splitlines())
        return lines.get("maxmemory_policy")

    # --- for spaces --------------------------------------------------------------------------------------------------

    def client(self) -> Connections:
        """Return the connections of the running loop."""
        loop = asyncio.get_running_loop()
        try:
            return self._clients[loop]
        except KeyError:
            return self._new_client(loop)

    async def ask(self, requests: Sequence[bytes], *, writes: bool) -> list[Any]:
        """Send commands in one go and return their answers; the first error among them is raised."""
        answers = await self.client().exchange(b"".join(requests), len(requests), writes=writes)
        for answer in answers:
            if isinstance(answer, driver.ResponseError):
                raise refused(answer, self.name) from answer
        return answers

    async def run(self, call: Call) -> Any:  # noqa: ANN401 - what the script answers
        """Run one script."""
        client = self.client()
        (answer,) = await client.exchange(call.by_digest(), 1, writes=call.script.writes)
        if answer.__class__ is driver.NoScriptError:
            (answer,) = await client.exchange(call.by_source(), 1, writes=call.script.writes)
        if isinstance(answer, driver.ResponseError):
            raise refused(answer, self.name, in_script=call.script.writes) from answer
        return answer

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """Run several scripts in one go; errors of the server stand among the answers."""
        client, writes = self.client(), any(call.script.writes for call in calls)
        answers = await client.exchange(b"".join(call.by_digest() for call in calls), len(calls), writes=writes)
        missed = [number for number, answer in enumerate(answers) if answer.__class__ is driver.NoScriptError]
        if missed:
            request = b"".join(calls[number].by_source() for number in missed)
            try:
                again = await client.exchange(request, len(missed), writes=writes)
            except BackendUnavailableError as error:
                if not writes or len(missed) == len(calls):
                    raise
                raise OutcomeUnknownError(backend=self.name, problem=f"a part was done, then: {error}") from error
            for number, answer in zip(missed, again, strict=True):
                answers[number] = answer
        return answers

    # --- inside ------------------------------------------------------------------------------------------------------

    def _new_client(self, loop: asyncio.AbstractEventLoop) -> Connections:
        if self._closed:
            raise BackendClosedError
        for ended in [known for known in list(self._clients) if known.is_closed()]:
            del self._clients[ended]
        client = Connections(self._connect, backend=self.name, **self._limits)
        return self._clients.setdefault(loop, client)
