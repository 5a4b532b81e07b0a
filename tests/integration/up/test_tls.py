"""``lapse up`` with TLS: real processes, real handshakes, and the commands of the user who runs it."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.servers.certificate import Authority, Certificate, make_authority
from tests.servers.lapse_server import COMMAND, LapseServer, clean_environment, lapse, until
from tests.servers.progress import tell_stderr

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Connect = Callable[[], http.client.HTTPSConnection]
STATUS = "/api/v1/status"
HERE = "subjectAltName=DNS:localhost,IP:127.0.0.1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"), tell_stderr)


@dataclass
class Pair:
    """The files that the server reads."""

    authority: Authority
    folder: Path

    def place(self, name: str, *, extensions: str = HERE, key_of: Certificate | None = None) -> Certificate:
        """Put a new certificate there, with its key or with that of another."""
        made = self.authority.issue(name, subject="/CN=lapse", extensions=extensions)
        for source, target in ((made.certificate_file, "tls.crt"), ((key_of or made).key_file, "tls.key")):
            shutil.copy(source, self.folder / f"{target}.new")
            (self.folder / f"{target}.new").replace(self.folder / target)
        return made

    @property
    def flags(self) -> tuple[str, str]:
        return f"--http-tls-certificate={self.folder / 'tls.crt'}", f"--http-tls-key={self.folder / 'tls.key'}"


@pytest.fixture
def pair(authority: Authority, tmp_path: Path) -> Pair:
    return Pair(authority, tmp_path)


@pytest.fixture
def server(pair: Pair, tmp_path: Path) -> Iterator[LapseServer]:
    pair.place("first")
    running = LapseServer.start(tmp_path, *pair.flags)
    yield running
    running.stop()


def port_of(server: LapseServer) -> int:
    port = urlsplit(server.http).port
    assert port is not None
    return port


def trusting(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


@pytest.fixture
def connect(server: LapseServer, authority: Authority) -> Iterator[Connect]:
    """Connect as a client that trusts the authority; all are closed at the end."""
    with ExitStack() as stack:

        def one() -> http.client.HTTPSConnection:
            made = http.client.HTTPSConnection("127.0.0.1", port_of(server), timeout=20, context=trusting(authority))
            stack.callback(made.close)
            made.connect()
            return made

        yield one


def shown(connection: http.client.HTTPSConnection) -> bytes | None:
    assert isinstance(connection.sock, ssl.SSLSocket)
    return connection.sock.getpeercert(binary_form=True)


def asked(connection: http.client.HTTPSConnection, server: LapseServer, path: str = STATUS) -> http.client.HTTPResponse:
    connection.request("GET", path, headers={"Authorization": f"Bearer {server.owner_token}"})
    answer = connection.getresponse()
    answer.read()
    return answer


def test_a_certificate_that_is_replaced_is_shown_to_the_next_and_cuts_nobody_off(
    server: LapseServer, pair: Pair, connect: Connect
) -> None:
    assert server.http.startswith("https://127.0.0.1:")
    before = connect()
    assert asked(before, server).status == 200
    first = shown(before)

    pair.place("unfit", key_of=pair.authority.issue("other", subject="/CN=other", extensions=HERE))
    until(lambda: server.event("certificate_kept"))
    assert shown(connect()) == first, "a pair that does not fit changes nothing"

    second = pair.place("second")
    until(lambda: server.event("certificate_replaced"))
    after = connect()
    assert shown(after) == ssl.PEM_cert_to_DER_cert(second.certificate_file.read_text()) != first
    assert asked(after, server).status == 200
    assert not server.event("request_failed")


def test_a_connection_goes_on_while_the_certificate_is_replaced(
    server: LapseServer, pair: Pair, connect: Connect
) -> None:
    secret = server.owner_token
    kept = connect()
    half = f"GET {STATUS} HTTP/1.1\r\nHost: 127.0.0.1:{port_of(server)}\r\n".encode()
    kept.sock.sendall(half)
    pair.place("second")
    until(lambda: server.event("certificate_replaced"))
    kept.sock.sendall(f"Authorization: Bearer {secret}\r\n\r\n".encode())
    assert kept.sock.recv(12) == b"HTTP/1.1 200"


def test_what_does_not_speak_tls_or_an_old_one_is_cut_off_without_a_word_in_the_log(
    server: LapseServer, authority: Authority, connect: Connect
) -> None:
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=20) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP")
    old = trusting(authority)
    old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    with (
        socket.create_connection(("127.0.0.1", port_of(server)), timeout=20) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        old.wrap_socket(plain, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=20) as stalled:
        stalled.sendall(b"\x16\x03\x01")
        assert asked(connect(), server).status == 200, "nobody waits for a handshake of others"
    assert not [line for line in server.log if "Traceback" in line or '"level": "error"' in line]


def test_a_session_over_tls_is_of_this_host_and_of_tls_alone(server: LapseServer, connect: Connect) -> None:
    assert server.state_dir is not None
    opened = lapse(
        "open", f"--state-dir={server.state_dir}", f"--http-port={port_of(server)}", state_dir=server.state_dir
    )
    assert opened.returncode == 0, opened.stderr
    link = urlsplit(opened.stdout.split()[0])
    assert f"{link.scheme}://{link.netloc}" == server.http

    browser = connect()
    browser.request("GET", f"{link.path}?{link.query}")
    answer = browser.getresponse()
    answer.read()
    cookie = answer.getheader("Set-Cookie") or ""
    assert cookie.startswith(f"__Host-lapse_{port_of(server)}=")
    assert {"Secure", "HttpOnly", "SameSite=Lax", "Path=/"} <= {one.strip() for one in cookie.split(";")}
    assert answer.getheader("Strict-Transport-Security") is None, "other servers of this machine may have no TLS"

    browser.request("GET", STATUS, headers={"Cookie": cookie.partition(";")[0]})
    assert browser.getresponse().status == 200


def test_commands_of_the_same_user_know_the_certificate_whatever_names_it_has(pair: Pair, tmp_path: Path) -> None:
    pair.place("elsewhere", extensions="subjectAltName=DNS:lapse.example.org")
    server = LapseServer.start(tmp_path, *pair.flags)
    try:
        told = lapse("status", "--server", server.http, state_dir=tmp_path)
        assert told.returncode == 0, told.stderr
        local = lapse("status", f"--state-dir={tmp_path}", state_dir=tmp_path)
        assert f"lapse status --server {server.http}" in local.stderr
    finally:
        server.stop()


def run(home: Path, *arguments: str, given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of somebody who has noted nothing."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env={**clean_environment(home), **variables},
        cwd=home,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_private_authority_is_named_by_a_variable_or_kept_by_login(
    server: LapseServer, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home, there = tmp_path_factory.mktemp("home"), f"https://localhost:{port_of(server)}"
    token, ca = server.owner_token, str(authority.ca_file)

    refused = run(home, "status", "--server", there, LAPSE_TOKEN=token)
    assert refused.returncode == 1
    assert "its certificate is not trusted" in refused.stderr
    assert "LAPSE_CA_FILE=FILE" in refused.stderr
    assert run(home, "status", "--server", there, LAPSE_TOKEN=token, LAPSE_CA_FILE=ca).returncode == 0
    missing = run(home, "status", "--server", there, LAPSE_TOKEN=token, LAPSE_CA_FILE=str(home / "none"))
    assert (missing.returncode, "none, which says whom to trust, cannot be used" in missing.stderr) == (64, True)

    assert run(home, "login", there, given=token).returncode == 1
    assert run(home, "login", there, "--ca-file", ca, given=token).returncode == 0
    assert run(home, "status", "--server", there).returncode == 0


def test_nothing_is_touched_where_the_pair_cannot_be_used(pair: Pair, tmp_path: Path) -> None:
    other = pair.authority.issue("other", subject="/CN=other", extensions=HERE)
    pair.place("first", key_of=other)
    folder = tmp_path / "state"
    ports = ("--http-port=0", "--probes-port=0", "--proxy-port=0")
    unfit = lapse("up", f"--state-dir={folder}", *ports, *pair.flags, state_dir=tmp_path)
    assert (unfit.returncode, "are both PEM, a pair" in unfit.stderr) == (1, True)
    alone = lapse("up", f"--state-dir={folder}", *ports, pair.flags[0], state_dir=tmp_path)
    assert (alone.returncode, "expected http_tls_key beside it" in alone.stderr) == (64, True)
    assert not folder.exists()


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_tokens_in_the_clear_are_warned_of_beyond_loopback(scheme: str, pair: Pair, tmp_path: Path) -> None:
    pair.place("first")
    made = lapse("tokens", "create", "--name", "ops", "--scope", "admin", f"--state-dir={tmp_path}", state_dir=tmp_path)
    assert made.returncode == 0, made.stderr
    server = LapseServer.start(tmp_path, "--http-host=0.0.0.0", *(pair.flags if scheme == "https" else ()))
    try:
        until(lambda: server.event("workspaces_not_served"))
        if scheme == "http":
            until(lambda: server.event("tokens_in_the_clear"))
        code, _ = server.stop()
        assert (code, server.event("tokens_in_the_clear") is None) == (0, scheme == "https")
    finally:
        server.stop()
