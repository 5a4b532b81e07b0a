"""Router of the proxy: from a request's head to the workspace it is for, or to the response that is sent instead.

``{name}.w.localhost:8080`` is the workspace ``name``, and every other host is none. The order of the checks is part of
the promise: who asks is found out before whether the workspace exists, so that a stranger learns nothing, and somebody
else's workspace is answered like one that does not exist.

Origins: a browser sends a cookie along whichever page made it send the request, and all workspaces under one suffix are
the same site to it. So a request with a cookie that a page of another origin caused is refused. A browser does not send
a token on its own; still a websocket with a foreign origin is refused with it too, as nothing good sends one.
Not checked: a plain link to a workspace from elsewhere, which is how people get there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lapse.proxy import pages
from lapse.proxy.ports import Destination, DirectResponse, Proof, Visit, WorkspaceReadiness

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.core.clock import Clock
    from lapse.http1.heads import RequestHead
    from lapse.proxy.limits import ProxyLimits
    from lapse.proxy.ports import Authenticator, Directory, Visitor, Waker

_PORTS: Final = {"http": ":80", "https": ":443"}
_OWN: Final = frozenset({b"", b"same-origin", b"none"})
_HOST: Final = re.compile(rb"([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)\.([a-z0-9.-]{1,253}?)\.?(?::[0-9]{1,5})?")
_LOOK_SECONDS: Final = 0.25
_SECOND_NS: Final = 1_000_000_000


def is_foreign(values: Mapping[bytes, bytes], *, host: str, scheme: str, proof: Proof, upgrade: bool) -> bool:
    """Return whether a page of another origin caused this request to ``host`` (as the Host field says)."""
    origin = values.get(b"origin")
    if origin is not None:
        return (upgrade or proof is Proof.COOKIE) and not _same(origin.decode("latin-1"), f"{scheme}://{host}", scheme)
    if upgrade or proof is not Proof.COOKIE:  # a browser gives every websocket an origin, so this is none
        return False
    return values.get(b"sec-fetch-site", b"") not in _OWN and values.get(b"sec-fetch-mode") != b"navigate"


def _same(one: str, other: str, scheme: str) -> bool:
    port = _PORTS[scheme]
    return one.lower().removesuffix(port) == other.removesuffix(port)


def workspace_of(host: bytes, suffix: bytes) -> str | None:
    """Return the name of the workspace that a Host field (in lower case) means; None if it means none."""
    match = _HOST.fullmatch(host)
    if match is None or match[2] != suffix:
        return None
    return match[1].decode("ascii")


@dataclass(frozen=True, slots=True)
class Router:
    """Decides about requests. ``suffix`` and ``scheme`` are those of the addresses that people type."""

    directory: Directory
    authenticator: Authenticator
    waker: Waker
    clock: Clock
    limits: ProxyLimits
    suffix: str
    scheme: str

    async def route(
        self, head: RequestHead, peer: bytes
    ) -> tuple[Visitor, Destination | DirectResponse] | DirectResponse:
        """Return who asks and the workspace, ready, or the response to send. A websocket waits until it is."""
        name = self._name(head)
        if name is None:
            return pages.NOT_FOUND
        visit = _visit(head, peer)
        visitor = await self.authenticator.identify(visit)
        if isinstance(visitor, DirectResponse):
            return visitor
        found = await self.directory.find(name)
        if found is None or found.owner != visitor.name:
            return pages.NOT_FOUND
        if is_foreign(head.values, host=visit.host, scheme=self.scheme, proof=visitor.proof, upgrade=visit.upgrade):
            return pages.FOREIGN
        if found.condition is WorkspaceReadiness.READY:
            return visitor, found
        return visitor, await self.wake(head, found)

    async def wake(self, head: RequestHead, found: Destination) -> Destination | DirectResponse:
        """Let a workspace come up: a websocket waits for it, everybody else is asked to come again."""
        name = self._name(head) or ""  # never, as it was found by its name
        if found.condition is not WorkspaceReadiness.FAILED:
            await self.waker.wake(found.workspace)
        elif not await self.waker.revive(found.workspace):
            return pages.failed(found.problem)
        if not head.upgrade:
            seconds = self.limits.retry_seconds
            return pages.waiting(name, seconds=seconds, for_person=head.for_person, problem=found.problem)
        end_ns = self.clock.monotonic_ns() + self.limits.wake_seconds * _SECOND_NS
        while self.clock.monotonic_ns() < end_ns:
            await self.clock.sleep(_LOOK_SECONDS)
            again = await self.directory.find(name)
            if again is None or again.owner != found.owner:
                return pages.NOT_FOUND
            if again.condition is WorkspaceReadiness.READY:
                return again
            if again.condition is WorkspaceReadiness.FAILED:
                return pages.failed(again.problem)
        return pages.waiting(name, seconds=self.limits.retry_seconds, for_person=False)

    def _name(self, head: RequestHead) -> str | None:
        return workspace_of(head.host, self.suffix.encode())


def _visit(head: RequestHead, peer: bytes) -> Visit:
    return Visit(
        method=head.method.decode("ascii"),
        host=head.host.decode("latin-1"),
        target=head.target.decode("ascii"),
        fields=head.values,
        peer=peer.decode("latin-1"),
        upgrade=head.upgrade,
    )
