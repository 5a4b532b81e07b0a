"""Credentials for the API server, renewed while we run, and the TLS contexts that they are part of.

Tokens and certificates in files are read again at most once a minute, and at once after the server refused them: the
token of a pod is replaced long before it ends, and a person may have logged in again. What a plugin printed is kept
until it ends (`lapse.kube.auth.exec_credentials`). A file that cannot be read for a moment does not take away what was
read before.

No token, password or key is part of a ``repr``, a message or a log event.

A TLS context is made when the authority or the certificate changed, and kept otherwise: connections are shared only
among requests with the same context, so new credentials mean new connections by themselves.
"""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Protocol

from lapse.core.log import get_logger
from lapse.kube.errors import CredentialsError, KubeConfigError

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.kube.auth.config import Cluster, Material, User

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
    """Credentials of a `User`; where it names an exec command, ``exec_credentials`` give what the user has not."""

    def __init__(self, user: User, *, clock: Clock, exec_credentials: CredentialSource | None = None) -> None:
        """Read nothing yet."""
        self._exec_credentials, self._clock = exec_credentials, clock
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
        if own.authorization or self._exec_credentials is None:
            return own
        found = await self._exec_credentials.current()
        return Credential(found.authorization, found.certificate or own.certificate)

    def refused(self, credential: Credential) -> None:
        """See `CredentialSource`."""
        self._own = None
        for kept in (self._token, *(self._pair or ())):
            if kept is not None:
                kept.forget()
        if self._exec_credentials is not None:
            self._exec_credentials.refused(credential)

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


_NO_PASSWORD: Final = ""
"""Instead of asking at the terminal for one."""


class Contexts:
    """See the module."""

    def __init__(self, cluster: Cluster, *, clock: Clock) -> None:
        """Read the authority; raises `KubeConfigError` when there is none in it."""
        self._insecure, self._plain = cluster.insecure, cluster.server.startswith("http://")
        self._ca = None if cluster.ca is None else Kept(cluster.ca, clock)
        self._certificate: tuple[bytes, bytes] | None = None
        try:
            self._authority = self._read_authority()
            self._context = self._make(self._authority, None)
        except CredentialsError as error:
            raise KubeConfigError(problem=f"certificate-authority: {error.details['problem']}") from None
        except (ssl.SSLError, UnicodeError, ValueError):
            raise KubeConfigError(problem="certificate-authority holds no certificate in PEM form") from None

    def context(self, credential: Credential) -> ssl.SSLContext | None:
        """Return what a request with that credential is sent with, None without TLS; raises `CredentialsError`."""
        if self._plain:
            return None
        authority = self._read_authority()
        if authority != self._authority or credential.certificate != self._certificate:
            try:
                context = self._make(authority, credential.certificate)
            except (ssl.SSLError, UnicodeError, ValueError):
                what = (
                    "the client certificate and its key cannot be used: are they PEM, a pair, and without a password?"
                )
                raise CredentialsError(problem=what) from None
            self._context, self._authority, self._certificate = context, authority, credential.certificate
        return self._context

    def _read_authority(self) -> bytes:
        return b"" if self._ca is None else self._ca.read()

    def _make(self, authority: bytes, pair: tuple[bytes, bytes] | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=authority.decode() or None)
        # Newer Pythons refuse authorities without a key identifier, which many clusters have made for themselves.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self._insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if pair is not None:
            with TemporaryDirectory(prefix="lapse-") as folder:  # for our eyes only; OpenSSL reads nothing but files
                certificate, key = Path(folder) / "certificate", Path(folder) / "key"
                certificate.write_bytes(pair[0])
                key.write_bytes(pair[1])
                context.load_cert_chain(certificate, key, password=_NO_PASSWORD)
        return context
