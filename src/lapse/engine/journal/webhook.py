"""Webhooks: receivers of events, as the settings name them, and the signed delivery of one event to one of them.

A delivery is one POST of one CloudEvent, signed as the Standard Webhooks specification says: ``webhook-id`` is the id
of the event, ``webhook-timestamp`` the time of this attempt, and ``webhook-signature`` an HMAC-SHA256 of both and the
body for each secret that is active, so that a receiver finds the one that it knows while a secret is being replaced.
Secrets are read anew for every page of rows, and never shown; a URL may hold secrets as well, so it is never shown
either.

Guarantees: an answer from 200 to 299 is a delivery and nothing else is; redirections are not followed; an attempt ends
within `ATTEMPT_SECONDS`; no more than `BODY_BYTES` of an answer's body are read. Not guaranteed: that an event which
was not delivered did not arrive, because the answer may have been lost.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import os
import re
import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from lapse.core.duration import Duration
from lapse.core.errors import LapseError, UsageError
from lapse.core.log import get_logger
from lapse.engine.journal.events import CONTENT_TYPE, NAMES, event_name
from lapse.engine.journal.port import AUDIT, domain_about
from lapse.engine.view import encode
from lapse.files.ownership import distrust
from lapse.http1.client import (
    PORTS,
    ConnectionPool,
    ConnectTimeoutError,
    NoConnectionError,
    ServerAddress,
    UnreadableResponseError,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from lapse.core.clock import Clock
    from lapse.engine.journal.events import CloudEvent
    from lapse.engine.journal.port import Row
    from lapse.http1.client import Connection
    from lapse.http1.heads import ResponseHead

ATTEMPT_SECONDS: Final = 15.0
BODY_BYTES: Final = 65_536
"""What is read of an answer, so that its connection can be used again; what is longer ends the connection."""
_BODY_SECONDS: Final = 1.0
_CONNECT_SECONDS: Final = 10.0
_SUCCESS: Final = range(200, 300)
_REDIRECTS: Final = range(300, 400)
_GONE: Final = 410
_NS: Final = 1_000_000_000
_SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - how a secret begins, not one
_SECRET_BYTES: Final = range(24, 65)
"""As the Standard Webhooks specification has it."""
_LONGEST_FILE: Final = 65_536
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_TARGET: Final = re.compile(r"[!-~]*")
_HOST: Final = re.compile(r"[A-Za-z0-9._:-]+")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIGITS: Final = re.compile(rb"[0-9]{1,6}")
_log = get_logger("lapse.engine.journal.webhook")
T = TypeVar("T")


class WebhookSecretError(UsageError):
    """The secret of the webhook {name} cannot be used: {problem}. Make one with openssl rand -base64 32.

    It stands in the file that secret_file names, or in the environment variable that secret_env names; several of them,
    separated by white space, are all used.
    """


class DeliveryError(LapseError):
    """The webhook {name} has not taken an event: {problem}."""

    def __init__(self, *, retry_after: float = 0.0, is_gone: bool = False, **details: object) -> None:
        """Know how many seconds the receiver wants to be left alone, and whether it says that it is gone for good."""
        super().__init__(**details)
        self.retry_after, self.is_gone = retry_after, is_gone


class Webhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One receiver, as the settings name it."""

    name: str
    """Of lower-case letters, digits and dashes: a label of metrics, and what its position is stored under."""
    url: str
    secret_file: str = ""
    secret_env: str = ""
    events: tuple[str, ...] = ()
    """Which events, by their types without ``dev.lapse.``; all but those of the audit, if nothing is said."""
    domains: tuple[str, ...] = ()
    """Of which domains; of all, if nothing is said."""
    give_up_after: Duration = Duration.of_seconds(3 * 86_400)
    """For how long one event is tried before it is left out."""
    ca_file: str = ""
    """The certificates that are trusted, in PEM form; those of the system, if nothing is said."""
    allow_http: bool = False
    """Whether the URL may be http:// beyond this machine, where everybody on the way reads the events."""

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Webhook:
        """Read a table of the settings; raises ValueError, which says what was expected and never shows the URL."""
        name = document.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError("expected a name in every webhook: lower-case letters, digits and dashes")
        try:
            return msgspec.convert(_with_duration(document), cls)
        except ValueError as error:  # what msgspec raises is one, too
            raise ValueError(f"of {name}: {error}") from None

    def __post_init__(self) -> None:
        """Refuse what cannot be used, before anything is sent."""
        self._check_url()
        if bool(self.secret_file) == bool(self.secret_env):
            raise ValueError("expected secret_file, the path of a file, or secret_env, the name of a variable")
        if self.secret_env and not _VARIABLE.fullmatch(self.secret_env):
            raise ValueError("expected the name of an environment variable as secret_env")
        for path in filter(None, (self.secret_file, self.ca_file)):
            if not Path(path).expanduser().is_absolute():
                raise ValueError("expected absolute paths: a relative one depends on the working directory")
        for one in self.events:
            if one not in NAMES and one != AUDIT:
                raise ValueError(f"{one!r} is no event; expected some of {', '.join(NAMES)}, or {AUDIT}")
        if self.give_up_after.nanoseconds is not None and self.give_up_after.nanoseconds <= 0:
            raise ValueError("expected a duration above zero as give_up_after, such as 3d, or never")

    def _check_url(self) -> None:
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port, parts = "", None, urlsplit("")
        is_whole = parts.scheme in PORTS and _HOST.fullmatch(host) and port != 0 and _TARGET.fullmatch(self.url)
        if not is_whole or parts.username is not None or parts.fragment:
            raise ValueError("expected a url such as https://HOST/PATH, without a user and a fragment")
        if parts.scheme == "http" and not self.allow_http and not _is_loopback(host):
            raise ValueError("expected https:// beyond this machine; allow_http = true takes http:// all the same")

    def wants(self, row: Row) -> bool:
        """Whether it is told of a row."""
        name = event_name(row)
        if name is None or (self.domains and domain_about(row) not in self.domains):
            return False
        is_audit = row.domain == AUDIT
        return name in self.events or (AUDIT in self.events if is_audit else not self.events)

    def secrets(self, environ: Mapping[str, str] = os.environ) -> Sequence[bytes]:
        """Read the secrets, the first one first. Blocks; raises `WebhookSecretError`."""
        text = self._secret_text() if self.secret_file else environ.get(self.secret_env, "")
        found = [_secret(word) for word in text.split()]
        if not found:
            problem = "the file is empty" if self.secret_file else f"{self.secret_env} is not set"
            raise WebhookSecretError(name=self.name, problem=problem)
        if None in found:
            few, most = _SECRET_BYTES.start, _SECRET_BYTES.stop - 1
            raise WebhookSecretError(name=self.name, problem=f"expected {few} to {most} bytes in base64")
        return [one for one in found if one is not None]

    def _secret_text(self) -> str:
        try:
            with Path(self.secret_file).expanduser().open(encoding="ascii") as file:
                problem = distrust(os.fstat(file.fileno()))
                if problem is None:
                    return file.read(_LONGEST_FILE)
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        except ValueError:
            problem = "is no text"
        raise WebhookSecretError(name=self.name, problem=f"the file {problem}")


