"""The transport against real sockets of this machine: what is sent, what is refused, and what is told."""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from lapse.client import (
    AnswerMissingError,
    AsyncClient,
    Client,
    NotLapseError,
    ServerAddressError,
    ServerUnreachableError,
    TokenFormError,
    TokenInTheClearError,
)
from lapse.client.errors import TrustFileError
from lapse.client.transport import LapseServer, TimeLimits, trust_authority, trust_certificate
from lapse.core.clock import VirtualClock
from lapse.engine.verbs.contract import FreezeRequest, HoldRequest, PlanRequest, WhyRequest
from tests.servers.certificate import make_authority
from tests.servers.progress import tell_stderr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

TOKEN = "lapse_0a1b_hunter2"
FROZEN = b'{"domain":"all","frozen":null,"resumed":[],"place":"there"}'
PROBLEM = b'{"type":"about:blank","title":"x","status":503,"detail":"Not now.","code":"StoppingError","instance":"1"}'


def answer(status: int, body: bytes, *fields: str) -> bytes:
    head = "".join(f"{one}\r\n" for one in (*fields, f"Content-Length: {len(body)}"))
    return f"HTTP/1.1 {status} Reason\r\n{head}\r\n".encode() + body


class ScriptedServer:
    """Answers as it is told to, one answer for each connection; the last one again and again."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.asked, self.cut = asyncio.Event(), asyncio.Event()
        self.ended = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: ([0-9]+)", head)
        self.requests.append(head + await reader.readexactly(0 if length is None else int(length[1])))
        self.asked.set()
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        with suppress(ConnectionError):
            if given is None:  # it says nothing until the client goes
                await reader.read()
            else:
                writer.write(given)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.ended += 1
        self.cut.set()


@asynccontextmanager
async def serving(
    *answers: bytes | None, limits: TimeLimits | None = None
) -> AsyncIterator[tuple[ScriptedServer, AsyncClient]]:
    script = ScriptedServer(*answers)
    server = await asyncio.start_server(script, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        client = AsyncClient(f"http://127.0.0.1:{port}", TOKEN, limits=limits or TimeLimits(), clock=InstantClock())
        yield script, client
        while script.ended < len(script.requests):
            script.cut.clear()
            await asyncio.wait_for(script.cut.wait(), 10)


class InstantClock(VirtualClock):
    """A clock on which every pause is over at once."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)


FREEZE = FreezeRequest(domain="all")


async def test_a_change_is_a_post_with_a_token_and_a_json_body() -> None:
    async with serving(answer(200, FROZEN)) as (script, client):
        assert (await client.freeze(FREEZE)).place == "there"

    head, _, body = script.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /api/v1/freeze HTTP/1.1\r\n")
    assert f"\r\nAuthorization: Bearer {TOKEN}\r\n".encode() in head
    assert b"\r\nContent-Type: application/json\r\n" in head
    assert body == b'{"domain":"all","reason":""}'


async def test_an_address_stands_in_the_path_as_it_is_written() -> None:
    async with serving(answer(404, PROBLEM)) as (script, client):
        with pytest.raises(Exception, match="Not now"):
            await client.why(WhyRequest(address="key/7/a%2Fb c", at="2h"))

    assert script.requests[0].startswith(b"GET /api/v1/why/key/7/a%2Fb%20c?at=2h HTTP/1.1\r\n")


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://lapse.example.org", "http://192.0.2.7:8750", "http://localhost.example.org"])
def test_a_token_is_not_sent_to_another_machine_without_tls(url: str) -> None:
    with pytest.raises(TokenInTheClearError) as refused:
        AsyncClient(url, TOKEN)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.3.4.5", "http://[::1]:8", "http://localhost:8750"])
def test_a_token_is_sent_to_this_machine_without_tls(url: str) -> None:
    assert repr(AsyncClient(url, TOKEN)) == f"AsyncClient({url!r})"


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX-Admin: yes", "naïve", "a\x00b"])
def test_what_cannot_be_a_token_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(TokenFormError) as refused:
        Client("https://lapse.example.org", token)
    assert not token or token not in str(refused.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirection_is_followed(status: int) -> None:
    async with serving(answer(200, FROZEN)) as (elsewhere, other):
        location = f"Location: {other._transport.server}/api/v1/freeze"
        async with serving(answer(status, b"", location)) as (_, client):
            with pytest.raises(NotLapseError, match="sends to another address"):
                await client.freeze(FREEZE)
    assert elsewhere.requests == []


# --- addresses of servers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://Lapse.example.org", "https://lapse.example.org"),
        ("https://lapse.example.org:443/", "https://lapse.example.org"),
        (" http://localhost:8750 ", "http://localhost:8750"),
        ("https://example.org/lapse/", "https://example.org/lapse"),
        ("http://[::1]:80", "http://[::1]"),
    ],
)
def test_a_server_has_one_form(text: str, expected: str) -> None:
    assert str(LapseServer.parse(text)) == expected
    assert LapseServer.parse(expected) == LapseServer.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "lapse.example.org", "ftp://lapse.example.org", "https://", "https://h:0", "https://h:99999"),
        *("https://h/a b", "https://h?x=1", "https://h#x", "https://[::1", "https://user:hunter2@h"),
    ],
)
def test_what_is_no_address_of_a_server_is_refused_without_a_password(text: str) -> None:
    with pytest.raises(ServerAddressError) as refused:
        LapseServer.parse(text)
    assert "hunter2" not in str(refused.value)


# --- what goes wrong on the way ---------------------------------------------------------------------------------------


