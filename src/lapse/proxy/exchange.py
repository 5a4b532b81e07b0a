"""Exchange of one request and its response, or of an upgrade, between a client and a workspace.

Guarantees: a request reaches a workspace at most once, but for one without a body that may be repeated (GET, HEAD,
OPTIONS), and only if a kept connection turned out to be closed before anything came back; bytes are relayed raw only
after the workspace has accepted exactly this upgrade (101 with the right Sec-WebSocket-Accept), and what the client
sent ahead of that waits until then. A response that breaks off is broken off for the client as well.

Heads are written anew in both directions. To the workspace: no field that is for one hop only, no forwarding field but
ours, and none of the proxy's credentials. Authorization never goes on: whose it is cannot be told from outside, and one
of ours that a workspace's program sees is a key to everything its owner has. To the client: the workspace cannot set
the proxy's cookie, nor one for any host but its own. Fields are compared with underscores as dashes, because programs
behind CGI-like interfaces cannot tell them apart.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from lapse.http1.heads import CHUNKED, UNTIL_CLOSE, RejectedError
from lapse.proxy.tunnel import Tunnel
from lapse.proxy.upstream import UpstreamCutError, failure_of
from lapse.workspaces.tickets import FIELD

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.engine.running.metrics import ProxyMetrics
    from lapse.http1.heads import Field, RequestHead, ResponseHead
    from lapse.proxy.client_connection import ClientConnection
    from lapse.proxy.leases import Leases
    from lapse.proxy.ports import ConnectionId, UpstreamAddress, WorkspaceId
    from lapse.proxy.upstream import Upstream, Upstreams

_HOP_BY_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"content-length"),
    }
)
_SECRET: Final = FIELD.encode("ascii")
_NOT_IN: Final = _HOP_BY_HOP | {b"host", b"authorization", b"forwarded", b"x-real-ip", b"proxy", _SECRET.lower()}
_FORWARDED: Final = b"x-forwarded-"


def request_bytes(
    head: RequestHead, *, peer: bytes, scheme: bytes, cookies: frozenset[bytes], secret: bytes = b""
) -> bytes:
    """Return a request's head for the workspace. ``cookies`` are the names of the proxy's own.

    ``secret`` is what the workspace's program knows the proxy by; nobody but the proxy gets to send it.
    """
    lines = [b"%b %b HTTP/1.1" % (head.method, head.target), b"Host: " + head.host]
    options = head.options
    for lower, value, line in head.fields:
        name = lower.replace(b"_", b"-") if b"_" in lower else lower
        if name in _NOT_IN or name in options or name.startswith(_FORWARDED):
            continue
        if name == b"cookie":
            kept = without_cookies(value, cookies)
            if kept:
                lines.append(b"Cookie: " + kept)
        else:
            lines.append(line)
    lines += (
        b"X-Forwarded-For: " + peer,
        b"X-Forwarded-Host: " + head.host,
        b"X-Forwarded-Proto: " + scheme,
    )
    if secret:
        lines.append(b"%b: %b" % (_SECRET, secret))
    if head.upgrade:
        lines.append(b"Connection: Upgrade\r\nUpgrade: websocket")
    elif head.length == CHUNKED:
        lines.append(b"Transfer-Encoding: chunked")
    elif b"content-length" in head.values:
        lines.append(b"Content-Length: %d" % head.length)
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def without_cookies(value: bytes, names: frozenset[bytes]) -> bytes:
    """Return a Cookie field without those of these names."""
    if not any(name in value for name in names):
        return value
    kept = [part for part in value.split(b";") if part.partition(b"=")[0].strip(b' \t"') not in names]
    return b";".join(kept).strip()


def response_bytes(head: ResponseHead, *, keep: bool, chunked: bool, cookies: frozenset[bytes]) -> bytes:
    """Return a response's head for the client; ``chunked`` if its body goes in chunks."""
    lines = _kept(head, cookies)
    if chunked:
        lines.append(b"Transfer-Encoding: chunked")
    elif head.length not in {CHUNKED, UNTIL_CLOSE} and b"content-length" in head.values:
        lines.append(b"Content-Length: " + head.values[b"content-length"])
    if not keep:
        lines.append(b"Connection: close")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def upgrade_bytes(head: ResponseHead, cookies: frozenset[bytes]) -> bytes:
    """Return the head of an accepted upgrade."""
    lines = _kept(head, cookies)
    lines.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    return b"\r\n".join(lines)