def read_webhooks(documents: Sequence[Mapping[str, Any] | Webhook]) -> tuple[Webhook, ...]:
    """Read all tables of the settings, some of which may be read already; raises ValueError."""
    webhooks = tuple(one if isinstance(one, Webhook) else Webhook.read(one) for one in documents)
    if len({one.name for one in webhooks}) < len(webhooks):
        raise ValueError("expected every webhook to have a name of its own")
    return webhooks


def _with_duration(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read the one value that is written as text and is none."""
    written = document.get("give_up_after")
    return {**document, "give_up_after": Duration.parse(written)} if isinstance(written, str) else document


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _secret(word: str) -> bytes | None:
    try:
        secret = base64.b64decode(word.removeprefix(_SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return None
    return secret if len(secret) in _SECRET_BYTES else None


def signature(secrets: Sequence[bytes], *, event: str, timestamp: int, body: bytes) -> str:
    """Return what ``webhook-signature`` says: one signature for each secret."""
    signed = f"{event}.{timestamp}.".encode() + body
    made = (hmac.digest(secret, signed, "sha256") for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(one).decode()}" for one in made)


class Receiver:
    """The HTTP side of a webhook; its connections are kept between deliveries. Belongs to one event loop."""

    def __init__(self, webhook: Webhook, *, clock: Clock, user_agent: str) -> None:
        """Connect to nothing yet; raises `WebhookSecretError`, and `DeliveryError` for certificates that are none."""
        webhook.secrets()
        self._webhook, self._clock = webhook, clock
        parts = urlsplit(webhook.url)
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        self._pool = ConnectionPool(
            ServerAddress(host, port), connect_seconds=_CONNECT_SECONDS, clock=clock, inflates=False
        )
        self._context = _context(webhook) if parts.scheme == "https" else None
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._head = (
            f"POST {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: {user_agent}\r\n"
            f"Content-Type: {CONTENT_TYPE}; charset=utf-8\r\nAccept-Encoding: identity\r\n"
        )

    async def deliver(self, event: CloudEvent, secrets: Sequence[bytes]) -> None:
        """Deliver one event; raises `DeliveryError` unless the receiver says that it has it."""
        body = encode(event)
        timestamp = self._clock.wall_ns() // _NS
        signed = signature(secrets, event=event.id, timestamp=timestamp, body=body)
        head = (
            f"{self._head}Content-Length: {len(body)}\r\nwebhook-id: {event.id}\r\n"
            f"webhook-timestamp: {timestamp}\r\nwebhook-signature: {signed}\r\n\r\n"
        )
        try:
            asking = self._pool.open(head.encode() + body, context=self._context)
            connection, answer = await _within(self._clock, ATTEMPT_SECONDS, asking)
        except OSError as error:
            raise self._failure(_problem(error)) from error
        await self._release(connection)
        if answer.status not in _SUCCESS:
            raise self._refusal(answer)

    def close(self) -> None:
        """End all connections."""
        self._pool.close()

    async def _release(self, connection: Connection) -> None:
        """Keep a connection for the next event, unless the rest of the answer is long, or long in coming."""
        try:
            await _within(self._clock, _BODY_SECONDS, _read_on(connection))
        except OSError:
            _log.debug("answer_cut", webhook=self._webhook.name)  # its head has said it all
        finally:
            self._pool.release(connection)

    def _refusal(self, answer: ResponseHead) -> DeliveryError:
        problem = f"it answered {answer.status}"
        if answer.status in _REDIRECTS:
            problem += ", and redirections are not followed; set url to where it leads"
        if answer.status == _GONE:
            problem += ": it says that it is gone for good; remove the webhook from the settings, or repair it"
        after = answer.values.get(b"retry-after", b"")
        seconds = float(after) if _DIGITS.fullmatch(after) else 0.0
        return self._failure(problem, retry_after=seconds, is_gone=answer.status == _GONE)

    def _failure(self, problem: str, *, retry_after: float = 0.0, is_gone: bool = False) -> DeliveryError:
        return DeliveryError(name=self._webhook.name, problem=problem, retry_after=retry_after, is_gone=is_gone)


def _context(webhook: Webhook) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(Path(webhook.ca_file).expanduser()) if webhook.ca_file else None)
    except OSError as error:  # also what is no certificate
        reason = error.strerror or "it holds no certificates in PEM form"
        raise DeliveryError(name=webhook.name, problem=f"its ca_file cannot be used: {reason}") from error


def _problem(error: OSError) -> str:
    match error:
        case NoConnectionError(__cause__=ssl.SSLCertVerificationError() as cause):
            return f"its certificate is not trusted: {cause.verify_message or 'it cannot be verified'}"
        case NoConnectionError(__cause__=OSError() as cause):
            return f"no connection: {os.strerror(cause.errno) if cause.errno else type(cause).__name__}"
        case ConnectTimeoutError():
            return f"no connection within {_CONNECT_SECONDS:g} s"
        case TimeoutError():
            return f"no answer within {ATTEMPT_SECONDS:g} s"
        case UnreadableResponseError():
            return f"its answer is not understood: {error}"
        case _:
            return "the connection was cut before an answer came"


async def _read_on(connection: Connection) -> None:
    read = 0
    while read <= BODY_BYTES and (piece := await connection.read()):
        read += len(piece)


async def _within(clock: Clock, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` returns; raises TimeoutError if that takes longer by ``clock``."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise TimeoutError
        return working.result()
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
