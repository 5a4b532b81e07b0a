"""The guard in front of every route: who may call, from where, and in which form.

A browser on this machine can be made to call a server on loopback: by a page of another origin, or by a page whose
name was pointed at 127.0.0.1 after it was loaded (DNS rebinding). So, on loopback too, the Host header must be a
name that this server goes by, an Origin header must be one of ours, and whatever changes something must be JSON,
which a foreign page cannot send without asking first. Then the token is checked, and only then the body is read, up
to a limit.

The checks are functions of the request's head; `Guard` only applies them, as plain ASGI, so that nothing of the
framework runs before them. What a token allows is decided behind it, in `lapse.web.app`, where the route is known.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lapse.core.errors import LapseError
from lapse.core.identity import owner_token
from lapse.core.log import get_logger
from lapse.engine.running.logins import LoginFailures
from lapse.engine.verbs.place import Caller
from lapse.web.api.errors import (
    BodyTooLargeError,
    CutOffError,
    HostNotAllowedError,
    InternalError,
    MethodNotAllowedError,
    NotJSONError,
    NotLoggedInError,
    OriginNotAllowedError,
    StoppingError,
    TooManyFailuresError,
)
from lapse.web.api.problems import REQUEST_ID, problem

PRINCIPAL: Final = "lapse.principal"
"""Where the caller is kept in the ASGI scope."""

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""

MAX_BODY_BYTES: Final = 1 << 20
"""A swap of two values of 65536 control characters, each of them six in JSON, takes 786 kB: the largest request."""

MAX_LARGE_BODY_BYTES: Final = 64 << 20
"""A plan has about 600 bytes for each item, so one of a hundred thousand fits. Read after the token was checked."""

_log = get_logger("lapse.web")
_ORIGIN: Final = re.compile(r"https?://([^/@\s]+)")
_METHODS: Final = READING | {"POST", "PUT", "PATCH", "DELETE"}
# For everything that does not bring its own: nothing may be loaded, framed, sniffed or kept.
_HEADERS: Final[Mapping[bytes, bytes]] = {
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"cache-control": b"no-store",
}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is calling."""

    token_id: str
    scopes: frozenset[str]
    name: str = ""
    """Of the token; empty where it has none."""
    is_owner: bool = False
    """Whether it is the token of the user who runs the server."""


NOBODY: Final = Principal("", frozenset())
"""At addresses that need no token."""


def caller_of(request: HTTPConnection) -> Caller:
    """Return who asks, as the journal names them.

    Two tokens of one name are one person, and the owner's token is the user of this machine.
    """
    principal: Principal = request.scope[PRINCIPAL]
    if principal.is_owner:
        return Caller.user()
    return Caller.token(principal.name) if principal.name else Caller(f"token {principal.token_id}", is_person=False)


Admit = Callable[["Head"], Principal]
"""Decides who is calling; raises `TokenMissingError` or `TokenInvalidError`."""


# --- decisions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Head:
    """What the guard looks at."""

    method: str
    headers: Mapping[str, tuple[str, ...]]
    """By lower-case name, every line of it."""
    server: tuple[str, int]
    """The address at which the connection arrived."""

    @classmethod
    def of(cls, scope: Scope) -> Head:
        """Take it from an ASGI scope."""
        headers: dict[str, tuple[str, ...]] = {}
        for name, value in scope["headers"]:
            text = name.decode("latin-1").lower()
            headers[text] = (*headers.get(text, ()), value.decode("latin-1"))
        host, port = scope.get("server") or ("", 0)
        return cls(scope["method"], headers, (host, port or 0))

    def only(self, name: str) -> str | None:
        """Return a header that is there exactly once."""
        lines = self.headers.get(name, ())
        return lines[0].strip() if len(lines) == 1 else None


