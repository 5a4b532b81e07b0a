"""A server behind an HTTP proxy: calls and watches reach it as they would without one."""

from __future__ import annotations

import asyncio
import base64
import ssl
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import uvloop

from lapse.kube.api.client import KubeClient
from lapse.kube.api.transport import CallLimits
from lapse.kube.auth.config import Cluster, KubeConfig, User
from lapse.kube.errors import StoreUnavailableError
from lapse.kube.resources import EventType
from tests.servers.certificate import make_certificate
from tests.servers.progress import tell_stderr
from tests.unit.kube.faulty import KEY, FaultyServer, event, obj, says, streams
from tests.unit.kube.scripted import THING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.servers.certificate import Certificate

PASSWORD = "sesame open"
REFUSED = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 2\r\n\r\nno"
SOON = CallLimits(connect_seconds=0.3)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("certificate"), tell_stderr)


def serving(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate_file, certificate.key_file)
    return context


@dataclass
class TunnelProxy:
    """Opens tunnels as it is asked to, or says something else instead."""

    says: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n"
    tls: ssl.SSLContext | None = None
    heads: list[bytes] = field(default_factory=list)
    port: int = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[TunnelProxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            writer.write(self.says)
            if b" 200 " in self.says:
                host, _, port = head.split()[1].decode().rpartition(":")
                to_reader, to_writer = await asyncio.open_connection(host, int(port))
                await asyncio.gather(_relay(reader, to_writer), _relay(to_reader, writer))
        writer.close()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


@asynccontextmanager
async def client_through(
    proxy: str, server: FaultyServer, certificate: Certificate, limits: CallLimits | None = None
) -> AsyncIterator[KubeClient]:
    cluster = Cluster(server=server.url, ca=certificate.ca_file, proxy=proxy)
    config = KubeConfig(cluster=cluster, user=User(token=b"token"))
    client = KubeClient(config, environ={}, limits=limits or CallLimits())
    try:
        yield client
    finally:
        await client.close()


async def call_and_watch(proxy_tls: ssl.SSLContext | None, certificate: Certificate) -> TunnelProxy:
    server = FaultyServer(says(200, obj()), says(200, obj()), streams(event("ADDED", obj()), event("DELETED", obj())))
    proxy = TunnelProxy(tls=proxy_tls)
    async with server.running(tls=serving(certificate)), proxy.running():
        scheme = "http" if proxy_tls is None else "https"
        user = f"{scheme}://ann:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{proxy.port}"
        async with client_through(user, server, certificate) as client:
            for _ in range(2):
                assert (await client.get(THING, KEY)).metadata.name == "a"
            told = [each.type async for each in client.watch(THING, since="1")]
            assert told == [EventType.ADDED, EventType.DELETED]
    assert [headers["Authorization"] for headers in server.headers] == ["Bearer token"] * 3
    assert not any("Proxy-Authorization" in headers for headers in server.headers)
    return proxy


@pytest.mark.process  # openssl makes a certificate
@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("over", ["http", "https"])
def test_a_server_with_tls_is_reached_through_a_tunnel(loop: object, over: str, certificate: Certificate) -> None:
    assert callable(loop)
    proxy = loop(call_and_watch(serving(certificate) if over == "https" else None, certificate))
    (head,) = proxy.heads  # one connection served all
    shown = base64.b64encode(f"ann:{PASSWORD}".encode())
    assert head.startswith(b"CONNECT 127.0.0.1:")
    assert b"\r\nProxy-Authorization: Basic " + shown + b"\r\n" in head
    assert b"Bearer" not in head, "the token is for the server alone"


@pytest.mark.process
@pytest.mark.parametrize(
    ("says", "problem"),
    [
        (REFUSED, "no connection to .*: the proxy answered 407"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "no connection to .*: It is not HTTP/1"),
        (b"", r"no connection to .*"),
    ],
)
async def test_a_proxy_that_does_not_connect_is_told_without_its_password(
    says: bytes, problem: str, certificate: Certificate
) -> None:
    server, proxy = FaultyServer(streams()), TunnelProxy(says=says)
    async with server.running(tls=serving(certificate)), proxy.running():
        url = f"http://ann:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{proxy.port}"
        async with client_through(url, server, certificate) as client:
            with pytest.raises(StoreUnavailableError, match=problem) as failure:
                await client.get(THING, KEY)
            assert not len(client._transport._connections)
    assert "sesame" not in f"{failure.value!r} {failure.value.__cause__!r}"
    assert not server.asked


@pytest.mark.process
async def test_a_proxy_that_stays_silent_is_given_up_in_time(certificate: Certificate) -> None:
    silent = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    server = FaultyServer(streams())
    async with server.running(tls=serving(certificate)), client_through(url, server, certificate, SOON) as client:
        with pytest.raises(StoreUnavailableError, match=r"no connection to .* within 0\.3 s"):
            await client.get(THING, KEY)
    silent.set()
    listener.close()


async def test_a_server_without_tls_is_asked_by_the_proxy_itself() -> None:
    server = FaultyServer(says(200, obj()), streams(event("ADDED", obj())))
    async with server.running():
        cluster = Cluster(server="http://127.0.0.1:9/prefix", proxy=server.url.replace("//", "//ann:pass@"))
        client = KubeClient(KubeConfig(cluster=cluster), environ={})
        assert (await client.get(THING, KEY)).metadata.name == "a"
        assert [each.type async for each in client.watch(THING, since="1")] == [EventType.ADDED]
        await client.close()
    for headers in server.headers:
        assert headers["Host"] == "127.0.0.1:9"
        assert headers["Proxy-Authorization"] == "Basic " + base64.b64encode(b"ann:pass").decode()
    assert server.targets[0].startswith("http://127.0.0.1:9/prefix/apis/")
