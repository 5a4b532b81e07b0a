"""Authentication of proxy requests: by bearer token, by session cookie, or by a ticket that begins a session.

`OPEN_PATH` on a workspace's host belongs to the proxy: it takes a ticket, answers with the session's cookie and sends
the browser on to the workspace's own first page, so that the ticket stays in no history and no log of the workspace.
Every refusal looks the same, whether there is such a workspace or not.

A token opens what it may change in the API: the workspaces of the owners in its scopes, and all with ``admin``. A
ticket and a session are worth what their token is worth at the moment of the request; `still_admits` tells the same
later, for connections that stay.

A session is a signed cookie that names the workspace, the token it was given for, and its end. Nothing is stored, so
all proxies that share the secret of one state folder accept it. It names the workspace because all workspaces under one
suffix are one site to a browser: a program of one may make the browser send a cookie of its own to the others, and
there it is worth nothing. It names the token so that it ends with it; that is asked with every request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

from lapse.engine.running.logins import LoginProof
from lapse.http1.cookies import SignedCookie
from lapse.proxy.ports import DirectResponse, Proof, Visitor
from lapse.proxy.router import workspace_of
from lapse.workspaces.tickets import OPEN_PATH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.core.clock import Clock
    from lapse.engine.running.logins import LoginFailures
    from lapse.proxy.ports import Destination, Directory, Visit, WorkspaceId

SESSION_SECONDS: Final = 12 * 3600
_OVER_TLS: Final = "__Host-lapse_session"
_PLAIN: Final = "lapse_session"
COOKIES: Final = frozenset({_OVER_TLS, _PLAIN})
"""All names that are ours, whichever is in use."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Makes and recognises cookies. ``scheme`` is that of the addresses that people type."""

    secret: bytes
    scheme: Literal["http", "https"] = "http"

    def set_cookie(self, workspace: WorkspaceId, token_id: str, *, now_seconds: int) -> str:
        """Return the Set-Cookie field that begins a session."""
        return self._cookie.issue(workspace, token_id, now_seconds=now_seconds, secure=self.scheme == "https")

    def tokens(self, field: str, workspace: WorkspaceId, *, now_seconds: int) -> Iterator[str]:
        """Give the ids of the tokens whose sessions of this workspace a Cookie field holds; others may be planted."""
        for (named, *rest), until in self._cookie.read(field):
            if named == workspace and now_seconds < until:
                yield "".join(rest)

    def given(self, field: str) -> Iterator[str]:
        """Give the values of our cookie in a Cookie field."""
        return self._cookie.given(field)

    def is_forged(self, field: str) -> bool:
        """Whether a Cookie field holds cookies of our name, and none of them was made here."""
        return any(self.given(field)) and not any(self._cookie.read(field))

    @property
    def _cookie(self) -> SignedCookie:
        # Over TLS a name that a browser takes from the very host only.
        name = _OVER_TLS if self.scheme == "https" else _PLAIN
        return SignedCookie(name, self.secret, b"lapse-session-2", SESSION_SECONDS)


_NS: Final = 1_000_000_000
_WHO: Final = DirectResponse(
    401,
    "Only its owner can open this workspace: lapse workspaces open NAME prints an address, or send a token.",
    (("WWW-Authenticate", "Bearer"),),
)
_WRONG_TOKEN: Final = DirectResponse(
    401, "The token is unknown or revoked.", (("WWW-Authenticate", 'Bearer error="invalid_token"'),)
)
_USED: Final = DirectResponse(
    403, "This address was used already, or is too old: lapse workspaces open NAME prints a new one."
)
_ONLY_GET: Final = DirectResponse(405, "This address is opened with GET.", (("Allow", "GET"),))


class TicketRedeemer(Protocol):
    """What is used of the tickets."""

    async def redeem(self, ticket: str, workspace: WorkspaceId) -> str | None:
        """Use up a ticket of this workspace; return the id of its token, None if it is none."""
        ...