def is_loopback(host: str) -> bool:
    """Whether an address to listen on can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def in_url(host: str) -> str:
    """Write a host as it stands in a URL: an IPv6 address gets brackets."""
    return f"[{host}]" if ":" in host else host


class AllowedHosts:
    """The names that this server goes by, as they stand in a Host header."""

    def __init__(self, bind_host: str, port: int, configured: Iterable[str] = ()) -> None:
        """Take loopback names and the address to listen on, with the port; and what is configured, with or without."""
        own = ["localhost", "127.0.0.1", "[::1]", in_url(bind_host).lower()]
        self._names = {f"{name}:{port}" for name in own}
        for name in configured:
            has_port = re.search(r":[0-9]+$", name.rpartition("]")[2]) is not None
            self._names |= {name} if has_port else {name, f"{name}:{port}"}

    def __contains__(self, host: object) -> bool:
        """Whether a Host header, in lower case, is one of them."""
        return host in self._names


def check_method(head: Head) -> None:
    """Refuse a method that no route has, such as TRACE, whatever else the request says."""
    if head.method not in _METHODS:
        raise MethodNotAllowedError


def check_host(head: Head, hosts: Container[str]) -> None:
    """Refuse a name that is not ours. The address at which the connection arrived is: only a name can be re-pointed."""
    host = head.only("host")
    arrived = f"{in_url(head.server[0])}:{head.server[1]}"
    if host is None or not (host.lower() in hosts or host.lower() == arrived):
        raise HostNotAllowedError


def check_origin(head: Head, hosts: Container[str]) -> None:
    """Refuse a page of another origin; programs send no Origin."""
    if "origin" not in head.headers:
        return
    match = _ORIGIN.fullmatch(head.only("origin") or "")
    host = (head.only("host") or "").lower()
    if match is None or not (match[1].lower() == host or match[1].lower() in hosts):
        raise OriginNotAllowedError


def check_json(head: Head) -> None:
    """Refuse a change that is not JSON. A DELETE needs no body, and then no type either."""
    if head.method in READING:
        return
    has_body = "transfer-encoding" in head.headers or head.only("content-length") not in {None, "0"}
    if head.method == "DELETE" and not has_body:
        return
    kind = (head.only("content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise NotJSONError


# --- the guard -------------------------------------------------------------------------------------------------------


class Guard:
    """ASGI middleware: everything behind it has a request id and, with ``admit``, a principal in its scope."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Container[str],
        admit: Admit | None,
        is_public: Callable[[str], bool] = lambda _: False,
        log_in_page: Callable[[LapseError], Response] | None = None,
        failures: LoginFailures | None = None,
        max_body: int = MAX_BODY_BYTES,
        large_bodies: Container[str] = (),
    ) -> None:
        """Stand in front of ``app``; without ``admit`` everybody is let in, but only by a right Host and Origin.

        ``is_public`` tells which paths need no token, ``log_in_page`` makes the page that a browser without one gets,
        and ``failures`` is told of wrong tokens and sessions, and says who is put off. ``large_bodies`` are paths at
        which a body may have `MAX_LARGE_BODY_BYTES`.
        """
        self._app = app
        self._hosts = hosts
        self._admit, self._is_public = admit, is_public
        self._log_in_page, self._failures = log_in_page, failures
        self._max_body, self._large_bodies = max_body, large_bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on; whatever goes wrong is answered with a problem document."""
        if scope["type"] != "http":
            return  # there are no websockets and no lifespan here
        request_id = scope[REQUEST_ID] = owner_token()
        answer = _Answer(send, request_id)
        body = None
        try:
            body = await self._checked_body(scope, receive)
            if body is not None:
                await self._app(scope, _replay(body, receive), answer)
        except LapseError as error:
            told = error if self._failures is None else put_off(error, scope, self._failures)
            await self._refusal(scope, told, request_id)(scope, receive, answer)
        except asyncio.CancelledError:
            # Only a server that stops does this, to requests that it will not wait for any longer.
            if answer.status is not None:
                raise
            cut_off = StoppingError() if body is None else CutOffError()
            await problem(cut_off, request_id)(scope, receive, answer)
        except Exception:  # noqa: BLE001 - the last line: a defect must still be answered
            _log.exception("request_failed", request=request_id, method=scope["method"], route=_route(scope))
            if answer.status is None:
                await problem(InternalError(), request_id)(scope, receive, answer)
        principal: Principal | None = scope.get(PRINCIPAL)
        _log.debug(
            "request",
            request=request_id,
            method=scope["method"],
            route=_route(scope),
            status=answer.status,
            token=principal.token_id if principal else None,
        )

    async def _checked_body(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body of a request that may pass, None when the client went away."""
        head = Head.of(scope)
        check_method(head)
        check_host(head, self._hosts)
        check_origin(head, self._hosts)
        if self._admit is not None:
            scope[PRINCIPAL] = NOBODY if self._is_public(scope["path"]) else self._admit(head)
        check_json(head)
        limit = MAX_LARGE_BODY_BYTES if scope.get("path") in self._large_bodies else self._max_body
        announced = (head.only("content-length") or "").lstrip("0")  # digits only: the server has refused anything else
        if len(announced) > len(str(limit)) or int(announced or 0) > limit:
            raise BodyTooLargeError(limit=limit)
        return await _read(receive, limit)

    def _refusal(self, scope: Scope, error: LapseError, request_id: str) -> Response:
        wants_page = any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
        if self._log_in_page is not None and wants_page and isinstance(error, NotLoggedInError):
            return self._log_in_page(error)
        return problem(error, request_id)


def put_off(error: LapseError, scope: Scope, failures: LoginFailures) -> LapseError:
    """Count a failed log-in; return what is answered: the error, or that the caller has failed too often."""
    if not isinstance(error, NotLoggedInError) or error.proof is None:
        return error
    seconds = failures.failed(error.proof, (scope.get("client") or ("",))[0])
    return error if seconds is None else TooManyFailuresError(seconds=seconds)


class _Answer:
    """Sends on, with the headers that every answer has."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            given = {name.lower() for name, _ in headers}
            headers += [(name, value) for name, value in _HEADERS.items() if name not in given]
            headers.append((b"x-request-id", self._request_id.encode()))
            message = {**message, "headers": headers}
        await self._send(message)


async def _read(receive: Receive, limit: int) -> bytes | None:
    # In one piece, because requests are small, and because a limit that strikes while the framework reads would be
    # answered by the framework.
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise BodyTooLargeError(limit=limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again


def _route(scope: Scope) -> str | None:
    """Return the pattern of the route, never the path: that holds the key."""
    route: Any = scope.get("route")
    return getattr(route, "path", None)
