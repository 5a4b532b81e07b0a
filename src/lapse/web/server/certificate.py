"""The certificate of a listener with TLS: read from two files, and again when they are replaced.

Certificates of a cluster live for weeks and are replaced on disk by their issuer (cert-manager, the kubelet). A
new pair counts for the next connection; connections that exist go on. Files that cannot be used (gone, half written, a
certificate whose key is still the old one) change nothing: the last good pair stays until there is a better one.

A new context for each pair, which a connection is handed in its handshake. To load a pair into the context in use would
be simpler, but a key that does not fit leaves that context without any.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final

from lapse.core.errors import LapseError
from lapse.core.log import get_logger

LOOK_SECONDS: Final = 5.0
_NO_PASSWORD: Final = ""
"""Instead of asking at the terminal for one."""
_log = get_logger("lapse.web.server.certificate")


class CertificateError(LapseError):
    """The certificate {certificate} with the key {key_file} cannot be used: {problem}."""


class Certificate:
    """A `lapse.engine.running.coordinator.Loop` that looks at the files; `context` is for the listener."""

    name = "certificate"
    interval = LOOK_SECONDS
    leader_only = False

    def __init__(self, certificate: Path, key: Path, *, domain: str) -> None:
        """Read the files; raises `CertificateError`."""
        self.domain = domain
        self._files = (certificate, key)
        self._trouble = ""
        self._seen: tuple[bytes, bytes] | None = self._contents()
        self._current = self._load()
        self.context = self._load()
        self.context.sni_callback = self._hand_over  # also called for clients that name no server

    async def tick(self) -> None:
        """Take up files that were replaced."""
        await asyncio.to_thread(self.look)

    def look(self) -> None:
        """See `tick`."""
        try:
            found = self._contents()
            if found == self._seen:
                return
            self._current = self._load()
        except CertificateError as error:
            self._seen = None  # so that the next look tries again: the files may have been caught half replaced
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("certificate_kept", reason=self._trouble)
            return
        # What was read and not what was loaded: files that were replaced in between are different at the next look.
        self._seen, self._trouble = found, ""
        _log.info("certificate_replaced", file=str(self._files[0]))

    def _hand_over(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _of: ssl.SSLContext) -> None:
        connection.context = self._current

    def _contents(self) -> tuple[bytes, bytes]:
        try:
            return self._files[0].read_bytes(), self._files[1].read_bytes()
        except OSError as error:
            raise self._error(f"{error.filename}: {error.strerror}") from error

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(*self._files, password=_NO_PASSWORD)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise self._error("are both PEM, a pair, and without a password?") from error
        return context

    def _error(self, problem: str) -> CertificateError:
        return CertificateError(certificate=self._files[0], key_file=self._files[1], problem=problem)