def interim_bytes(head: ResponseHead, cookies: frozenset[bytes]) -> bytes:
    """Return an interim response (100 Continue) for the client."""
    return b"\r\n".join([*_kept(head, cookies), b"\r\n"])


def _kept(head: ResponseHead, cookies: frozenset[bytes]) -> list[bytes]:
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason)]
    options = head.options
    for field in head.fields:
        if field[0] in _HOP_BY_HOP or field[0] in options:
            continue
        if field[0] == b"set-cookie":
            lines += _set_cookie(field, cookies)
        else:
            lines.append(field[2])
    return lines


def _set_cookie(field: Field, cookies: frozenset[bytes]) -> list[bytes]:
    first, *attributes = field[1].split(b";")
    if first.partition(b"=")[0].strip(b' \t"') in cookies:
        return []
    kept = [each for each in attributes if each.partition(b"=")[0].strip().lower() != b"domain"]
    return [b"Set-Cookie: " + b";".join([first, *kept])]


_REPEATABLE: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})
_SWITCHING: Final = 101
_SUCCESS: Final = range(200, 300)
_WEBSOCKET: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@dataclass(frozen=True, slots=True)
class Exchange:
    """Carries requests out. ``begin`` and ``end`` are told of every tunnel."""

    upstreams: Upstreams
    leases: Leases
    scheme: bytes
    cookies: frozenset[bytes]
    now: Callable[[], float]
    begin: Callable[[ClientConnection, Tunnel], None]
    end: Callable[[Tunnel], None]
    metrics: ProxyMetrics

    async def request(
        self, client: ClientConnection, head: RequestHead, *, workspace: WorkspaceId, address: UpstreamAddress
    ) -> None:
        """Pass a request on and its response back. `RejectedError`, `UpstreamCutError`: nothing was sent back yet."""
        upstream, response = await self._begin(client, head, workspace=workspace, address=address)
        again = False
        try:
            again = await self._deliver(client, head, upstream=upstream, response=response)
        finally:
            if again:
                self.upstreams.give_back(workspace, address, upstream=upstream, now=self.now())
            else:
                upstream.abort()

    async def upgrade(
        self, client: ClientConnection, head: RequestHead, *, workspace: WorkspaceId, address: UpstreamAddress
    ) -> None:
        """Pass an upgrade on; with the workspace's consent, join both connections. Raises as `request` does."""
        key = _key_of(head)
        connection = await self.leases.begin(workspace)
        joined = False
        try:
            upstream = await self.upstreams.fresh(address)
            response = await self._send(client, head, upstream=upstream, address=address)
            try:
                if response.status == _SWITCHING:
                    _check_consent(response, key)
                    self._join(client, upstream, response=response, workspace=workspace, connection=connection)
                    joined = True
                else:
                    await self._decline(client, head, upstream=upstream, response=response)
            finally:
                if not joined:
                    upstream.abort()
        finally:
            if not joined:
                self.leases.end(connection)

    async def _begin(
        self, client: ClientConnection, head: RequestHead, *, workspace: WorkspaceId, address: UpstreamAddress
    ) -> tuple[Upstream, ResponseHead]:
        """Send a request on a kept connection or a fresh one; return the connection and the head of the response."""
        repeatable = head.method in _REPEATABLE and head.length == 0
        kept = self.upstreams.spare(workspace, address) if repeatable else None
        if kept is not None:
            try:
                return kept, await self._send(client, head, upstream=kept, address=address)
            except UpstreamCutError:
                if kept.heard:
                    raise
        fresh = await self.upstreams.fresh(address)
        return fresh, await self._send(client, head, upstream=fresh, address=address)

    async def _send(
        self, client: ClientConnection, head: RequestHead, *, upstream: Upstream, address: UpstreamAddress
    ) -> ResponseHead:
        secret = address.secret.encode()
        sent = request_bytes(head, peer=client.peer, scheme=self.scheme, cookies=self.cookies, secret=secret)
        on_interim = partial(self._pass_interim, client, head)
        upstream.send_request(sent, head.method, receiver=client, on_interim=on_interim)
        client.send_body(upstream)
        try:
            response = await upstream.response()
        except BaseException:
            upstream.abort()
            raise
        if response.status == _SWITCHING and not head.upgrade:
            upstream.abort()
            raise RejectedError(502, "The workspace switches protocols without being asked to.")
        return response

    def _pass_interim(self, client: ClientConnection, head: RequestHead, response: ResponseHead) -> None:
        if head.minor == 1:
            client.write(interim_bytes(response, self.cookies))

    async def _deliver(
        self, client: ClientConnection, head: RequestHead, *, upstream: Upstream, response: ResponseHead
    ) -> bool:
        """Pass a response back; return whether the connection to the workspace may be used again."""
        unknown = response.length in {CHUNKED, UNTIL_CLOSE}
        chunked = unknown and head.minor == 1
        keep = head.keep and client.request_done and (chunked or not unknown)
        client.begin_response(
            response_bytes(response, keep=keep, chunked=chunked, cookies=self.cookies), chunked=chunked
        )
        self.metrics.answered(response.status)
        try:
            again = await upstream.relay(response)
        except (UpstreamCutError, RejectedError) as error:
            if (failure := failure_of(error)) is not None:
                self.metrics.failed(failure)
            client.abort()
            return False
        again = again and client.request_done
        client.end_response(keep=keep)
        return again

    async def _decline(
        self, client: ClientConnection, head: RequestHead, *, upstream: Upstream, response: ResponseHead
    ) -> None:
        """Pass back why there is no websocket; a plain page would leave the client guessing."""
        if response.status in _SUCCESS:
            raise RejectedError(502, "The workspace's program speaks plain HTTP at this path, not a websocket.")
        await self._deliver(client, head, upstream=upstream, response=response)

    def _join(
        self,
        client: ClientConnection,
        upstream: Upstream,
        *,
        response: ResponseHead,
        workspace: WorkspaceId,
        connection: ConnectionId,
    ) -> None:
        if client.transport.is_closing() or upstream.transport.is_closing():
            raise UpstreamCutError
        client.write(upgrade_bytes(response, self.cookies))
        self.metrics.answered(response.status)
        tunnel = Tunnel(workspace, connection, self.end, visitor=client.visitor)
        ahead, behind = client.detach(), upstream.detach()
        tunnel.join(client.transport, upstream.transport)
        self.begin(client, tunnel)
        if ahead:
            tunnel.client.data_received(ahead)
        if behind:
            tunnel.upstream.data_received(behind)
        if client.write_paused:
            tunnel.client.pause_writing()
        if upstream.ended:
            tunnel.upstream.eof_received()


def _key_of(head: RequestHead) -> bytes:
    key = head.values.get(b"sec-websocket-key")
    if head.method != b"GET" or head.length or key is None:
        raise RejectedError(400, "A websocket begins with a GET without a body and with a Sec-WebSocket-Key.")
    return key


def _check_consent(response: ResponseHead, key: bytes) -> None:
    digest = hashlib.sha1(key + _WEBSOCKET, usedforsecurity=False).digest()
    consents = response.values.get(b"upgrade", b"").lower() == b"websocket" and b"upgrade" in response.options
    if not consents or response.values.get(b"sec-websocket-accept") != base64.b64encode(digest):
        raise RejectedError(502, "The workspace's program does not accept this websocket as it should.")
