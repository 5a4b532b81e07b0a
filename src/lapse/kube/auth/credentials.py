"""Credentials: what is shown to the API server, renewed while we run.

Tokens and certificates in files are read again at most once a minute, and at once after the server refused them: the
token of a pod is replaced long before it ends, and a person may have logged in again. What a plugin printed is kept
until it ends (`lapse.kube.auth.exec_credentials`). A file that cannot be read for a moment does not take away what was
read before.

No token, password or key is part of a ``repr``, a message or a log event.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from lapse.core.log import get_logger
from lapse.kube.errors import CredentialsError

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.kube.auth.config import Material, User

REREAD_SECONDS: Final = 60
_NS: Final = 1_000_000_000
_log = get_logger("lapse.kube.auth.credentials")


@dataclass(frozen=True, slots=True)
class Credential:
    """What is shown with one request: a header and, when the connection is made, a certificate with its key as PEM."""

    authorization: str = field(default="", repr=False)
    certificate: tuple[bytes, bytes] | None = field(default=None, repr=False)


class CredentialSource(Protocol):
    """Gives credentials out."""

    async def current(self) -> Credential:
        """Return what is good now, as far as anybody knows; raises `CredentialsError`."""
        ...

    def refused(self, credential: Credential) -> None:
        """Take note that the server did not accept it: the next one should be another, if there can be another."""
        ...


class Kept:
    """Material that is read again now and then."""

    def __init__(self, material: Material, clock: Clock) -> None:
        """Nothing is read before the first `read`."""
        self._material, self._clock = material, clock
        self._content = material if isinstance(material, bytes) else b""
        self._until_ns = 0

    def read(self) -> bytes:
        """Return what it is now, at most a minute old."""
        if isinstance(self._material, Path) and self._clock.monotonic_ns() >= self._until_ns:
            self._read(self._material)
        return self._content

    def forget(self) -> None:
        """Read the file again next time."""
        self._until_ns = 0

    def _read(self, file: Path) -> None:
        try:
            found = file.read_bytes()
            if not found.strip():
                raise CredentialsError(problem=f"{file} is empty")
        except OSError as error:
            if not self._content:
                raise CredentialsError(problem=f"{file} cannot be read: {error.strerror}") from error
            _log.warning("credentials_unreadable", file=str(file), reason=error.strerror)
            return  # the one we have may still be good, and the next call looks again
        self._content = found
        self._until_ns = self._clock.monotonic_ns() + REREAD_SECONDS * _NS


class UserCredentials:
    """Credentials of a `User` without a plugin, or beside one: then ``plugin`` gives what the user has not."""

    def __init__(self, user: User, *, clock: Clock, plugin: CredentialSource | None = None) -> None:
        """Read nothing yet."""
        self._plugin, self._clock = plugin, clock
        self._token = None if user.token is None else Kept(user.token, clock)
        self._pair = None
        if user.certificate is not None and user.key is not None:
            self._pair = (Kept(user.certificate, clock), Kept(user.key, clock))
        self._basic = "" if not user.username else _basic(user.username, user.password)
        self._own: Credential | None = None
        self._until_ns = 0

    async def current(self) -> Credential:
        """See `CredentialSource`."""
        own = self._own
        if own is None or self._clock.monotonic_ns() >= self._until_ns:
            own = self._own = self._read()
            self._until_ns = self._clock.monotonic_ns() + _NS  # the files themselves know how often they are read
        if own.authorization or self._plugin is None:
            return own
        found = await self._plugin.current()
        return Credential(found.authorization, found.certificate or own.certificate)

    def refused(self, credential: Credential) -> None:
        """See `CredentialSource`."""
        self._own = None
        for kept in (self._token, *(self._pair or ())):
            if kept is not None:
                kept.forget()
        if self._plugin is not None:
            self._plugin.refused(credential)

    def _read(self) -> Credential:
        authorization = self._basic
        if self._token is not None:
            authorization = f"Bearer {_one_line(self._token.read())}"
        pair = None if self._pair is None else (self._pair[0].read(), self._pair[1].read())
        found = Credential(authorization, pair)
        return self._own if self._own == found and self._own is not None else found


def _one_line(token: bytes) -> str:
    """Return a token as a header may have it; raises `CredentialsError` for what could smuggle in another header."""
    text = token.strip().decode("ascii", errors="replace")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise CredentialsError(problem="the token holds characters that no token has")
    return text


def _basic(username: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"
