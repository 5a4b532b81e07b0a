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
import logging
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
    HeadTooLargeError,
    HostNotAllowedError,
    InternalError,
    MethodNotAllowedError,
    NotJSONError,
    NotLoggedInError,
    OriginNotAllowedError,
    StoppingError,
    TooManyFailuresError,
    TooManyLargeBodiesError,
    TwoLengthsError,
)
from lapse.web.api.problems import REQUEST_ID, problem

PRINCIPAL: Final = "lapse.principal"
"""Where the caller is kept in the ASGI scope."""

WITHOUT_BODY: Final = "lapse.without_body"
"""Set in the ASGI scope of a HEAD, which is answered like a GET: what is sent behind the head is left out."""

FORM: Final = "application/x-www-form-urlencoded"
"""What forms of our own pages are sent as; they carry a token against forged ones."""

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""

MAX_BODY_BYTES: Final = 1 << 20
"""A swap of two values of 65536 control characters, each of them six in JSON, takes 786 kB: the largest request."""

MAX_LARGE_BODY_BYTES: Final = 64 << 20
"""A plan has about 600 bytes for each item, so one of a hundred thousand fits. Read after the token was checked."""

MAX_HEAD_BYTES: Final = 64 << 10
"""A key of 1024 bytes takes 3 KiB of an address, and a browser's cookies a few more."""

MAX_HEADER_LINES: Final = 100
"""A browser sends about twenty."""

MOST_LARGE_BODIES: Final = 4
"""Large bodies that are read at once: what they take together is bounded, whoever sends them."""

_log, _lines = get_logger("lapse.web"), logging.getLogger("lapse.web")
_ORIGIN: Final = re.compile(r"https?://([^/@\s]+)")
_USUAL_PORT: Final = {False: 80, True: 443}
"""By whether it is one with TLS."""
_HSTS: Final = b"max-age=86400"
"""One day: who takes TLS away again keeps nobody out for longer. Without subdomains, which may be others' servers."""
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
    tls: bool = False
    """Whether the client speaks TLS with this process."""
    target: int = 0
    """How long the address is, as it was sent."""

    @classmethod
    def of(cls, scope: Scope) -> Head:
        """Take it from an ASGI scope."""
        headers: dict[str, tuple[str, ...]] = {}
        for name, value in scope["headers"]:
            text = name.decode("latin-1").lower()
            headers[text] = (*headers.get(text, ()), value.decode("latin-1"))
        host, port = scope.get("server") or ("", 0)
        target = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        return cls(scope["method"], headers, (host, port or 0), tls=scope.get("scheme") == "https", target=target)

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


def check_size(head: Head) -> None:
    """Refuse a head with more or longer lines than anybody needs: each is looked at by everything behind this."""
    lines = [(name, line) for name, some in head.headers.items() for line in some]
    size = head.target + sum(len(name) + len(line) for name, line in lines)
    if len(lines) > MAX_HEADER_LINES or size > MAX_HEAD_BYTES:
        raise HeadTooLargeError(limit=MAX_HEAD_BYTES, lines=MAX_HEADER_LINES)


def check_length(head: Head) -> None:
    """Refuse a body with two lengths: a server on the way may have read the other one, and the rest as a request."""
    if "transfer-encoding" in head.headers and "content-length" in head.headers:
        raise TwoLengthsError


def check_host(head: Head, hosts: Container[str]) -> None:
    """Refuse a name that is not ours. The address at which the connection arrived is: only a name can be re-pointed."""
    host = (head.only("host") or "").lower()
    arrived = f"{in_url(head.server[0])}:{head.server[1]}"
    full = f"{host}:{_USUAL_PORT[head.tls]}"  # as a host without a port is meant
    if not host or not any(one in hosts or one == arrived for one in (host, full)):
        raise HostNotAllowedError


def check_origin(head: Head, hosts: Container[str]) -> None:
    """Refuse a page of another origin, and over TLS one that came without; programs send no Origin."""
    if "origin" not in head.headers:
        return
    origin, host = head.only("origin") or "", (head.only("host") or "").lower()
    match = _ORIGIN.fullmatch(origin)
    if match is None or (head.tls and not origin.startswith("https:")):
        raise OriginNotAllowedError
    if not (match[1].lower() == host or match[1].lower() in hosts):
        raise OriginNotAllowedError


def check_json(head: Head, *, is_form: bool = False) -> None:
    """Refuse a change that is not JSON, or no form where one is expected. A DELETE needs no body, and then no type."""
    if head.method in READING:
        return
    has_body = "transfer-encoding" in head.headers or head.only("content-length") not in {None, "0"}
    if head.method == "DELETE" and not has_body:
        return
    kind = (head.only("content-type") or "").partition(";")[0].strip().lower()
    if kind != (FORM if is_form else "application/json"):
        raise NotJSONError