async def test_a_question_is_asked_again_while_the_server_cannot_answer() -> None:
    plan = answer(422, PROBLEM)
    async with serving(answer(503, PROBLEM), b"", plan) as (script, client):
        with pytest.raises(Exception, match="Not now"):
            await client.plan(PlanRequest())
    assert len(script.requests) == 3


async def test_a_change_is_sent_once_whatever_comes_of_it() -> None:
    for given in (answer(503, PROBLEM), b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"):
        async with serving(given) as (script, client):
            with pytest.raises(Exception, match=r"Not now|whether it did what was asked is not known|Whether"):
                await client.freeze(FREEZE)
        assert len(script.requests) == 1


async def test_a_change_without_an_answer_says_that_its_outcome_is_not_known() -> None:
    async with serving(None, limits=TimeLimits(change=0.05)) as (_, client):
        with pytest.raises(
            AnswerMissingError, match=r"not within 0\.05 s\. Whether it did what was asked is not known"
        ):
            await client.freeze(FREEZE)


async def test_a_question_without_an_answer_ends_after_three_times() -> None:
    async with serving(None, limits=TimeLimits(read=0.05)) as (script, client):
        with pytest.raises(ServerUnreachableError, match=r"cannot be reached: not within 0\.05 s"):
            await client.plan(PlanRequest())
    assert len(script.requests) == 3


async def test_a_server_that_is_not_there_is_named() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(ServerUnreachableError, match=f"http://127.0.0.1:{port} cannot be reached: no program listens"):
        await AsyncClient(f"http://127.0.0.1:{port}", TOKEN, clock=InstantClock()).freeze(FREEZE)


async def test_a_call_that_is_cancelled_ends_its_connection() -> None:
    async with serving(None) as (script, client):
        call = asyncio.create_task(client.freeze(FREEZE))
        await script.asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(script.cut.wait(), 10)


@pytest.mark.parametrize(
    "given",
    [
        answer(200, b"<html>"),
        answer(200, b'{"domain": 7}'),
        answer(404, b"<html>not here</html>"),
        answer(500, b""),
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    ],
)
async def test_what_does_not_answer_like_lapse_is_told_as_such(given: bytes) -> None:
    async with serving(given) as (_, client):
        with pytest.raises(NotLapseError, match="does not answer as Lapse does"):
            await client.freeze(FREEZE)


async def test_what_is_no_unicode_is_not_sent() -> None:
    async with serving(answer(200, FROZEN)) as (script, client):
        with pytest.raises(Exception, match="no valid Unicode"):
            await client.hold(HoldRequest(address="thing/a", reason="\udcff"))
    assert script.requests == []


def _blocking(call: Callable[[], object]) -> None:
    with pytest.raises(ServerUnreachableError):
        call()


async def test_the_client_without_await_works_beside_a_loop_that_runs() -> None:
    _blocking(lambda: Client("http://127.0.0.1:1", TOKEN, clock=InstantClock()).freeze(FREEZE))


def test_the_client_without_await_leaves_the_loop_of_its_thread_as_it_is() -> None:
    own = asyncio.new_event_loop()
    asyncio.set_event_loop(own)
    try:
        _blocking(lambda: Client("http://127.0.0.1:1", TOKEN, clock=InstantClock()).freeze(FREEZE))
        assert asyncio.get_event_loop() is own
    finally:
        asyncio.set_event_loop(None)
        own.close()


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.mark.process
async def test_a_certificate_must_be_trusted_and_of_the_name_that_is_asked_for(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, tell_stderr)
    made = authority.issue("server", subject="/CN=localhost", extensions="subjectAltName=DNS:localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate_file, made.key_file)
    script = ScriptedServer(answer(200, FROZEN))
    server = await asyncio.start_server(script, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    trusting = ssl.create_default_context(cafile=str(authority.ca_file))

    def client(host: str, tls: ssl.SSLContext | None) -> AsyncClient:
        return AsyncClient(f"https://{host}:{port}", TOKEN, tls=tls, clock=InstantClock())

    async with server:
        assert (await client("localhost", trusting).freeze(FREEZE)).place == "there"
        with pytest.raises(ServerUnreachableError, match=r"(?s)its certificate is not trusted.*LAPSE_CA_FILE=FILE"):
            await client("localhost", None).freeze(FREEZE)
        with pytest.raises(ServerUnreachableError, match="its certificate is not trusted"):
            await client("localhost", None).status()  # nor is it asked again, though that would change nothing
        with pytest.raises(ServerUnreachableError, match=r"its certificate is not trusted: .*mismatch"):
            await client("127.0.0.1", trusting).freeze(FREEZE)
        assert len(script.requests) == 1
        assert (await client("localhost", trust_authority(authority.ca_file)).freeze(FREEZE)).place == "there"
        assert (await client("127.0.0.1", trust_certificate(made.certificate_file)).freeze(FREEZE)).place == "there"
        other = authority.issue("other", subject="/CN=localhost", extensions="subjectAltName=IP:127.0.0.1")
        with pytest.raises(ServerUnreachableError, match="its certificate is not trusted"):
            await client("127.0.0.1", trust_certificate(other.certificate_file)).freeze(FREEZE)


@pytest.mark.parametrize(
    "content", [None, "", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"]
)
def test_a_file_without_a_certificate_says_whom_to_trust_to_nobody(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    if content is not None:
        file.write_text(content)
    for trust in (trust_authority, trust_certificate):
        with pytest.raises(TrustFileError, match=r"ca\.crt.*cannot be used"):
            trust(file)
