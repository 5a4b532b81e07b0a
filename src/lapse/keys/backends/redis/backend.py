"""An opened store on Redis or Valkey: its client, and what is recorded about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.db.redis.client import RedisClient
from lapse.db.redis.errors import Errors
from lapse.db.redis.failures import impossible
from lapse.db.redis.scripts import Call, packed
from lapse.keys.backends.background import run_blocking
from lapse.keys.backends.layout import Prefix, partition_keys
from lapse.keys.backends.network import NetworkBackend
from lapse.keys.backends.redis.scripts import SCRIPTS
from lapse.keys.backends.redis.space import Partition, RedisSpace
from lapse.keys.errors import BackendClosedError, BackendMisfitError, BackendUnavailableError, OutcomeUnknownError
from lapse.keys.port import Capabilities

if TYPE_CHECKING:
    from lapse.db.redis.address import RedisAddress

_ERRORS: Final = Errors(
    unavailable=BackendUnavailableError,
    outcome_unknown=OutcomeUnknownError,
    misfit=BackendMisfitError,
    closed=BackendClosedError,
    foreign="data of another program is stored under this namespace; choose another with ?namespace=",
)


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

    def __init__(self, address: RedisAddress, *, namespace: str, buckets: int) -> None:
        """Connect nothing yet."""
        self._client = RedisClient(address, _ERRORS)
        self._namespace = namespace
        self._buckets = buckets

    def async_space(self, prefix: Prefix, app_id: int) -> RedisSpace:
        """See `Backend`."""
        partitions = partition_keys(prefix, app_id, self._buckets)
        return RedisSpace(self._client, [Partition.of(self._namespace, key) for key in partitions])

    async def async_check(self) -> None:
        """See `Backend`. The first to open a store records its number of buckets."""
        record = f"{self._namespace}:buckets"
        (number,) = await self._client.ask([packed("GET", record)], writes=False)
        unable = await self._client.run(Call(SCRIPTS["check"], [f"{self._namespace}:check"] * 3, ()))
        if unable:
            command, reason = unable
            raise impossible(command, reason, self._client.name, _ERRORS)
        if number is None:
            # Repeating this is harmless, so it counts as a read.
            requests = [packed("SET", record, self._buckets, "NX"), packed("GET", record)]
            _, number = await self._client.ask(requests, writes=False)
        if int(number) != self._buckets:
            made = f"it was made with buckets={int(number)} and is opened with buckets={self._buckets}"
            hint = f"open it with ?buckets={int(number)}, or use another ?namespace="
            raise BackendMisfitError(backend=self._client.name, problem=f"{made}; {hint}")

    async def async_close(self) -> None:
        """See `Backend`."""
        await self._client.close()

    def eviction_policy(self) -> str | None:
        """Return what the server removes when its memory is full; None when this user may not know. Blocks."""
        try:
            (info,) = run_blocking(self._client.ask([packed("INFO", "memory")], writes=False))
        except BackendUnavailableError:
            return None
        lines = dict(line.partition(":")[::2] for line in info.decode().splitlines())
        return lines.get("maxmemory_policy")
