"""The proxy as a service of the coordinator, and the loop that writes its access times.

When it ends, websockets are told, leases are given back, and the last access times are written: what a restart would
otherwise take from everybody's TTL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.errors import LapseError
from lapse.core.log import get_logger
from lapse.workspaces.model import DOMAIN

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Sequence

    from lapse.proxy.server import Proxy
    from lapse.workspaces.activity.access import AccessTimes

_log = get_logger("lapse.proxy")
FLUSH_SECONDS: Final = 1.0
"""How late an access may be in the store, after the look that finds it."""
THROTTLE_SECONDS: Final = FLUSH_SECONDS / 2
"""What `AccessTimes` is made with: as long as the pause between flushes, it would make them skip every other one."""
_GRACE_SECONDS: Final = 1.5
"""For requests under way: with what follows, less than the five seconds that a coordinator gives."""


class ProxyService:
    """A `lapse.engine.running.coordinator.Service`."""

    name = "proxy"

    def __init__(self, proxy: Proxy, sockets: Sequence[socket.socket], access: AccessTimes) -> None:
        """Take over the sockets, which are bound."""
        self._proxy, self._sockets, self._access = proxy, sockets, access

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until ``stopping`` is set."""
        try:
            for each in self._sockets:
                await self._proxy.listen(each)
            await stopping.wait()
        finally:
            await self._proxy.stop(grace_seconds=_GRACE_SECONDS)
            await self._write_last()

    async def _write_last(self) -> None:
        try:
            await self._access.flush(everything=True)
        except (LapseError, OSError) as error:
            _log.warning("last_accesses_not_written", workspaces=len(self._access), error=type(error).__name__)


class AccessLoop:
    """A `lapse.engine.running.coordinator.Loop` that writes access times. In every process that has a proxy."""

    name = "access-times"
    domain = DOMAIN
    interval = FLUSH_SECONDS
    leader_only = False

    def __init__(self, access: AccessTimes) -> None:
        """Write these."""
        self._access = access

    async def tick(self) -> float | None:
        """Write what waits; what fails waits on."""
        await self._access.flush()
        return None