# --- the guard -------------------------------------------------------------------------------------------------------


class Guard:
    """ASGI middleware: everything behind it has a request id and, with ``admit``, a principal in its scope."""

    def __init__(  # noqa: PLR0913 - each by its name
        self,
        app: ASGIApp,
        *,
        hosts: Container[str],
        admit: Admit | None,
        is_public: Callable[[str], bool] = lambda _: False,
        is_form: Callable[[str], bool] = lambda _: False,
        log_in_page: Callable[[LapseError], Response] | None = None,
        failures: LoginFailures | None = None,
        max_body: int = MAX_BODY_BYTES,
        large_bodies: Callable[[str, Principal], bool] = lambda *_: False,
    ) -> None:
        """Stand in front of ``app``; without ``admit`` everybody is let in, but only by a right Host and Origin.

        ``is_public`` tells which paths need no token and ``is_form`` which take forms; ``log_in_page`` makes the page
        that a browser without one gets, and ``failures`` is told of wrong tokens and sessions, and says who is put off.
        ``large_bodies`` tells of a path and a caller whether a body may have `MAX_LARGE_BODY_BYTES`.
        """
        self._app = app
        self._hosts = hosts
        self._admit, self._is_public, self._is_form = admit, is_public, is_form
        self._log_in_page, self._failures = log_in_page, failures
        self._max_body, self._large_bodies = max_body, large_bodies
        self._reading_large = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on; whatever goes wrong is answered with a problem document."""
        if scope["type"] != "http":
            return  # there are no websockets and no lifespan here
        request_id = scope[REQUEST_ID] = owner_token()
        answer = _Answer(send, request_id, strict_transport=_keeps_to_tls(scope))
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
        if _lines.isEnabledFor(logging.DEBUG):  # asked here: it takes a tenth of what the logger takes for it
            self._tell(scope, request_id, answer.status)

    @staticmethod
    def _tell(scope: Scope, request_id: str, status: int | None) -> None:
        principal: Principal | None = scope.get(PRINCIPAL)
        _log.debug(
            "request",
            request=request_id,
            method=scope["method"],
            route=_route(scope),
            status=status,
            token=principal.token_id if principal else None,
        )

    async def _checked_body(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body of a request that may pass, None when the client went away."""
        head = Head.of(scope)
        check_method(head)
        check_size(head)
        check_length(head)
        check_host(head, self._hosts)
        check_origin(head, self._hosts)
        if self._admit is not None:
            scope[PRINCIPAL] = NOBODY if self._is_public(scope["path"]) else self._admit(head)
        check_json(head, is_form=self._is_form(scope.get("path", "")))
        is_large = self._large_bodies(scope.get("path", ""), scope.get(PRINCIPAL, NOBODY))
        limit = MAX_LARGE_BODY_BYTES if is_large else self._max_body
        announced = (head.only("content-length") or "").lstrip("0")  # digits only: the server has refused anything else
        if len(announced) > len(str(limit)) or int(announced or 0) > limit:
            raise BodyTooLargeError(limit=limit)
        if not is_large:
            return await _read(receive, limit)
        if self._reading_large >= MOST_LARGE_BODIES:
            raise TooManyLargeBodiesError
        self._reading_large += 1
        try:
            return await _read(receive, limit)
        finally:
            self._reading_large -= 1

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


def with_own_headers(headers: Iterable[tuple[bytes, bytes]], request_id: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer with those that every answer has, unless it brings its own."""
    own = list(headers)
    given = {name.lower() for name, _ in own}
    missing = [(name, value) for name, value in _HEADERS.items() if name not in given]
    return [*own, *missing, (b"x-request-id", request_id.encode())]


class _Answer:
    """Sends on, with the headers that every answer has."""

    def __init__(self, send: Send, request_id: str, *, strict_transport: bool) -> None:
        self._send = send
        self._strict_transport = strict_transport
        self._request_id = request_id
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = with_own_headers(message.get("headers", ()), self._request_id)
            if self._strict_transport:
                headers.append((b"strict-transport-security", _HSTS))
            message = {**message, "headers": headers}
        await self._send(message)


def _keeps_to_tls(scope: Scope) -> bool:
    """Whether browsers are told to come with TLS only.

    Not for loopback: they would leave out every other server of this machine that has none.
    """
    if scope.get("scheme") != "https":
        return False
    host = Head.of(scope).only("host") or ""
    return not is_loopback(re.sub(r":[0-9]+$", "", host).strip("[]").lower())


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
