"""Answers of HTTP/1.1, in whatever pieces they come."""

from __future__ import annotations

import gzip

import pytest

from lapse.kube.api.http1 import RawResponse, ResponseReader, UnreadableError

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\nRetry-After: 3\r\n\r\nhello"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;more=x\r\nlo\r\n0\r\n\r\n"
TRAILERS = CHUNKS[:-2] + b"X-Sum: 1\r\n\r\n"
INFORMED = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH


def read(*pieces: bytes) -> RawResponse | None:
    answer = ResponseReader()
    found = None
    for piece in pieces:
        assert found is None, "it was complete before the last piece"
        found = answer.feed(piece)
    return found


@pytest.mark.parametrize("text", [LENGTH, CHUNKS, TRAILERS, INFORMED])
def test_an_answer_is_complete_with_its_last_byte_whatever_pieces_it_comes_in(text: bytes) -> None:
    whole, single = read(text), read(*[bytes([byte]) for byte in text])

    assert whole is not None
    assert whole == single
    assert (whole.status, whole.content, whole.keep) == (200, b"hello", True)


def test_headers_are_found_whatever_their_case() -> None:
    reply = read(LENGTH)

    assert reply is not None
    assert reply.headers[b"retry-after"] == b"3"


@pytest.mark.parametrize("code", [204, 304])
def test_an_answer_without_a_body_needs_no_length(code: int) -> None:
    reply = read(b"HTTP/1.1 %d x\r\n\r\n" % code)

    assert reply is not None
    assert (reply.status, reply.content) == (code, b"")


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    answer = ResponseReader()

    assert answer.feed(b"HTTP/1.1 200 OK\r\n\r\nhel") is None
    assert answer.feed(b"lo") is None
    reply = answer.end()
    assert reply is not None
    assert (reply.content, reply.keep) == (b"hello", False)


@pytest.mark.parametrize("text", [b"", LENGTH[:10], LENGTH[:-1], CHUNKS[:-1], CHUNKS[:60]])
def test_an_answer_that_is_cut_short_is_none(text: bytes) -> None:
    answer = ResponseReader()

    assert answer.feed(text) is None
    assert answer.end() is None
    assert answer.begun is bool(text)


def test_what_was_packed_is_unpacked() -> None:
    packed = gzip.compress(b"hello")
    reply = read(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed)

    assert reply is not None
    assert reply.content == b"hello"


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n",
    ],
)
def test_a_connection_is_not_kept_against_the_servers_wish_or_with_more_on_it_than_was_asked_for(head: bytes) -> None:
    reply = read(head)

    assert reply is not None
    assert not reply.keep


@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000,
        b"x" * 70_000,
    ],
)
def test_what_is_no_answer_is_never_guessed_at(text: bytes) -> None:
    with pytest.raises(UnreadableError):
        read(text)
