"""A certificate authority of one day, and certificates signed by it for servers on loopback and their clients."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.errors import FetchError, ServerMissingError

if TYPE_CHECKING:
    from tests.servers.progress import Tell

FRESH_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificate:
    """The files that a server with TLS and its clients need."""

    ca_file: Path
    certificate_file: Path
    key_file: Path


@dataclass(frozen=True)
class Authority:
    """Signs certificates, in a folder of its own."""

    folder: Path
    openssl: Path

    @property
    def ca_file(self) -> Path:
        """What those must trust who are to trust its certificates."""
        return self.folder / "ca.crt"

    def issue(self, name: str, *, subject: str, extensions: str) -> Certificate:
        """A new key and its certificate, `NAME.key` and `NAME.crt`; `extensions` are lines of openssl's own."""
        (self.folder / f"{name}.ext").write_text(f"{extensions}\n", encoding="ascii")
        self.run("req", "-subj", subject, *FRESH_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self.run(
            *("x509", "-req", "-days", "1", "-in", f"{name}.csr", "-extfile", f"{name}.ext", "-out", f"{name}.crt"),
            *("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
        )
        return Certificate(self.ca_file, self.folder / f"{name}.crt", self.folder / f"{name}.key")

    def run(self, *arguments: str) -> None:
        """One step of openssl, which takes milliseconds. Raises `ServerMissingError` with what it said."""
        done = subprocess.run(
            [self.openssl, *arguments], cwd=self.folder, capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode != 0:
            raise ServerMissingError("openssl", f"it made no certificate: {done.stderr}")


def _openssl(tell: Tell) -> Path:
    from tests.servers.cache import fetched
    from tests.servers.packages import Debian

    found = shutil.which("openssl")
    if found is not None:
        return Path(found)
    try:
        return fetched(Debian("openssl", size=1_500_000), tell) / "usr" / "bin" / "openssl"
    except FetchError as error:
        raise ServerMissingError("openssl", f"needed for a server with TLS; {error}") from error


def make_authority(folder: Path, tell: Tell) -> Authority:
    """A new authority."""
    folder.mkdir(exist_ok=True)
    authority = Authority(folder, _openssl(tell))
    authority.run(
        *("req", "-x509", "-days", "1", "-subj", "/CN=lapse tests", *FRESH_KEY, "-keyout", "ca.key", "-out", "ca.crt")
    )
    return authority


def make_certificate(folder: Path, tell: Tell) -> Certificate:
    """Make an authority and a certificate signed by it, for `localhost` and 127.0.0.1."""
    authority = make_authority(folder, tell)
    return authority.issue("server", subject="/CN=localhost", extensions="subjectAltName=DNS:localhost,IP:127.0.0.1")