class Tokens(Protocol):
    """Knows what tokens are for. Raises when that cannot be found out."""

    def holder(self, token: str) -> str | None:
        """Return the id of a bearer token; None: it is unknown, or revoked."""
        ...

    def opens(self, token_id: str, owner: str) -> bool:
        """Whether the token of this id counts, and opens an owner's workspaces."""
        ...


@dataclass(frozen=True, slots=True)
class ProxyAuthenticator:
    """A `lapse.proxy.ports.Authenticator`."""

    directory: Directory
    tickets: TicketRedeemer
    sessions: Sessions
    tokens: Tokens
    clock: Clock
    suffix: str
    failures: LoginFailures

    async def identify(self, visit: Visit) -> Visitor | DirectResponse:
        """See `Authenticator`. Who fails often is put off; a right token, ticket or session never is."""
        path, _, query = visit.target.partition("?")
        if path == OPEN_PATH:
            return await self._open(visit, query)
        scheme, _, token = visit.field(b"authorization").partition(" ")
        if scheme.lower() == "bearer":
            return await self._by_token(visit, token.strip())
        cookies = visit.field(b"cookie")
        if any(self.sessions.given(cookies)):
            found = await self._workspace(visit)
            named = [] if found is None else self.sessions.tokens(cookies, found.workspace, now_seconds=self._seconds())
            for token_id in named:
                if found is not None and self.tokens.opens(token_id, found.owner):
                    return Visitor(found.owner, Proof.COOKIE, token_id)
            if self.sessions.is_forged(cookies):
                return self._refused(LoginProof.SESSION, visit, _WHO)
        return _WHO

    def still_admits(self, visitor: Visitor) -> bool:
        """See `Authenticator`."""
        return self.tokens.opens(visitor.token_id, visitor.name)

    async def _by_token(self, visit: Visit, token: str) -> Visitor | DirectResponse:
        token_id = self.tokens.holder(token)
        if token_id is None:
            return self._refused(LoginProof.TOKEN, visit, _WRONG_TOKEN)
        found = await self._workspace(visit)
        # An empty owner matches no workspace: somebody else's is answered like one that does not exist.
        owner = found.owner if found is not None and self.tokens.opens(token_id, found.owner) else ""
        return Visitor(owner, Proof.TOKEN, token_id)

    async def _open(self, visit: Visit, query: str) -> DirectResponse:
        if visit.method != "GET" or visit.upgrade:
            return _ONLY_GET
        ticket = query.removeprefix("ticket=")  # nothing in a ticket needs an escape
        found = await self._workspace(visit) if ticket != query else None
        token_id = None if found is None else await self.tickets.redeem(ticket, found.workspace)
        if found is None or token_id is None or not self.tokens.opens(token_id, found.owner):
            return self._refused(LoginProof.TICKET, visit, _USED)
        cookie = self.sessions.set_cookie(found.workspace, token_id, now_seconds=self._seconds())
        # 303 and no-referrer: neither the address with the ticket nor its being used goes any further.
        return DirectResponse(303, "", (("Location", "/"), ("Set-Cookie", cookie), ("Referrer-Policy", "no-referrer")))

    def _refused(self, proof: LoginProof, visit: Visit, answer: DirectResponse) -> DirectResponse:
        """Count a failure; return the answer to it, or that somebody has failed too often."""
        seconds = self.failures.failed(proof, visit.peer)
        if seconds is None:
            return answer
        said = f"Too many wrong tokens, addresses or sessions came from here. Try again in {seconds} seconds."
        return DirectResponse(429, said, (("Retry-After", str(seconds)),))

    async def _workspace(self, visit: Visit) -> Destination | None:
        name = workspace_of(visit.host.encode("latin-1"), self.suffix.encode())
        return None if name is None else await self.directory.find(name)

    def _seconds(self) -> int:
        return self.clock.wall_ns() // _NS
