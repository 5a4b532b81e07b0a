"""TLS towards the API server: whom we trust, and the certificate that we show.

A context is made when the authority or the certificate changed, and kept otherwise: connections are shared only among
requests with the same context, so new credentials mean new connections by themselves.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from lapse.kube.auth.credentials import Credential, Kept
from lapse.kube.errors import CredentialsError, KubeConfigError

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.kube.auth.config import Cluster

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
