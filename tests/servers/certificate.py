"""A certificate authority of one day and a server certificate for loopback, made on the fly by openssl."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.errors import FetchError, ServerMissingError
from tests.servers.process import run_command
from tests.servers.server import log_tail

if TYPE_CHECKING:
    from tests.servers.progress import Tell


@dataclass(frozen=True)
class Certificate:
    """The files that a server with TLS and its clients need."""

    ca_file: Path
    certificate_file: Path
    key_file: Path


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


def make_certificate(folder: Path, tell: Tell) -> Certificate:
    """Make an authority and a certificate signed by it, for `localhost` and 127.0.0.1."""
    folder.mkdir(exist_ok=True)
    openssl = _openssl(tell)
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n", encoding="ascii")
    fresh_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    steps = [
        [
            *("req", "-x509", "-days", "1", "-subj", "/CN=lapse tests"),
            *fresh_key,
            "-keyout",
            "ca.key",
            "-out",
            "ca.crt",
        ],
        [*("req", "-subj", "/CN=localhost"), *fresh_key, "-keyout", "server.key", "-out", "server.csr"],
        [
            *("x509", "-req", "-days", "1", "-in", "server.csr", "-extfile", "names", "-out", "server.crt"),
            *("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
        ],
    ]
    log = folder / "openssl.log"
    for step in steps:
        if run_command([openssl, *step], log=log, cwd=folder) != 0:
            raise ServerMissingError("openssl", f"it made no certificate: {log_tail(log)}")
    return Certificate(folder / "ca.crt", folder / "server.crt", folder / "server.key")
