"""What goes through aiohttp: watches, whose answers have no end, and everything that goes through a proxy.

A response must be ended by `abort` unless it was read to its end. Nothing is followed, kept or repeated here.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

import aiohttp
from yarl import URL

from lapse.http1.sockets import new_socket

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from lapse.kube.auth.config import Cluster

_LARGE: Final = 512 * 1024
"""Bytes from which a body is sent in pieces; the library warns about whole ones of a megabyte."""
_KEEPALIVE_SECONDS: Final = 30


class Streams:
    """See the module. Belongs to one event loop, from its first use."""

    def __init__(self, cluster: Cluster, *, headers: Sequence[tuple[str, str]]) -> None:
        """Connect to nothing yet; ``headers`` go with every request."""
        self._server, self._server_name, self._proxy = cluster.server, cluster.server_name, cluster.proxy
        self._headers = headers
        self._session: aiohttp.ClientSession | None = None

    async def open(
        self,
        method: str,
        path: str,
        *,
        headers: dict[str, str],
        context: ssl.SSLContext | bool,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the library's own, of several parts
        body: bytes | None = None,
    ) -> aiohttp.ClientResponse:
        """Ask; return the answer as soon as it begins."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS, socket_factory=new_socket)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=True,
            )
        return await self._session.request(
            method,
            URL(self._server + path, encoded=True),
            data=io.BytesIO(body) if body is not None and len(body) > _LARGE else body,
            headers=headers,
            allow_redirects=False,
            ssl=context,
            server_hostname=self._server_name,
            proxy=self._proxy,
            timeout=timeout,
        )

    async def close(self) -> None:
        """End all connections. Idempotent."""
        if self._session is not None:
            await self._session.close()


def abort(response: aiohttp.ClientResponse) -> None:
    """End a connection without a farewell, which would outlive the event loop; nothing if it ended by itself."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()
