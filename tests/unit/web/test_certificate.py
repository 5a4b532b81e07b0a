"""The pair of files behind a TLS listener: what clients are shown, before and after they are replaced."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest

from lapse.web.server.listener import Certificate, CertificateError
from tests.servers.certificate import Authority, make_authority
from tests.servers.progress import tell_stderr

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"), tell_stderr)


def place(authority: Authority, name: str, folder: Path, *, key: str | None = None) -> bytes:
    """Put a new pair where the listener looks, or one whose key belongs to another; return what clients should see."""
    made = authority.issue(name, subject="/CN=localhost", extensions="subjectAltName=DNS:localhost,IP:127.0.0.1")
    shutil.copy(made.certificate_file, folder / "tls.crt")
    shutil.copy(made.key_file if key is None else authority.folder / f"{key}.key", folder / "tls.key")
    return ssl.PEM_cert_to_DER_cert(made.certificate_file.read_text())


async def shown(certificate: Certificate, authority: Authority, *, server_name: str | None) -> bytes:
    """Connect as a client that trusts the authority, and return the certificate that it is shown."""

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=certificate.context)
    async with server:
        context = ssl.create_default_context(cafile=str(authority.ca_file))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        host, port = server.sockets[0].getsockname()
        _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=server_name)
        seen: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
    return seen


@pytest.mark.process
@pytest.mark.parametrize("server_name", ["localhost", "127.0.0.1"], ids=["by name", "by address, which sends no name"])
async def test_a_pair_that_was_replaced_is_shown_to_the_next_client(
    server_name: str, authority: Authority, tmp_path: Path
) -> None:
    first = place(authority, "first", tmp_path)
    certificate = Certificate(tmp_path / "tls.crt", tmp_path / "tls.key", domain="requests")
    assert await shown(certificate, authority, server_name=server_name) == first

    second = place(authority, "second", tmp_path)
    await certificate.tick()
    assert second != first
    assert await shown(certificate, authority, server_name=server_name) == second


@pytest.mark.process
async def test_a_pair_that_cannot_be_used_changes_nothing_until_it_can(authority: Authority, tmp_path: Path) -> None:
    first = place(authority, "first", tmp_path)
    certificate = Certificate(tmp_path / "tls.crt", tmp_path / "tls.key", domain="requests")

    place(authority, "second", tmp_path, key="first")  # caught half replaced
    await certificate.tick()
    assert await shown(certificate, authority, server_name="localhost") == first

    (tmp_path / "tls.crt").unlink()
    await certificate.tick()
    assert await shown(certificate, authority, server_name="localhost") == first

    (tmp_path / "tls.crt").write_text("nonsense")
    await certificate.tick()
    assert await shown(certificate, authority, server_name="localhost") == first

    third = place(authority, "third", tmp_path)
    await certificate.tick()
    assert await shown(certificate, authority, server_name="localhost") == third


@pytest.mark.process
async def test_files_that_stayed_as_they_are_are_not_loaded_again(authority: Authority, tmp_path: Path) -> None:
    place(authority, "first", tmp_path)
    certificate = Certificate(tmp_path / "tls.crt", tmp_path / "tls.key", domain="requests")
    before = certificate._current
    await certificate.tick()
    assert certificate._current is before


@pytest.mark.process
def test_a_pair_that_cannot_be_used_at_the_start_is_named(authority: Authority, tmp_path: Path) -> None:
    files = (tmp_path / "tls.crt", tmp_path / "tls.key")
    with pytest.raises(CertificateError, match=rf"{files[0]}: No such file"):
        Certificate(*files, domain="requests")

    place(authority, "other", tmp_path)
    place(authority, "first", tmp_path, key="other")
    with pytest.raises(CertificateError, match="a pair"):
        Certificate(*files, domain="requests")


@pytest.mark.process
def test_a_key_with_a_password_is_refused_without_asking_for_it(authority: Authority, tmp_path: Path) -> None:
    place(authority, "first", tmp_path)
    key = tmp_path / "tls.key"
    subprocess.run(
        [authority.openssl, "ec", "-aes256", "-passout", "pass:sesame", "-in", key, "-out", key],
        check=True,
        capture_output=True,
        timeout=60,
    )
    with pytest.raises(CertificateError, match="without a password"):
        Certificate(tmp_path / "tls.crt", key, domain="requests")
